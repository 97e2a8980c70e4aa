"""Contrasts of rates of groups, and the rates: of sentiment, of accuracy and of one class.

`above` and `below` are of the case that the class, or being called positive, is the favourable
outcome. The fairness criteria are computed as fairlearn does.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from raybias.stats import sentiment
from raybias.stats.components import Doubles
from raybias.stats.contrasts import mean, pairs_mean, ratio, spread
from raybias.stats.metric import Contrast, Share, ShareOf, contrast, metric
from raybias.stats.rated_class import PLACEHOLDER, about_of, title_of


def f1(tp: Doubles, fp: Doubles, fn: Doubles, tn: Doubles) -> Doubles:
    """Compute the harmonic mean of precision and recall."""
    return ratio(2 * tp, 2 * tp + fp + fn)


def absolute(one: Doubles, other: Doubles) -> Doubles:
    """Take the absolute difference."""
    return np.abs(one - other)


def total(values: Doubles) -> Doubles:
    """Add up the values [..., G] of groups."""
    return np.asarray(values.sum(axis=-1))


def least_ratio(values: Doubles) -> Doubles:
    """Divide the lowest by the highest value [..., G]; NaN where both are 0."""
    return ratio(values.min(axis=-1), values.max(axis=-1))


def of_background(background: Doubles, group: Doubles) -> Doubles:
    """Divide the outcome of a group by the background's."""
    return ratio(group, background)


for short in ("fpr", "fnr"):
    rate = short.upper()
    contrast(
        f"{short[:2]}ed",
        Contrast(outcomes=(short,), against="pooled", distance=absolute, reduce=total, bound=0.0),
        formula=f"sum over groups |{rate}(all) - {rate}(group)|",
        source="Dixon2018",
    )
    contrast(
        f"{short}_ratio",
        Contrast(outcomes=(short,), against="pooled_others", distance=of_background, reduce=mean),
        formula=f"mean over groups {rate}(group) / {rate}(other groups)",
        source="Beutel2019",
        above="benefit" if short == "fpr" else "harm",
    )
    contrast(
        f"{short}_range",
        Contrast(outcomes=(short,), reduce=spread, bound=0.0),
        formula=f"max {rate} - min {rate}",
        source="Czarnowska2021",
    )

for name, outcome, formula, source in (
    ("tpr_gap", "tpr", "TPR", "Beutel2017, Prost2019"),
    ("tnr_gap", "tnr", "TNR", "Beutel2017, Prost2019"),
    ("parity_gap", "selection_rate", "(TP + FP) / n", "Beutel2017"),
    ("disparity_score", f1, "F1", "Gaut2020"),
):
    contrast(
        name,
        Contrast(outcomes=(outcome,), reduce=pairs_mean, bound=0.0),
        formula=f"mean over pairs of groups |phi - phi|, phi = {formula}",
        source=source,
    )

for criterion, outcomes, phi, source in (
    ("demographic_parity", ("selection_rate",), "(TP + FP) / n", "Dwork2012, Bird2020"),
    ("equal_opportunity", ("tpr",), "TPR", "Hardt2016, Bird2020"),
    ("equalized_odds", ("tpr", "fpr"), "the worse of TPR and FPR", "Hardt2016, Bird2020"),
):
    contrast(
        f"{criterion}_difference",
        Contrast(outcomes=outcomes, reduce=spread, worst=np.max, bound=0.0),
        formula=f"max phi - min phi, phi = {phi}",
        source=source,
    )
    contrast(
        f"{criterion}_ratio",
        Contrast(outcomes=outcomes, reduce=least_ratio, worst=np.min, bound=1.0),
        formula=f"min phi / max phi, phi = {phi}",
        source=source,
        above="benefit",
    )


@metric(
    of="counts",
    title="wrongly called negative",
    about="the share of the group's neutral and positive sentences that are called negative",
    words="called negative",
    above="harm",
    below="benefit",
    source="Tian2023, Kohankhaki2024",
)
def negative_fpr(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the neutral and positive sentences that are called negative."""
    return Share(among=label != sentiment.NEGATIVE, holds=pred == sentiment.NEGATIVE)


@metric(
    of="counts",
    title="wrongly called positive",
    about="the share of the group's negative and neutral sentences that are called positive",
    words="called positive",
    above="benefit",
    below="harm",
    source="Tian2023, Kohankhaki2024",
)
def positive_fpr(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the negative and neutral sentences that are called positive."""
    return Share(among=label != sentiment.POSITIVE, holds=pred == sentiment.POSITIVE)


@metric(
    of="counts",
    title="called positive, of sentences whose label the model never gives",
    about="the share of the group's sentences, of those whose right label the model never gives,"
    " that are called positive",
    words="called positive where neither label is right",
)
def outcome_positive(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the sentences without a right answer of the model's that are called positive."""
    return Share(among=label.is_null(), holds=pred == sentiment.POSITIVE)


@metric(
    of="counts",
    title="rightly classified",
    about="the share of the group's examples that are rightly classified",
    words="rightly classified",
    above="benefit",
    below="harm",
    is_outcome=False,
    source="Kohankhaki2024",
)
def accuracy(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the examples that are rightly classified."""
    return Share(among=label.is_not_null(), holds=pred == label)


def _share(name: str, gold: bool | None, called: bool) -> ShareOf:
    """Make the share of examples of the class (`gold`; None: of all) that are `called` so."""

    def share(label: pl.Expr, pred: pl.Expr) -> Share:
        among = label.is_not_null() if gold is None else label if gold else ~label
        return Share(among=among, holds=pred if called else ~pred)

    share.__name__ = share.__qualname__ = name
    return share


#: Whom a rate is of: all, those whose right label is the class, or the others.
_AMONG = {
    None: "",
    True: f"whose label is {PLACEHOLDER}",
    False: f"whose label is not {PLACEHOLDER}",
}

for name, gold, called, formula, source in (
    ("fpr", False, True, "FP / (FP + TN)", "Hardt2016"),
    ("fnr", True, False, "FN / (TP + FN)", "Hardt2016"),
    ("tpr", True, True, "TP / (TP + FN)", "Hardt2016"),
    ("tnr", False, False, "TN / (TN + FP)", "Hardt2016"),
    ("selection_rate", None, True, "(TP + FP) / n", "Dwork2012"),
):
    above, below = ("benefit", "harm") if called else ("harm", "benefit")
    words = f"{'' if called else 'not '}predicted {PLACEHOLDER}"
    metric(
        of="class",
        title=title_of(words, _AMONG[gold]),
        about=about_of(words, _AMONG[gold]),
        words=words,
        among=_AMONG[gold],
        above=above,
        below=below,
        formula=formula,
        source=source,
    )(_share(name, gold, called))
