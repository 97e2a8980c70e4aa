"""Read Discrim-Eval's published decisions (Tamkin et al. 2023, explicit.jsonl, implicit.jsonl)."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.probes.column_checks import filled_columns
from raybias.probes.questions.own import person_of, written
from raybias.probes.registries import question_probe
from raybias.schema import DECISIONS
from raybias.storage import split_uri
from raybias.table_files import read_frame

_PEOPLE: Final = ("age", "gender", "race")
#: The person that the paper compares others with.
_REFERENCE: Final = {"age": "60", "gender": "male", "race": "white"}
_COLUMNS: Final = ("filled_template", "decision_question_id")


@question_probe(
    "discrim_eval",
    about="Discrim-Eval: 70 decisions about people of 135 ages, genders and races",
    data="its explicit.jsonl or implicit.jsonl, or a CSV with the same columns",
    schema=DECISIONS,
)
def discrim_eval(data: str) -> pl.DataFrame:
    """Read the decisions (schema.DECISIONS), whose favourable answer is always yes.

    Raises
    ------
    DataError: no such file or column, or an empty cell.
    """
    store, name = split_uri(data)
    frame = filled_columns(read_frame(store, name), (*_COLUMNS, *_PEOPLE), where=data)
    ages = pl.col("age").cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
    people = frame.select(_PEOPLE).with_columns(age=ages.cast(pl.String).fill_null(pl.col("age")))
    return frame.select(
        pl.col("decision_question_id").alias("decision_id"),
        pl.format("{}/{}", "decision_question_id", pl.int_range(pl.len())).alias("item_id"),
        person_of(people).alias("person"),
        pl.col("filled_template").alias("text"),
        pl.lit("yes").alias("favourable"),
        pl.lit("no").alias("unfavourable"),
        pl.lit(written(_REFERENCE)).alias("reference"),
    )
