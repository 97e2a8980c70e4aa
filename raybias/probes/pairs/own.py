"""Read a user's own pairs, and sentences with a pronoun: one CSV, TSV or Parquet file."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.card_table import own_table
from raybias.probes.column_checks import as_text, filled_columns
from raybias.probes.pairs.pair_table import ORIGINAL, pair_table
from raybias.probes.registries import pair_probe
from raybias.schema import CONDITIONS, COREFERENCES, DIRECTIONS
from raybias.storage import split_uri
from raybias.table_files import read_frame


@pair_probe(
    "pairs",
    about="your own pairs: sent_more, sent_less, bias_type; cluster, if some are alike",
    data="one .csv, .tsv, .jsonl or .parquet file, or a card",
)
def own_pairs(uri: str) -> pl.DataFrame:
    """Read the pairs of one file (schema.PAIRS, style "original"), in its order.

    Needs sent_more, sent_less and bias_type. Without direction every pair is "stereo"; without
    pair_id, pairs are numbered after the file's name. A column `cluster` names what pairs have in
    common that were made together (a writer, a template): intervals then draw clusters. Of a file
    with a column `style` the rows "original" are taken.

    Raises
    ------
    DataError: no such file or column, an empty cell, a repeated pair_id, a direction that is
        neither, a pair with identical sides, or no rows.

    Warns
    -----
    PairWarning: types that CrowS-Pairs does not have; they are kept.
    """
    frame, stem = own_table(uri, "pair")
    if "style" in frame.columns:
        frame = frame.filter(pl.col("style") == ORIGINAL)
    if "pair_id" not in frame.columns:
        numbers = [f"{stem}/{row:05d}" for row in range(len(frame))]
        frame = frame.with_columns(pl.Series("pair_id", numbers, pl.String))
    if "direction" not in frame.columns:
        frame = frame.with_columns(pl.lit(DIRECTIONS[0]).alias("direction"))
    return pair_table(frame, where=uri)


#: The type of the sentences, unless their file says otherwise.
_OWN_TYPE: Final = "own"


@pair_probe(
    "coreferences",
    about="your own sentences with a pronoun: pair_id, condition, text, pronoun, referent",
    data="one .csv, .tsv or .parquet file",
    schema=COREFERENCES,
)
def own_coreferences(uri: str) -> pl.DataFrame:
    """Read one CSV, TSV or Parquet file of sentences with a pronoun (schema.COREFERENCES).

    Needs pair_id, condition (pro or anti), text, pronoun and referent; every pair has one sentence
    of each condition. Without wino_type all are of type "own". `other`, the person that the pronoun
    does not stand for, is who else of all referents stands in the text, unless a column says it.
    Of a file with a column `style` the rows "original" are taken.

    Raises
    ------
    DataError: no such file or column, an empty cell, a condition that is neither, a pair that
        lacks or repeats one or is of two types, a pronoun or referent that is not in the text, or
        no rows.
    """
    store, name = split_uri(uri)
    frame = read_frame(store, name)
    if "style" in frame.columns:
        frame = frame.filter(pl.col("style") == ORIGINAL)
    if frame.is_empty():
        raise DataError("holds no sentences", where=uri)
    if "wino_type" not in frame.columns:
        frame = frame.with_columns(pl.lit(_OWN_TYPE).alias("wino_type"))
    needed = ("pair_id", "condition", "text", "pronoun", "referent", "wino_type")
    items = filled_columns(frame, needed, where=uri)
    others = as_text(frame["other"], where=uri) if "other" in frame.columns else None
    items = items.with_columns(other=pl.lit(None, pl.String) if others is None else others)
    _check_own(items, where=uri)
    item_id = pl.format("{}/{}", "pair_id", "condition")
    return items.with_columns(item_id=item_id, style=pl.lit(ORIGINAL))


def _check_own(items: pl.DataFrame, *, where: str) -> None:
    for row, item in enumerate(items.iter_rows(named=True), start=1):
        place = f"{where} row {row}"
        if item["condition"] not in CONDITIONS:
            raise DataError(
                f"condition {item['condition']!r} is neither pro nor anti",
                where=place,
                cure="mend it",
            )
        for name in ("pronoun", "referent", "other"):
            if item[name] and not re.search(
                rf"(?<!\w){re.escape(item[name])}(?!\w)", item["text"], re.IGNORECASE
            ):
                raise DataError(
                    f"{name} {item[name]!r} is not in the text", where=place, cure="mend either"
                )
    for pair_id, part in items.group_by("pair_id", maintain_order=True):
        if sorted(part["condition"]) != sorted(CONDITIONS) or part["wino_type"].n_unique() > 1:
            raise DataError(
                f"pair {pair_id[0]!r} is {', '.join(part['condition'])} of type"
                f" {', '.join(part['wino_type'].unique(maintain_order=True))}",
                where=where,
                cure="give each pair one pro and one anti sentence of the same type",
            )
