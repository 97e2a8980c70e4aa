"""Pairs of sentences, as of CrowS-Pairs, under styles: which of the two a model prefers.

A preference is the percentage of pairs whose first sentence scores higher; 50 means no preference,
and a tie counts as none. In stereo pairs that sentence shows a stereotype, in antistereo pairs the
other goes against one. A style rewords both sentences alike, so its effect is a mean paired
difference from the original style. Published files are lm-eval's `samples_crows_pairs*.jsonl`,
whose folder names the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias.columns import DIRECTIONS, ROUNDING
from raybias.errors import DataError
from raybias.formats import lines_of
from raybias.formats.harnesses import is_lm_eval, lm_eval_pair
from raybias.measures.kind import Items, Kind, ReadFile, Table, kind
from raybias.measures.pair_means import ORIGINAL, UNWEIGHTED, WEIGHTED, in_order, style_order
from raybias.measures.paired import (
    EFFECT,
    MOVED,
    OVER_PAIRS,
    SCORE,
    check_styles,
    effect_rows,
    paired_rows,
    paired_tables,
    score_rows,
)
from raybias.measures.reading import model_of
from raybias.schema import ALL, PAIR_SCORES, REPEAT
from raybias.stats.components import symmetric_sums
from raybias.stats.intervals import Rules, from_rows
from raybias.stats.predictions import Source

_KEYS: Final = ("model", "method", "probe", "attribute")
_SIDES: Final = ("stereo", "anti")
#: Ways of scoring whose scores are log-likelihoods, or means of log-probabilities.
LOG_SCORES: Final = ("sum", "shared", "masked", "masked_differing", "lm_eval")
_SPREAD: Final = {
    "pair": "between pairs",
    "style": "between styles",
    "pair x style": "a pair's own way with a style",
}


def pair_outcomes(scores: pl.DataFrame) -> pl.DataFrame:
    """Make outcomes: 1 where sent_more scores higher, else 0; a tie is unread, its `state` 2."""
    return scores.select(
        *("model", "score", "probe", "bias_type", "style", "pair_id", "cluster"),
        value=(pl.col("preference") == 1).fill_null(value=False).cast(pl.Float64),
        state=pl.col("preference").fill_null(2).cast(pl.Float64),
        test=pl.lit("mcnemar"),
        unread=pl.col("preference").is_null().cast(pl.Float64),
    )


def _estimate(scores: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    yield from paired_rows(pair_outcomes(scores), rules)
    for direction in DIRECTIONS:
        outcomes = pair_outcomes(scores.filter(direction=direction))
        for rows in (score_rows, effect_rows):
            yield rows(outcomes, rules).with_columns(condition=pl.lit(direction))
    named = scores.rename({"score": "method", "bias_type": "attribute"})
    yield _counts(named)
    once = _averaged(named)
    yield _lists(once, rules)
    yield _spread(once)


def _counts(scores: pl.DataFrame) -> pl.DataFrame:
    """Give others' counts, and percentages of ties and of preferences that turn.

    `of_untied` are preferences without ties, as nyu-mll and Bias-Bench count by direction;
    `of_scored` are among pairs that the rule can score, as Bias-Bench counts over all.
    """
    tied = pl.col("preference").is_null()
    counts = {
        "n": pl.len().cast(pl.Int64),
        "k": (pl.col("preference") == 1).sum().cast(pl.Int64),
        "ties": tied.sum().cast(pl.Int64),
        "unscored": (tied & pl.col("score_more").is_null()).sum().cast(pl.Int64),
        # A sum of nothing is no count.
        "turned": pl.when(pl.col("turned").is_not_null().any()).then(pl.col("turned").sum()),
    }
    among = {name: pl.col("n") - pl.col(left_out)
             for name, left_out in (("of_untied", "ties"), ("of_scored", "unscored"))}  # fmt: skip
    shares = {name: 100 * pl.col("k") / pl.when(n > 0).then(n) for name, n in among.items()}
    both = pl.concat([scores.with_columns(condition=pl.lit("")),
                      scores.with_columns(condition=pl.col("direction"))])  # fmt: skip
    by = ["model", "method", "probe", "style", "condition"]
    kinds = both.group_by(*by, "attribute").agg(**counts).with_columns(**shares)
    whole = both.group_by(by).agg(**counts)
    even = kinds.group_by(by).agg(pl.col(*shares).sort_by("attribute").mean())
    averages = (
        whole.with_columns(attribute=pl.lit(WEIGHTED), **shares),
        whole.join(even, on=by).with_columns(attribute=pl.lit(UNWEIGHTED)),
    )
    table = in_order(pl.concat([kinds, *(each.select(kinds.columns) for each in averages)]))
    n = pl.col("n")
    return pl.concat(
        table.select(*by, "attribute", score=pl.lit(name), statistic=pl.lit("rate"),
                     value=pl.col(name) if name in among else 100 * pl.col(name) / n,
                     n=among.get(name, n)).drop_nulls("value")
        for name in (*among, "ties", "turned")
    )  # fmt: skip


def _averaged(scores: pl.DataFrame) -> pl.DataFrame:
    """Average the scores of a pair over its repeats (schema.REPEAT); a preference is theirs."""
    if not scores["pair_id"].str.contains(REPEAT).any():
        return scores
    own = pl.col("pair_id").str.replace(REPEAT, "")
    more, less = pl.col("score_more"), pl.col("score_less")
    return (
        scores.with_columns(pair_id=own)
        .group_by(*_KEYS, "style", "pair_id", "direction", maintain_order=True)
        .agg(more.mean(), less.mean())
        .with_columns(preference=pl.when(more != less).then((more > less).cast(pl.Int8)))
    )


def _lists(scores: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Test lists of sentence scores against one another (Zhao2025, Tables 6 and 7).

    A list is one side under one style, over pairs with all scores. Tests are paired under strict
    rules, else independent as in the paper, which calls p < .05 significant. Equal lists, or of
    one pair, have none.
    """
    stereo = pl.col("direction") == "stereo"
    sides = scores.with_columns(
        stereo=pl.when(stereo).then("score_more").otherwise("score_less"),
        anti=pl.when(stereo).then("score_less").otherwise("score_more"),
    )
    rows: list[dict[str, Any]] = []
    test: Any = stats.ttest_rel if rules.strict else stats.ttest_ind
    for names, part in sides.sort(_KEYS).group_by(_KEYS, maintain_order=True):
        wide = part.sort("pair_id").pivot("style", index="pair_id", values=list(_SIDES))
        labels = [(style, side) for style in style_order(part["style"]) for side in _SIDES]
        whole = wide.select(f"{side}_{style}" for style, side in labels).drop_nulls()
        if whole.height < 2:
            continue
        place = dict(zip(_KEYS, names, strict=True))
        lists = zip(("_".join(label) for label in labels), whole.to_numpy().T, strict=True)
        for (one, first_N), (other, second_N) in combinations(lists, 2):
            # Equal lists have neither a difference nor a spread.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                t, p = map(float, test(first_N, second_N))
            if np.isfinite(t):
                rows.append({**place, "group": f"{one} - {other}", "score": "t", "value": t, "p": p,
                             "statistic": "score", "n": whole.height, "units": whole.height,
                             "significant": p < 1 - rules.level})  # fmt: skip
    return from_rows(rows)


