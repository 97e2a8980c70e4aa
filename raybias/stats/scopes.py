"""Judge gaps under each scope: with seeds, sentences and words resampled.

A gap is the mean over runs and templates of what each template adds to it. Where the runs do not
vary, or there is one, templates alone are resampled.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import config, schema
from raybias.config import Statistics
from raybias.schema import TABLE
from raybias.stats.components import (
    ROUNDING,
    Doubles,
    MeanEstimate,
    MeanSquares,
    less_mean_of_groups,
    mean_squares,
    satterthwaite,
)
from raybias.stats.count_arrays import CountArrays, count_arrays, linearised
from raybias.stats.few_events import Events
from raybias.stats.intervals import columns_of, parametric
from raybias.stats.largest_mean import largest_mean
from raybias.stats.metric import DEFAULT
from raybias.stats.units import BLOCK, UNITS
from raybias.stats.word_variance import WordVariance

Scope = Literal["runs", "sentences", "wording"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

#: The facet that an interval of each scope draws anew beyond the narrower scopes.
ADDED: Final[Mapping[Scope, str]] = {"runs": "seeds", "sentences": "sentences", "wording": "words"}

#: What names a mean over runs.
PLACE: Final = (*TABLE, "group", "score", "condition")
_ROWS: Final = pl.Schema(
    {
        **dict.fromkeys((*PLACE, "scope"), pl.String()),
        **dict.fromkeys(("value", "low", "high", "p", "mde"), pl.Float64()),
        **{"equivalent": pl.Boolean(), "units": pl.Int64()},
    }
)


@dataclass(frozen=True)
class GapTable:
    """One rate's gaps of one classifier on one attribute, taken apart by run and template."""

    keys: tuple[str, ...]
    """Values of schema.KEYS and the attribute."""
    score: str
    groups: tuple[str, ...]
    in_mean_G: npt.NDArray[np.bool_]
    values_GRT: Doubles
    """Their mean over templates is a run's gap, and their mean over both the gap; [..., G, R, T]
    of several tables at once."""
    templates: tuple[str, ...] = ()
    condition: str = ""
    """As in schema.ESTIMATES."""
    apart: MeanEstimate | None = None
    """Of items or clusters that no template pairs: the means [G], of independent groups (Welch
    1947)."""
    events: Events | None = None
    """What the rates rest on; gaps of rare outcomes have a least variance."""
    items_G: Doubles | None = None
    """Items of a run that count."""
    most_G: Doubles | None = None
    """What one template can add to each rate or gap; 1 of each if it is not known."""

    @property
    def place(self) -> tuple[str, ...]:
        """The keys, attribute and score."""
        return (*self.keys, self.score)

    @property
    def names(self) -> dict[str, Any]:
        """The columns that all its rows share."""
        named = dict(zip((*TABLE, "score"), self.place, strict=True))
        return {**named, "condition": self.condition}

    def units_under(self, scope: Scope) -> npt.NDArray[np.int64]:
        """Count the runs, or the templates that have sentences of a group [G]."""
        if scope == "runs" or self.events is None:
            units = self.values_GRT.shape[1 if scope == "runs" else 2]
            return np.full(len(self.groups), units)
        return self.events.units_G.round().astype(np.int64)

    def estimates(self, words: WordVariance | None) -> dict[Scope, MeanEstimate]:
        """Estimate the gaps under every scope that the design allows, rare ones by `Events`."""
        varies = bool((self.values_GRT.std(axis=-2) > ROUNDING).any())
        found: dict[Scope, MeanEstimate] = {}
        if varies:
            found["runs"] = mean_squares(self.values_GRT.mean(axis=-1), ("run",)).estimate()
        if self.values_GRT.shape[-1] > 1:
            over_runs = self.values_GRT.mean(axis=-2)
            squares = self.squares if varies else mean_squares(over_runs, ("template",))
            found["sentences"] = crossed = squares.estimate()
            if self.apart is not None:
                found["sentences"] = replace(
                    crossed,
                    variance=np.maximum(crossed.variance, self.apart.variance),
                    freedom=np.minimum(crossed.freedom, self.apart.freedom),
                )
        if self.events is not None and self.apart is None:
            found = {scope: self.events.floored(each) for scope, each in found.items()}
        if words is not None and "sentences" in found:
            found["wording"] = words.added_to(found["sentences"], self)
        return found

    @property
    def probe(self) -> str:
        """The probe of its keys."""
        return self.keys[schema.KEYS.index("probe")]

    def with_no_mean(self) -> GapTable:
        """Compare the groups with none: no group's words or sentences are in what is taken off."""
        return replace(self, in_mean_G=np.zeros_like(self.in_mean_G))

    def less_mean(self) -> GapTable:
        """Make gaps of rates: less the mean of the groups in it."""
        mean_RT = self.values_GRT[self.in_mean_G].mean(axis=0)
        apart = self.apart and less_mean_of_groups(self.apart, self.in_mean_G)
        gaps_GRT = self.values_GRT - mean_RT
        gaps_GRT[np.abs(gaps_GRT) < ROUNDING] = 0.0
        return replace(self, values_GRT=gaps_GRT, apart=apart, most_G=self._most_of_gaps())

    def _most_of_gaps(self) -> Doubles | None:
        """Compute what one template can add to each gap [G], from what it can add to rates.

        That is what the rate of the group itself can add, or of another group in the mean. A
        template in which all groups have items can move several at once, so that no part of the
        group's own rate is taken off for its place in the mean.
        """
        if self.most_G is None:
            return None
        share_G = self.in_mean_G / self.in_mean_G.sum()
        others_G = share_G * self.most_G
        # The largest of all others is the largest of all, or of the largest group the second.
        second, largest = np.sort(np.append(others_G, 0.0))[-2:]
        other_G = np.where(np.arange(len(others_G)) == others_G.argmax(), second, largest)
        own_G = np.ones(len(self.groups)) if self.apart is None else 1 - share_G
        return np.asarray(np.maximum(own_G * self.most_G, other_G))

    def reach_G(self, level: float) -> Doubles:
        """Bound the sizes of the gaps [G] by the templates, as `largest_mean` does."""
        most_G = np.ones(len(self.groups)) if self.most_G is None else self.most_G
        values_GT = self.values_GRT.mean(axis=1)
        bounds = (largest_mean(*each, level) for each in zip(values_GT, most_G, strict=True))
        return np.fromiter(bounds, float, len(self.groups))

    @cached_property
    def squares(self) -> MeanSquares:
        """Mean squares [G] of runs and templates, two or more; of templates alone in one run."""
        if self.values_GRT.shape[-2] < 2:
            return mean_squares(self.values_GRT[..., 0, :], ("template",))
        return mean_squares(self.values_GRT, ("run", "template"))


