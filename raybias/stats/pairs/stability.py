"""What styles do to a metric as a whole: a verdict, and the pairs it needs."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.stats.pairs.outcomes import METRIC, UNWEIGHTED

#: The verdicts, strongest first, and what each says.
VERDICTS: Final = {
    "changes sign": "some style moves it (surviving correction) to the other side of no bias, "
    "and both intervals exclude no bias",
    "loses its sign": "its interval excludes no bias; under some style that moves it, no longer",
    "gains a sign": "its interval includes no bias; under some style that moves it, no longer",
    "moves, sign kept": "some style moves it, and none changes on which side of no bias it is",
    "within noise": "no style moves it, but some interval reaches beyond the margin",
    "stable": "no style moves it, and all intervals of its effects lie within the margin",
}


def stability(effects: pl.DataFrame, *, margin: float = 5.0) -> pl.DataFrame:
    """One verdict per metric and bias type: whether its conclusion holds under every style.

    Parameters
    ----------
    effects: of `effects`.
    margin: effects smaller than this many points are of no concern.

    Returns
    -------
    The metric, bias_type, n_styles, n (the fewest pairs of a style), original with its
    interval, lowest and highest value under any style, `moved` (styles whose effect
    survives), largest_effect and its style, smallest_effect (but 0) and its style,
    `pairs_needed` to resolve that one with 80% power, `flip_share` (mean over styles) and
    `verdict`, a key of `VERDICTS`. The mean of types has no test and no row.
    """
    tested = effects.filter(pl.col("bias_type") != UNWEIGHTED)
    by = [*METRIC, "bias_type"]
    seen = pl.col("effect") != 0
    size = pl.col("effect").abs()
    return tested.group_by(by, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("n_styles"),
        pl.col("n").min(),
        # Styles may lack pairs, and so have originals of their own.
        pl.col("original", "original_low", "original_high").sort_by("n", descending=True).first(),
        pl.min_horizontal(pl.col("value").min(), pl.col("original").min()).alias("lowest"),
        pl.max_horizontal(pl.col("value").max(), pl.col("original").max()).alias("highest"),
        pl.col("survives").fill_null(False).sum().cast(pl.Int64).alias("moved"),
        pl.col("effect").sort_by(size).last().alias("largest_effect"),
        pl.col("style").sort_by(size).last().alias("largest_style"),
        pl.col("effect").filter(seen).sort_by(size.filter(seen)).first().alias("smallest_effect"),
        pl.col("style").filter(seen).sort_by(size.filter(seen)).first().alias("smallest_style"),
        pl.col("pairs_needed").filter(seen).sort_by(size.filter(seen)).first(),
        pl.col("flip_share").mean(),
        _verdict(margin),
    )


def _verdict(margin: float) -> pl.Expr:
    moved = pl.col("survives").fill_null(False)
    before, after = (_side(name) for name in ("original", "value"))
    reasons = {
        "changes sign": (moved & (before * after < 0)).any(),
        "loses its sign": (moved & (before != 0) & (after == 0)).any(),
        "gains a sign": (moved & (before == 0) & (after != 0)).any(),
        "moves, sign kept": moved.any(),
        "stable": (
            (pl.col("low") >= -margin) & (pl.col("high") <= margin)
        ).fill_null(False).all(),
    }  # fmt: skip
    verdict = pl.lit("within noise")
    for name, holds in reversed(reasons.items()):
        verdict = pl.when(holds).then(pl.lit(name)).otherwise(verdict)
    return verdict.alias("verdict")


def _side(name: str) -> pl.Expr:
    """1 above no bias, -1 below, 0 where the interval holds it."""
    above, below = (pl.col(f"{name}_{end}") for end in ("low", "high"))
    return (
        pl.when(above > pl.col("neutral")).then(1)
        .when(below < pl.col("neutral")).then(-1)
        .otherwise(0)
    )  # fmt: skip
