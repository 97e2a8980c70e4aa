"""Pairs of sentences, as of CrowS-Pairs, under styles: which of the two a model prefers.

A preference is the percentage of pairs whose first sentence scores higher; 50 means no preference,
and a tie counts as none. In stereo pairs that sentence shows a stereotype, in antistereo pairs the
other goes against one. A style rewords both sentences alike, so its effect is a mean paired
difference from the original style. Published files are lm-eval's `samples_crows_pairs*.jsonl`,
whose folder names the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from raybias.errors import DataError
from raybias.formats.lm_eval import is_sample, pair_sample
from raybias.measures.kind import ALL, Items, Kind, ReadFile, Rules, Table, kind
from raybias.measures.paired import check_styles, effect_rows, score_rows, style_rows, trend_rows
from raybias.measures.reading import model_of, typed
from raybias.schema import PAIR_SCORES
from raybias.stats import pairs
from raybias.stats.predictions import Source

#: What a preference counts among beside all pairs: those without ties, as nyu-mll and Bias-Bench do
#: by direction; those that the rule can score, as Bias-Bench does over all.
_AMONG: Final = {"of_untied": "ties", "of_scored": "unscored"}
_NAMES: Final = {"score": "method", "bias_type": "attribute"}
_SPREAD: Final = {
    "sd_pair": "between pairs",
    "sd_style": "between styles",
    "sd_pair_x_style": "a pair's own way with a style",
}


def _estimate(scores: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    parts = {"": scores, **{each: scores.filter(direction=each) for each in pairs.DIRECTIONS}}
    for condition, part in parts.items():
        outcomes = pairs.pair_outcomes(part)
        judged, changed = score_rows(outcomes, rules), effect_rows(outcomes, rules)
        for found in (judged, changed):
            yield found.with_columns(condition=pl.lit(condition))
        if not condition:
            yield style_rows(outcomes, rules)
            yield trend_rows(judged, changed, rules)
    yield _counts(pairs.preferences(scores))
    yield _lists(scores, rules)
    yield _spread(scores)


def _counts(preferences: pl.DataFrame) -> pl.DataFrame:
    """Give what peers count otherwise, and percentages of ties and of preferences that turn."""
    n = pl.col("n")
    values = {
        **{name: (pl.col(name), n - pl.col(out)) for name, out in _AMONG.items()},
        "ties": (100 * pl.col("ties") / n, n),
        "turned": (100 * pl.col("turned") / n, n),
    }
    named = preferences.rename(_NAMES)
    condition = pl.when(part="all").then(pl.lit("")).otherwise("part")
    keys = ("model", "method", "probe", "style", "attribute")
    return pl.concat(
        named.select(
            *keys,
            condition=condition,
            score=pl.lit(name),
            statistic=pl.lit("rate"),
            value=value,
            n=counted,
        ).drop_nulls("value")
        for name, (value, counted) in values.items()
    )


def _lists(scores: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Test lists of sentence scores against one another: sides and styles (Zhao2025, Tables 6, 7).

    Paired by pairs, or independent as in the paper where rules are not strict.
    """
    tested = pairs.t_tests(scores, paired=rules.strict).rename(_NAMES)
    return tested.filter(pl.col("t_value").is_not_null()).select(
        "model", "method", "probe", "attribute", group=pl.format("{} - {}", "first", "second"),
        score=pl.lit("t"), statistic=pl.lit("score"), value="t_value", p="p_value",
        significant="marked", n="n", units="n",
    )  # fmt: skip


def _spread(scores: pl.DataFrame) -> pl.DataFrame:
    """Take the variance of a single answer apart, as standard deviations by source."""
    found = pairs.style_components(scores).rename(_NAMES)
    keys = ["model", "method", "probe", "attribute"]
    long = found.unpivot(
        [*_SPREAD], index=[*keys, "quantity", "n_pairs"], variable_name="source",
        value_name="value",
    )  # fmt: skip
    return long.select(
        *keys, "value", condition="quantity", group=pl.col("source").replace(_SPREAD),
        score=pl.lit("sd"), statistic=pl.lit("score"), n="n_pairs", units="n_pairs",
        style=pl.lit(ALL),
    )  # fmt: skip


def _check(scores: pl.DataFrame, where: str) -> None:
    check_styles(scores, ("model", "score", "probe"), ("pair_id",), where)
    _check_pairs(scores, where)
    _check_preferences(scores, where)


