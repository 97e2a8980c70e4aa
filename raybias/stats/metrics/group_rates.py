"""Rates of groups contrasted with a background, with one another and all at once."""

from __future__ import annotations

from raybias.stats.components import Doubles
from raybias.stats.examples import absolute, mean, pairs_mean, ratio, spread, total
from raybias.stats.metric_types import Contrast, contrast


def f1(tp: Doubles, fp: Doubles, fn: Doubles, tn: Doubles) -> Doubles:
    """Compute the harmonic mean of precision and recall."""
    return ratio(2 * tp, 2 * tp + fp + fn)


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
