"""Label texts by prompts: a run fixes the random draws, a reader turns answers into labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybias.engine.answers import Answers, Writing, Written
from raybias.errors import WorkFailed
from raybias.methods import prompts
from raybias.methods.base import Answered, Compute, Reader, predictions
from raybias.methods.prompted import Asking, Prompted, Shot
from raybias.seeding import generator
from raybias.storage import Store

#: The reasoning before an answer, empty without one, and the answer, with the tokens of both.
Reply = tuple[str, Written]


@dataclass(frozen=True)
class PromptedRun:
    """A run of a prompted method; `calibration`: sentences whose mean scores are subtracted."""

    run_id: str
    seed: int
    shots: tuple[Shot, ...] = ()
    calibration: tuple[str, ...] = ()

    def keys(self, item_ids: Sequence[str], stage: str) -> list[tuple[str | int, ...]]:
        """Return the sampling keys of items at a stage."""
        return [(self.seed, self.run_id, item_id, stage) for item_id in item_ids]


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

    def load(self, run_id: str) -> PromptedRun:
        content = json.loads(self.store.read_text(f"prompts/{run_id}.json"))
        shots = tuple((text, label) for text, label in content["shots"])
        return PromptedRun(run_id, content["seed"], shots, tuple(content.get("calibration", ())))

    def prepare(self, run: PromptedRun, items: pa.Table) -> Compute:
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        ask = self._ask(run, item_ids, texts)

        def label() -> Answered:
            replies = ask()
            tokens = sum(answer.tokens for _, answer in replies)
            return Answered(self.labelled(run, items, replies), tokens)

        return label

    def _ask(
        self, run: PromptedRun, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Callable[[], list[Reply]]:
        """Write first prompts; return the call that gives the replies."""
        method, form = self.method, self.form
        asked = [form.first(each, self.words, run.shots) for each in texts]
        how = Writing(method.answer_room, method.temperature, form.chat, self.label_ids)
        keys = run.keys(item_ids, "answer")
        if not method.reasoning_room:
            write = self.answers.begin_write(asked, keys, how)
            return lambda: [("", each) for each in write()]
        reason = self.answers.begin_write(
            asked,
            run.keys(item_ids, "reasoning"),
            replace(how, most=method.reasoning_room, labels=()),
        )

        def conclude() -> list[Reply]:
            reasoned = reason()
            pairs = zip(texts, reasoned, strict=True)
            last = [form.last(text, self.words, reasoning=each.text) for text, each in pairs]
            written = self.answers.write(last, keys, how)
            return [
                (before.text, each._replace(tokens=before.tokens + each.tokens))
                for before, each in zip(reasoned, written, strict=True)
            ]

        return conclude

    def labelled(self, run: PromptedRun, items: pa.Table, replies: Sequence[Reply]) -> pa.Table:
        """Make the columns of predictions from the replies, by answers or by the highest score.

        Scores are stored uncalibrated, and beside calibrated labels the answer is the likeliest
        word, to show the effect on a gap.
        """
        if self.method.read == "answer":
            return self._answered(run, items, replies)
        scores_NL, offsets_L = _scores(replies), np.zeros(len(self.words))
        words: list[str] = []
        if self.method.read == "calibrated":
            words = [self.words[n] for n in scores_NL.argmax(axis=1)]
            if run.run_id not in self.means:
                ids = [f"calibration-{n}" for n in range(len(run.calibration))]
                said = self._ask(run, ids, run.calibration)()
                self.means[run.run_id] = _scores(said).mean(axis=0)
            offsets_L = self.means[run.run_id]
        return predictions(
            items,
            scores=scores_NL.astype(np.float32),
            labels=(scores_NL - offsets_L).argmax(axis=1).tolist(),
            answers=self._shown(replies, words),
        )

    def _answered(self, run: PromptedRun, items: pa.Table, replies: Sequence[Reply]) -> pa.Table:
        answers = [each.text for _, each in replies]
        logits = np.array([each.label_scores for _, each in replies], np.float32)
        rule = self.method.answer_rule
        read = [prompts.read_answer(each, self.words, rule) for each in answers]
        return predictions(
            items,
            scores=logits,
            labels=[
                self._unparsed(run, item_id, logits_L) if each.label is None else each.label
                for item_id, each, logits_L in zip(
                    items["item_id"].to_pylist(), read, logits, strict=True
                )
            ],
            parsed=[each.label is not None for each in read],
            unread=[each.unread for each in read],
            answers=self._shown(replies, answers),
        )

    def _unparsed(
        self, run: PromptedRun, item_id: str, logits_L: npt.NDArray[np.float32]
    ) -> int | None:
        """Return the label of an answer without a label word."""
        if self.method.unparsed == "likelihood":
            # Equal ones are of labels that are not among the likeliest tokens.
            return int(logits_L.argmax()) if np.ptp(logits_L) else None
        if self.method.unparsed == "random":
            drawn = generator(run.seed, run.run_id, item_id, "unparsed").integers(len(self.words))
            return int(drawn)
        return None

    def _shown(self, replies: Sequence[Reply], answers: Sequence[str]) -> list[str]:
        """Join reasonings and answers, or return either."""
        if not self.method.reasoning_room:
            return [*answers]
        reasoned = [before for before, _ in replies]
        pairs = zip(reasoned, answers, strict=False)
        joined = [f"{before} [...]{each}" if before else each for before, each in pairs]
        return joined or reasoned


def _scores(replies: Sequence[Reply]) -> npt.NDArray[np.float64]:
    """Return the labels' scores [texts, labels]; WorkFailed where an endpoint gave none."""
    if any(not each.label_scores for _, each in replies):
        raise WorkFailed(
            "no log-probabilities of first tokens came back, which `read` needs",
            cure="set read: answer, or take first_tokens out of `offers`",
        )
    return np.array([each.label_scores for _, each in replies], np.float64)
