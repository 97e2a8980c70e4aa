"""Judge prediction files that lie anywhere, without the study that wrote them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from raybias import stats
from raybias.config import Profile, Scope, Statistics
from raybias.errors import ConfigError, DataError
from raybias.measures.predictions import Asked, measure_predictions
from raybias.report.design import relative_costs, study_costs
from raybias.report.rules import out_of, rules_of_files
from raybias.seal import changes, in_words
from raybias.stats.design import TARGET
from raybias.stats.plain_predictions import Columns
from raybias.storage import Store
from raybias.study_record import read_record


def measure_files(
    given: Sequence[str | Path | pl.DataFrame],
    *,
    columns: Columns | None = None,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, Any] | None = None,
    **asked: Any,
) -> tuple[pl.DataFrame, Statistics]:
    """Estimate what predictions show: schema.ESTIMATES, and the rules by which they are judged.

    Parameters
    ----------
    columns: where tables of others have what predictions need.
    options: of `Statistics`, instead of the study's or profile's; see `rules_of_files`.
    asked: fields of `Asked`.
    """
    paths = [str(one) for one in given if not isinstance(one, pl.DataFrame)]
    rules = rules_of_files(
        paths, profile=profile, reference_groups=reference_groups, options=options
    )
    outs = [*dict.fromkeys(filter(None, map(out_of, paths)))]
    for out in outs:
        if changed := changes(Store(out)):
            warnings.warn(in_words(changed), stats.StatisticsWarning, stacklevel=2)
    files = stats.sources(given, columns)
    sentiment = bool(outs) or any(".tsv" in source.name for source in files if not source.columns)
    wanted = Asked(rules=rules, sentiment=sentiment, **asked)
    return measure_predictions(files, wanted), rules.statistics


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
    paths = [str(file) for file in files]
    rules = rules_of_files(paths, profile=profile, options={"scope": scope})
    statistics = rules.statistics
    counts = stats.read_counts(paths, metrics=statistics.metrics)
    analysis = stats.gap_analysis(counts, rules)
    items = int(stats.composition(counts.cells)["items"].sum())
    outs = {*map(out_of, files)}
    (out,) = outs if len(outs) == 1 else (None,)
    store = None if out is None else Store(out)
    costs = (
        relative_costs(items)
        if store is None
        else study_costs(store, read_record(store).study, items)
    )
    wanted = target or statistics.margin or TARGET
    if analysis.components.is_empty():
        raise DataError(
            "the templates of these predictions are not known, so nothing can be predicted",
            where=", ".join(map(str, files)),
            cure="give predictions with template ids",
        )
    designs = stats.design(
        analysis.components,
        analysis.gaps,
        costs,
        target=wanted,
        scope=statistics.scope,
        level=statistics.level,
    )
    return designs, wanted
