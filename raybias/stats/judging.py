"""Prepare the gaps of all probes for judgement by a study's rules, also by families of templates.

Templates that were written from one opening are alike, so an interval that resamples them one by
one can be too narrow. With a family's templates summed up, a family is the unit that is resampled
(cluster-robust), and the point estimates stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.stats.conclusive import of_predictions
from raybias.stats.counts import Counts
from raybias.stats.gaps import GapAnalysis
from raybias.stats.reference_groups import StatisticsWarning, check_reference_groups
from raybias.stats.scopes import GapTable


@dataclass(frozen=True)
class GapRules:
    """What gaps are taken from, and how they are judged."""

    statistics: Statistics
    """Resolved: interval, level, correction, draws and seed of the bootstrap."""
    probes: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Reference groups by probe and attribute; the papers' lists for what is left out."""
    everywhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Reference groups by attribute for every probe that has it, instead of those above."""
    judged: frozenset[str] = frozenset()
    """Methods whose labels are a judge's verdicts."""

    def of(self, probe: str, attribute: str) -> tuple[str, ...] | None:
        """Return the reference groups that were chosen; None where the papers' list decides."""
        chosen = self.everywhere.get(attribute)
        if chosen is None:
            chosen = self.probes.get(probe, {}).get(attribute)
        return None if chosen is None else tuple(chosen)


def gap_analysis(counts: Counts, rules: GapRules) -> GapAnalysis:
    """Prepare the gaps of all probes with the reference groups and statistics of `rules`.

    A classifier that cannot do its task has no verdict (`conclusive`).

    Raises
    ------
    ConfigError: reference groups that the cells do not have.
    """
    cells, level = counts.cells, rules.statistics.level
    check_reference_groups(cells, {a: g for a, g in rules.everywhere.items() if not _has(cells, a)})
    return GapAnalysis(
        cells,
        rules.statistics,
        rules.of,
        words=counts.words,
        withheld=of_predictions(cells, counts.answers, level=level, judged=rules.judged),
        values=counts.values,
    )


def by_family(counts: Counts, rules: GapRules) -> pl.DataFrame:
    """Judge the gaps where families of templates are resampled; without rows if none is known."""
    if counts.families.is_empty():
        return pl.DataFrame(schema=pl.Schema(schema.SCOPES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        scopes = gap_analysis(of_families(counts), rules).scopes
    return scopes.filter(pl.col("scope") != "runs")


def judgeable(tables: Sequence[GapTable], excluded: Iterable[pl.DataFrame]) -> list[GapTable]:
    """Leave out the tables of what has no verdict whatever the group."""
    keys = [*schema.KEYS, "attribute", "rate"]
    names = pl.DataFrame(
        [(*table.keys, table.rate) for table in tables],
        dict.fromkeys(keys, pl.String),
        orient="row",
    ).with_row_index("place")
    for frame in excluded:
        by = [name for name in frame.columns if name != "no_verdict"]
        names = names.join(frame.cast(dict.fromkeys(by, pl.String)), on=by, how="anti",
                           nulls_equal=True, maintain_order="left")  # fmt: skip
    return [tables[place] for place in names["place"]]


def _has(cells: pl.DataFrame, attribute: str) -> bool:
    return bool((cells["attribute"] == attribute).any())


def of_families(counts: Counts) -> Counts:
    """Sum the counts of each family of templates up, as if the family were one template.

    A template without a family is a family of its own. Probes without families are left out.
    """
    known = counts.families.select("probe", "attribute").unique()
    cells, words = (
        _merged(frame.cast({pl.Categorical: pl.String}), counts.families, known)
        for frame in (counts.cells, counts.words)
    )
    return replace(counts, cells=cells, words=words)


def _merged(cells: pl.DataFrame, families: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Put each template's family in its place."""
    there = cells.join(known, on=known.columns, how="semi", maintain_order="left")
    on = ["probe", "attribute", "template_id"]
    named = there.join(families, on=on, how="left", maintain_order="left")
    merged = named.with_columns(template_id=pl.coalesce("family", "template_id")).drop("family")
    by = [name for name in merged.columns if name != "n"]
    return merged.group_by(by, maintain_order=True).agg(pl.col("n").sum())
