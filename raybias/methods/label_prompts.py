"""Ask a backbone for a text's label by Kohankhaki2024's prompts, and read it in the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import Field, model_validator

from raybias.config.section import Count, by_profile
from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.errors import DataError, WorkFailed
from raybias.methods.answer_labels import after_reasoning, is_withheld, read_reply
from raybias.methods.asking import Message, about, check_placeholders
from raybias.methods.base import Answered, Compute, Reader, Run, method, predictions
from raybias.methods.prompted import (
    CLOSED_LABELS,
    CLOSED_QUESTION,
    OPEN_LABELS,
    OPEN_QUESTION,
    Asking,
    Prompted,
    Shot,
    cue_of,
)
from raybias.probes.templates import capital
from raybias.seeding import generator
from raybias.storage import Store

#: The reasoning before an answer, empty without one, and the answer, with the tokens of both.
Reply = tuple[str, Written]


@method
class ZeroShot(Prompted):
    """The question alone."""

    kind: Literal["zero_shot"] = "zero_shot"
    template: str = CLOSED_QUESTION
    """The question, with `{text}` and, if it lists the label words, `{choices}`."""
    cue: str = cue_of(CLOSED_QUESTION, "Answer: The sentiment is")
    """What the answer begins with."""

    asked_of_labels: ClassVar[Mapping[str, str]] = {
        "template": CLOSED_LABELS,
        "cue": "Answer: The label is",
    }


@method
class FewShot(Prompted):
    """Demonstrations from a training set before the question."""

    kind: Literal["few_shot"] = "few_shot"
    template: str = OPEN_QUESTION
    """The question after the demonstrations, with `{text}` and, if need be, `{choices}`."""
    cue: str = cue_of(OPEN_QUESTION, "Answer:")
    """What the answer begins with, also in the demonstrations."""
    demonstration: str = OPEN_QUESTION + "Answer: {Label}.\n\n"
    """One demonstration, with `{text}` and its label word: `{label}`, or `{Label}` with a capital,
    which the likelihood of the labels is then read with too."""
    shots_per_label: Count = Field(3, ge=1)
    """Demonstrations of each label, drawn anew in each run."""
    shot_order: Literal["pool", "shuffled"] = by_profile(paper="pool", strict="shuffled")
    """By their row in the training set (pool), or shuffled in each run."""

    needs_training_set: ClassVar[bool] = True
    asked_of_labels: ClassVar[Mapping[str, str]] = {
        "template": OPEN_LABELS,
        "cue": "Answer:",
        "demonstration": OPEN_LABELS + "Answer: {Label}.\n\n",
    }

    @model_validator(mode="after")
    def _shows_texts_and_labels(self) -> Self:
        label = "label" if "{label}" in self.demonstration else "Label"
        check_placeholders(
            "demonstration", self.demonstration, needed=("text", label), others=("choices", "Label")
        )
        return self

    @property
    def draws(self) -> bool:
        return True

    def count_shots(self, labels: int) -> int:
        return labels * self.shots_per_label

    @property
    def shown_first(self) -> str:
        return f"{self.shots_per_label} demonstrations per label, order: {self.shot_order}"

    def shown(self, words: Sequence[str], shots: Sequence[Shot]) -> tuple[str, list[Message]]:
        """Write the demonstrations one after the other, or as questions and replies."""
        label = "{Label}" if "{Label}" in self.demonstration else "{label}"
        asked = self.demonstration.partition(label)[0].rstrip().removesuffix(self.cue)
        plain, messages = "", list[Message]()
        for shot, number in shots:
            word = words[number].strip()
            whole, content = (
                about(each, shot, words, label=word, Label=capital(word))
                for each in (self.demonstration, asked)
            )
            plain += whole
            messages += [
                Message(role="user", content=content.strip()),
                Message(role="assistant", content=whole[len(content) :].strip()),
            ]
        return plain, messages

    def answer_words(self, words: Sequence[str]) -> list[str]:
        if "{Label}" not in self.demonstration:
            return list(words)
        return [capital(word) for word in words]

    def draw_shots(
        self,
        sentences: Mapping[str, Mapping[str, pl.DataFrame]],
        training: str,
        seed: int,
        labels: Sequence[str],
    ) -> list[Shot]:
        """Draw the same number per label, without replacement, by the seed, label and set alone."""
        pool, drawn = sentences[training]["train"], list[int]()
        for label, name in enumerate(labels):
            rows = (pool["label"] == label).arg_true().to_numpy()
            if len(rows) < self.shots_per_label:
                raise DataError(
                    f"has {len(rows)} {name} sentences, not the {self.shots_per_label} that a run"
                    " shows",
                    where=f"training set {training}",
                    cure="take a larger pool or fewer shots_per_label",
                )
            chosen = generator(seed, "shots", label).choice(
                rows, self.shots_per_label, replace=False
            )
            drawn += chosen.tolist()
        drawn.sort()
        if self.shot_order == "shuffled":
            generator(seed, "shots", "order").shuffle(drawn)
        return [(str(pool["text"][row]), int(pool["label"][row])) for row in drawn]


@method
class ChainOfThought(Prompted):
    """Reasoning first, then an answer to it."""

    kind: Literal["cot"] = "cot"
    # The paper prints a period at its end and its code has none; the code is followed.
    template: str = CLOSED_QUESTION
    """The question, with `{text}` and `{choices}`."""
    cue: str = cue_of(CLOSED_QUESTION, "Reasoning: Let's think step by step")
    """What the reasoning begins with."""
    conclusion: str = "{reasoning}\nAnswer: Therefore, from {choices}, the sentiment is"
    """What follows the cue when the label is asked for, with `{reasoning}` and, if need be,
    `{text}` and `{choices}`; in a chat it belongs to the same turn of the model's."""
    reasoning_tokens: Count | None = Field(None, ge=1)
    """Most tokens of the reasoning: 256 in a chat, 64 after plain text by default."""

    asked_of_labels: ClassVar[Mapping[str, str]] = {
        "template": CLOSED_LABELS,
        "cue": "Reasoning: Let's think step by step",
        "conclusion": "{reasoning}\nAnswer: Therefore, from {choices}, the label is",
    }
    most_tokens: ClassVar[Mapping[str, tuple[int, int]]] = {
        **Prompted.most_tokens,
        "reasoning_tokens": (64, 256),
    }

    @property
    def shown_first(self) -> str:
        return f"its own reasoning, at most {self.reasoning_room} tokens"

    @property
    def draws(self) -> bool:
        return self.temperature > 0 or super().draws

    @property
    def reasoning_room(self) -> int:
        return self.room("reasoning_tokens")

    @model_validator(mode="after")
    def _concludes_from_the_reasoning(self) -> Self:
        check_placeholders(
            "conclusion", self.conclusion, needed=("reasoning",), others=("text", "choices")
        )
        return self

    def concluded(self, text: str, words: Sequence[str], reasoning: str) -> str:
        return about(self.conclusion, text, words, reasoning=reasoning)

    @property
    def asked_in_a_chat(self) -> str:
        return self.cue


