"""Judge prediction files that lie anywhere, without the study that wrote them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import stats
from raybias.config import Profile, Scope, Statistics
from raybias.errors import ConfigError, DataError
from raybias.report.design import relative_costs, study_costs
from raybias.report.made_from import refuse_study
from raybias.report.page import write_gap_page
from raybias.report.rules import out_of, rules_of_files
from raybias.report.tables import further_tables
from raybias.seal import changes, in_words
from raybias.stats.design import TARGET
from raybias.storage import Store
from raybias.study_record import read_record
from raybias.table_files import csv_text

#: The tables of prediction files, as far as they have rows.
_TABLES: Final[tuple[str, ...]] = (
    *("gaps", "accuracy", "spans", "spans_mean", "extremes", "composition", "answers"),
    *("markedness", "by_term", "scopes", "by_family", "components", "leave_one_out", "over_models"),
    *("reliability", "null_check", "metrics", "withheld"),
)


#: Those that are read without asking whether they are there.
_SHOWN: Final = ("gaps", "accuracy", "spans_mean", "composition", "components")


@dataclass(frozen=True)
class FileGaps:
    """The gaps of prediction files, and what follows from the same counts."""

    files: list[stats.Source]
    counts: stats.Counts
    rules: stats.GapRules
    judged: dict[str, pl.DataFrame]
    """Those of `stats.judged_tables`."""

    @cached_property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Those that have rows, by name; `_SHOWN` always."""
        there = {name: self.judged[name] for name in _TABLES if name in self.judged}
        return {name: one for name, one in there.items() if name in _SHOWN or one.height}

    @cached_property
    def papers(self) -> pl.DataFrame | None:
        """Significance by the papers' rule: `stats.GAP_KEYS` and `paper`; None if that judged."""
        statistics = self.rules.statistics
        papers = Statistics.under("paper", metrics=statistics.metrics)
        if statistics == papers:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.StatisticsWarning)
            usual = stats.gap_analysis(self.counts, replace(self.rules, statistics=papers)).gaps
        return usual.select(*stats.GAP_KEYS, paper="significant")

    def write(self, store: Store) -> None:
        """Write the tables as CSV, their figures as SVG, and report.html."""
        refuse_study(store)
        for name, frame in self.tables.items():
            store.write_text(f"{name}.csv", csv_text(frame))
        options = self.rules.statistics
        costs = relative_costs(int(self.judged["composition"]["items"].sum()))
        more = further_tables(self.judged, self.counts, options, costs=costs)
        write_gap_page(store, options, {**self.judged, **more}, self.files)


def gaps_of_files(
    files: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> FileGaps:
    """Judge the gaps of prediction files; `options` are of `Statistics`, see `raybias.gaps`."""
    paths = [str(file) for file in files]
    rules = rules_of_files(
        paths,
        profile=profile,
        reference_groups=reference_groups,
        options=options,
    )
    for out in dict.fromkeys(filter(None, map(out_of, paths))):
        if changed := changes(Store(out)):
            warnings.warn(in_words(changed), stats.StatisticsWarning, stacklevel=2)
    counts = stats.read_counts(paths, metrics=rules.statistics.metrics)
    return FileGaps(stats.sources(paths), counts, rules, stats.judged_tables(counts, rules))


def design_of_files(
    files: Sequence[str | Path],
    *,
    target: float | None = None,
    profile: Profile | None = None,
    scope: Scope | None = None,
) -> tuple[pl.DataFrame, float]:
    """Predict what to add to files' studies, and for which half width; see `raybias.design`."""
    if target is not None and not target > 0:
        raise ConfigError(f"the target {target} is not above 0", cure="such as 0.02")
    found = gaps_of_files(files, profile=profile, scope=scope)
    statistics = found.rules.statistics
    items = int(found.tables["composition"]["items"].sum())
    outs = {*map(out_of, files)}
    (out,) = outs if len(outs) == 1 else (None,)
    store = None if out is None else Store(out)
    costs = (
        relative_costs(items)
        if store is None
        else study_costs(store, read_record(store).study, items)
    )
    wanted = target or statistics.margin or TARGET
    if found.tables["components"].is_empty():
        raise DataError(
            "the templates of these predictions are not known, so nothing can be predicted",
            where=", ".join(map(str, files)),
            cure="give predictions with template ids",
        )
    designs = stats.design(
        found.tables["components"],
        found.tables["gaps"],
        costs,
        target=wanted,
        scope=statistics.scope,
        level=statistics.level,
    )
    return designs, wanted
