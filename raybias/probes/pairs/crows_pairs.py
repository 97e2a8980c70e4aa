"""Pairs of sentences that differ in the group they name: CrowS-Pairs, and a user's own.

`sent_more` is about the group that the writers call more stereotyped; `direction` says whether
it holds the stereotype or its opposite. It knows no style but "original", and no model.
"""

from __future__ import annotations

import warnings
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import column, distinct, filled
from raybias.probes.readers import polars_schema, read_frame
from raybias.schema import PAIRS
from raybias.storage import Store, split_uri

ORIGINAL: Final = "original"
DIRECTIONS: Final = ("stereo", "antistereo")
#: The types of CrowS-Pairs, in the order of Zhao2025's tables.
BIAS_TYPES: Final = (
    *("gender", "race-color", "religion", "socioeconomic", "disability", "nationality"),
    *("sexual-orientation", "physical-appearance", "age"),
)
SIDES: Final = ("sent_more", "sent_less")
CROWS_FILE: Final = "crows_pairs_anonymized.csv"


class PairWarning(UserWarning):
    """Something in a file of pairs that is taken, but may not be meant."""


def crows_pairs(store: Store) -> pl.DataFrame:
    """CrowS-Pairs as published: 1,508 pairs of nine types (schema.PAIRS, style "original").

    Raises
    ------
    DataError: the file is missing or malformed.
    """
    where = store.uri_of(CROWS_FILE)
    frame = read_frame(store, CROWS_FILE)
    names = {"": "pair_id", "stereo_antistereo": "direction"}
    for name in names:
        column(frame, name, where=where)
    pairs = _pairs(frame.rename(names), where=where)
    number = pl.col("pair_id").str.zfill(4)
    return pairs.with_columns(pl.format("crows_pairs/{}", number).alias("pair_id"))


def own_pairs(uri: str) -> pl.DataFrame:
    """The pairs of one CSV, TSV or Parquet file (schema.PAIRS, style "original"), in its order.

    Needs sent_more, sent_less and bias_type. Without direction every pair is "stereo"; without
    pair_id, pairs are numbered after the file's name. Of a file with a column `style` the rows
    "original" are taken.

    Raises
    ------
    DataError: no such file or column, an empty cell, a repeated pair_id, a direction that is
        neither, a pair with identical sides, or no rows.

    Warns
    -----
    PairWarning: types that CrowS-Pairs has not; they are kept.
    """
    store, name = split_uri(uri)
    frame = read_frame(store, name)
    if "style" in frame.columns:
        frame = frame.filter(pl.col("style") == ORIGINAL)
    if "pair_id" not in frame.columns:
        stem = name.rpartition(".")[0]
        numbers = [f"{stem}/{row:05d}" for row in range(len(frame))]
        frame = frame.with_columns(pl.Series("pair_id", numbers, pl.String))
    if "direction" not in frame.columns:
        frame = frame.with_columns(pl.lit(DIRECTIONS[0]).alias("direction"))
    return _pairs(frame, where=uri)


def check_sides(pairs: pl.DataFrame, *, where: str) -> None:
    """Refuse a pair that says the same twice: no score could prefer either side.

    Raises
    ------
    DataError: names the first such pair and counts them.
    """
    more, less = (pairs[side].str.strip_chars() for side in SIDES)
    same = (more == less).arg_true()
    if len(same):
        raise DataError(
            f"both sides of pair {pairs['pair_id'][same[0]]!r} are {more[same[0]]!r}"
            + (f" ({len(same)} pairs are such)" if len(same) > 1 else ""),
            where=f"{where} row {same[0] + 1}",
            cure="mend or remove it",
        )


def _pairs(frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    if frame.is_empty():
        raise DataError("holds no pairs", where=where)
    taken = {
        name: filled(column(frame, name, where=where), where=where)
        for name in (*SIDES, "bias_type", "direction", "pair_id")
    }
    distinct(taken["pair_id"], where=where)
    outside = (~taken["direction"].is_in(DIRECTIONS)).arg_true()
    if len(outside):
        raise DataError(
            f"direction {taken['direction'][outside[0]]!r} is neither stereo nor antistereo",
            where=f"{where} row {outside[0] + 1}",
            cure="mend it, or leave the column out",
        )
    pairs = pl.DataFrame(taken).with_columns(
        pl.lit(ORIGINAL).alias("style"), pl.lit(False).alias("kept")
    )
    check_sides(pairs, where=where)
    _name_unknown_types(pairs, where=where)
    return pairs.select(polars_schema(PAIRS).names())


def _name_unknown_types(pairs: pl.DataFrame, *, where: str) -> None:
    unknown = pairs.filter(~pl.col("bias_type").is_in(BIAS_TYPES))["bias_type"]
    if len(unknown):
        names = ", ".join(sorted(set(unknown)))
        warnings.warn(
            f"{where}: {len(unknown)} pairs are of types that CrowS-Pairs has not ({names});"
            " they are kept",
            PairWarning,
            stacklevel=4,
        )
