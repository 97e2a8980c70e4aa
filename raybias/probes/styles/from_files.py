"""Read pairs in a style that people wrote: one or several files of (pair_id, style, sides).

The formal and informal sentences of Zhao2025 passed through people's hands, so such files are the
only way to its exact texts. They must have every pair of the probe once, in each style asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import polars as pl

from raybias.config.card import OWN
from raybias.errors import ConfigError, DataError
from raybias.probes.column_checks import as_text, checked, column
from raybias.probes.pairs.crows_pairs import SIDES, PairWarning, check_sides
from raybias.schema import PAIRS
from raybias.storage import split_uri
from raybias.table_files import read_frame

_NAMED = 3


def own_styled_pairs(pairs: pl.DataFrame, style: str, uris: Sequence[str]) -> pl.DataFrame:
    """Read the same pairs in a style from files (schema.PAIRS), in the pairs' order.

    Parameters
    ----------
    pairs: the originals.
    uris: CSV, TSV or Parquet files with pair_id, style, sent_more and sent_less, which together
        have every pair once; rows of other styles are left alone. A column `kept` marks
        pairs whose original stands; without it none is marked.

    Raises
    ------
    DataError: no such file or column, an empty cell, a pair missing or repeated, or a pair with
        identical sides.

    Warns
    -----
    PairWarning: names and counts ids that the probe does not have.
    """
    where = ", ".join(uris)
    parts = []
    for uri in uris:
        part = checked(read_frame(*split_uri(uri)), OWN["styled"], where=uri)
        check_sides(part, where=uri)
        parts.append(part.filter(pl.col("style") == style))
    rows = pl.concat(parts).with_columns(kept=pl.col("kept").str.to_lowercase() == "true")
    if rows.is_empty():
        raise DataError(f"no rows of style {style!r}", where=where, cure="check the column `style`")
    known = rows["pair_id"].is_in(pairs["pair_id"].to_list())
    if len(unknown := rows.filter(~known)["pair_id"]):
        warnings.warn(
            f"{where}: {len(unknown)} rows have ids that the probe has not ({_some(unknown)});"
            " they are left out",
            PairWarning,
            stacklevel=2,
        )
    rows = rows.filter(known)
    repeated = rows.filter(rows["pair_id"].is_duplicated())["pair_id"].unique(maintain_order=True)
    missing = pairs.filter(~pairs["pair_id"].is_in(rows["pair_id"].to_list()))["pair_id"]
    for ids, fault, cure in (
        (repeated, "given more than once", "give each once"),
        (missing, "missing", "a style needs every pair; give the original where none is adequate"),
    ):
        if len(ids):
            raise DataError(
                f"{len(ids)} of {len(pairs)} pairs are {fault} in style {style!r} ({_some(ids)})",
                where=where,
                cure=cure,
            )
    styled = pairs.drop("style", "kept", *SIDES).join(rows, on="pair_id", maintain_order="left")
    return styled.select(PAIRS.names)


def refuse_written(style: str, uris: Sequence[str]) -> None:
    """Refuse files that have pairs of a style which a model is to make.

    Raises
    ------
    ConfigError: one has.
    DataError: no such file, or no column `style`.
    """
    for uri in uris:
        if style in as_text(column(read_frame(*split_uri(uri)), "style", where=uri), where=uri):
            raise ConfigError(
                f"the style {style!r} is in styles.files and in styles.rewriting",
                where=uri,
                cure="take it out of one of them",
            )


def _some(ids: pl.Series) -> str:
    shown = ", ".join(map(repr, ids.head(_NAMED)))
    return shown if len(ids) <= _NAMED else f"{shown}, ..."
