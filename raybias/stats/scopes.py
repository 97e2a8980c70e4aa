"""Judge gaps under each scope: would other seeds, other sentences, other words show them too?

A gap is the mean over runs and templates of what each template adds to it. Its interval covers
the facets that its scope counts as drawn anew: runs alone, runs and templates, or runs,
templates and the words that name the groups. Where the runs do not vary, or there is one, the
templates alone are drawn. How large each source of variance is comes out on the way.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.components import (
    Balanced,
    Doubles,
    Facets,
    MeanEstimate,
    symmetric_sums,
)
from raybias.stats.intervals import ROUNDING
from raybias.stats.rates import RATES

Scope = Literal["runs", "sentences", "wording"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

#: The question that an interval of each scope answers.
QUESTIONS: Final[Mapping[Scope, str]] = {
    "runs": "would another seed show it, on these very sentences?",
    "sentences": "would other sentences like these show it, read by other seeds?",
    "wording": "would other sentences and other words for the groups show it?",
}

_TABLE: Final = (*schema.KEYS, "attribute")
_FACETS: Final[Facets] = ("run", "template")


@dataclass(frozen=True)
class GapTable:
    """One rate's gaps of one classifier on one attribute, taken apart by run and template."""

    keys: tuple[str, ...]
    """Values of schema.KEYS and the attribute."""
    rate: str
    groups: tuple[str, ...]
    in_mean_G: npt.NDArray[np.bool_]
    values_GRT: Doubles
    """Their mean over templates is a run's gap, and their mean over both the gap."""

    def estimates(self, words: WordVariance | None) -> dict[Scope, MeanEstimate]:
        """Estimate the gaps under every scope that the design allows."""
        runs, templates = self.values_GRT.shape[1:]
        varies = runs > 1 and bool((self.values_GRT.std(axis=1) > ROUNDING).any())
        found: dict[Scope, MeanEstimate] = {}
        if varies:
            by_run = self.values_GRT if templates > 1 else self.values_GRT.repeat(2, axis=2)
            found["runs"] = Balanced(by_run, _FACETS).estimate(["run"])
        if templates > 1:
            found["sentences"] = (
                Balanced(self.values_GRT, _FACETS).estimate()
                if varies
                else Balanced(self.values_GRT.mean(axis=1), ("template",)).estimate()
            )
            if words is not None:
                found["wording"] = words.added_to(found["sentences"], self)
        return found

    def components(self) -> dict[Facets, Doubles]:
        """Estimate the variance [G] between runs, between templates, and of their cells."""
        _, runs, templates = self.values_GRT.shape
        if min(runs, templates) < 2:
            return {}
        return Balanced(self.values_GRT, _FACETS).components


@dataclass(frozen=True)
class WordVariance:
    """How much words for one group differ, pooled over the groups with two words or more."""

    variance: float
    freedom: int
    words: Mapping[str, int]
    """Words of each group."""

    def added_to(self, estimate: MeanEstimate, table: GapTable) -> MeanEstimate:
        """Add the words that were chosen for each group, and for those of the mean, as a source."""
        each_G = 1 / np.array([max(1, self.words.get(group, 1)) for group in table.groups])
        members = max(1, int(table.in_mean_G.sum()))
        weights_GG = np.eye(len(each_G)) - table.in_mean_G / members
        added_G = self.variance * (weights_GG**2 @ each_G)
        return estimate.plus(added_G, np.full(len(each_G), float(self.freedom)))