def chosen_scope(known: Collection[Scope], scope: config.Scope) -> Scope | None:
    """Return a scope, or the widest, of those that are known; None where it is not."""
    if scope == "widest":
        return next((each for each in reversed(SCOPES) if each in known), None)
    return scope if scope in known else None


def estimates_of_sum(parts: Sequence[Doubles], *, noise: bool = True) -> dict[Scope, MeanEstimate]:
    """Estimate a sum [G] of tables [G, R, T] that have their own runs, and the same templates.

    Runs are random in tables of two or more. The variance over runs and over templates holds the
    `noise` of their cells twice; it is taken away once, or not.
    """
    found: dict[Scope, MeanEstimate] = {}
    sum_GT = np.asarray(sum(part.mean(axis=1) for part in parts))
    several = [part for part in parts if part.shape[1] > 1]
    runs = [mean_squares(part.mean(axis=2), ("run",)).estimate() for part in several]
    terms: list[tuple[Doubles, Doubles | float]] = [(one.variance, one.freedom) for one in runs]
    if runs:
        found["runs"] = MeanEstimate(sum_GT.mean(axis=1), *satterthwaite(terms))
    if sum_GT.shape[1] > 1:
        templates = mean_squares(sum_GT, ("template",)).estimate()
        terms.append((templates.variance, templates.freedom))
        for part in several if noise else ():
            both = ("run", "template")
            n = part.shape[1] * part.shape[2]
            freedom = (part.shape[1] - 1) * (part.shape[2] - 1)
            terms.append((-mean_squares(part, both).squares[both] / n, freedom))
        whole = MeanEstimate(templates.mean, *satterthwaite(terms))
        # The difference of mean squares can by chance come out smaller than either.
        whole = whole.at_least(found["runs"]) if runs else whole
        found["sentences"] = whole.at_least(templates)
    return found