@dataclass(frozen=True)
class PromptedReader(Reader):
    """Label texts by a backbone's answers to a prompt (Kohankhaki2024).

    `words`: the label words to look for. `means`: by run, the labels' mean scores over its
    calibration sentences, cached.
    """

    method: Prompted
    answers: Answers
    words: tuple[str, ...]
    store: Store
    means: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)

    @cached_property
    def form(self) -> Asking:
        """The writer of prompts for the backbone."""
        return self.method.form(self.answers.encoder)

    @cached_property
    def label_ids(self) -> tuple[tuple[int, ...], ...] | tuple[str, ...]:
        """By label, the tokens that may begin its word after the prompt."""
        return self.form.label_ids(self.words)

    def load(self, run_id: str) -> Run:
        recipe = json.loads(self.store.read_text(f"prompts/{run_id}.json"))
        return Run(run_id, seed=recipe["seed"], recipe=recipe)

    def prepare(self, run: Run, items: pa.Table) -> Compute:
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        ask = self._ask(run, item_ids, texts)

        def label() -> Answered:
            replies = ask()
            tokens = sum(answer.tokens for _, answer in replies)
            return Answered(self.labelled(run, items, replies), tokens)

        return label

    def _ask(
        self, run: Run, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Callable[[], list[Reply]]:
        """Write first prompts; return the call that gives the replies."""
        method, form = self.method, self.form
        shots = run.recipe.get("shots", ())
        asked = [form.first(each, self.words, shots) for each in texts]
        # Where the label words' likelihoods alone are read, nothing is drawn.
        temperature = method.temperature if method.answer_room else 0.0
        how = Writing(method.answer_room, temperature, form.chat, self.label_ids)
        keys = [_key(run, each, "answer") for each in item_ids]
        if not method.reasoning_room:
            write = self.answers.begin_write(asked, keys, how)
            return lambda: [("", each) for each in write()]
        reason = self.answers.begin_write(
            asked,
            [_key(run, each, "reasoning") for each in item_ids],
            Writing(method.reasoning_room, method.temperature, form.chat),
        )

        def conclude() -> list[Reply]:
            reasoned = reason()
            pairs = zip(texts, reasoned, strict=True)
            last = [form.last(text, self.words, reasoning=each.text) for text, each in pairs]
            written = self.answers.write(last, keys, how)
            return [
                (before.text, after_reasoning(before, each))
                for before, each in zip(reasoned, written, strict=True)
            ]

        return conclude

    def labelled(self, run: Run, items: pa.Table, replies: Sequence[Reply]) -> pa.Table:
        """Make the columns of predictions from the replies, by answers or by the highest score.

        Scores are stored uncalibrated, and beside calibrated labels the answer is the likeliest
        word, to show the effect on a gap.
        """
        method, answers = self.method, [each.text for _, each in replies]
        if method.read == "answer":
            logits_NL = np.array([each.label_scores for _, each in replies], np.float32)
            read = [
                read_reply(each, self.words, method.answer_rule, chat=self.form.chat)
                for _, each in replies
            ]
            rows = zip(items["item_id"].to_pylist(), read, logits_NL, strict=True)
            return predictions(
                items,
                scores=logits_NL,
                labels=[
                    self._label_unread(run, item_id, logits_L, each.unread)
                    if each.unread
                    else each.label
                    for item_id, each, logits_L in rows
                ],
                parsed=[each.label is not None for each in read],
                unread=[each.unread for each in read],
                answers=self._shown(replies, answers),
            )
        scores_NL, offsets_L = _scores(replies), np.zeros(len(self.words))
        words: list[str] = []
        if method.read == "calibrated":
            words = [self.words[n] for n in scores_NL.argmax(axis=1)]
            if run.run_id not in self.means:
                texts = run.recipe["calibration"]
                said = self._ask(run, [f"calibration-{n}" for n in range(len(texts))], texts)()
                self._refuse_bounds(said)
                self.means[run.run_id] = _scores(said).mean(axis=0)
            offsets_L = self.means[run.run_id]
        told = [_told(scores_L) for scores_L in scores_NL]
        likeliest = zip((scores_NL - offsets_L).argmax(axis=1).tolist(), told, strict=True)
        return predictions(
            items,
            scores=scores_NL.astype(np.float32),
            labels=[label if there else None for label, there in likeliest],
            parsed=told,
            unread=[
                None if there else "filtered" if is_withheld(each) else "none"
                for there, (_, each) in zip(told, replies, strict=True)
            ],
            answers=self._shown(replies, words),
        )

    def _refuse_bounds(self, said: Sequence[Reply]) -> None:
        """Refuse (WorkFailed) to calibrate a word whose score is a bound in most answers."""
        for label, word in enumerate(self.words):
            untold = sum(label in each.bounds for _, each in said)
            if 2 * untold > len(said):
                raise WorkFailed(
                    f"the likelihood of {word!r} is not told for {untold} of the {len(said)}"
                    " answers that `read: calibrated` takes its mean over",
                    cure="set read: answer, or in `verbalizer` words that begin unlike each other",
                )

    def _label_unread(
        self, run: Run, item_id: str, logits_L: npt.NDArray[np.float32], why: str
    ) -> int | None:
        """Label an answer that names no label by the method's rule; a withheld one has none."""
        if why == "filtered":
            return None
        if self.method.unparsed == "likelihood":
            return int(logits_L.argmax()) if _told(logits_L) else None
        if self.method.unparsed == "random":
            return int(generator(*_key(run, item_id, "unparsed")).integers(len(self.words)))
        return None

    def _shown(self, replies: Sequence[Reply], answers: Sequence[str]) -> list[str]:
        if not self.method.reasoning_room:
            return [*answers]
        reasoned = [before for before, _ in replies]
        pairs = zip(reasoned, answers, strict=False)
        return [f"{one} [...]{two}" if one else two for one, two in pairs] or reasoned


def _key(run: Run, item_id: str, stage: str) -> Key:
    return (run.seed or 0, run.run_id, item_id, stage)


def _told(scores_L: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> bool:
    """Tell whether any label is among the likeliest tokens; all have one score where none is."""
    return bool(np.ptp(scores_L))


def _scores(replies: Sequence[Reply]) -> npt.NDArray[np.float64]:
    """Return the labels' scores [texts, labels]; WorkFailed where an endpoint gave none."""
    if any(not each.label_scores for _, each in replies):
        raise WorkFailed(
            "no log-probabilities of first tokens came back, which `read` needs",
            cure="set read: answer, or take first_tokens out of `offers`",
        )
    return np.array([each.label_scores for _, each in replies], np.float64)
