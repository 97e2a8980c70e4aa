"""Judge gaps under each scope: would other seeds, other sentences, other words show them too?

A gap is the mean over runs and templates of what each template adds to it. Its interval covers
the facets that its scope counts as drawn anew: runs alone, runs and templates, or runs,
templates and the words that name the groups. Where the runs do not vary, or there is one, the
templates alone are drawn. How large each source of variance is comes out on the way.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.arrays import CountArrays, count_arrays, linearised
from raybias.stats.components import (
    Balanced,
    Doubles,
    Facets,
    MeanEstimate,
    name_of,
    symmetric_sums,
)
from raybias.stats.intervals import ROUNDING, Adjust, verdicts
from raybias.stats.metric import DEFAULT, counted, shares

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
            found["runs"] = Balanced(self.values_GRT.mean(axis=2), ("run",)).estimate()
        if templates > 1:
            found["sentences"] = (
                self._crossed.estimate()
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
        return self._crossed.components

    @cached_property
    def _crossed(self) -> Balanced:
        return Balanced(self.values_GRT, _FACETS)


@dataclass(frozen=True)
class WordVariance:
    """How much words for one group differ, pooled over the groups with two words or more."""

    variance: float
    """Unbiased, so it can be negative."""
    noise: float
    """What the noise between templates adds to the variance of words' means."""
    freedom: int
    """Words less groups that have several."""
    noise_freedom: float
    words: Mapping[str, int]
    """Words of each group."""

    def added_to(self, estimate: MeanEstimate, table: GapTable) -> MeanEstimate:
        """Add the variance from the choice of words, of the group and of the groups in the mean.

        It is a difference of two mean squares, between words and of noise, which have degrees of
        freedom (Satterthwaite); the difference itself has not. The sum is at least what runs and
        templates, or words, vary alone; where chance makes the difference negative it is no less
        uncertain, so that the degrees of freedom stay those of the sum.
        """
        each_G = 1 / np.array([max(1, self.words.get(group, 1)) for group in table.groups])
        members = max(1, int(table.in_mean_G.sum()))
        share_G = (np.eye(len(each_G)) - table.in_mean_G / members) ** 2 @ each_G
        freedom_G, noise_freedom_G = (
            np.full(len(each_G), float(freedom)) for freedom in (self.freedom, self.noise_freedom)
        )
        alone = MeanEstimate(estimate.mean, share_G * (self.variance + self.noise), freedom_G)
        noise = (-share_G * self.noise, noise_freedom_G)
        return estimate.plus(alone.variance, freedom_G, noise).at_least(alone)