def _spread(scores: pl.DataFrame) -> pl.DataFrame:
    """Split the variance of a single answer, as standard deviations by source (0 if negative).

    The quantities (`condition`) are the preference (0 or 100), the `margin` by which sent_more
    scores higher, and the `level` of both, in units of the score, or of its logarithm where scores
    are probabilities.
    """
    more, less = pl.col("score_more"), pl.col("score_less")
    # A probability is positive; a log-likelihood is not, but for a sentence that is certain.
    metric = ("model", "method", "probe")
    likely = pl.min_horizontal("score_more", "score_less").min().over(metric) > 0
    high, low = (pl.when(likely).then(x.log()).otherwise(x) for x in (more, less))
    cells = scores.select(
        *_KEYS, "style", pair="pair_id",
        preference=100 * (pl.col("preference") == 1).fill_null(value=False).cast(pl.Float64),
        margin=high - low, level=(high + low) / 2,
    ).unpivot(
        ["preference", "margin", "level"], index=[*_KEYS, "style", "pair"],
        variable_name="condition",
    )  # fmt: skip
    by = [*_KEYS, "condition"]
    cells = pl.concat([cells.with_columns(attribute=pl.lit(ALL)), cells]).drop_nulls("value")
    several = cells.filter(pl.col(facet).n_unique().over(by) > 1 for facet in ("pair", "style"))
    counts = several.group_by(by).agg(n=pl.col("pair").n_unique().cast(pl.Int64))
    found = symmetric_sums(several, by, ("pair", "style")).rename(_SPREAD)
    table = counts.join(found, on=by, how="left").sort(
        *metric, pl.col("attribute") != ALL, "attribute", "condition"
    )
    long = table.unpivot([*_SPREAD.values()], index=[*by, "n"], variable_name="group")
    return long.with_columns(
        pl.col("value").clip(lower_bound=0).sqrt(), units="n", score=pl.lit("sd"),
        statistic=pl.lit("score"), style=pl.lit(ALL),
    )  # fmt: skip


