"""Let people label random texts of each group that a judge labelled, and correct gaps by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Study
from raybias.errors import ConfigError, OutputError
from raybias.probes.checks import column, filled, label_numbers, whole
from raybias.report import wording
from raybias.report.outs import prediction_files, read_items
from raybias.report.rendering import Row, TextTable, same, table, worded
from raybias.schema import Label
from raybias.seeding import generator
from raybias.stats.counts import without_extras
from raybias.stats.draws import COLUMNS, SCORES, draw_rows
from raybias.stats.gaps import GapAnalysis
from raybias.stats.judged import FEWEST
from raybias.stats.metric_files import as_class
from raybias.stats.predictions import pieces
from raybias.storage import Store, split_uri
from raybias.table_files import csv_text, read_frame, without_nul
from raybias.table_rules import read_checked

LABELS: Final = "labels/judged.parquet"
_GROUP: Final = (*schema.KEYS, "attribute", "group")
_COLUMNS: Final = (
    *schema.TEXT_KEYS, "attribute", "group", "template_id", "label", "pred", "answer"
)  # fmt: skip
_TYPES: Final = pl.Schema(schema.LABELLED)


def judged_methods(study: Study) -> dict[str, str]:
    """Return the study's methods whose labels are a judge's, and what judges."""
    return {method.name: method.judged_by for method in study.methods if method.judged_by}


def draw_sheet(store: Store, study: Study, sheet: str, *, of_group: int, seed: int) -> pl.DataFrame:
    """Draw texts of each group, and write a CSV for people; see `raybias.judge_sheet`."""
    if not judged_methods(study):
        raise OutputError(
            "has no texts that a judge labelled", where=store.uri, cure="run a `continuation` study"
        )
    if of_group < FEWEST:
        raise ConfigError(
            f"{of_group} texts of a group are too few to correct its gap by",
            cure=f"have people label at least {FEWEST} of each group",
        )
    if store.exists(LABELS) and read_labels(store).height:
        raise OutputError(
            "has labels already, which another sheet would not fit",
            where=store.uri_of(LABELS),
            cure="move that file away to begin anew",
        )
    judged = pl.col("method").cast(pl.String).is_in([*judged_methods(study)])
    types = [pl.col(name).cast(_TYPES.get(name, pl.String())) for name in _COLUMNS]
    found = pieces(prediction_files(store), columns=_COLUMNS)
    texts = without_extras(pl.concat(piece.filter(judged).select(types) for piece in found))
    parts = []
    for key, part in texts.sort(*schema.TEXT_KEYS).group_by(_GROUP, maintain_order=True):
        random = generator(seed, "labels", *map(str, key))
        places = random.choice(part.height, min(of_group, part.height), replace=False)
        parts.append(part[sorted(places.tolist())])
    drawn = pl.concat(parts)
    # Groups are mixed, so that nobody labels one after another.
    order = generator(seed, "labels", "order").permutation(drawn.height)
    drawn = drawn[order.tolist()].with_columns(
        row=pl.format("t{}", (pl.int_range(pl.len()) + 1).cast(pl.String).str.zfill(5)),
        human=pl.lit(None, _TYPES["human"]),
    )
    known = read_items(store, drawn["probe"].unique().to_list(), "item_id", "text")
    joined = drawn.join(known, on=["probe", "item_id"], how="left", maintain_order="left")
    shown = without_nul(
        joined.select("row", prompt="text", continuation="answer", label=pl.lit(""))
    )
    store.write_table(LABELS, drawn.select(_TYPES.names()).cast(_TYPES).to_arrow())
    place, name = split_uri(sheet)
    place.write_text(name, csv_text(shown))
    return shown


def add_labels(
    store: Store, sheet: str, labels: Sequence[str], *, meant: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Read a filled-in sheet into OUT (schema.LABELLED); see `raybias.judge_labels`.

    labels: of the study, in order.
    """
    if not store.exists(LABELS):
        raise OutputError(
            "has no sheet to be labelled",
            where=store.uri,
            cure="draw one: `raybias annotate export OUT`",
        )
    drawn = read_checked(store, LABELS, schema.LABELLED)
    given = read_frame(*split_uri(sheet))
    rows = filled(column(given, "row", where=sheet), where=sheet)
    column_of_labels = column(given, "label", where=sheet)
    if unknown := [label for label in (meant or {}).values() if label not in labels]:
        cure = f"choose from {', '.join(labels)}"
        raise ConfigError(f"{unknown[0]!r} is no label of the study", where="--label", cure=cure)
    codes = {**dict(zip(labels, labels, strict=True)), **meant} if meant else None
    numbers = label_numbers(column_of_labels, where=sheet, labels=labels, codes=codes)
    cure = "label every row of the sheet drawn of this OUT, so that they are a random sample"
    whole(rows, drawn["row"], where=sheet, cure=cure)
    human = pl.DataFrame({"row": rows, "human": numbers})
    labelled = drawn.drop("human").join(human, on="row", maintain_order="left")
    labelled = labelled.select(_TYPES.names()).cast(_TYPES)
    store.write_table(LABELS, labelled.to_arrow())
    return labelled


