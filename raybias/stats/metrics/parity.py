"""Demographic parity, equal opportunity and equalised odds, as fairlearn computes them."""

from __future__ import annotations

import numpy as np

from raybias.stats.examples import least_ratio, spread
from raybias.stats.metric_types import Contrast, contrast

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
