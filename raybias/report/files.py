"""Estimate from files and an OUT's answers by the rules of a study or profile; write OUT/tables.

Tables are Parquet (full precision), CSV (the public contract) and Markdown.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import polars as pl
from pydantic import ValidationError

from raybias import schema
from raybias.config import Profile, Scope, Statistics, Study
from raybias.errors import ConfigError, DataError
from raybias.measures.entries.predictions import estimates_of
from raybias.measures.kind import kinds, measure_all
from raybias.measures.reading import read
from raybias.methods.options import OptionLikelihood
from raybias.report import cautions
from raybias.report.design import Addition, costs_of_others, relative_costs, study_costs
from raybias.report.judges import draw_estimates, judged_methods, read_labels
from raybias.report.outs import prediction_files, read_items, restated
from raybias.report.rendering import write_frame
from raybias.stats.breakdown import by_template
from raybias.stats.checks import StatisticsWarning, UnevenRuns
from raybias.stats.conclusive import without_refused_ends
from raybias.stats.counts import Counts, composition, count_files, read_counts
from raybias.stats.design import TARGET, design
from raybias.stats.gaps import gap_analysis
from raybias.stats.intervals import Rules
from raybias.stats.judged import corrected_gaps
from raybias.stats.metric import check_metrics
from raybias.stats.metric_files import as_class
from raybias.stats.units import BLOCK, CLUSTER
from raybias.storage import Store
from raybias.study_record import Record, read_record, read_runs

#: What studies that are judged together have in common; what is favourable changes no number.
_JUDGED_BY: Final = (
    *(name for name in Statistics.model_fields if name != "favourable"),
    "strict",
    "labels",
)


def rules_of_files(
    paths: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rules:
    """Return the rules by which files of predictions and answers are judged.

    An OUT or a folder of its answers brings the rules of its study, or those of a `profile`.
    `reference_groups` are by attribute, instead of the study's or the papers'; `options` are fields
    of `Statistics`, of which empty ones are the study's or profile's.

    Raises ConfigError: studies with different rules, no such metric, or a scope that the interval
    cannot cover.
    """
    stated = {name: value for name, value in (options or {}).items() if value}
    stated["everywhere"] = reference_groups or {}
    check_metrics(stated.get("metrics", ()))
    found: dict[str, Rules] = {}
    for out in dict.fromkeys(filter(None, map(out_of, paths))):
        record = read_record(Store(out))
        found[out] = _stated(rules_of(restated(record.study, profile), record.parameters), stated)
    if not found:
        return _stated(Rules.under(profile or "strict", strict=profile != "paper"), stated)
    return _common(found)


def out_of(path: str | Path) -> str | None:
    """Return the OUT that a path is, or in whose folder of predictions or answers it is."""
    text = str(path)
    whole = text if "://" in text or text.startswith("/") else f"./{text}"
    inside = (f"{whole}/".rpartition(f"/{each.folder}/")[0] for each in kinds.values())
    for place in (whole, *inside):
        if place and Store(place).exists("study.yaml"):
            return place.rstrip("/")
    return None


def _stated(rules: Rules, options: Mapping[str, Any]) -> Rules:
    try:
        return Rules(**{**dict(rules), **options})
    except ValidationError as error:
        raise ConfigError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error


def _common(found: Mapping[str, Rules]) -> Rules:
    (first, rules), *others = found.items()
    references = {name: dict(groups) for name, groups in rules.references.items()}
    for out, other in others:
        for name in _JUDGED_BY:
            one, two = getattr(rules, name), getattr(other, name)
            if one != two:
                raise ConfigError(
                    f"the studies are judged differently: {name} is {one} in {first}, {two} in "
                    f"{out}",
                    cure="give --profile, --scope or --interval, or ask for each alone",
                )
        for probe, groups in other.references.items():
            own = references.setdefault(probe, dict(groups))
            for attribute in sorted({*own, *groups} - {*rules.everywhere}):
                if set(own.get(attribute, ())) != set(groups.get(attribute, ())):
                    raise ConfigError(
                        f"{first} and {out} take the gaps of {attribute} in probe {probe} from "
                        "different groups",
                        cure=f"give --reference {attribute}=GROUP,..., or ask for each alone",
                    )
    each = [*found.values()]
    favourable = {one.favourable for one in each}
    return rules.model_copy(update={
        "favourable": favourable.pop() if len(favourable) == 1 else None,
        "references": references,
        **{name: frozenset[str]().union(*(getattr(one, name) for one in each))
           for name in ("judged", "letters")},
        **{name: {k: v for one in each for k, v in getattr(one, name).items()}
           for name in ("engines", "sizes")},
    })  # fmt: skip


def design_of_files(
    files: Sequence[str | Path],
    *,
    target: float | None = None,
    profile: Profile | None = None,
    scope: Scope | None = None,
) -> tuple[pl.DataFrame, float, Addition]:
    """Predict what to add to files, for which half width, and by whom; see `raybias.design`."""
    if target is not None and not target > 0:
        raise ConfigError(f"the target {target} is not above 0", cure="such as 0.02")
    paths = [str(file) for file in files]
    rules = rules_of_files(paths, profile=profile, options={"scope": scope})
    counts = read_counts(paths, metrics=rules.metrics)
    analysis = gap_analysis(counts_of_class(counts, rules.number_of_class), rules)
    items = int(composition(counts.cells)["items"].sum())
    outs = {*map(out_of, files)}
    costs = relative_costs(items) if any(outs) else costs_of_others(items)
    if len(outs) == 1 and (out := next(iter(outs))) is not None:
        costs = study_costs(Store(out), read_record(Store(out)).study, items)
    wanted = target or rules.margin or TARGET
    if analysis.components.is_empty():
        raise DataError(
            "the templates of these predictions are not known, so nothing can be predicted",
            where=", ".join(map(str, files)),
            cure="give predictions with template ids",
        )
    designs = design(
        analysis.components, analysis.gaps, costs, target=wanted, scope=rules.scope,
        level=rules.level,
    )  # fmt: skip
    unit, size = _unit_of(counts)
    return designs, wanted, Addition(any(outs), unit, size)


def _unit_of(counts: Counts) -> tuple[str, float]:
    """Name what a level of `template_id` is, and say how many of these one has on average."""
    levels = counts.cells["template_id"].drop_nulls().unique().cast(pl.String)
    if levels.len() and levels.str.starts_with(BLOCK).all():
        rows = composition(counts.cells).group_by("probe", "attribute").agg(pl.col("items").sum())
        return "row", max(1.0, max(rows["items"]) / levels.len())
    of_clusters = levels.len() and levels.str.starts_with(CLUSTER).all()
    return "cluster" if of_clusters else "template", 1.0


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
        found = measure_all(answers, rules_of(study, record.parameters))
    said = dict.fromkeys(str(each.message) for each in caught)
    for name, frame in answers.items():
        said |= dict.fromkeys(cautions.of_answers(store, study, record, kinds[name], frame))
    return found, [*said]


def rules_of(study: Study, sizes: Mapping[str, float] = MappingProxyType({})) -> Rules:
    """Return the rules by which a study's answers are judged, given numbers of parameters."""
    letters = [m.name for m in study.methods if isinstance(m, OptionLikelihood) and m.letters]
    return Rules(
        **dict(study.statistics),
        strict=study.profile == "strict",
        references={probe.name: dict(probe.reference_groups) for probe in study.probes},
        judged=frozenset(_not_withheld(study)),
        letters=frozenset(letters),
        engines=study.engines,
        sizes=dict(sizes),
        labels=study.labels,
    )