def gap_tables(
    cells: pl.DataFrame, inside: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> Iterator[GapTable]:
    """Take the gaps of every classifier, attribute and rate apart by run and template.

    A template's part in a rate is weighted by its sentences (the usual linearisation of a ratio),
    so that groups may have more sentences on one template than on another.

    Parameters
    ----------
    cells: schema.CELLS with template ids, without extra groups.
    inside: probe, attribute, group, in_mean.
    metrics: their names; those of predictions have no gaps by template.
    """
    for counts in count_arrays(cells, metrics):
        probe, attribute = counts.keys[schema.KEYS.index("probe")], counts.keys[-1]
        known = inside.filter(probe=probe, attribute=attribute)
        member = dict(known.select("group", "in_mean").iter_rows())
        for k in range(len(counts.rates)):
            table = gap_table(counts, k, member)
            if table is not None:
                yield table


def gap_table(counts: CountArrays, k: int, member: Mapping[str, bool]) -> GapTable | None:
    """Take the gaps of one metric apart, without groups that some run has no items of."""
    there_GRT = counts.items_KGRT[k] > 0
    runs_R, templates_T = there_GRT.any(axis=(0, 2)), there_GRT.any(axis=(0, 1))
    whole_G = there_GRT.any(axis=2)[:, runs_R].all(axis=1)
    groups = tuple(group for group, whole in zip(counts.groups, whole_G, strict=True) if whole)
    in_mean_G = np.array([member.get(group, False) for group in groups], dtype=bool)
    if not (runs_R.any() and in_mean_G.any()):
        return None
    kept = np.ix_(whole_G, runs_R, templates_T)
    parts_GRT = linearised(counts.items_KGRT[k][kept], counts.hits_KGRT[k][kept])
    gaps_GRT = parts_GRT - parts_GRT[in_mean_G].mean(axis=0)
    return GapTable(counts.keys, counts.rates[k], groups, in_mean_G, gaps_GRT)


def word_variances(
    words: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> dict[tuple[str, ...], WordVariance]:
    """Estimate how much words for one group differ, by classifier, attribute and rate.

    Parameters
    ----------
    words: schema.WORD_CELLS, without extra groups.

    Returns
    -------
    By the keys, attribute and rate; only where some group has two words or more.
    """
    found = {}
    by = [*_TABLE, "group"]
    texts = words.cast(dict.fromkeys((*by, "template_id", "term"), pl.String))
    for rate, share in shares(metrics).items():
        values = (
            texts.group_by(*by, template=pl.col("template_id"), word=pl.col("term"))
            .agg(*counted(share))
            .filter(pl.col("n_items") > 0)
            .with_columns(value=pl.col("hits") / pl.col("n_items"))
        )
        several = values.filter(
            pl.col("word").n_unique().over(by) > 1, pl.col("template").n_unique().over(by) > 1
        )
        sizes = values.group_by(by).agg(
            words=pl.col("word").n_unique().cast(pl.Int64), templates=pl.col("template").n_unique()
        )
        sums = symmetric_sums(several, by, ("template", "word")).unnest("components")
        joined = sizes.join(sums, on=by, how="left", nulls_equal=True).sort(by)
        for keys, part in joined.group_by(_TABLE, maintain_order=True):
            freedom = pl.col("words") - 1
            known = part.filter(pl.col("word").is_not_null())
            if known.height:
                word, noise = pl.col("word"), pl.col("template x word") / pl.col("templates")
                weights = freedom / freedom.sum()
                found[(*map(str, keys), rate)] = WordVariance(
                    *known.select((word * weights).sum(), noise=(noise * weights).sum()).row(0),
                    *known.select(freedom.sum(), t=(freedom * (pl.col("templates") - 1)).sum()).row(
                        0
                    ),
                    dict(part.select("group", "words").iter_rows()),
                )
    return found


def scoped_gaps(
    cells: pl.DataFrame,
    words: pl.DataFrame,
    inside: pl.DataFrame,
    *,
    level: float,
    adjust: Adjust,
    metrics: Sequence[str] = DEFAULT,
    excluded: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Judge every gap under every scope that its design allows, and take its variance apart.

    Parameters
    ----------
    cells, inside: as `gap_tables`.
    words: as `word_variances`; empty where the words are not known.
    adjust: with benjamini_hochberg, what `survives` has q <= 1 - level over all gaps of its scope.
    excluded: columns that name gaps without a verdict, and `no_verdict`.

    Returns
    -------
    schema.SCOPES, a row per gap and scope, and schema.COMPONENTS, a row per gap and source of its
    variance; neither has rows of predictions without template ids.
    """
    if cells["template_id"].null_count():
        types = pl.Schema(schema.SCOPES), pl.Schema(schema.COMPONENTS)
        return pl.DataFrame(schema=types[0]), pl.DataFrame(schema=types[1])
    spread = word_variances(words, metrics)
    judged: list[dict[str, object]] = []
    components: list[dict[str, object]] = []
    for table in gap_tables(cells, inside, metrics):
        names = {**dict(zip(_TABLE, table.keys, strict=True)), "rate": table.rate}
        between = spread.get((*table.keys, table.rate))
        for scope, found in table.estimates(between).items():
            low, high = found.interval(level)
            numbers = {"gap": found.mean, "low": low, "high": high, "p_value": found.p_value(),
                       "detectable": found.detectable(level)}  # fmt: skip
            for g, group in enumerate(table.groups):
                values = {name: float(array[g]) for name, array in numbers.items()}
                judged.append({**names, "group": group, "scope": scope, **values})
        _, runs, templates = table.values_GRT.shape
        levels = {"run": runs, "template": templates}
        for facets, variance_G in table.components().items():
            many = " x ".join(str(levels[facet]) for facet in facets)
            sources = {"facets": name_of(facets), "levels": many}
            components += [
                {**names, "group": group, **sources, "variance": float(variance)}
                for group, variance in zip(table.groups, variance_G, strict=True)
            ]
        if between is not None:
            components += [
                {**names, "group": group, "facets": "word", "variance": between.variance,
                 "levels": str(between.words.get(group, 1))}
                for group in table.groups
            ]  # fmt: skip
    return _judged(judged, level, adjust, excluded), pl.DataFrame(
        components, schema=pl.Schema(schema.COMPONENTS)
    )


def _judged(
    rows: Sequence[Mapping[str, object]],
    level: float,
    adjust: Adjust,
    excluded: pl.DataFrame | None,
) -> pl.DataFrame:
    types = pl.Schema(schema.SCOPES)
    table = pl.DataFrame(rows, schema=types).fill_nan(None).drop("no_verdict")
    reasons = pl.DataFrame(schema={**{name: types[name] for name in (*_TABLE, "rate")},
                                   "no_verdict": pl.String})  # fmt: skip
    known = reasons if excluded is None else excluded.cast(reasons.schema)
    table = table.join(known, on=[*_TABLE, "rate"], how="left", nulls_equal=True)
    parts = [verdicts(table.filter(scope=scope), level=level, adjust=adjust) for scope in SCOPES]
    order = ["model", "attribute", "rate", "group", *schema.KEYS[1:]]
    return pl.concat(parts).sort(order, maintain_order=True).select(types.names()).cast(types)
