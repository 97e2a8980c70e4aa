"""Judge gaps by a study's rules, and make the tables of its report and of `raybias gaps`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.stats.breakdown import by_term
from raybias.stats.cells import without_extras
from raybias.stats.counts import Counts
from raybias.stats.gaps import gaps
from raybias.stats.intervals import MIRROR
from raybias.stats.likelihood_readout import UNREADABLE, unreadable
from raybias.stats.markedness import markedness, members
from raybias.stats.rates import accuracies, rates
from raybias.stats.reference_groups import StatisticsWarning, check_reference_groups
from raybias.stats.scopes import scoped_gaps
from raybias.stats.summaries import composition, extremes, net_significance, spans, spans_mean


@dataclass(frozen=True)
class GapRules:
    """What gaps are taken from, and how they are judged."""

    statistics: Statistics
    """Resolved: interval, level, correction, draws and seed of the bootstrap."""
    probes: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Reference groups by probe and attribute; the papers' lists for what is left out."""
    everywhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Reference groups by attribute for every probe that has it, instead of those above."""

    def of(self, probe: str, attribute: str) -> tuple[str, ...] | None:
        """Return the reference groups that were chosen; None where the papers' list decides."""
        chosen = self.everywhere.get(attribute)
        if chosen is None:
            chosen = self.probes.get(probe, {}).get(attribute)
        return None if chosen is None else tuple(chosen)


def judged_gaps(counts: Counts, rules: GapRules) -> pl.DataFrame:
    """Compute the gaps of all probes with the reference groups and statistics of `rules`.

    A classifier most of whose answers are unreadable has no verdict.

    Returns
    -------
    schema.GAPS. Probes that take one attribute from different groups are judged apart.

    Raises
    ------
    ConfigError: reference groups that the cells do not have.
    DataError: a bootstrap over predictions without template ids.

    Warns
    -----
    StatisticsWarning: as `gaps`, and where probes are judged apart.
    """
    cells, withheld = counts.cells, unreadable(counts.answers)
    judged = partial(_judged, options=rules.statistics, withheld=withheld, values=counts.values)
    check_reference_groups(cells, {a: g for a, g in rules.everywhere.items() if not _has(cells, a)})
    used: dict[str, dict[str, tuple[str, ...] | None]] = {}
    for probe, attribute in cells.select("probe", "attribute").unique().sort("probe").iter_rows():
        used.setdefault(attribute, {})[probe] = rules.of(probe, attribute)
    if all(len(set(choices.values())) == 1 for choices in used.values()):
        chosen = {name: next(iter(choices.values())) for name, choices in used.items()}
        return judged(cells, chosen)
    warnings.warn(
        "The probes take the gaps of one attribute from different groups: each probe is judged "
        "apart, with its own correction for many tests.",
        StatisticsWarning,
        stacklevel=2,
    )
    parts = []
    for probe in cells["probe"].unique().sort().to_list():
        own = {name: by_probe[probe] for name, by_probe in used.items() if probe in by_probe}
        part = cells.filter(pl.col("probe") == probe)
        parts.append(judged(part, own, values=counts.values.filter(probe=probe)))
    return pl.concat(parts)


def judged_tables(counts: Counts, rules: GapRules) -> dict[str, pl.DataFrame]:
    """Compute the tables that follow from counts by the rules, from `gaps` to `by_term`.

    Returns
    -------
    `gaps`, `scopes`, `components`, `accuracy`, `net_significance`, `spans`, `spans_mean`,
    `extremes`, `composition`, `answers`, `markedness` and `by_term`, as the functions of those
    names; some may have no rows.

    Raises, warns
    -------------
    As `judged_gaps`.
    """
    gaps, cells, options = judged_gaps(counts, rules), counts.cells, rules.statistics
    spanning, inside = spans(gaps), members(gaps)
    how: dict[str, Any] = {
        "interval": options.interval,
        "level": options.level,
        "adjust": options.adjust,
        "excluded": [excluded(gaps)],
    }
    known = without_extras(cells)
    of_groups = rates(known, options.metrics)
    scopes, components = scoped_gaps(
        known,
        without_extras(counts.words),
        inside,
        level=options.level,
        adjust=options.adjust,
        metrics=options.metrics,
        excluded=excluded(gaps),
    )
    return {
        "gaps": gaps,
        "scopes": scopes,
        "components": components,
        "accuracy": accuracies(cells),
        "net_significance": net_significance(gaps),
        "spans": spanning,
        "spans_mean": spans_mean(spanning),
        "extremes": extremes(gaps),
        "composition": composition(cells),
        "answers": counts.answers,
        "markedness": markedness(cells, inside, metrics=options.metrics, **how),
        "by_term": by_term(counts.terms, of_groups, inside, **how),
    }


def excluded(gaps: pl.DataFrame) -> pl.DataFrame:
    """Find the rates of classifiers that have no verdict whatever the group, for other tables.

    Parameters
    ----------
    gaps: schema.GAPS.

    Returns
    -------
    The keys, attribute, rate and `no_verdict`.
    """
    reason = pl.col("no_verdict")
    concerned = reason.str.starts_with(MIRROR) | reason.str.ends_with(UNREADABLE)
    columns = (*schema.KEYS, "attribute", "rate", "no_verdict")
    return gaps.filter(concerned).select(columns).unique(maintain_order=True)


def _has(cells: pl.DataFrame, attribute: str) -> bool:
    return bool((cells["attribute"] == attribute).any())


def _judged(
    cells: pl.DataFrame,
    chosen: Mapping[str, tuple[str, ...] | None],
    *,
    options: Statistics,
    withheld: pl.DataFrame,
    values: pl.DataFrame,
) -> pl.DataFrame:
    return gaps(
        cells,
        reference_groups={name: groups for name, groups in chosen.items() if groups is not None},
        interval=options.interval,
        level=options.level,
        adjust=options.adjust,
        draws=options.bootstrap_draws,
        seed=options.bootstrap_seed,
        withheld=withheld,
        metrics=options.metrics,
        values=values,
    )