def _check_preferences(scores: pl.DataFrame, where: str) -> None:
    """Refuse a preference for the side that scores lower; a tie may be of scores that are near."""
    more = pl.when(pl.col("preference") == 1).then("score_more").otherwise("score_less")
    less = pl.when(pl.col("preference") == 1).then("score_less").otherwise("score_more")
    wrong = scores.filter(pl.col("preference").is_not_null(), more < less)
    for row in wrong.head(1).iter_rows(named=True):
        others = f" ({wrong.height} pairs are such)" if wrong.height > 1 else ""
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} under {row['style']!r} has the "
            f"preference {row['preference']} and the scores {row['score_more']:g} and "
            f"{row['score_less']:g}{others}",
            where=where,
            cure="1 where sent_more scores higher, 0 where sent_less does: mend the files",
        )


def _check_pairs(scores: pl.DataFrame, where: str) -> None:
    """Refuse a pair with several bias types, directions or clusters."""
    called = {"bias_type": "bias types", "direction": "directions", "cluster": "clusters"}
    counts = scores.group_by("probe", "pair_id").agg(pl.col(called).drop_nulls().n_unique())
    split = counts.filter(pl.any_horizontal(pl.col(called) > 1)).sort("pair_id").head(1)
    for row in split.iter_rows(named=True):
        what = next(text for name, text in called.items() if row[name] > 1)
        raise DataError(
            f"pair {row['pair_id']!r} has different {what}",
            where=where,
            cure="a style changes a pair's wording, not its content: mend the files",
        )


def _published(_items: Items) -> ReadFile:
    """Read lm-eval's samples of CrowS-Pairs; the score is called `lm_eval`."""

    def read(source: Source, data: bytes) -> pl.DataFrame | None:
        lines = [line for line in data.split(b"\n") if line.strip()]
        if not (lines and is_sample(lines[0]) and b"sent_more" in lines[0]):
            return None
        named: dict[str, Any] = {"model": model_of(source), "score": "lm_eval",
                                 "probe": "crows_pairs", "style": pairs.ORIGINAL}  # fmt: skip
        rows = [
            {**named, **pair_sample(line, f"{source.uri}, line {number}")}
            for number, line in enumerate(lines, start=1)
        ]
        return typed(pl.DataFrame(rows), PAIR_SCORES, source.uri)

    return read


_AVERAGE: Final = pl.col("attribute").is_in(pairs.AVERAGES)
_SCORE: Final = (
    (pl.col("model") != ALL) & (pl.col("score") == "preference") & (pl.col("statistic") == "score")
)
_EFFECT: Final = (pl.col("score") == "preference") & (pl.col("statistic") == "difference")
_OVER: Final = _SCORE & (pl.col("style") == ALL)
_ONE: Final = _SCORE & (pl.col("style") != ALL)
_ORIGINAL: Final = pl.col("style") == pairs.ORIGINAL
_WHOLE: Final = pl.col("condition") == ""

PAIRS: Final = kind(
    Kind(
        name="pairs",
        folder="pair_scores",
        answers=PAIR_SCORES,
        item=("score", "style", "pair_id"),
        estimate=_estimate,
        outcomes=pairs.pair_outcomes,
        check=_check,
        endings=(".jsonl", ".jsonl.gz"),
        published=_published,
        units="pairs",
        title="Preference for the more stereotypical sentence, in percent",
        called={"method": "score by", "attribute": "bias type", "condition": "direction"},
        about=__doc__.split("\n\n", 1)[1].split(" Published", 1)[0].replace("\n", " "),
        tables=(
            Table("over all pairs", _ONE & _AVERAGE & _WHOLE, neutral=50),
            Table("by bias type, original style", _ONE & ~_AVERAGE & _ORIGINAL & _WHOLE,
                  neutral=50),
            Table("mean over styles, over all pairs", _OVER & _AVERAGE, neutral=50),
            Table("effects of styles over all pairs, in points", _EFFECT & _AVERAGE & _WHOLE,
                  signed=True, neutral=0),
            Table("styles that move it, and whether its conclusion holds under every style",
                  (pl.col("score") == "styles_that_move_it") & _AVERAGE & _WHOLE, digits=0),
            Table("by direction", _ONE & ~_WHOLE, folded=True),
            Table("by bias type and style", _ONE & ~_AVERAGE & ~_ORIGINAL & _WHOLE, folded=True),
            Table("effects of styles by bias type, in points", _EFFECT & ~_AVERAGE & _WHOLE,
                  signed=True, neutral=0, folded=True),
            Table("styles that move it, by bias type",
                  (pl.col("score") == "styles_that_move_it") & ~_AVERAGE & _WHOLE, digits=0,
                  folded=True),
            Table("mean over styles by bias type", _OVER & ~_AVERAGE, folded=True),
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
