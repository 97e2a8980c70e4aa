"""Read answers to questions with options: BBQ's published files, and our own tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.formats.bbq import Line, Targets, bbq_line, bbq_metadata, target_of
from raybias.formats.helm import asked_as, is_run, option_run
from raybias.formats.inspect_logs import option_log
from raybias.formats.lm_eval import is_sample, option_sample
from raybias.stats.answer_files import content, file_source, model_of, read_answer_files
from raybias.stats.predictions import Source
from raybias.stats.reference_groups import StatisticsWarning
from raybias.table_files import read_frame

_TYPES: Final = pl.Schema(schema.OPTION_ANSWERS)
_LOGS: Final = (".json", ".json.gz")


def read_option_answers(
    paths: Sequence[str | Path],
    metadata: str | Path | None = None,
    items: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Read and check answers to questions with options.

    Parameters
    ----------
    paths: BBQ's `preds_*.jsonl`, plain or gzipped, whose fields named `..pred..` hold the answers
        of a model each; lm-eval's `samples_bbq*.jsonl`, whose folder names the model; inspect's
        logs as JSON; HELM's scenario_state.json; Parquet or CSV files of schema.OPTION_ANSWERS; or
        folders of these.
    metadata: BBQ's additional_metadata.csv, whose `target_loc` says which option names the target;
        by default the one whose `answer_info` names a stereotyped group does.
    items: BBQ's questions (schema.OPTION_ITEMS), whose texts HELM's files name.

    Returns
    -------
    schema.OPTION_ANSWERS.

    Raises
    ------
    DataError: a file that is missing or malformed, an unknown option or target that cannot be
        told, or an answer that is given twice.

    Warns
    -----
    StatisticsWarning: questions that have no target in the metadata.
    """
    targets = None
    if metadata is not None:
        source = file_source(str(metadata))
        targets = bbq_metadata(read_frame(source.store, source.name), str(metadata))
    answers = read_answer_files(
        paths,
        schema.OPTION_ANSWERS,
        endings=(".jsonl", ".jsonl.gz", *_LOGS),
        published=lambda source: _published(source, targets, items),
        item=("method", "category", "item_id", "prompt"),
    )
    _check_targets(answers, ", ".join(map(str, paths)))
    return answers


def _check_targets(answers: pl.DataFrame, where: str) -> None:
    """Refuse questions whose target is the unknown option, and files without any target."""
    for row in answers.filter(pl.col("target") == pl.col("unknown")).iter_rows(named=True):
        raise DataError(
            f"the target of question {row['item_id']!r} of {row['category']} is its unknown option",
            where=where,
            cure="mend the row",
        )
    without = answers.filter(pl.col("target").is_null())
    if without.height:
        warnings.warn(
            f"answers to questions without a target: {without.height}, which are left out",
            StatisticsWarning,
            stacklevel=3,
        )
    if without.height == answers.height:
        raise DataError("no question has a target", where=where, cure="give other answers")


def _published(source: Source, targets: Targets | None, items: pl.DataFrame | None) -> pl.DataFrame:
    """Read one file of BBQ's lines or of lm-eval's samples, or a log of inspect or HELM."""
    data = content(source)
    if source.name.endswith(_LOGS):
        rows = _helm(data, source, items) if is_run(data) else _log(data, source, targets)
    else:
        rows = _lines(data, source, targets)
    return pl.DataFrame(rows, _TYPES)


def _lines(data: bytes, source: Source, targets: Targets | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    models: set[str] = set()
    for number, text in enumerate(data.split(b"\n"), start=1):
        if not text.strip():
            continue
        where = f"{source.uri}, line {number}"
        if is_sample(text):
            line, given = option_sample(text, where)
            said: dict[str, Any] = {"pred": None, "answer": None}
            if isinstance(given, str):
                said = {"pred": line.place_of(given), "answer": given}
            else:
                said |= {"pred": given.index(max(given)), "scores": given}
            rows.append({"model": model_of(source), **_question(line, targets, where), **said})
            continue
        line = bbq_line(text, where)
        answers = line.answers(where)
        if rows and (odd := models ^ {*answers}):
            raise DataError(
                f"{min(odd)} is not in all lines", where=where, cure="give a model's answers to all"
            )
        models = {*answers}
        question = _question(line, targets, where)
        for model, answer in answers.items():
            said = {"pred": line.place_of(answer), "answer": answer}
            rows.append({"model": model, **question, **said})
    return rows


def _log(data: bytes, source: Source, targets: Targets | None) -> list[dict[str, Any]]:
    """Read a log of inspect, whose answers are letters, and epochs prompts."""
    if b'"higher_is_better"' in data:
        # lm-eval's results, which lie beside its samples.
        return []
    model, answered = option_log(data, source.uri)
    rows = []
    for line, epoch, letter in answered:
        where = f"{source.uri}, question {line.example_id}"
        place = "ABC".find(letter) if len(letter) == 1 else -1
        said = {"pred": None if place < 0 else place, "answer": letter, "prompt": f"epoch {epoch}"}
        rows.append({"model": model, **_question(line, targets, where), **said})
    return rows


def _helm(data: bytes, source: Source, items: pl.DataFrame | None) -> list[dict[str, Any]]:
    """Read a run of HELM, whose trials (of other demonstrations) are prompts."""
    if items is None:
        raise DataError(
            "is of HELM, which does not say what template a question is of", where=source.uri,
            cure="give BBQ's questions as --items",
        )  # fmt: skip
    asked = {asked_as(item["text"], item["question"]): item for item in items.to_dicts()}
    kept = ("category", "template_id", "context", "polarity", "label", "unknown", "target")
    model, answered = option_run(data, source.uri)
    rows = []
    for each in answered:
        item = asked.get(each.asked)
        if item is None or tuple(item["options"]) != each.options:
            raise DataError(
                f"asks what is not in the items ({each.asked[-60:]!r})", where=each.where,
                cure="give the questions that HELM read, all of them, as --items",
            )  # fmt: skip
        said = {"pred": each.place, "answer": each.said, "prompt": f"trial {each.trial + 1}"}
        question = {name: item[name] for name in kept}
        item_id = item["item_id"].removeprefix(f"{item['category']}/")
        given = {"model": model, "probe": "bbq", "method": "", "item_id": item_id}
        rows.append({**given, **question, **said})
    return rows


def _question(line: Line, targets: Targets | None, where: str) -> dict[str, Any]:
    """Return the columns of a question, and those that no answer has."""
    unknown = line.unknown(where)
    if targets is None:
        target: int | None = target_of(line, unknown, where)
    else:
        place = (line.category, line.question_index, line.example_id)
        if place not in targets:
            raise DataError(
                f"question {' '.join(place)} is not in the metadata", where=where,
                cure="give the additional_metadata.csv that these questions came with",
            )  # fmt: skip
        target = targets[place]
    return {
        "probe": "bbq",
        "category": line.category,
        "template_id": line.question_index,
        "item_id": line.example_id,
        "context": line.context_condition,
        "polarity": line.question_polarity,
        "label": line.label,
        "unknown": unknown,
        "target": target,
        "scores": None,
        "method": "",
        "prompt": "",
    }
