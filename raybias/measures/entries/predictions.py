"""Labels that a classifier gives sentences, or anyone's decisions, about people of groups.

A rate says how often a group is called something; a gap is that rate less the unweighted mean of
the groups, a ratio that rate by the rate of the most favoured group. Files: a study's output, our
Parquet, Kohankhaki2024's TSV, or a table with `label`, `group`, and `pred` or `score`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from raybias.config import Statistics
from raybias.measures.kind import ALL, Kind, Rules, Table, kind
from raybias.measures.prediction_rows import BY, KIND, OUTSIDE, WITHHELD, WITHOUT, WORD
from raybias.measures.predictions import Asked, measure_predictions
from raybias.schema import PREDICTIONS as PREDICTION_TABLE
from raybias.stats.judging import GapRules
from raybias.stats.metric_table import LESS_NOISE
from raybias.stats.metric_types import metrics
from raybias.stats.predictions import sources
from raybias.stats.scopes import REDRAWN

_FAMILIES: Final = {
    "families": "seeds and families of templates are redrawn",
    "families, words": "seeds, families of templates and words for the groups are redrawn",
}
_ITEMS: Final = {"items": "seeds and items are redrawn (no templates are known)"}
_OVER: Final = {"models": "models and sentences are redrawn"}


def _estimate(answers: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    statistics = Statistics.under("strict" if rules.strict else "paper")
    own = {"level": rules.level, "adjust": rules.adjust}
    asked = Asked(rules=GapRules(statistics.model_copy(update=own)))
    yield measure_predictions(sources([answers]), asked)


def _defined(scores: list[str]) -> Iterator[str]:
    """Yield what each metric counts."""
    for name, entry in metrics.items():
        if name in scores:
            yield f"{name}: {entry.formula or entry.about}; {entry.source or 'registered here'}"
    if any(name.endswith(LESS_NOISE) for name in scores):
        yield f"NAME{LESS_NOISE}: the value less what noise adds to it, or with what it takes off"
    if "agreement" in scores:
        yield "agreement: Kendall's W of how metrics rank groups or models; 1 alike, 0 cancelled"


_SCORE: Final = pl.col("score")
_STATISTIC: Final = pl.col("statistic")
_CONDITION: Final = pl.col("condition")
_ONE: Final = pl.col("model") != ALL
_GROUP: Final = pl.col("group") != ALL
_AGREE: Final = _SCORE == "agreement"
_APART: Final = {
    "by word": _CONDITION.str.starts_with(WORD),
    "without one template or word": _CONDITION.str.starts_with(WITHOUT),
    "how far rankings would come out again": _SCORE.str.ends_with("_reliability"),
    "what the rules find in meaningless group labels": _SCORE.str.starts_with("meaningless_"),
    "where families of templates are redrawn": pl.col("scope").str.starts_with("families"),
    "how far pairs of metrics agree": _AGREE & _GROUP,
}
_USUAL: Final = ~(pl.any_horizontal(*_APART.values()) | _AGREE) & (_SCORE != WITHHELD)
_PLAIN: Final = _USUAL & _ONE & _GROUP & _CONDITION.str.contains(f"^($|{BY}|{OUTSIDE}|reference:)")
_EFFECT: Final = _USUAL & _GROUP & (_STATISTIC == "difference")

PREDICTIONS: Final = kind(
    Kind(
        name=KIND,
        answers=PREDICTION_TABLE,
        item=("run_id", "item_id"),
        estimate=_estimate,
        units="items",
        title="How groups are labelled",
        redrawn={**dict(REDRAWN.items()), **_ITEMS, **_FAMILIES, **_OVER},
        defined=_defined,
        digits=3,
        about="A gap is a rate less the mean of the groups; a ratio is a rate by that of the most "
        "favoured group, which is chosen from the same data.",
        tables=(
            Table("", _PLAIN & _STATISTIC.is_in(["rate", "gap", "ratio"]), beside="statistic"),
            Table("gaps: a rate less the mean of the groups", _PLAIN & (_STATISTIC == "gap"),
                  signed=True, neutral=0, listed=False),
            Table("over all groups", _USUAL & _ONE & ~_GROUP, beside="statistic"),
            Table("against other backgrounds", _USUAL & _ONE & _GROUP & ~_PLAIN & ~_EFFECT,
                  beside="statistic"),
            Table("how far metrics agree", _AGREE & ~_GROUP),
            Table("what naming a group does to a rate", _EFFECT, signed=True, neutral=0,
                  folded=True),
            Table("mean gaps over models", _USUAL & ~_ONE, signed=True, folded=True),
            *(Table(title, where, folded=True) for title, where in _APART.items()),
        ),
    )
)  # fmt: skip