def _not_withheld(study: Study) -> list[str]:
    """List the methods that have verdicts whatever their accuracy is.

    No label of a judge is right. Of two labels that are not sentiment's, a rare one is rightly
    predicted less well than by always naming the other.
    """
    if study.is_sentiment or len(study.labels) > 2:
        return [*judged_methods(study)]
    return [method.name for method in study.methods]


def counts_of_class(counts: Counts, positive: int | None) -> Counts:
    """Write the class that metrics are about as schema.Label.POSITIVE; see `as_class`."""
    return replace(
        counts,
        cells=as_class(counts.cells, positive),
        terms=as_class(counts.terms, positive),
        words=as_class(counts.words, positive),
    )


#: Tables for programs alone; they have a row per run or template.
_PARQUET_ONLY: Final = ("cells", "by_template")
_RUN_TABLE: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window",
    "adapter_rank", "target", "prompt_length", "stage",
    "steps", "weights_step", "stop_reason", "validation_loss", "untuned_accuracy",
    "validation_accuracy", "test_accuracy", "rank", "selected", "tied", "tokens",
    "tuned_parameters", "seconds",
    "run_id", "adapter",
)  # fmt: skip


def write_tables(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Compute a study's tables from its predictions, and write OUT/tables but for `estimates`.

    `judged` is there where a judge labelled texts, and `unanswered` if answers were cut off or
    filtered; `coverage` counts predictions asked for and found per run, and `notes` has the
    warnings of the statistics, and whether each is `urgent`.

    Raises
    ------
    DataError: no predictions, an unreadable file, or an item that is not the same in all runs.
    ConfigError: reference groups that the predictions do not have.
    """
    rules = rules_of(study)
    files = prediction_files(store)
    if not files:
        raise DataError(
            "holds no predictions", where=store.uri, cure="finish the study with `raybias run`"
        )
    tables: dict[str, pl.DataFrame] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts = count_files(files, where=store.uri, metrics=rules.metrics, unfinished="count")
        found = gap_analysis(counts_of_class(counts, study.positive), rules)
        estimates = estimates_of(found)
        if judged_methods(study):
            tables["judged"] = corrected_gaps(found, read_labels(store, study.positive))
            estimates = pl.concat([estimates, draw_estimates(store, study, found)])
    said = {str(each.message): issubclass(each.category, UnevenRuns) for each in caught}
    notes = sorted(said.items(), key=lambda note: not note[1])
    cells = counts.cells.cast({pl.Categorical: pl.String})
    sizes = composition(counts.sentences, counts.labels)
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
        "markedness": without_refused_ends(found.marked),
        "by_term": without_refused_ends(found.of_terms),
        "by_template": by_template(as_class(cells, study.positive), found.inside, rules.metrics),
        "notes": pl.DataFrame(notes, {"note": pl.String, "urgent": pl.Boolean}, orient="row"),
        "design": design(
            found.components, found.gaps, costs, target=rules.margin or TARGET,
            scope=rules.scope, level=rules.level,
        ),
        "runs": read_runs(store).select(_RUN_TABLE),
        "coverage": counts.coverage.select(
            *schema.KEYS, "run_id", "predictions", "repeated", "unparsed", items=items
        ),
        "cells": cells,
    }  # fmt: skip
    if rules.engines:
        tables["engines"] = found.turned
    if counts.unanswered.height:
        tables["unanswered"] = counts.unanswered
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame, text=name not in _PARQUET_ONLY)
    return {"estimates": estimates, **tables}
