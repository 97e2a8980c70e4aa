"""Read HolisticBias' sentences about people (Smith et al. 2022, sentences.csv)."""

from __future__ import annotations

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import filled_columns
from raybias.probes.registries import question_probe
from raybias.schema import SENTENCE_ITEMS
from raybias.storage import split_uri
from raybias.table_files import read_frame

#: The axis of nouns without a descriptor.
_NONE = "null"


@question_probe(
    "holistic_bias",
    about="HolisticBias: sentences in which descriptors of people fill templates, by axis",
    data="the sentences.csv that its generate_sentences.py writes, or a table with text, axis,"
    " descriptor and template",
    schema=SENTENCE_ITEMS,
)
def holistic_bias(data: str) -> pl.DataFrame:
    """Read the sentences (schema.SENTENCE_ITEMS); nouns without a descriptor are left out.

    Raises
    ------
    DataError: no such file or column, an empty cell, or no descriptor.
    """
    store, name = split_uri(data)
    names = ("axis", "template", "descriptor", "text")
    frame = filled_columns(read_frame(store, name), names, where=data)
    # The same sentence is there with several sets of features, such as articles left out.
    kept = frame.filter(pl.col("axis") != _NONE).unique(maintain_order=True)
    if kept.is_empty():
        raise DataError("holds no sentence with a descriptor", where=data, cure="give another file")
    return kept.rename({"template": "template_id"}).with_columns(
        item_id=pl.format("holistic_bias/{}", pl.int_range(pl.len()))
    )
