"""Check the columns of pairs and make schema.PAIRS of them, in style "original".

`sent_more` is about the group that the writers call more stereotyped; `direction` says whether
it holds the stereotype or its opposite.
"""

from __future__ import annotations

import warnings
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import distinct, filled_columns, refuse
from raybias.schema import DIRECTIONS, PAIRS

ORIGINAL: Final = "original"
#: The types of CrowS-Pairs, in the order of Zhao2025's tables.
BIAS_TYPES: Final = (
    *("gender", "race-color", "religion", "socioeconomic", "disability", "nationality"),
    *("sexual-orientation", "physical-appearance", "age"),
)
SIDES: Final = ("sent_more", "sent_less")


class PairWarning(UserWarning):
    """A doubtful value in a file of pairs that is taken as it is."""


def check_sides(pairs: pl.DataFrame, *, where: str) -> None:
    """Refuse a pair that says the same twice: no score could prefer either side.

    Raises
    ------
    DataError: names the first such pair and counts them.
    """
    more, less = (pairs[side].str.strip_chars() for side in SIDES)
    same = more == less
    others = f" ({same.sum()} pairs are such)" if same.sum() > 1 else ""
    refuse(
        same,
        lambda row: f"both sides of pair {pairs['pair_id'][row]!r} are {more[row]!r}{others}",
        where=where,
        cure="mend or remove it",
    )


def pair_table(frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Take the columns of schema.PAIRS from a table that has sent_more to pair_id, maybe cluster.

    Raises
    ------
    DataError: no such column, an empty cell, a repeated pair_id, a direction that is neither, a
        pair with identical sides, or no rows.

    Warns
    -----
    PairWarning: types that CrowS-Pairs does not have; they are kept.
    """
    if frame.is_empty():
        raise DataError("holds no pairs", where=where)
    names: tuple[str, ...] = (*SIDES, "bias_type", "direction", "pair_id")
    if "cluster" in frame.columns and frame["cluster"].null_count() < len(frame):
        names = (*names, "cluster")
    pairs = filled_columns(frame, names, where=where)
    distinct(pairs["pair_id"], where=where)
    refuse(
        ~pairs["direction"].is_in(DIRECTIONS),
        lambda row: f"direction {pairs['direction'][row]!r} is neither stereo nor antistereo",
        where=where,
        cure="mend it, or leave the column out",
    )
    check_sides(pairs, where=where)
    unknown = pairs.filter(~pl.col("bias_type").is_in(BIAS_TYPES))["bias_type"]
    if len(unknown):
        warnings.warn(
            f"{where}: {len(unknown)} pairs are of types that CrowS-Pairs has not"
            f" ({', '.join(sorted(set(unknown)))}); they are kept",
            PairWarning,
            stacklevel=3,
        )
    if "cluster" not in names:
        pairs = pairs.with_columns(cluster=pl.lit(None, pl.String))
    return pairs.with_columns(style=pl.lit(ORIGINAL), kept=False).select(PAIRS.names)
