"""Estimate from files and an OUT's answers by the rules of a study or profile; write OUT/tables.

Tables are Parquet (full precision), CSV (the public contract) and Markdown.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import ValidationError

from raybias import schema
from raybias.config import Profile, Scope, Statistics, Study
from raybias.errors import ConfigError, DataError
from raybias.measures.entries.predictions import estimates_of
from raybias.measures.kind import Rules, kinds, measure_all
from raybias.measures.reading import read
from raybias.methods.options import OptionLikelihood
from raybias.report import cautions
from raybias.report.design import relative_costs, study_costs
from raybias.report.judges import judged_methods, read_labels
from raybias.report.outs import prediction_files, read_items, restated
from raybias.report.rendering import write_frame
from raybias.stats.breakdown import by_template
from raybias.stats.checks import StatisticsWarning, UnevenRuns
from raybias.stats.counts import composition, count_files, read_counts
from raybias.stats.design import TARGET, design
from raybias.stats.gaps import GapRules, gap_analysis
from raybias.stats.judged import corrected_gaps
from raybias.stats.metric import check_metrics
from raybias.storage import Store
from raybias.study_record import Record, read_record, read_runs


def rules_of_files(
    paths: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> GapRules:
    """Return the rules by which the gaps of prediction files are judged.

    An OUT or its folder `predictions` brings the reference groups and statistics of its study, or
    those of a `profile`. `reference_groups` are by attribute, instead of the study's or the
    papers'; `options` are fields of `Statistics`, of which empty ones are the study's or profile's.

    Raises ConfigError: studies with different rules, no such metric, or a scope that the interval
    cannot cover.
    """
    chosen = reference_groups or {}
    stated = {name: value for name, value in (options or {}).items() if value}
    check_metrics(stated.get("metrics", ()))
    found: dict[str, GapRules] = {}
    for out in dict.fromkeys(filter(None, map(out_of, paths))):
        study = read_record(Store(out)).study
        found[out] = rules_of(restated(study, profile))
    rules = GapRules(Statistics.under(profile or "strict"))
    if found:
        rules = _common({out: _stated(each, stated) for out, each in found.items()}, chosen)
    return replace(_stated(rules, stated), everywhere=chosen)


def out_of(path: str | Path, folder: str = "predictions") -> str | None:
    """Return the OUT that a path is, or whose `folder` it is or is in."""
    text = str(path)
    whole = text if "://" in text or text.startswith("/") else f"./{text}"
    for place in (whole, f"{whole}/".rpartition(f"/{folder}/")[0]):
        if place and Store(place).exists("study.yaml"):
            return place.rstrip("/")
    return None


def _stated(rules: GapRules, options: Mapping[str, Any]) -> GapRules:
    try:
        stated = type(rules.statistics)(**{**dict(rules.statistics), **options})
    except ValidationError as error:
        raise ConfigError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error
    return replace(rules, statistics=stated)


def _common(found: Mapping[str, GapRules], chosen: Mapping[str, Sequence[str]]) -> GapRules:
    (first, rules), *others = found.items()
    probes = {name: dict(groups) for name, groups in rules.probes.items()}
    for out, other in others:
        for name in type(other.statistics).model_fields:
            one, two = (getattr(each.statistics, name) for each in (rules, other))
            if one != two:
                raise ConfigError(
                    f"the studies are judged differently: {name} is {one} in {first}, {two} in "
                    f"{out}",
                    cure="give --profile, --scope or --interval, or ask for each alone",
                )
        for probe, groups in other.probes.items():
            own = probes.setdefault(probe, dict(groups))
            for attribute in sorted({*own, *groups} - {*chosen}):
                if set(own.get(attribute, ())) != set(groups.get(attribute, ())):
                    raise ConfigError(
                        f"{first} and {out} take the gaps of {attribute} in probe {probe} from "
                        "different groups",
                        cure=f"give --reference {attribute}=GROUP,..., or ask for each alone",
                    )
    engines = {name: of for each in found.values() for name, of in each.engines.items()}
    return replace(rules, probes=probes, engines=engines)


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
    counts = read_counts(paths, metrics=statistics.metrics)
    analysis = gap_analysis(counts, rules)
    items = int(composition(counts.cells)["items"].sum())
    costs = relative_costs(items)
    outs = {*map(out_of, files)}
    if len(outs) == 1 and (out := outs.pop()) is not None:
        costs = study_costs(Store(out), read_record(Store(out)).study, items)
    wanted = target or statistics.margin or TARGET
    if analysis.components.is_empty():
        raise DataError(
            "the templates of these predictions are not known, so nothing can be predicted",
            where=", ".join(map(str, files)),
            cure="give predictions with template ids",
        )
    designs = design(
        analysis.components, analysis.gaps, costs, target=wanted, scope=statistics.scope,
        level=statistics.level,
    )  # fmt: skip
    return designs, wanted


def estimates_of_study(
    store: Store, study: Study, record: Record
) -> tuple[pl.DataFrame, list[str]]:
    """Estimate every score of an OUT's pairs and questions: schema.ESTIMATES, and cautions."""
    if not any(store.exists(each.folder) for each in kinds.values()):
        wanted = {"scores of pairs": study.pairs, "answers to questions": study.questions}
        what = " or ".join(name for name, there in wanted.items() if there)
        raise DataError(
            f"holds no {what}", where=store.uri, cure="finish the study with `raybias run`"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StatisticsWarning)
        answers = read([store.uri])
    said = dict.fromkeys(str(each.message) for each in caught)
    for name, frame in answers.items():
        said |= dict.fromkeys(cautions.of_answers(store, study, record, kinds[name], frame))
    return measure_all(answers, rules_of_study(study, record)), [*said]


