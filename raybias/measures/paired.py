"""Estimates of paired outcomes: scores under styles, effects of styles, means over styles.

An outcome is one number for each pair and style (`Kind.outcomes`): whether the model prefers the
first sentence, or by how much it is more often right on the pro sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from raybias.errors import DataError
from raybias.measures.kind import ALL, Rules
from raybias.stats import pairs

#: What estimates call the columns of statistics of pairs.
_NAMES: Final = {
    "score": "method", "bias_type": "attribute", "p_value": "p", "q_value": "q",
    "resolvable": "mde", "detectable": "mde",
}  # fmt: skip
_KEPT: Final = (
    *("model", "method", "probe", "attribute", "style", "score", "statistic", "scope"),
    *("value", "low", "high", "p", "q", "significant", "survives", "mde", "n", "units"),
)
_JUDGED: Final = ("low", "high", "p_value", "q_value", "significant", "survives", "resolvable")
#: What an outcome is, by the value that means no bias.
_SCORES: Final = {50.0: "preference", 0.0: "pro_less_anti"}


def _bootstrap(rules: Rules) -> dict[str, Any]:
    return {"level": rules.level, "draws": rules.draws, "seed": rules.seed,
            "adjust": rules.adjust}  # fmt: skip


def _rows(table: pl.DataFrame, statistic: str, **columns: pl.Expr) -> pl.DataFrame:
    """Name a table's columns as estimates do; its scope is what pairs or clusters are drawn."""
    clusters = pl.col("clusters")
    said = pl.col("neutral").replace_strict(_SCORES, return_dtype=pl.String)
    named = table.rename({"score": "method", **{
        old: new for old, new in _NAMES.items() if old in table.columns and old != "score"
    }})  # fmt: skip
    return (
        named.with_columns(
            score=said,
            statistic=pl.lit(statistic),
            units=pl.coalesce(clusters, "n"),
            scope=pl.when(clusters.is_null()).then(pl.lit("pairs")).otherwise(pl.lit("clusters")),
        )
        .with_columns(**columns)
        .select(_KEPT)
    )


def score_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate every score under every style (`stats.pairs.bias_scores`)."""
    return _rows(pairs.bias_scores(outcomes, **_bootstrap(rules)), "score")


def effect_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate what each style changes (`stats.pairs.effects`), and how many preferences flip.

    Where rules are not strict, p is that of the paper's test of two proportions, which ignores
    that both styles have the same pairs.
    """
    found = pairs.effects(outcomes, **_bootstrap(rules))
    changes = {"value": pl.col("effect")}
    if not rules.strict:
        found = found.with_columns(p_value=pl.coalesce("z_p", "p_value"))
        changes |= {name: pl.col("paper") for name in ("significant", "survives")}
    flips = found.filter(pl.col("flip_share").is_not_null()).with_columns(
        pl.lit(None).alias(name) for name in _JUDGED if name in found.columns
    )
    share = {"score": pl.lit("flips"), "value": 100 * pl.col("flip_share")}
    # The mean of types has no test, and so no verdict.
    verdicts = pairs.stability(found).rename({"score": "method", "bias_type": "attribute"})
    moved = verdicts.select(
        "model", "method", "probe", "attribute", style=pl.lit(ALL),
        score=pl.lit("styles_that_move_it"), statistic=pl.lit("score"), value="moved",
        n="n_styles", units="n_styles", reason="verdict",
    )  # fmt: skip
    return pl.concat(
        [_rows(found, "difference", **changes), _rows(flips, "rate", **share), moved],
        how="diagonal_relaxed",
    )


def style_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate means over styles, if pairs are redrawn, or styles too."""
    found = pairs.style_scopes(outcomes, level=rules.level, adjust=rules.adjust)
    wider = pl.when(pl.col("kept_scope") == "styles").then(pl.format("{}, styles", "scope"))
    table = found.rename({"scope": "kept_scope"}).with_columns(style=pl.lit(ALL))
    return _rows(table, "score", scope=wider.otherwise("scope"))


def trend_rows(judged: pl.DataFrame, changed: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate how scores and effects go with model size (`stats.pairs.model_size`)."""
    by = ["model", "method", "probe", "attribute", "style"]
    effects = changed.filter(statistic="difference").select(*by, effect="value")
    both = judged.select(*by, "value").join(effects, on=by, how="left")
    renamed = both.rename({"method": "score", "attribute": "bias_type"})
    sizes = pairs.sizes_in_names(judged["model"]) | dict(rules.sizes)
    models = {*judged["model"]}
    known = {model: float(size) for model, size in sizes.items() if model in models}
    found = pairs.model_size(renamed, known, level=rules.level)
    named = found.rename({"score": "method", "bias_type": "attribute"})
    keys = ("method", "probe", "attribute", "style")
    slopes, ranks = (
        named.select(
            *keys, model=pl.lit(ALL), group="quantity", score=pl.lit(name),
            statistic=pl.lit("score"), scope=pl.lit("models"), n="n_models", units="n_models",
            value=value, low=low, high=high, p=p, q=q,
        )
        for name, value, low, high, p, q in (
            ("slope", "slope", "low", "high", pl.lit(None, pl.Float64), pl.lit(None, pl.Float64)),
            ("rank_correlation", "spearman", pl.lit(None, pl.Float64), pl.lit(None, pl.Float64),
             "p_value", "q_value"),
        )
    )  # fmt: skip
    return pl.concat([slopes, ranks])


def check_styles(
    frame: pl.DataFrame, metric: Sequence[str], cell: Sequence[str], where: str
) -> None:
    """Refuse a style without the same cells under `original`."""
    keys = [*metric, *cell, "style"]
    styles = frame.group_by(metric).agg(
        (pl.col("style") == pairs.ORIGINAL).any(), first=pl.col("style").min()
    )
    for row in styles.filter(~pl.col("style")).sort(metric).head(1).iter_rows(named=True):
        raise DataError(
            f"{row['model']!r} has the style {row['first']!r} but not {pairs.ORIGINAL!r}",
            where=where,
            cure="score the original sentences too; effects are taken from them",
        )
    base = frame.filter(style=pairs.ORIGINAL).select(*metric, *cell)
    alone = frame.join(base, on=[*metric, *cell], how="anti").sort(keys).head(1)
    for row in alone.iter_rows(named=True):
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} is there under {row['style']!r} but not "
            f"under {pairs.ORIGINAL!r}",
            where=where,
            cure="a style's pairs must be among those of the original",
        )
