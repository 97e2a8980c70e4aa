"""Tables of metrics and of their agreement, taken from estimates."""

from __future__ import annotations

from typing import Final

import polars as pl

Tables = dict[str, pl.DataFrame]

_CLASSIFIER: Final = ("method", "dataset", "probe", "style")
_LESS: Final = "_less_noise"
_WIDTH: Final = {"runs": 0, "sentences": 1, "items": 1, "wording": 2}


def metric_tables(frame: pl.DataFrame) -> Tables:
    """The tables of metrics of predictions, and of how far they agree."""
    frame = frame.filter(pl.col("kind") == "predictions", pl.col("score") != "unread")
    if frame.is_empty():
        return {}
    agreed = frame.filter(score="agreement")
    pair = pl.col("group").str.split_exact(", ", 1).struct
    agreement = agreed.select(
        ranking="condition", model=pl.col("model").replace("all", ""), metric=pair.field("field_0"),
        other=pl.coalesce(pair.field("field_1"), "group"), w="value", n_metrics="units",
        n_ranked="n", **{n: pl.col(n) for n in ("attribute", "low", "high", "scope", *_CLASSIFIER)},
    )  # fmt: skip
    one = frame.filter(pl.col("score") != "agreement", pl.col("model") != "all")
    less = one.filter(pl.col("score").str.ends_with(_LESS))
    place = ["model", *_CLASSIFIER, "attribute", "condition", "group", "score"]
    corrected = less.select(*place, corrected="value").with_columns(
        pl.col("score").str.strip_suffix(_LESS)
    )
    contrasts = one.filter(
        pl.col("statistic").is_in(["score", "ratio"]),
        ~pl.col("score").str.ends_with(_LESS),
        ~pl.col("condition").str.contains("^(by|ranking of) "),
        ~pl.col("score").str.contains("_in_models$|^meaningless_|^withheld$"),
    ).join(corrected, on=place, how="left")
    wide = pl.col("scope").replace_strict(_WIDTH, default=-1, return_dtype=pl.Int64)
    gaps = one.filter(
        pl.col("statistic") == "gap",
        ~pl.col("scope").str.contains("families"),
        ~pl.col("condition").str.contains("^(word:|without) "),
    )
    widest = gaps.sort(wide, maintain_order=True).unique(place, keep="last", maintain_order=True)
    differences = widest.with_columns(
        condition=pl.col("condition").replace("", "mean_of_groups"),
        reason=pl.when(pl.col("low").is_null()).then("reason"),
    )
    measured = pl.concat([contrasts, differences], how="diagonal").select(
        "model", "attribute", "group", "value", "low", "high", "corrected", metric="score",
        scope=pl.when(pl.col("low").is_not_null()).then("scope"), background="condition",
        note="reason", **{n: pl.col(n) for n in _CLASSIFIER},
    )  # fmt: skip
    return {"metrics": measured, "agreement": agreement}
