"""Read answers to decisions about people: Parquet or CSV of schema.DECISION_ANSWERS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from raybias import schema
from raybias.stats.answer_files import read_answer_files
from raybias.table_files import refuse

_PERSON: Final = r"^[^=;]+=[^=;]*[^=; ][^=;]*(; [^=;]+=[^=;]*[^=; ][^=;]*)*$"
_CURE: Final = "write attribute=group, separated by `; `"


def read_decision_answers(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Read and check the log-likelihoods of both answers to decisions.

    Parameters
    ----------
    paths: Parquet or CSV files of schema.DECISION_ANSWERS, or folders of them.

    Raises
    ------
    DataError: a file that is missing or malformed, or an answer that is given twice.
    """
    answers = read_answer_files(
        paths, schema.DECISION_ANSWERS, item=("decision_id", "item_id", "prompt")
    )
    where = ", ".join(map(str, paths))
    for name in ("person", "reference"):
        wrong = answers[name].is_not_null() & ~answers[name].str.contains(_PERSON).fill_null(True)
        refuse(wrong, answers[name], "does not say whose groups", where, _CURE)
    return answers


def groups_of(person: str) -> dict[str, str]:
    """Return the groups that `age=60; gender=female` names, by attribute."""
    pairs = (each.partition("=") for each in re.split("; *", person))
    return {name.strip(): group.strip() for name, _, group in pairs}
