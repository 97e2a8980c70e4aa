"""Label texts by what a backbone answers to prompts, and the runs that decide what is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raybias.config.provider import Writing
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

    @classmethod
    def read(cls, store: Store, run_id: str) -> PromptedRun:
        """Read the run's seed and demonstrations."""
        content = json.loads(store.read_text(f"prompts/{run_id}.json"))
        shots = tuple((text, label) for text, label in content["shots"])
        return cls(content["run_id"], content["seed"], shots)

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
    label_ids: the words' tokens, whose logits stand after the prompt.
    """

    answers: Answers
    method: Prompted
    words: tuple[str, ...]
    asking: Asking
    label_ids: tuple[int, ...] | tuple[str, ...]
    store: Store

    def writing(self, most: int) -> Writing:
        """Return how answers of so many tokens are written."""
        return Writing(most, self.method.temperature, self.asking.chat, self.label_ids)

    def load(self, run_id: str) -> PromptedRun:
        """Read the seed and demonstrations of a run."""
        return PromptedRun.read(self.store, run_id)

    def prepare_label(
        self, run: PromptedRun, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Prepared[Labelling]:
        """Write prompts; return what labels by the first label word of each sampled answer."""
        asked = [self.asking.first(text, self.words, run.shots) for text in texts]
        ask = self.method.ask(self, run, item_ids, texts, asked)
        return lambda: self._labelled(run, item_ids, *ask())

    def _labelled(
        self,
        run: PromptedRun,
        item_ids: Sequence[str],
        reasoned: Sequence[Written],
        written: Sequence[Written],
    ) -> Labelling:
        reasonings = [each.text for each in reasoned] or [""] * len(written)
        answers = [each.text for each in written]
        logits = np.array([each.label_scores for each in written], np.float32)
        read = [prompts.read_answer(each, self.words) for each in answers]
        return Labelling(
            logits=logits,
            labels=[
                self._unparsed(run, item_id, logits_L) if label is None else label
                for item_id, label, logits_L in zip(item_ids, read, logits, strict=True)
            ],
            parsed=[label is not None for label in read],
            texts=[
                f"{reasoning} [...]{answer}" if reasoning else answer
                for reasoning, answer in zip(reasonings, answers, strict=True)
            ],
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
