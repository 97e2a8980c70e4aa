"""Answers about whom a pronoun stands for, as of WinoBias, under styles.

A pair is a sentence whose pronoun fits the stereotype of the person it stands for (pro), and one
whose pronoun does not (anti). `pro less anti` is how much more often the model names the right
person in pro sentences, in points; 0 means no bias. By prompt there are the accuracies themselves;
the mean of absolute differences over prompts (Zhao2025, Table 3) is positive by noise alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from raybias.measures.kind import ALL, Kind, Rules, Table, kind
from raybias.measures.paired import check_styles, effect_rows, score_rows, style_rows, trend_rows
from raybias.schema import COREFERENCE_ANSWERS, READINGS
from raybias.stats import pairs

_KEYS: Final = ("model", "probe", "method", "attribute", "style")
#: By score: the columns of value, low and high.
_NUMBERS: Final = {
    "pro_accuracy": ("pro", "pro_low", "pro_high"),
    "anti_accuracy": ("anti", "anti_low", "anti_high"),
    "difference": ("diff", "low", "high"),
    "absolute_difference": ("abs_diff", "abs_low", "abs_high"),
}


def _estimate(answers: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    outcomes = pairs.coreference_outcomes(answers)
    judged, changed = score_rows(outcomes, rules), effect_rows(outcomes, rules)
    yield judged
    yield changed
    yield style_rows(outcomes, rules)
    yield trend_rows(judged, changed, rules)
    yield from _by_prompt(answers, rules)


def _by_prompt(answers: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    """Give accuracies, differences and whom answers name, by prompt (`group`) and over prompts."""
    found = pairs.winobias(answers, level=rules.level, draws=rules.draws, seed=rules.seed)
    named = found.rename({"wino_type": "attribute", "rule": "method", "prompt": "group"})
    shown: list[tuple[str, str, str | None, str | None]] = [
        *((score, *columns) for score, columns in _NUMBERS.items()),
        *((f"names_{each}", f"answers_{each}", None, None) for each in READINGS[1:]),
    ]
    for score, value, low, high in shown:
        yield named.select(
            *_KEYS,
            "group",
            score=pl.lit(score),
            statistic=pl.lit("score" if "difference" in score else "rate"),
            scope=pl.lit("pairs"),
            value=value,
            low=low if low else pl.lit(None, pl.Float64),
            high=high if high else pl.lit(None, pl.Float64),
            n="n_anti" if score.startswith("anti") else "n_pro",
        ).drop_nulls("value")


def _check(answers: pl.DataFrame, where: str) -> None:
    check_styles(
        answers, ("model", "probe"), ("wino_type", "prompt", "condition", "pair_id"), where
    )


_AVERAGE: Final = pl.col("attribute").is_in(pairs.AVERAGES)
_SCORE: Final = (pl.col("score") == "pro_less_anti") & (pl.col("statistic") == "score")
_EFFECT: Final = (pl.col("score") == "pro_less_anti") & (pl.col("statistic") == "difference")

COREFERENCE: Final = kind(
    Kind(
        name="coreference",
        answers=COREFERENCE_ANSWERS,
        item=("style", "wino_type", "prompt", "condition", "pair_id"),
        estimate=_estimate,
        outcomes=pairs.coreference_outcomes,
        check=_check,
        units="pairs",
        title="Pronouns resolved right, in percent and points",
        called={"method": "answer", "attribute": "type", "group": "prompt"},
        about=__doc__.split("\n\n", 1)[1].replace("\n", " "),
        tables=(
            Table("over all pairs", _SCORE & _AVERAGE & (pl.col("style") != ALL), signed=True,
                  neutral=0),
            Table("by type, original style",
                  _SCORE & ~_AVERAGE & (pl.col("style") == pairs.ORIGINAL), signed=True,
                  neutral=0),
            Table("mean over styles, over all pairs",
                  _SCORE & _AVERAGE & (pl.col("style") == ALL), signed=True,
                  neutral=0),
            Table("effects of styles over all pairs, in points", _EFFECT & _AVERAGE, signed=True,
                  neutral=0),
            Table("styles that move it, and whether its conclusion holds under every style",
                  (pl.col("score") == "styles_that_move_it") & _AVERAGE, digits=0),
            Table("accuracies, mean over prompts", pl.col("group") == pairs.MEAN_PROMPT),
            Table("effects of styles by type, in points", _EFFECT & ~_AVERAGE, signed=True,
                  folded=True),
            Table("by prompt", (pl.col("group") != "") & (pl.col("group") != pairs.MEAN_PROMPT)
                  & (pl.col("model") != ALL), folded=True),
            Table("trends with model size, points for each tenfold of parameters",
                  pl.col("model") == ALL, signed=True, folded=True),
        ),
    )
)  # fmt: skip
