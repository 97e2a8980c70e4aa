"""Read a user's own pairs: one CSV, TSV or Parquet file."""

from __future__ import annotations

import polars as pl

from raybias.probes.card_table import own_table
from raybias.probes.pairs.pair_table import DIRECTIONS, ORIGINAL, pair_table
from raybias.probes.registries import pair_probe


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