def read_labels(store: Store, positive: int | None = None) -> pl.DataFrame:
    """Read the texts of OUT that people labelled (schema.LABELLED).

    positive: number of the class that metrics are about, to be written as in `as_class`.
    """
    if not store.exists(LABELS):
        return pl.DataFrame(schema=_TYPES)
    labelled = read_checked(store, LABELS, schema.LABELLED)
    labelled = labelled.filter(pl.col("human").is_not_null())
    people = as_class(labelled.select("pred", label="human"), positive)["label"]
    return as_class(labelled, positive).with_columns(human=people)


def draw_estimates(store: Store, study: Study, found: GapAnalysis) -> pl.DataFrame:
    """Estimate scores of the worst of a prompt's draws (schema.ESTIMATES), as `stats.draws`.

    They are about the class of the study's rates, or about negative texts if its labels are
    sentiment's. Empty if a study's rates are about several classes.
    """
    number = int(Label.NEGATIVE) if study.is_sentiment else study.positive
    texts = [
        piece.filter(pl.col("method").cast(pl.String).is_in([*judged_methods(study)]))
        for piece in pieces(prediction_files(store), columns=COLUMNS)
    ]
    predictions = pl.concat(part.select(COLUMNS) for part in texts)
    if number is None:
        predictions = predictions.clear()
    methods = predictions.select("method", "run_id").cast(pl.String).unique("method")
    return draw_rows(
        predictions,
        found.inside,
        found.rules,
        number=number or 0,
        classes={method: _judge_labels(store, run_id) for method, run_id in methods.iter_rows()},
    )


def _judge_labels(store: Store, run_id: str) -> list[int] | None:
    """Read the label of each class of a run's judge; None if an older raybias wrote the run."""
    name = f"prompts/{run_id}.json"
    if not store.exists(name):
        return None
    with store.reading(name, "as the prompt of a run"):
        labels: list[int] | None = json.loads(store.read_text(name)).get("judge_labels")
    return labels


UNMEASURED: Final = (
    "The judge's errors were not measured, and no interval covers them: where it errs more on texts"
    " about one group, that looks like a gap of the model. `raybias annotate export OUT --out"
    " sheet.csv` draws a sample for people to label."
)
_CORRECTED: Final = (
    "Corrected: the verdicts on all texts, and what people say instead of the judge on those that "
    "they labelled (prediction-powered inference, Angelopoulos et al. 2023). The interval covers "
    "both the texts and the judge's errors; it supposes that people label rightly."
)


_DRAWS: Final = (
    "The worst of the draws of a prompt (Gehman et al. 2020): expected_maximum is the mean over "
    "prompts of the highest probability of a draw by the judge, any_draw the share of prompts with "
    "a draw that it calls so. Both grow with the number of draws, and so with the judge's false "
    "alarms. Intervals redraw prompts, each with all of its draws."
)


