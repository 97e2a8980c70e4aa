"""What files of predictions showed, with what a reader has to know of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from raybias.stats.counts import Counts, without_extras
from raybias.stats.intervals import Rules
from raybias.stats.predictions import Source
from raybias.stats.rated_class import RatedClass


@dataclass(frozen=True, kw_only=True)
class MeasuredPredictions:
    """What files of predictions show, and what was read; as text, what was read as the class."""

    estimates: pl.DataFrame
    """schema.ESTIMATES."""
    sentence: str
    """What was taken as the class in each column."""
    rated: RatedClass
    """The class that rates are about, and which outcome is favourable."""
    chance: pl.DataFrame
    """The share of the commonest right label: probe, attribute and `chance`."""
    predictions: int
    """How many were read; a row that is in a group of several attributes counts once."""
    runs: int
    """Of all classifiers."""
    rules: Rules
    """By which gaps are judged: their scope, and the level of intervals."""

    def __str__(self) -> str:
        declared = self.rated.declared if self.rated.favourable else ""
        return " ".join(filter(None, (self.sentence, declared)))


def predictions_read(
    estimates: pl.DataFrame,
    files: Sequence[Source],
    counts: Counts,
    *,
    sentence: str,
    rated: RatedClass,
    rules: Rules,
) -> MeasuredPredictions:
    """Put what was read beside estimates; `counts` have the files' own numbers of classes."""
    place = ["probe", "attribute"]
    sentences = without_extras(counts.sentences).cast({pl.Categorical: pl.String})
    by_label = sentences.group_by(*place, "label").agg(pl.col("n").sum())
    share = pl.col("n").max() / pl.col("n").sum()

    # A table has each row once for every attribute that a user names.
    predictions = int(counts.coverage["predictions"].sum())
    if any(source.columns.by for source in files):
        predictions //= counts.cells["attribute"].n_unique()
    return MeasuredPredictions(
        estimates=estimates,
        sentence=sentence,
        rated=rated,
        chance=by_label.group_by(place).agg(chance=share).sort(place),
        predictions=predictions,
        runs=counts.coverage.height,
        rules=rules,
    )
