"""Look at how a model answers before a study is chosen: some sentences, asked in each way.

The pilot is a study like any other; this file draws its sentences and reads its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.config import TrainingSet
from raybias.probes import training_sentences
from raybias.schema import LABELS
from raybias.seeding import generator

#: Sentences of a pilot, and the seed that draws them.
PILOT: Final = 24
_SEED: Final = 2024
#: Readings of equal accuracy, the one that is preferred first.
_ORDER: Final = ("calibrated", "likelihood", "answer")


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
    """Draw the pilot's sentences, equally many of each label, as a probe's items.

    They are of the split that nothing is tuned on and no demonstration comes from.

    Raises
    ------
    DataError: the training set is missing or malformed.
    """
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
    """Return every way of asking and reading that a pilot tried, the most accurate first.

    Parameters
    ----------
    predictions: schema.PREDICTIONS, methods named by their kind and the format of their prompts.
    """
    found = []
    parts = predictions.sort("method", "item_id").group_by("method", maintain_order=True)
    for (name,), rows in parts:
        kind, _, form = str(name).rpartition("_")
        found += _ways({"kind": kind, "prompt_format": form}, rows)
    found.sort(key=lambda way: (-way.accuracy, way.unread, _ORDER.index(way.read)))
    return tuple(found)


def _ways(options: Mapping[str, Any], rows: pl.DataFrame) -> list[Way]:
    """Read one way's predictions by answers, by likelihoods, and by calibrated likelihoods."""
    gold, scores_NL = rows["label"].to_numpy(), np.array(rows["scores"].to_list(), np.float64)
    half = np.arange(len(gold)) % 2
    means_HL = np.array([scores_NL[half != h].mean(axis=0) for h in (0, 1)])
    answers = rows["pred"].fill_null(-1).to_numpy()
    mass = float(np.exp(scores_NL).sum(axis=1).mean())

    def way(read: str, labels: npt.NDArray[np.integer[Any]]) -> Way:
        named = tuple(int((labels == label).sum()) for label in range(len(LABELS)))
        unread = float((labels < 0).mean())
        return Way(options, read, float((labels == gold).mean()), unread, named, mass)

    return [
        way("answer", answers),
        way("likelihood", scores_NL.argmax(axis=1)),
        way("calibrated", (scores_NL - means_HL[half]).argmax(axis=1)),
    ]