def rate_tables(
    cells: pl.DataFrame, inside: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> Iterator[GapTable]:
    """Take the rates of every classifier and attribute apart by run and template.

    Metrics of predictions have no rates by template; nor have cells without template ids, or a
    group of the mean with sentences in some runs only.
    """
    placed = pl.col("template_id").is_not_null().all().over(TABLE)
    cells = cells.filter(placed) if cells["template_id"].null_count() else cells
    for counts in count_arrays(cells, metrics):
        member = members_of(counts, inside)
        for k in range(len(counts.scores)):
            table = rate_table(counts, k, member)
            if table is not None:
                yield table


def members_of(counts: CountArrays, inside: pl.DataFrame) -> dict[str, bool]:
    """Look up which groups of one attribute are in its mean."""
    known = inside.filter(probe=counts.keys[schema.KEYS.index("probe")], attribute=counts.keys[-1])
    return dict(known.select("group", "in_mean").iter_rows())


def rate_table(counts: CountArrays, k: int, member: Mapping[str, bool]) -> GapTable | None:
    """Take the rates of one metric apart; None where the mean has other groups in some runs."""
    there_GRT = counts.items_KGRT[k] > 0
    runs_R, templates_T = there_GRT.any(axis=(0, 2)), there_GRT.any(axis=(0, 1))
    known_GR = there_GRT.any(axis=2)[:, runs_R]
    whole_G = known_GR.all(axis=1)
    torn = known_GR.any(axis=1) & ~whole_G
    if any(member.get(counts.groups[g], False) for g in np.flatnonzero(torn)):
        return None
    groups = tuple(group for group, whole in zip(counts.groups, whole_G, strict=True) if whole)
    in_mean_G = np.array([member.get(group, False) for group in groups], dtype=bool)
    if not (runs_R.any() and in_mean_G.any()):
        return None
    kept = np.ix_(whole_G, runs_R, templates_T)
    items_GRT, hits_GRT = counts.items_KGRT[k][kept], counts.hits_KGRT[k][kept]
    parts_GRT = linearised(items_GRT, hits_GRT)
    templates = tuple(np.array(counts.templates)[templates_T].tolist())
    unpaired = len(templates) > 1 and all(each.startswith((*UNITS.values(),)) for each in templates)
    of_items = unpaired and templates[0].startswith(BLOCK)
    # As many templates of equal size would add as much as these do (Kish 1965).
    sizes_GT = items_GRT.mean(axis=1)
    most_G = (sizes_GT**2).mean(axis=1) / sizes_GT.mean(axis=1) ** 2
    events = _events(items_GRT, hits_GRT, of_items=of_items)
    return GapTable(
        counts.keys,
        counts.scores[k],
        groups,
        in_mean_G,
        parts_GRT,
        templates,
        apart=_apart(parts_GRT, events, of_items=of_items) if unpaired else None,
        events=events,
        most_G=most_G,
        items_G=items_GRT.sum(axis=2).mean(axis=1),
    )


def _events(items_GRT: Doubles, hits_GRT: Doubles, *, of_items: bool) -> Events:
    """Count the outcomes that groups' rates rest on: items of a run, or the templates they fill."""
    items_G = items_GRT.sum(axis=2).mean(axis=1)
    hits_G = hits_GRT.sum(axis=2).mean(axis=1)
    if of_items:
        return Events(items_G, hits_G)
    templates_G = (items_GRT > 0).any(axis=1).sum(axis=1).astype(float)
    return Events(templates_G, templates_G * hits_G / items_G)


def _apart(parts_GRT: Doubles, events: Events, *, of_items: bool) -> MeanEstimate:
    """Estimate the rates of independent groups; those with few events have a least variance."""
    own = mean_squares(parts_GRT.mean(axis=1), ("template",)).estimate()
    variance_G, freedom_G = own.variance, np.maximum(events.units_G - 1, 1.0)
    if not of_items:
        # The mean square is over all blocks, and a group's clusters are in some of them.
        blocks = parts_GRT.shape[2]
        variance_G = variance_G * events.units_G / freedom_G * (blocks - 1) / blocks
    return MeanEstimate(own.mean, np.maximum(variance_G, events.least_variances()), freedom_G)


def scope_rows(
    tables: Iterable[GapTable], words: Mapping[tuple[str, ...], WordVariance], rules: Statistics
) -> pl.DataFrame:
    """Estimate the gaps of tables under every scope that their designs allow, without a verdict."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        between = words.get(table.place)
        for scope, found in table.estimates(between).items():
            names = {**table.names, "scope": scope}
            # Under `runs` the templates are these very ones.
            reach_G = None if scope == "runs" else table.reach_G
            columns = {**columns_of(found, rules, reach_G), "units": table.units_under(scope)}
            rows += by_group(names, table.groups, columns)
    return pl.DataFrame(rows, schema=_ROWS).fill_nan(None)


def by_group(
    names: Mapping[str, Any],
    groups: Sequence[str],
    columns: Mapping[str, npt.NDArray[np.generic]],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each group of columns [G]."""
    for group, *values in zip(groups, *(each.tolist() for each in columns.values()), strict=True):
        yield {**names, "group": group, **dict(zip(columns, values, strict=True))}


def every_scope(
    over: pl.DataFrame,
    tables: Iterable[GapTable],
    words: Mapping[tuple[str, ...], WordVariance],
    rules: Statistics,
) -> pl.DataFrame:
    """Estimate means over runs under every scope that their design allows, without a verdict.

    `over` is of `over_runs`, by PLACE, and `tables` hold the same means, taken apart. Gives `over`
    with scope and `columns_of`; units are those of the scope. Under `runs` every mean has a row.
    """
    under_runs = parametric(over, rules).with_columns(scope=pl.lit("runs"))
    wide = scope_rows(tables, words, rules).filter(pl.col("scope") != "runs")
    beyond = wide.drop("value").join(
        over.drop("units"), on=PLACE, nulls_equal=True, maintain_order="left"
    )
    return pl.concat([under_runs, beyond.select(under_runs.columns)])


def one_scope(found: pl.DataFrame, scope: config.Scope) -> pl.DataFrame:
    """Select each mean of `every_scope` under one scope, if need be without interval, or widest."""
    if scope == "widest":
        by_width = pl.col("scope").cast(pl.Enum(SCOPES))
        return found.sort(by_width, maintain_order=True).unique(
            PLACE, keep="last", maintain_order=True
        )
    kept = found.filter(scope=scope)
    lacking = found.filter(scope="runs").join(kept, on=PLACE, how="anti", nulls_equal=True)
    nothing = dict.fromkeys(("low", "high", "p", "mde", "equivalent", "units"))
    return pl.concat([kept, lacking.with_columns(**nothing, scope=pl.lit(scope)).cast(kept.schema)])
