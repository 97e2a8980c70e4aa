"""Answers about whom a pronoun stands for, as of WinoBias, under styles.

A pair is a sentence whose pronoun fits the stereotype of the person it stands for (pro), and one
whose pronoun does not (anti). `pro less anti` is how much more often the model names the right
person in pro sentences, in points; 0 means no bias. By prompt there are the accuracies themselves;
the mean of absolute differences over prompts (Zhao2025, Table 3) is positive by noise alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias.columns import CONDITIONS, READINGS
from raybias.measures.kind import Kind, Table, kind
from raybias.measures.pair_means import drawn_means, percentiles, style_order
from raybias.measures.paired import EFFECT, OVER_PAIRS, check_styles, paired_rows, paired_tables
from raybias.schema import ALL, COREFERENCE_ANSWERS
from raybias.seeding import generator
from raybias.stats.components import ROUNDING, Doubles, places
from raybias.stats.intervals import Rules, from_rows
from raybias.stats.share_intervals import wilson

RULES: Final = ("exact", "contains")
#: The row over all prompts: the unweighted mean of the prompts' numbers.
MEAN: Final = "mean"
_SCORES: Final = ("pro_accuracy", "anti_accuracy", "difference", "absolute_difference")
_PLACE: Final = ("model", "probe", "attribute")


def coreference_outcomes(answers: pl.DataFrame) -> pl.DataFrame:
    """Make outcomes of answers: right on pro less right on anti, mean over prompts, by rule.

    The columns are those of `pair_outcomes`, for pairs with both conditions of each prompt; `score`
    is the rule, `unread` the share of prompts with an answer that names nobody, or both people.
    """
    by = ["score", "model", "probe", "wino_type", "style", "pair_id"]
    ruled = answers.unpivot(
        RULES, index=[*by[1:], "prompt", "condition", "reading"], variable_name="score"
    )
    pro, anti = (pl.col("value").filter(condition=side).cast(pl.Float64).mean()
                 for side in ("pro", "anti"))  # fmt: skip
    sides = ruled.group_by(*by, "prompt", maintain_order=True).agg(
        value=pro - anti, unread=pl.col("reading").is_in(["both", "neither", "empty"]).any()
    )
    whole = sides.group_by(by, maintain_order=True).agg(
        pl.col("value", "unread").mean(), whole=pl.col("value").is_not_null().all()
    )
    return whole.filter("whole").select(
        *("model", "probe", "score", "style", "pair_id", "value", "unread"), bias_type="wino_type",
        test=pl.lit("paired_t"), cluster=pl.lit(None, pl.String), state=pl.lit(None, pl.Float64),
    )  # fmt: skip


def _estimate(answers: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    yield from paired_rows(coreference_outcomes(answers), rules)
    named = answers.rename({"wino_type": "attribute", "prompt": "group"})
    accuracies = _by_prompt(named, rules)
    yield accuracies
    yield _readings(named, accuracies)


def _by_prompt(answers: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate accuracies and their differences by prompt (`group`) and over prompts, in points.

    Intervals draw pairs anew, both sides, all prompts and both rules together; the accuracies of
    one prompt have Wilson's. The mean's `absolute_difference` (Zhao2025, Table 3) is positive by
    noise, so its interval never reaches below 0.
    """
    rows: list[dict[str, Any]] = []
    for names, part in answers.sort(_PLACE).group_by(_PLACE, maintain_order=True):
        # The draws of `score_rows`, the same for all models: they read the same pairs.
        random = generator(rules.bootstrap_seed, "pairs", *(str(name) for name in names[1:]))
        place = dict(zip(_PLACE, names, strict=True))
        rows += ({**place, **row} for row in _of_place(part, rules, random))
    order = pl.col("score").cast(pl.Enum(_SCORES))
    return from_rows(rows).sort(order, maintain_order=True).drop_nulls("value")