def _draws_table(draws: pl.DataFrame) -> TextTable:
    keys = wording.naming_keys(draws, ("method", "probe", "dataset", "style"))
    names = [*keys, "condition", "attribute", "group", "score"]
    columns = ("value", "low", "high", "survives", "reason")
    on = [*schema.KEYS, "condition", "attribute", "group", "score"]
    of_gap = [pl.col(name).alias(f"gap_{name}") for name in columns]
    gaps = draws.filter(statistic="gap").select(*on, *of_gap)
    rows = draws.filter(statistic="rate").join(gaps, on=on, how="left", maintain_order="left")
    return table(
        "The worst of a prompt's draws",
        rows,
        {
            **same(*names),
            "value": worded(partial(wording.interval, plus=False), "value", "low", "high"),
            "gap": worded(wording.interval, "gap_value", "gap_low", "gap_high"),
            "significant": _of_gap,
        },
    )


def _of_gap(row: Row) -> str:
    """Say whether a gap is significant, or why that is not known; or why there is no value."""
    lacking = row["reason"] if row["value"] is None else ""
    return str(lacking or row["gap_reason"] or wording.YES_NO[row["gap_survives"]])


def _judged_table(judged: pl.DataFrame) -> TextTable:
    keys = wording.naming_keys(judged, ("method", "probe", "dataset", "style"))
    return table(
        "Gaps corrected for the judge's errors",
        judged,
        {
            **same(*keys, "attribute", "group", "score"),
            "corrected gap": worded(wording.interval, "value", "low", "high"),
            "by the judge": worded(wording.interval, "judged_value", "judged_low", "judged_high"),
            "labelled": "labelled",
            "wrongly called so": lambda row: (
                f"{row['wrongly_held']} of {row['labelled'] - row['held']}"
            ),
            "missed": worded("{} of {}".format, "missed", "held"),
            "verdict": _verdict,
        },
    )


def judge_section(
    study: Study, tables: Mapping[str, pl.DataFrame], redrawn: Mapping[str, str]
) -> dict[str, Any] | None:
    """Arrange sentences and tables about judges for report.html.j2; None without a judge.

    redrawn: what intervals of each scope resample, in words.
    """
    judges = judged_methods(study)
    if not judges:
        return None
    said = [
        f"What models wrote ({method}) was labelled by {judge}. Elsewhere on this page, to be"
        " called negative or positive is that verdict; the right label is taken to be that of the"
        " prompt."
        for method, judge in judges.items()
    ]
    judged = tables["judged"]
    draws = tables["estimates"].filter(pl.col("score").is_in(SCORES))
    shown = [_draws_table(draws)] if draws.height else []
    said += [_DRAWS] if draws.height else []
    if judged.is_empty():
        return {"said": [*said, UNMEASURED], "tables": shown, "measured": False}
    return {
        "said": [*said, *_told(judged, redrawn)],
        "tables": [_judged_table(judged), *shown],
        "measured": True,
    }


def _told(judged: pl.DataFrame, redrawn: Mapping[str, str]) -> list[str]:
    found = judged.filter(pl.col("reason").is_null())
    alone = ((found["judged_low"] > 0) | (found["judged_high"] < 0)).sum()
    asked = wording.listed([redrawn[scope] for scope in found["scope"].unique().sort()])
    counts = (
        f"Of {wording.counted(found.height, 'gap')}, the judge's verdicts alone would make {alone} "
        f"significant; corrected, {found['significant'].sum()} are, and {found['survives'].sum()} "
        "after correction for many tests."
    )
    lacking = sorted({*judged["reason"].drop_nulls()})
    return [_CORRECTED, *([f"In them {asked}.", counts] if found.height else []),
            *(f"Not corrected: {reason}." for reason in lacking)]  # fmt: skip


def judged_text(judged: pl.DataFrame, redrawn: Mapping[str, str]) -> str:
    """Write the corrected gaps for a terminal, or that there are none; as `judge_section`."""
    if judged.is_empty():
        return UNMEASURED
    return "\n\n".join([str(_judged_table(judged)), "\n".join(_told(judged, redrawn))])


def _verdict(row: Row) -> str:
    if row["reason"]:
        return str(row["reason"])
    if not row["significant"]:
        return "not significant"
    return "significant" if row["survives"] else "alone, not after correction"
