"""Lay counts of predictions out as arrays by group, run and template.

Variance components, the bootstrap and the check of a rule on meaningless labels all start here.

Shapes: K metrics, G groups, R runs, T templates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from raybias import schema
from raybias.stats.components import Doubles
from raybias.stats.metric import DEFAULT, shares


@dataclass(frozen=True)
class CountArrays:
    """Counts of one classifier on one attribute; levels are in order of their names."""

    keys: tuple[str, ...]
    """Values of schema.KEYS and the attribute."""
    rates: tuple[str, ...]
    groups: tuple[str, ...]
    templates: tuple[str, ...]
    items_KGRT: Doubles
    """Items that count for a metric."""
    hits_KGRT: Doubles
    """Items in the metric's share."""


def count_arrays(
    cells: pl.DataFrame, metrics: Sequence[str] = DEFAULT, *, groups: Sequence[str] | None = None
) -> Iterator[CountArrays]:
    """Yield the counts of every classifier on every attribute.

    Parameters
    ----------
    cells: schema.CELLS with template ids.
    metrics: their names; those of predictions are passed over.
    groups: in this order; by default those of each classifier, by name.
    """
    chosen = shares(metrics)
    by = (*schema.KEYS, "attribute")
    for keys, frame in cells.partition_by(by, maintain_order=True, as_dict=True).items():
        numbers, sizes, names = [], [], {}
        for column in ("group", "run_id", "template_id"):
            given = groups if column == "group" else None
            found = frame[column].unique().cast(pl.String).sort()
            names[column] = list(found if given is None else given)
            numbers.append(frame[column].cast(pl.Enum(names[column])).to_physical().to_numpy())
            sizes.append(len(names[column]))
        cell, n = np.ravel_multi_index(numbers, sizes), frame["n"].to_numpy()
        masks = frame.select(
            getattr(share, kind).fill_null(False).alias(f"{kind} {rate}")
            for rate, share in chosen.items() for kind in ("among", "holds")
        )  # fmt: skip
        counts = np.zeros((2, len(chosen), *sizes))
        for k, rate in enumerate(chosen):
            among_N = masks[f"among {rate}"].to_numpy()
            for place, mask_N in enumerate((among_N, among_N & masks[f"holds {rate}"].to_numpy())):
                sums = np.bincount(cell[mask_N], n[mask_N], minlength=math.prod(sizes))
                counts[place, k] = sums.reshape(sizes)
        texts = tuple(str(key) for key in keys)
        places = tuple(names["group"]), tuple(names["template_id"])
        yield CountArrays(texts, tuple(chosen), *places, *counts)


def linearised(items_GRT: Doubles, hits_GRT: Doubles) -> Doubles:
    """Split the rates of groups into what each template adds to them [G, R, T].

    The mean over templates is a run's rate. A template counts by its sentences (the usual
    linearisation of a ratio), so that groups may have more of them on one than on another; where
    all have as many, a value is the rate on that template. Every group has items in every run.
    """
    total_GR1 = items_GRT.sum(axis=2, keepdims=True)
    rates_GR1 = hits_GRT.sum(axis=2, keepdims=True) / total_GR1
    templates = items_GRT.shape[2]
    return np.asarray(rates_GR1 + templates * (hits_GRT - rates_GR1 * items_GRT) / total_GR1)