def rules_of_study(study: Study, record: Record) -> Rules:
    """Return the rules of a study's pairs and questions."""
    return Rules(
        **dict(study.statistics),
        strict=study.profile == "strict",
        sizes=record.parameters,
        letters=frozenset(_letter_methods(study)),
    )


def _letter_methods(study: Study) -> list[str]:
    return [m.name for m in study.methods if isinstance(m, OptionLikelihood) and m.letters]


def rules_of_answers(paths: Iterable[str], profile: Profile | None = None) -> Rules:
    """Return the rules of the one study that files lie in, or of a profile, by default strict."""
    outs = {out for path in paths for each in kinds.values() if (out := out_of(path, each.folder))}
    records = [read_record(Store(out)) for out in sorted(outs)]
    if len(records) == 1:
        (record,) = records
        return rules_of_study(restated(record.study, profile), record)
    letters = frozenset(name for each in records for name in _letter_methods(each.study))
    return Rules.under(profile or "strict", strict=profile != "paper", letters=letters)


#: Tables for programs alone; they have a row per run or template.
_PARQUET_ONLY: Final = ("cells", "by_template")
_RUN_TABLE: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window",
    "adapter_rank", "target", "stage",
    "steps", "weights_step", "stop_reason", "validation_loss", "untuned_accuracy",
    "validation_accuracy", "test_accuracy", "rank", "selected", "tied", "tokens", "seconds",
    "run_id", "adapter",
)  # fmt: skip


def write_tables(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Compute a study's tables from its predictions, and write OUT/tables but for `estimates`.

    `judged` is there where a judge labelled texts; `coverage` counts predictions asked for and
    found per run, and `notes` has the warnings of the statistics, and whether each is `urgent`.

    Raises
    ------
    DataError: no predictions, an unreadable file, or an item that is not the same in all runs.
    ConfigError: reference groups that the predictions do not have.
    """
    options, rules = study.statistics, rules_of(study)
    files = prediction_files(store)
    if not files:
        raise DataError(
            "holds no predictions", where=store.uri, cure="finish the study with `raybias run`"
        )
    tables: dict[str, pl.DataFrame] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts = count_files(files, where=store.uri, metrics=options.metrics, unfinished="count")
        found = gap_analysis(counts, rules)
        estimates = estimates_of(found)
        if judged_methods(study):
            tables["judged"] = corrected_gaps(found, read_labels(store))
    said = {str(each.message): issubclass(each.category, UnevenRuns) for each in caught}
    notes = sorted(said.items(), key=lambda note: not note[1])
    cells = counts.cells.cast({pl.Categorical: pl.String})
    sizes = composition(counts.cells)
    asked = {
        probe: read_items(store, [probe], "item_id").height
        for probe in counts.coverage["probe"].unique()
        if store.exists(f"items/{probe}.parquet")
    }
    items = pl.col("probe").replace_strict(asked, default=None, return_dtype=pl.Int64)
    costs = study_costs(store, study, int(sizes["items"].sum()))
    tables |= {
        "components": found.components,
        "composition": sizes,
        "answers": counts.answers,
        "markedness": found.marked,
        "by_term": found.of_terms,
        "by_template": by_template(cells, found.inside, options.metrics),
        "notes": pl.DataFrame(notes, {"note": pl.String, "urgent": pl.Boolean}, orient="row"),
        "design": design(
            found.components, found.gaps, costs, target=options.margin or TARGET,
            scope=options.scope, level=options.level,
        ),
        "runs": read_runs(store).select(_RUN_TABLE),
        "coverage": counts.coverage.select(
            *schema.KEYS, "run_id", "predictions", "repeated", "unparsed", items=items
        ),
        "cells": cells,
    }  # fmt: skip
    if rules.engines:
        tables["engines"] = found.turned
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame, text=name not in _PARQUET_ONLY)
    return {"estimates": estimates, **tables}


def rules_of(study: Study) -> GapRules:
    """Return the rules by which a study's gaps are taken and judged."""
    return GapRules(
        study.statistics,
        {probe.name: probe.reference_groups for probe in study.probes},
        judged=frozenset(judged_methods(study)),
        engines=study.engines,
    )
