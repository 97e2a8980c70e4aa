"""Label texts by what a backbone answers to prompts, and the runs that decide what is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raybias.config.provider import Writing
from raybias.errors import WorkFailed
from raybias.methods.prediction import Labelling, Prepared, PreparingLabelPredictor
from raybias.probes import prompts
from raybias.seeding import generator

if TYPE_CHECKING:
    import numpy.typing as npt

    from raybias.config.provider import Answers, Written
    from raybias.methods.asking import Asking
    from raybias.methods.prompted import Prompted
    from raybias.storage import Store

#: A demonstration: its text and label.
Shot = tuple[str, int]


@dataclass(frozen=True)
class PromptedRun:
    """A run of a prompted method, from `OUT/prompts/<run_id>.json`."""

    run_id: str
    seed: int
    shots: tuple[Shot, ...] = ()
    calibration: tuple[str, ...] = ()
    """Sentences whose mean scores are taken off, where the method reads `calibrated`."""

    @classmethod
    def read(cls, store: Store, run_id: str) -> PromptedRun:
        """Read the run's seed and demonstrations."""
        content = json.loads(store.read_text(f"prompts/{run_id}.json"))
        shots = tuple((text, label) for text, label in content["shots"])
        return cls(content["run_id"], content["seed"], shots, tuple(content.get("calibration", ())))

    def keys(self, item_ids: Sequence[str], stage: str) -> list[tuple[str | int, ...]]:
        """Return what the sampling of each item at a stage is keyed by."""
        return [(self.seed, self.run_id, item_id, stage) for item_id in item_ids]


@dataclass(frozen=True, kw_only=True)
class PromptedPredictor(PreparingLabelPredictor):
    """Labels texts by what a backbone answers to a prompt (Kohankhaki2024).

    Attributes
    ----------
    words: the label words, which are looked for in answers.
    asking: what writes the prompts as the backbone reads them.
    label_ids: by label, the tokens that may begin its word behind the prompt.
    means: by run, the labels' mean scores over its calibration sentences, once computed.
    """

    answers: Answers
    method: Prompted
    words: tuple[str, ...]
    asking: Asking
    label_ids: tuple[tuple[int, ...], ...] | tuple[str, ...]
    store: Store
    means: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def writing(self, most: int) -> Writing:
        """Return how answers of so many tokens are written."""
        return Writing(most, self.method.temperature, self.asking.chat, self.label_ids)

    def load(self, run_id: str) -> PromptedRun:
        """Read the seed and demonstrations of a run."""
        return PromptedRun.read(self.store, run_id)

    def prepare_label(
        self, run: PromptedRun, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Prepared[Labelling]:
        """Write prompts; return what labels by answers or by likelihoods of the label words."""
        ask = self._ask(run, item_ids, texts)
        if self.method.read == "answer":
            return lambda: self._answered(run, item_ids, *ask())
        return lambda: self._likeliest(run, *ask())

    def _ask(
        self, run: PromptedRun, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Prepared[tuple[list[Written], list[Written]]]:
        asked = [self.asking.first(text, self.words, run.shots) for text in texts]
        return self.method.ask(self, run, item_ids, texts, asked)

    def _means(self, run: PromptedRun) -> npt.NDArray[np.float64]:
        """Compute each label's mean score over a run's calibration sentences, once for a run."""
        if run.run_id not in self.means:
            ids = [f"calibration-{n}" for n in range(len(run.calibration))]
            _, written = self._ask(run, ids, run.calibration)()
            self.means[run.run_id] = _scores(written).mean(axis=0)
        return self.means[run.run_id]

    def _likeliest(
        self, run: PromptedRun, reasoned: Sequence[Written], written: Sequence[Written]
    ) -> Labelling:
        """Label by the highest score, less its mean where that is calibrated.

        Scores stay as they are, and the answer of a calibrated reading is the likeliest word, so
        that what calibration does to a gap can be shown.

        Raises
        ------
        WorkFailed: an endpoint tells no scores.
        """
        scores_NL = _scores(written)
        calibrated = self.method.read == "calibrated"
        offsets_L = self._means(run) if calibrated else np.zeros(len(self.words))
        words = [self.words[n] for n in scores_NL.argmax(axis=1)] if calibrated else []
        return Labelling(
            logits=scores_NL.astype(np.float32),
            labels=(scores_NL - offsets_L).argmax(axis=1).tolist(),
            parsed=[True] * len(written),
            texts=_behind(reasoned, words) or [None] * len(written),
            tokens=sum(each.tokens for each in (*reasoned, *written)),
        )

    def _answered(
        self,
        run: PromptedRun,
        item_ids: Sequence[str],
        reasoned: Sequence[Written],
        written: Sequence[Written],
    ) -> Labelling:
        answers = [each.text for each in written]
        logits = np.array([each.label_scores for each in written], np.float32)
        read = [prompts.read_answer(each, self.words, self.method.answer_rule) for each in answers]
        return Labelling(
            logits=logits,
            labels=[
                self._unparsed(run, item_id, logits_L) if each.label is None else each.label
                for item_id, each, logits_L in zip(item_ids, read, logits, strict=True)
            ],
            parsed=[each.label is not None for each in read],
            unread=[each.unread for each in read],
            texts=_behind(reasoned, answers),
            tokens=sum(each.tokens for each in (*reasoned, *written)),
        )

    def _unparsed(
        self, run: PromptedRun, item_id: str, logits_L: npt.NDArray[np.float32]
    ) -> int | None:
        """Return what an answer without a label word counts as."""
        if self.method.unparsed == "likelihood":
            # Equal ones are of labels that are not among the likeliest tokens.
            return int(logits_L.argmax()) if np.ptp(logits_L) else None
        if self.method.unparsed == "random":
            drawn = generator(run.seed, run.run_id, item_id, "unparsed").integers(len(self.words))
            return int(drawn)
        return None


def _behind(reasoned: Sequence[Written], answers: Sequence[str]) -> list[str | None]:
    """Write answers behind the reasonings that they follow, or what there is of both."""
    if not (reasoned and answers):
        return [each.text for each in reasoned] or [*answers]
    both = zip(reasoned, answers, strict=True)
    return [f"{each.text} [...]{answer}" if each.text else answer for each, answer in both]


def _scores(written: Sequence[Written]) -> npt.NDArray[np.float64]:
    """Return the labels' scores [texts, labels].

    Raises
    ------
    WorkFailed: an endpoint told none.
    """
    if any(not each.label_scores for each in written):
        raise WorkFailed(
            "no log-probabilities of first tokens came back, which `read` needs",
            cure="set read: answer, or take first_tokens out of `offers`",
        )
    return np.array([each.label_scores for each in written], np.float64)
