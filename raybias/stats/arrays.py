"""Take metrics of counts: by run and group, and as arrays by group, run and template.

Every estimate starts here. It does not know which groups are compared with which.

Shapes: K metrics, G groups, R runs, T templates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.stats.cells import RUN_KEYS
from raybias.stats.checks import StatisticsWarning
from raybias.stats.components import Doubles
from raybias.stats.intervals import MIRROR
from raybias.stats.metric import DEFAULT, VALUES, counted, metrics, shares

#: Of two metrics that mirror each other, the largest share of sentences that neither counts.
_NEITHER: Final = 0.01


def rates(
    cells: pl.DataFrame,
    names: Sequence[str] = DEFAULT,
    values: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compute the metrics per group and run; by default one-vs-rest false positive rates.

    Parameters
    ----------
    cells: schema.CELLS.
    names: of the metrics.
    values: of `run_values`, for the metrics that are of predictions.

    Returns
    -------
    The run keys, attribute, group, score (the metric's name), n_items (the items that count, FP +
    TN for a false positive rate) and value, null where n_items is 0.
    """
    by = [*RUN_KEYS, "attribute", "group"]
    cells = cells.cast({pl.String: pl.Categorical})
    tables = [
        cells.group_by(by).agg(*counted(share), score=pl.lit(name))
        for name, share in shares(names).items()
    ]
    value = pl.when(pl.col("n_items") > 0).then(pl.col("hits") / pl.col("n_items"))
    found = [
        table.select(pl.exclude("hits"), value=value).select(VALUES.names()) for table in tables
    ]
    more = [] if values is None else [values.filter(pl.col("score").is_in(list(names)))]
    none = pl.DataFrame(schema=VALUES)
    return pl.concat([none, *(table.cast(VALUES) for table in (*found, *more))]).sort(*by, "score")


def mirrored_rates(cells: pl.DataFrame, rates: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Find the classifiers of which one metric is what another leaves.

    If every sentence of an attribute is neutral and a classifier calls none of them neutral, what
    is not called negative is called positive: the gaps of the two rates differ in their sign alone,
    and testing both is testing one result twice. Two metrics mirror each other if they count the
    same sentences of an attribute and their values add to 1; the first by name is the one that
    counts.

    Parameters
    ----------
    cells: schema.CELLS without the extra groups.
    rates: of `arrays.rates` on them.
    names: of the metrics.

    Returns
    -------
    The keys, attribute, score (the second), mirrors (the first) and reason.
    """
    place = ["probe", "attribute"]
    kinds = cells.select(*place, "label", "pred").unique().cast({pl.Categorical: pl.String})
    by = [*schema.KEYS, "attribute"]
    types = dict.fromkeys((*by, "score", "mirrors", "reason"), pl.String)
    tables = [pl.DataFrame(schema=types)]
    for (first, one), (second, other) in combinations(sorted(shares(names).items()), 2):
        same = kinds.group_by(place).agg((one.among == other.among).all().alias("same"))
        concerned = rates.filter(pl.col("score").is_in([first, second])).join(
            same.filter("same"), on=place, how="semi", nulls_equal=True
        )
        together = concerned.group_by(*RUN_KEYS, "attribute", "group").agg(pl.col("value").sum())
        off = (pl.col("value") - 1).abs().max()
        alike = together.group_by(by).agg(off.alias("off")).filter(pl.col("off") <= _NEITHER)
        said = {"score": second, "mirrors": first, "reason": MIRROR + first}
        tables.append(alike.select(*by, **{name: pl.lit(text) for name, text in said.items()}))
    # Of several that a rate mirrors, the first.
    found = pl.concat(tables).sort(by, maintain_order=True)
    return found.unique([*by, "score"], keep="first", maintain_order=True)


def warn_mirrored(found: pl.DataFrame, *, by_papers: bool) -> None:
    """Say of which classifiers two metrics are one result, but of those that always are."""
    always = [name for name, entry in metrics.items() if entry.one_class is not None]
    told = ~(pl.col("score").is_in(always) & pl.col("mirrors").is_in(always))
    counted = "counted twice by the papers' rule" if by_papers else "and is counted once"
    for row in found.filter(told).iter_rows(named=True):
        name = " ".join(row[key] for key in ("model", "method") if row[key])
        place = " ".join(row[key] for key in ("probe", "attribute") if row[key])
        warnings.warn(
            f"{name} on {place}: {row['score']} is (almost) what {row['mirrors']} leaves, one "
            f"result with two signs, {counted}",
            StatisticsWarning,
            stacklevel=4,
        )


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


def count_arrays(
    cells: pl.DataFrame, names: Sequence[str] = DEFAULT, *, groups: Sequence[str] | None = None
) -> Iterator[CountArrays]:
    """Yield the counts of every classifier on every attribute.

    Parameters
    ----------
    cells: schema.CELLS with template ids.
    names: of metrics; those of predictions are passed over.
    groups: in this order; by default those of each classifier, by name.
    """
    chosen = shares(names)
    by = (*schema.KEYS, "attribute")
    for keys, frame in cells.partition_by(by, maintain_order=True, as_dict=True).items():
        numbers, sizes, levels = [], [], {}
        for column in ("group", "run_id", "template_id"):
            given = groups if column == "group" else None
            found = frame[column].unique().cast(pl.String).sort()
            levels[column] = list(found if given is None else given)
            numbers.append(frame[column].cast(pl.Enum(levels[column])).to_physical().to_numpy())
            sizes.append(len(levels[column]))
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
        places = tuple(levels["group"]), tuple(levels["template_id"])
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
