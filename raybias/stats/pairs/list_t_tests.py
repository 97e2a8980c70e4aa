"""t tests between lists of sentence scores: Tables 6 and 7 of Zhao2025.

A list is one side (the stereotyping sentences or the others) under one style. The paper's
test takes two lists as independent samples; they hold the same pairs, so the strict one
is paired.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.stats.pairs.outcomes import METRIC, style_order

Doubles = npt.NDArray[np.float64]
Scale = Literal["score", "log"]

SIDES: Final = ("stereo", "anti")
#: The styles of the paper's six lists, which make 15 pairs of lists.
LISTED_STYLES: Final = ("original", "informal", "formal")
_NUMBERS: Final = ("t_value", "p_value")


def t_tests(
    scores: pl.DataFrame,
    *,
    paired: bool,
    scale: Scale = "score",
    styles: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Compare every two lists of sentence scores within a bias type.

    Parameters
    ----------
    scores: schema.PAIR_SCORES. The stereo list holds sent_more of stereo pairs and
        sent_less of antistereo pairs. Pairs enter which every list has a score for.
    paired: a paired test, else Student's for independent samples of equal variance.
    scale: log: the logarithms of scores that are probabilities; scores of other kinds
        (sums of log-likelihoods) are taken as they are.
    styles: those to compare; all by default.

    Returns
    -------
    The metric, bias_type, first and second (style_side), n, t_value (positive where the
    first list is higher), two-sided p_value and `marked`: |t| > 1.96. Lists without any
    difference in their scores, or of one pair, have no t.
    """
    rows: list[dict[str, Any]] = []
    chosen = [s for s in style_order(scores["style"]) if styles is None or s in styles]
    by = [*METRIC, "bias_type"]
    for names, part in scores.sort(by).group_by(by, maintain_order=True):
        labels = [style for style in chosen if style in set(part["style"])]
        lists_LN = _lists(part, labels, scale)
        head = dict(zip(by, names, strict=True))
        rows += _compared(lists_LN, [f"{s}_{side}" for s in labels for side in SIDES], paired, head)
    texts = dict.fromkeys((*by, "first", "second"), pl.String)
    types = {**texts, "n": pl.Int64, **dict.fromkeys(_NUMBERS, pl.Float64)}
    table = pl.DataFrame(rows, types).with_columns(pl.col(_NUMBERS).fill_nan(None))
    return table.with_columns(marked=pl.col("t_value").abs() > 1.96)


def _lists(part: pl.DataFrame, styles: Sequence[str], scale: Scale) -> Doubles:
    """Scores [L, N], two lists a style, of the pairs that all of them have."""
    stereo = pl.col("direction") == "stereo"
    more, less = pl.col("score_more"), pl.col("score_less")
    sides = part.select(
        "pair_id", "style",
        stereo=pl.when(stereo).then(more).otherwise(less),
        anti=pl.when(stereo).then(less).otherwise(more),
    )  # fmt: skip
    wide = sides.sort("pair_id").pivot("style", index="pair_id", values=list(SIDES))
    names = [f"{side}_{style}" for style in styles for side in SIDES]
    lists_LN = wide.select(names).cast(pl.Float64).fill_null(np.nan).to_numpy().T
    lists_LN = lists_LN[:, ~np.isnan(lists_LN).any(axis=0)]
    if scale == "log" and (lists_LN > 0).all():
        lists_LN = np.log(lists_LN)
    return lists_LN


def _compared(
    lists_LN: Doubles, labels: Sequence[str], paired: bool, head: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    n = lists_LN.shape[1]
    places = list(combinations(range(len(labels)), 2))
    if not places:
        return
    first, second = (lists_LN[[place[side] for place in places]] for side in (0, 1))
    if n > 1:
        # Equal lists have neither a difference nor a spread.
        with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            if paired:
                t_value, p_value = stats.ttest_rel(first, second, axis=1)
            else:
                t_value, p_value = stats.ttest_ind(first, second, axis=1)
    else:
        t_value = p_value = np.full(len(places), np.nan)
    for place, t, p in zip(places, np.asarray(t_value), np.asarray(p_value), strict=True):
        ends = {"first": labels[place[0]], "second": labels[place[1]]}
        sound = bool(np.isfinite(t))
        yield {
            **head, **ends, "n": n,
            "t_value": float(t) if sound else None, "p_value": float(p) if sound else None,
        }  # fmt: skip
