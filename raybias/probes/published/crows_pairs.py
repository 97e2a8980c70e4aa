"""Read CrowS-Pairs as schema.PAIRS, whose `sent_more` is about the more stereotyped group."""

from __future__ import annotations

import warnings
from typing import Final

import polars as pl

from raybias.config.card import OWN
from raybias.errors import RaybiasWarning
from raybias.probes.checks import checked, column
from raybias.probes.registries import probe
from raybias.schema import PAIRS
from raybias.storage import Store
from raybias.table_files import conformed, read_frame, refuse

ORIGINAL: Final = "original"
#: The types of CrowS-Pairs, in the order of Zhao2025's tables.
BIAS_TYPES: Final = (
    *("gender", "race-color", "religion", "socioeconomic", "disability", "nationality"),
    *("sexual-orientation", "physical-appearance", "age"),
)
CROWS_FILE: Final = "crows_pairs_anonymized.csv"
SIDES: Final = ("sent_more", "sent_less")


class PairWarning(RaybiasWarning):
    """A doubtful value in a file of pairs that is taken as it is."""


def check_sides(pairs: pl.DataFrame, *, where: str) -> None:
    """Refuse pairs with equal sides (`DataError`): no score could prefer either side."""
    more, less = (pairs[side].str.strip_chars() for side in SIDES)
    same = more == less
    others = f" ({same.sum()} pairs are such)" if same.sum() > 1 else ""

    def alike(row: int) -> str:
        return f"both sides of pair {pairs['pair_id'][row]!r} are {more[row]!r}{others}"

    refuse(same, more, alike, where, "mend or remove it")


def pair_table(frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Make schema.PAIRS of checked pairs; `PairWarning` counts types that CrowS-Pairs has not."""
    if "cluster" in frame.columns and frame["cluster"].null_count() == len(frame):
        frame = frame.drop("cluster")
    pairs = checked(frame, OWN["pair"], where=where)
    check_sides(pairs, where=where)
    unknown = pairs.filter(~pl.col("bias_type").is_in(BIAS_TYPES))["bias_type"]
    if len(unknown):
        warnings.warn(
            f"{where}: {len(unknown)} pairs are of types that CrowS-Pairs has not"
            f" ({', '.join(sorted(set(unknown)))}); they are kept",
            PairWarning,
            stacklevel=3,
        )
    styled = pairs.with_columns(style=pl.lit(ORIGINAL), kept=False)
    return conformed(styled, pl.Schema(PAIRS))


@probe(
    "crows_pairs",
    about="CrowS-Pairs: 1,508 pairs of nine bias types (EMNLP 2020; Zhao2025)",
    data=f"folder with {CROWS_FILE}",
    kinds=BIAS_TYPES,
    schema=PAIRS,
)
def crows_pairs(data: str) -> pl.DataFrame:
    """Read the 1,508 pairs of nine types (schema.PAIRS, style "original"); writers are clusters."""
    store = Store(data)
    where = store.uri_of(CROWS_FILE)
    frame = read_frame(store, CROWS_FILE)
    names = {"": "pair_id", "stereo_antistereo": "direction", "anon_writer": "cluster"}
    for name in names:
        column(frame, name, where=where)
    pairs = pair_table(frame.rename(names), where=where)
    number = pl.col("pair_id").str.zfill(4)
    return pairs.with_columns(pl.format("crows_pairs/{}", number).alias("pair_id"))
