"""Ask a model about a few sentences by each prompt format, before a study is chosen.

The pilot is an ordinary study; this file draws its sentences and reads its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.config import TrainingSet
from raybias.probes import training_sentences
from raybias.schema import LABELS
from raybias.seeding import generator

#: Sentences of a pilot, and the seed that draws them.
PILOT: Final = 24
_SEED: Final = 2024


@dataclass(frozen=True)
class Way:
    """A way of asking that the pilot tried.

    Attributes
    ----------
    options: of the method.
    read: answer, likelihood or calibrated; what calibration takes off comes from the other half.
    unread: share of the answers that name no label word.
    named: how many sentences got each label.
    mass: mean probability on the label words where the answer begins.
    """

    options: Mapping[str, Any]
    read: str
    accuracy: float
    unread: float
    named: tuple[int, ...]
    mass: float

    def __str__(self) -> str:
        kind, form = self.options["kind"], self.options["prompt_format"]
        named = ", ".join(f"{n} {label}" for n, label in zip(self.named, LABELS, strict=True))
        return (
            f"{kind} {form}, read by {self.read}: accuracy {self.accuracy:.2f}, {self.unread:.0%}"
            f" unread ({named}; {self.mass:.0%} of the probability on the label words)"
        )


def sentences(training: Mapping[str, Any]) -> pl.DataFrame:
    """Draw the pilot's sentences, equally many per label, from a split that nothing is tuned on."""
    splits = training_sentences(TrainingSet(**training))
    pool = splits.get("validation", splits["train"])
    rows = [
        int(row)
        for label in range(len(LABELS))
        for row in generator(_SEED, "pilot", label).choice(
            (pool["label"] == label).arg_true().to_numpy(), PILOT // len(LABELS), replace=False
        )
    ]
    said = {"attribute": pl.lit("pilot"), "group": pl.lit("all")}
    return pool[rows].select("text", "label").with_columns(**said)


def ways_of(predictions: pl.DataFrame) -> tuple[Way, ...]:
    """Return every prompt format and reading that a pilot tried, the most accurate first."""
    found = []
    for (name,), rows in predictions.sort("item_id").group_by("method"):
        kind, _, form = str(name).rpartition("_")
        gold, scores_NL = rows["label"].to_numpy(), np.array(rows["scores"].to_list(), np.float64)
        half = np.arange(len(gold)) % 2
        means_HL = np.array([scores_NL[half != h].mean(axis=0) for h in (0, 1)])
        mass = float(np.exp(scores_NL).sum(axis=1).mean())
        read_by = {
            "calibrated": (scores_NL - means_HL[half]).argmax(axis=1),
            "likelihood": scores_NL.argmax(axis=1),
            "answer": rows["pred"].fill_null(-1).to_numpy(),
        }
        for read, labels in read_by.items():
            named = tuple(int((labels == label).sum()) for label in range(len(LABELS)))
            accuracy, unread = float((labels == gold).mean()), float((labels < 0).mean())
            options = {"kind": kind, "prompt_format": form}
            way = Way(options, read, accuracy, unread, named, mass)
            # Of equal ones the calibrated reading is preferred.
            found.append((-accuracy, unread, [*read_by].index(read), str(name), way))
    return tuple(way for *_, way in sorted(found, key=lambda each: each[:-1]))
