"""Rates of groups contrasted: with a background, with one another, all at once.

Demographic parity, equal opportunity and equalised odds are computed as fairlearn does.
"""

from __future__ import annotations

import numpy as np

from raybias.stats.components import Doubles
from raybias.stats.contrasts import mean, pairs_mean, ratio, spread
from raybias.stats.metric import Contrast, contrast


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