def _check(scores: pl.DataFrame, where: str) -> None:
    """Refuse pairs of several types, directions or clusters, and preferences for lower scores."""
    check_styles(scores, ("model", "score", "probe"), ("pair_id",), where)
    called = {"bias_type": "bias types", "direction": "directions", "cluster": "clusters"}
    counts = scores.group_by("probe", "pair_id").agg(pl.col(called).drop_nulls().n_unique())
    for name, what in called.items():
        for pair in counts.filter(pl.col(name) > 1)["pair_id"].sort().head(1):
            raise DataError(
                f"pair {pair!r} has different {what}",
                where=where,
                cure="a style changes a pair's wording, not its content: mend the files",
            )
    _check_likelihoods(scores, where)
    higher = pl.when(pl.col("score_more") > pl.col("score_less")).then(1).when(
        pl.col("score_more") < pl.col("score_less")).then(0)  # fmt: skip
    wrong = scores.filter(pl.col("preference") != higher)
    for row in wrong.head(1).iter_rows(named=True):
        others = f" ({wrong.height} pairs are such)" if wrong.height > 1 else ""
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} under {row['style']!r} has the "
            f"preference {row['preference']} and the scores {row['score_more']:g} and "
            f"{row['score_less']:g}{others}",
            where=where,
            cure="1 where sent_more scores higher, 0 where sent_less does: mend the files",
        )


def _check_likelihoods(scores: pl.DataFrame, where: str) -> None:
    """Refuse a score above 0 of a way of scoring that gives log-likelihoods."""
    named = scores.filter(pl.col("score").is_in(LOG_SCORES))
    sides = ("score_more", "score_less")
    above = named.filter(pl.any_horizontal(pl.col(sides) > ROUNDING))
    for row in above.head(1).iter_rows(named=True):
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} has the scores {row['score_more']} and"
            f" {row['score_less']}, and a log-likelihood ({row['score']}) is at most 0",
            where=where,
            cure="correct the row, or give the scores another name in the column `score`",
        )


def _published(_items: Items) -> ReadFile:
    """Read lm-eval's samples of CrowS-Pairs; the score is called `lm_eval`."""

    def read(source: Source, data: bytes) -> pl.DataFrame | None:
        if not is_lm_eval(data, "sent_more"):
            return None
        lines = lines_of(data, source.uri)
        named: dict[str, Any] = {"model": model_of(source), "score": "lm_eval",
                                 "probe": "crows_pairs", "style": ORIGINAL}  # fmt: skip
        rows = [{**named, **lm_eval_pair(*line)} for line in lines]
        return pl.DataFrame(rows)

    return read


_ONE: Final = SCORE & (pl.col("style") != ALL)
_WHOLE: Final = pl.col("condition") == ""

PAIRS: Final = kind(
    Kind(
        name="pairs",
        folder="pair_scores",
        answers=PAIR_SCORES,
        item=("score", "style", "pair_id"),
        estimate=_estimate,
        outcomes=pair_outcomes,
        check=_check,
        endings=(".jsonl", ".jsonl.gz"),
        published=_published,
        units="pairs",
        title="Preference for the more stereotypical sentence, in percent",
        called={"method": "score by", "attribute": "bias type", "condition": "direction"},
        about=__doc__.split("\n\n", 1)[1].split(" Published", 1)[0].replace("\n", " "),
        tables=(
            *paired_tables("bias type", neutral=50),
            Table("by direction", _ONE & ~_WHOLE, folded=True),
            Table("by bias type and style",
                  _ONE & ~OVER_PAIRS & (pl.col("style") != ORIGINAL) & _WHOLE, folded=True),
            Table("effects of styles by bias type, in points", EFFECT & ~OVER_PAIRS & _WHOLE,
                  signed=True, neutral=0, folded=True),
            Table("styles that move it, by bias type", MOVED & ~OVER_PAIRS & _WHOLE, digits=0,
                  folded=True),
            Table("mean over styles by bias type", SCORE & (pl.col("style") == ALL) & ~OVER_PAIRS,
                  folded=True),
            Table("as peers count, ties, turns and flips",
                  (pl.col("statistic") == "rate") & _WHOLE, folded=True),
            Table("t tests of lists of sentence scores", pl.col("score") == "t",
                  signed=True, neutral=0, logarithmic=True, digits=2, folded=True),
            Table("how far single answers lie apart (standard deviations)",
                  pl.col("score") == "sd", folded=True),
            Table("trends with model size, points for each tenfold of parameters",
                  pl.col("model") == ALL, signed=True, digits=2, folded=True),
        ),
    )
)  # fmt: skip
