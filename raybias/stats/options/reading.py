"""Read answers to questions with options: BBQ's published files, and our own tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.formats.bbq import Line, Targets, bbq_line, bbq_metadata, target_of
from raybias.stats.answer_files import content, file_source, read_answer_files
from raybias.stats.predictions import Source
from raybias.stats.reference_groups import StatisticsWarning
from raybias.table_files import read_frame

_TYPES: Final = pl.Schema(schema.OPTION_ANSWERS)


def read_option_answers(
    paths: Sequence[str | Path], metadata: str | Path | None = None
) -> pl.DataFrame:
    """Read and check answers to questions with options.

    Parameters
    ----------
    paths: BBQ's `preds_*.jsonl`, plain or gzipped, whose fields named `..pred..` hold the answers
        of a model each; Parquet or CSV files of schema.OPTION_ANSWERS; or folders of these.
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
        endings=(".jsonl", ".jsonl.gz"),
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
    """Read one file of BBQ's lines."""
    rows: list[dict[str, Any]] = []
    models: set[str] = set()
    for number, text in enumerate(content(source).split(b"\n"), start=1):
        if not text.strip():
            continue
        where = f"{source.uri}, line {number}"
        line = bbq_line(text, where)
        answers = line.answers(where)
        if rows and (odd := models ^ {*answers}):
            raise DataError(
                f"{min(odd)} is not in all lines", where=where, cure="give a model's answers to all"
            )
        models = {*answers}
        rows += _rows(line, answers, targets, where)
    return pl.DataFrame(rows, _TYPES)


def _rows(
    line: Line, answers: Mapping[str, str], targets: Targets | None, where: str
) -> Iterator[dict[str, Any]]:
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
    for model, answer in answers.items():
        yield {
            "model": model,
            "probe": "bbq",
            "category": line.category,
            "template_id": line.question_index,
            "item_id": line.example_id,
            "context": line.context_condition,
            "polarity": line.question_polarity,
            "label": line.label,
            "unknown": unknown,
            "target": target,
            "pred": line.place_of(answer),
            "answer": answer,
            "prompt": "",
        }