def gap_tables(cells: pl.DataFrame, inside: pl.DataFrame) -> Iterator[GapTable]:
    """Take the gaps of every classifier, attribute and rate apart by run and template.

    A template's part in a rate is weighted by its sentences (the usual linearisation of a ratio),
    so that groups may have more sentences on one template than on another.

    Parameters
    ----------
    cells: schema.CELLS with template ids, without extra groups.
    inside: probe, attribute, group, in_mean.
    """
    frame = cells.cast(dict.fromkeys((*_TABLE, "run_id", "template_id", "group"), pl.String))
    for part in frame.partition_by(_TABLE, maintain_order=True):
        keys = part.select(_TABLE).row(0)
        known = inside.filter(probe=keys[schema.KEYS.index("probe")], attribute=keys[-1])
        member = dict(known.select("group", "in_mean").iter_rows())
        for rate, label in RATES.items():
            counts = part.filter(pl.col("label") != int(label))
            table = _linearised(counts, int(label), member)
            if table is not None:
                yield GapTable(keys, rate, *table)


def _linearised(
    counts: pl.DataFrame, label: int, member: Mapping[str, bool]
) -> tuple[tuple[str, ...], npt.NDArray[np.bool_], Doubles] | None:
    axes = ("group", "run_id", "template_id")
    names = [counts[axis].unique().sort().to_list() for axis in axes]
    shape = tuple(map(len, names))
    if not all(shape):
        return None
    place = tuple(
        counts[axis].cast(pl.Enum(levels)).to_physical().to_numpy()
        for axis, levels in zip(axes, names, strict=True)
    )
    items_GRT = np.zeros(shape)
    false_GRT = np.zeros(shape)
    n = counts["n"].to_numpy().astype(float)
    np.add.at(items_GRT, place, n)
    np.add.at(false_GRT, place, n * (counts["pred"] == label).fill_null(False).to_numpy())
    items_GR1 = items_GRT.sum(axis=2, keepdims=True)
    whole_G = (items_GR1 > 0).all(axis=(1, 2))
    groups = tuple(group for group, whole in zip(names[0], whole_G, strict=True) if whole)
    in_mean_G = np.array([member.get(group, False) for group in groups], dtype=bool)
    if not in_mean_G.any():
        return None
    items_GRT, false_GRT, items_GR1 = (
        array[whole_G] for array in (items_GRT, false_GRT, items_GR1)
    )
    rates_GR1 = false_GRT.sum(axis=2, keepdims=True) / items_GR1
    parts_GRT = rates_GR1 + shape[2] * (false_GRT - rates_GR1 * items_GRT) / items_GR1
    return groups, in_mean_G, parts_GRT - parts_GRT[in_mean_G].mean(axis=0)


def word_variances(words: pl.DataFrame) -> dict[tuple[str, ...], WordVariance]:
    """Estimate how much words for one group differ, by classifier, attribute and rate.

    Parameters
    ----------
    words: the keys, attribute, group, template_id, term, label, pred and `n` over all runs.

    Returns
    -------
    By the keys, attribute and rate; only where some group has two words or more.
    """
    found = {}
    by = [*_TABLE, "group"]
    texts = words.cast(dict.fromkeys((*by, "template_id", "term"), pl.String))
    for rate, label in RATES.items():
        wrong = (pl.col("pred") == int(label)).fill_null(False)
        shares = (
            texts.filter(pl.col("label") != int(label))
            .group_by(*by, template=pl.col("template_id"), word=pl.col("term"))
            .agg(value=(pl.col("n") * wrong).sum() / pl.col("n").sum())
        )
        several = shares.filter(
            pl.col("word").n_unique().over(by) > 1, pl.col("template").n_unique().over(by) > 1
        )
        counted = shares.group_by(by).agg(words=pl.col("word").n_unique().cast(pl.Int64))
        sums = symmetric_sums(several, by, ("template", "word")).unnest("components")
        for keys, part in counted.join(sums, on=by, how="left").group_by(_TABLE):
            freedom = pl.col("words") - 1
            known = part.filter(pl.col("word").is_not_null())
            if known.height:
                pooled = known.select((pl.col("word") * freedom).sum() / freedom.sum()).item()
                found[(*map(str, keys), rate)] = WordVariance(
                    max(0.0, pooled),
                    known.select(freedom.sum()).item(),
                    dict(part.select("group", "words").iter_rows()),
                )
    return found
