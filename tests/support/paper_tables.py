"""Write predictions in the format of Kohankhaki2024, as published files have it."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.stats.paper_tsv import COLUMNS, PREFIX
from raybias.storage import split_uri

_UNPREFIXED: Final = ("names_gender",)


def write_predictions(
    predictions: pl.DataFrame, path: str | Path, *, num_params: Mapping[str, float] | None = None
) -> None:
    """Write predictions in Kohankhaki2024's format, atomically; gzipped where `path` ends in .gz.

    Parameters
    ----------
    predictions: schema.PREDICTIONS with a column `text`, the item's sentence.
    num_params: billions of parameters by model; 0 where it is not given.

    Raises
    ------
    DataError: no text column, a text with a tab or line break, or an unparsed prediction,
        none of which the format can hold.
    """
    _writable(predictions, str(path))
    parameters = pl.col("model").replace_strict(
        dict(num_params or {}), default=0, return_dtype=pl.Float64
    )
    category = pl.when(pl.col("attribute").is_in(_UNPREFIXED)).then("attribute")
    table = predictions.with_columns(
        y_true="label",
        y_pred="pred",
        category=category.otherwise(pl.lit(PREFIX) + pl.col("attribute")),
        num_params=parameters,
    ).select(COLUMNS)
    data = table.write_csv(separator="\t", quote_style="never").encode("utf-8")
    store, name = split_uri(str(path))
    store.write_bytes(name, gzip.compress(data, mtime=0) if name.endswith(".gz") else data)


def _writable(predictions: pl.DataFrame, where: str) -> None:
    if "text" not in predictions.columns:
        raise DataError(
            "the predictions have no text column", where=where, cure="join the items' text first"
        )
    broken = predictions.filter(pl.col("text").str.contains("[\t\r\n]").fill_null(True))
    if broken.height:
        raise DataError(
            f"the text of item {broken['item_id'][0]!r} is missing or holds a tab or line break",
            where=where,
            cure="the TSV format cannot quote; write Parquet instead",
        )
    unread = predictions["pred"].null_count()
    if unread:
        raise DataError(
            f"{unread} predictions have no label", where=where, cure="write Parquet instead"
        )
