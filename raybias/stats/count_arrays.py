"""Hold counts of predictions as arrays by group, run and template, and linearise their rates.

Shapes: K metrics, G groups, R runs, T templates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from raybias.schema import TABLE
from raybias.stats.components import Doubles, places
from raybias.stats.metric import DEFAULT, masks, shares


@dataclass(frozen=True)
class CountArrays:
    """Counts of one classifier on one attribute; levels are in order of their names."""

    keys: tuple[str, ...]
    """Values of schema.KEYS and the attribute."""
    scores: tuple[str, ...]
    groups: tuple[str, ...]
    templates: tuple[str, ...]
    items_KGRT: Doubles
    """Items that count for a metric."""
    hits_KGRT: Doubles
    """Items in the metric's share."""

    def of_scores(self, some: slice) -> CountArrays:
        """Keep some of the scores."""
        return replace(
            self,
            scores=self.scores[some],
            items_KGRT=self.items_KGRT[some],
            hits_KGRT=self.hits_KGRT[some],
        )


def count_arrays(
    cells: pl.DataFrame, names: Sequence[str] = DEFAULT, *, groups: Sequence[str] | None = None
) -> Iterator[CountArrays]:
    """Yield the counts of every classifier on every attribute, of cells with template ids."""
    chosen = [*shares(names)]
    for keys, frame in cells.partition_by(TABLE, maintain_order=True, as_dict=True).items():
        columns = ("group", "run_id", "template_id")
        levels = [[*frame[column].unique().cast(pl.String).sort()] for column in columns]
        levels[0] = levels[0] if groups is None else [*groups]
        numbers = [places(frame[name], known) for name, known in zip(columns, levels, strict=True)]
        sizes = [*map(len, levels)]
        cell, n = np.ravel_multi_index(numbers, sizes), frame["n"].to_numpy()
        held = frame.select(masks(chosen))
        counts = np.zeros((2, len(chosen), *sizes))
        for k, rate in enumerate(chosen):
            for place, kind in enumerate(("among", "holds")):
                mask_N = held[f"{kind} {rate}"].to_numpy()
                sums = np.bincount(cell[mask_N], n[mask_N], minlength=math.prod(sizes))
                counts[place, k] = sums.reshape(sizes)
        texts, group, _, template = (tuple(map(str, each)) for each in (keys, *levels))
        yield CountArrays(texts, tuple(chosen), group, template, *counts)


def linearised(items_GRT: Doubles, hits_GRT: Doubles) -> Doubles:
    """Split the rates of groups into what each template adds to them [G, R, T].

    The mean over templates is a run's rate. A template counts by its sentences (the usual
    linearisation of a ratio). Every group has items in every run.
    """
    total_GR1 = items_GRT.sum(axis=2, keepdims=True)
    rates_GR1 = hits_GRT.sum(axis=2, keepdims=True) / total_GR1
    templates = items_GRT.shape[2]
    return np.asarray(rates_GR1 + templates * (hits_GRT - rates_GR1 * items_GRT) / total_GR1)
