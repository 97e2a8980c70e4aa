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
from raybias.formats.inspect_logs import option_log
from raybias.formats.lm_eval import is_sample, option_sample
from raybias.stats.answer_files import content, file_source, model_of, read_answer_files
from raybias.stats.predictions import Source
from raybias.stats.reference_groups import StatisticsWarning
from raybias.table_files import read_frame

_TYPES: Final = pl.Schema(schema.OPTION_ANSWERS)
_LOGS: Final = (".json", ".json.gz")


def read_option_answers(
    paths: Sequence[str | Path], metadata: str | Path | None = None
) -> pl.DataFrame:
    """Read and check answers to questions with options.

    Parameters
    ----------
    paths: BBQ's `preds_*.jsonl`, plain or gzipped, whose fields named `..pred..` hold the answers
        of a model each; lm-eval's `samples_bbq*.jsonl`, whose folder names the model; inspect's
        logs as JSON; Parquet or CSV files of schema.OPTION_ANSWERS; or folders of these.
    metadata: BBQ's additional_metadata.csv, whose `target_loc` says which option names the target;
        by default the one whose `answer_info` names a stereotyped group does.

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
        published=lambda source: _published(source, targets),
        item=("category", "item_id", "prompt"),
    )
    where = ", ".join(map(str, paths))
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
            stacklevel=2,
        )
    if without.height == answers.height:
        raise DataError("no question has a target", where=where, cure="give other answers")
    return answers


def _published(source: Source, targets: Targets | None) -> pl.DataFrame:
    """Read one file of BBQ's lines, of lm-eval's samples, or a log of inspect."""
    if source.name.endswith(_LOGS):
        return _log(source, targets)
    rows: list[dict[str, Any]] = []
    models: set[str] = set()
    for number, text in enumerate(content(source).split(b"\n"), start=1):
        if not text.strip():
            continue
        where = f"{source.uri}, line {number}"
        if is_sample(text):
            line, scores = option_sample(text, where)
            said = {"pred": scores.index(max(scores)), "scores": scores, "answer": None}
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
    return pl.DataFrame(rows, _TYPES)


def _log(source: Source, targets: Targets | None) -> pl.DataFrame:
    """Read a log of inspect, whose answers are letters."""
    data = content(source)
    if b'"higher_is_better"' in data:
        # lm-eval's results, which lie beside its samples.
        return pl.DataFrame(schema=_TYPES)
    model, answered = option_log(data, source.uri)
    rows = []
    for line, letter in answered:
        where = f"{source.uri}, question {line.example_id}"
        place = "ABC".find(letter) if len(letter) == 1 else -1
        said = {"pred": None if place < 0 else place, "answer": letter}
        rows.append({"model": model, **_question(line, targets, where), **said})
    return pl.DataFrame(rows, _TYPES)


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
        "prompt": "",
    }
