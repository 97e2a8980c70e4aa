"""How much of a score's variance is style, content, and their interaction.

Two-way analysis of variance of a table of styles and pairs with one value in each cell:
sums of squares, exact for any values, so that the three shares add to 1. With one value
a cell what is left over is the interaction (and whatever noise scoring has).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.stats.pairs.outcomes import METRIC, style_order

_SHARES: Final = ("style", "content", "interaction")


def variance(scores: pl.DataFrame) -> pl.DataFrame:
    """Shares of variance per metric, bias type and quantity.

    Parameters
    ----------
    scores: schema.PAIR_SCORES. Only pairs enter that every style of the metric has; two
        styles and two pairs are the least.

    Returns
    -------
    The metric, bias_type ("all" over all types), quantity, n_styles, n_pairs, `total` (the
    variance per cell) and the shares `style`, `content` and `interaction` of it (null where
    nothing varies). Quantities: "preference" (0 or 100), "margin" (score_more less
    score_less) and "level" (their mean); the last two of log scores where scores are
    probabilities.
    """
    rows: list[dict[str, Any]] = []
    for names, part in _quantities(scores).sort(METRIC).group_by(METRIC, maintain_order=True):
        head = dict(zip(METRIC, names, strict=True))
        kinds = [("all", part)]
        kinds += [(str(k[0]), p) for k, p in part.sort("bias_type").group_by(
            ["bias_type"], maintain_order=True)]  # fmt: skip
        styles = style_order(part["style"])
        for bias_type, cells in kinds:
            for quantity in ("preference", "margin", "level"):
                wide = cells.pivot("style", index="pair_id", values=quantity).drop_nulls()
                wide = wide.sort("pair_id")
                if wide.width == len(styles) + 1 > 2 and wide.height > 1:
                    table_NS = wide.select(styles).to_numpy()
                    rows.append({**head, "bias_type": bias_type, "quantity": quantity,
                                 "n_styles": len(styles), "n_pairs": wide.height,
                                 **decompose(table_NS)})  # fmt: skip
    texts = dict.fromkeys((*METRIC, "bias_type", "quantity"), pl.String)
    numbers = dict.fromkeys(("total", *_SHARES), pl.Float64)
    return pl.DataFrame(rows, {**texts, "n_styles": pl.Int64, "n_pairs": pl.Int64, **numbers})


def decompose(table_NS: npt.NDArray[np.float64]) -> dict[str, float | None]:
    """`total` variance of a table of pairs and styles, and the shares of its three sources."""
    pairs, styles = table_NS.shape
    grand = table_NS.mean()
    style_S = table_NS.mean(axis=0) - grand
    content_N = table_NS.mean(axis=1) - grand
    rest_NS = table_NS - grand - style_S - content_N[:, None]
    squares = {
        "style": pairs * float(style_S @ style_S),
        "content": styles * float(content_N @ content_N),
        "interaction": float((rest_NS**2).sum()),
    }
    total = sum(squares.values())
    shares = {name: square / total if total > 0 else None for name, square in squares.items()}
    return {"total": total / table_NS.size, **shares}


def _quantities(scores: pl.DataFrame) -> pl.DataFrame:
    more, less = pl.col("score_more"), pl.col("score_less")
    # A probability is positive; a log-likelihood is not, but for a sentence that is certain.
    likely = pl.min_horizontal("score_more", "score_less").min().over(METRIC) > 0
    high, low = (pl.when(likely).then(x.log()).otherwise(x) for x in (more, less))
    return scores.select(
        *METRIC, "bias_type", "style", "pair_id",
        preference=100 * (pl.col("preference") == 1).fill_null(False).cast(pl.Float64),
        margin=high - low,
        level=(high + low) / 2,
    )  # fmt: skip
