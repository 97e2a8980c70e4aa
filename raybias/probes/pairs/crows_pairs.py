"""Read CrowS-Pairs as published."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.probes.column_checks import column
from raybias.probes.pairs.pair_table import BIAS_TYPES, pair_table
from raybias.probes.registries import pair_probe
from raybias.storage import Store
from raybias.table_files import read_frame

CROWS_FILE: Final = "crows_pairs_anonymized.csv"


@pair_probe(
    "crows_pairs",
    about="CrowS-Pairs: 1,508 pairs of nine bias types (EMNLP 2020; Zhao2025)",
    data=f"folder with {CROWS_FILE}",
    kinds=BIAS_TYPES,
)
def crows_pairs(data: str) -> pl.DataFrame:
    """Read the 1,508 pairs of nine types (schema.PAIRS, style "original"); writers are clusters.

    Raises
    ------
    DataError: the file is missing or malformed.
    """
    store = Store(data)
    where = store.uri_of(CROWS_FILE)
    frame = read_frame(store, CROWS_FILE)
    names = {"": "pair_id", "stereo_antistereo": "direction", "anon_writer": "cluster"}
    for name in names:
        column(frame, name, where=where)
    pairs = pair_table(frame.rename(names), where=where)
    number = pl.col("pair_id").str.zfill(4)
    return pairs.with_columns(pl.format("crows_pairs/{}", number).alias("pair_id"))