def _of_place(
    part: pl.DataFrame, rules: Rules, random: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each of S styles, R rules and P prompts; C conditions, N pairs."""
    orders: dict[str, list[str]] = {
        "style": style_order(part["style"]), "group": part["group"].unique().sort().to_list(),
        "condition": [*CONDITIONS], "pair_id": part["pair_id"].unique().sort().to_list(),
    }  # fmt: skip
    at_S, at_P, at_C, at_N = (places(part[name], order) for name, order in orders.items())
    styles, prompts, conditions, pairs = map(len, orders.values())
    right_SPRCN = np.full((styles, prompts, len(RULES), conditions, pairs), np.nan)
    for r, rule in enumerate(RULES):
        right_N = part[rule].cast(pl.Float64).fill_null(np.nan).to_numpy()
        right_SPRCN[at_S, at_P, r, at_C, at_N] = right_N
    flat = right_SPRCN.reshape(-1, pairs)
    n_SPRC = (~np.isnan(flat)).sum(axis=1).reshape(right_SPRCN.shape[:4])
    with np.errstate(invalid="ignore"):
        point_SPRC = 100 * (np.nansum(flat, axis=1).reshape(n_SPRC.shape) / n_SPRC)
    drawn_SPRCB = 100 * drawn_means(flat, rules.bootstrap_draws, random).reshape(*n_SPRC.shape, -1)
    for s, style in enumerate(orders["style"]):
        for r, rule in enumerate(RULES):
            asked = [p for p in range(prompts) if n_SPRC[s, p, r].all()]
            parts = [(orders["group"][p], [p], int(n_SPRC[s, p, r].min())) for p in asked]
            parts += [(MEAN, asked, pairs)] if asked else []
            for prompt, own, least in parts:
                pro, anti = map(int, n_SPRC[s, own, r].sum(axis=0))
                found = _numbers(point_SPRC[s, own, r], drawn_SPRCB[s, own, r], least, rules.level)
                for score, (value, low, high) in zip(_SCORES, found, strict=True):
                    yield {
                        "method": rule, "style": style, "group": prompt, "score": score,
                        "scope": "pairs",
                        "statistic": "score" if "difference" in score else "rate",
                        "value": float(value), "low": float(low), "high": float(high),
                        "n": anti if score.startswith("anti") else pro,
                    }  # fmt: skip


def _numbers(
    point_PC: Doubles, drawn_PCB: Doubles, n: int, level: float
) -> Iterator[tuple[float, float, float]]:
    signed_PB = drawn_PCB[:, 0] - drawn_PCB[:, 1]
    both = np.stack([signed_PB.mean(axis=0), np.abs(signed_PB).mean(axis=0)])
    low, high = percentiles(both, n, level)
    if len(point_PC) == 1:
        normal = stats.norm.ppf(np.full(len(CONDITIONS), (1 + level) / 2))
        ends = wilson(point_PC[0] / 100, np.full(len(CONDITIONS), float(n)), normal)
    else:
        ends = percentiles(drawn_PCB.mean(axis=0) / 100, n, level)
    # Without variance there is no interval.
    flat_C = ends[1] - ends[0] < ROUNDING
    sides = (100 * np.where(flat_C, np.nan, end) for end in ends)
    pro, anti = point_PC.mean(axis=0)
    yield from zip((pro, anti), *sides, strict=True)
    yield pro - anti, low[0], high[0]
    yield np.abs(point_PC[:, 0] - point_PC[:, 1]).mean(), low[1], high[1]


def _readings(answers: pl.DataFrame, accuracies: pl.DataFrame) -> pl.DataFrame:
    """Give percentages of answers that do not name the referent alone, where files have them."""
    by, names = [*_PLACE, "style", "group"], [f"names_{name}" for name in READINGS[1:]]
    shares = answers.group_by(by).agg(
        (100 * (pl.col("reading") == name.removeprefix("names_")).mean()).alias(name)
        for name in names
    )
    means = shares.group_by(by[:-1]).agg(pl.lit(MEAN).alias("group"), pl.col(names).mean())
    asked = accuracies.filter(score=_SCORES[0]).select(*by, "method", "scope", "n")
    table = asked.join(pl.concat([shares, means.select(shares.columns)]), on=by, how="left",
                       maintain_order="left")  # fmt: skip
    found = table.unpivot(names, index=asked.columns, variable_name="score").drop_nulls("value")
    return found.with_columns(statistic=pl.lit("rate"))


COREFERENCE: Final = kind(
    Kind(
        name="coreference",
        answers=COREFERENCE_ANSWERS,
        item=("style", "wino_type", "prompt", "condition", "pair_id"),
        estimate=_estimate,
        outcomes=coreference_outcomes,
        check=lambda answers, where: check_styles(
            answers, ("model", "probe"), ("wino_type", "prompt", "condition", "pair_id"), where
        ),
        units="pairs",
        title="Pronouns resolved right, in percent and points",
        called={"method": "answer", "attribute": "type", "group": "prompt"},
        about=__doc__.split("\n\n", 1)[1].replace("\n", " "),
        tables=(
            *paired_tables("type", neutral=0),
            Table("accuracies, mean over prompts", pl.col("group") == MEAN),
            Table("effects of styles by type, in points", EFFECT & ~OVER_PAIRS, signed=True,
                  folded=True),
            Table("by prompt", (pl.col("group") != "") & (pl.col("group") != MEAN)
                  & (pl.col("model") != ALL), folded=True),
            Table("trends with model size, points for each tenfold of parameters",
                  pl.col("model") == ALL, signed=True, folded=True),
        ),
    )
)  # fmt: skip
