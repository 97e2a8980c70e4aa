"""Scores of groups: how they rank examples, how far they lie apart, how far they are calibrated."""

from __future__ import annotations

import numpy as np

from raybias.stats.components import Doubles
from raybias.stats.examples import Examples, auc, mean, ratio, spread, wasserstein
from raybias.stats.metric_types import Contrast, contrast

_BINS = 10


def subgroup_auc(group: Examples, others: Examples) -> Doubles:
    """Rank the group's positive examples against its negative ones."""
    return auc(group.only(gold=True), group.only(gold=False))


def bpsn_auc(group: Examples, others: Examples) -> Doubles:
    """Rank the others' positive examples against the group's negative ones."""
    return auc(others.only(gold=True), group.only(gold=False))


def bnsp_auc(group: Examples, others: Examples) -> Doubles:
    """Rank the group's positive examples against the others' negative ones."""
    return auc(group.only(gold=True), others.only(gold=False))


def positive_aeg(group: Examples, others: Examples) -> Doubles:
    """Compare the scores of positive examples."""
    return 0.5 - auc(group.only(gold=True), others.only(gold=True))


def negative_aeg(group: Examples, others: Examples) -> Doubles:
    """Compare the scores of negative examples."""
    return 0.5 - auc(group.only(gold=False), others.only(gold=False))


def ece(group: Examples) -> Doubles:
    """Compare the mean probability with the share of the class in ten bins of equal width."""
    place_N = np.clip(np.ceil(group.score * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    excess_N = group.score - group.gold
    apart = sum(
        np.abs(group.weights[:, place_N == b] @ excess_N[place_N == b]) for b in range(_BINS)
    )
    return ratio(np.asarray(apart), group.weights.sum(axis=1))


for function, what in (
    (subgroup_auc, "the group's positive and negative examples"),
    (bpsn_auc, "positive examples of other groups and negative ones of the group"),
    (bnsp_auc, "positive examples of the group and negative ones of other groups"),
):
    contrast(
        function.__name__,
        Contrast(outcomes=(function,), needs="scores", against="pooled_others"),
        formula=f"AUC of {what}",
        source="Borkan2019",
        above="benefit",
    )
for function, what in ((positive_aeg, "positive"), (negative_aeg, "negative")):
    contrast(
        function.__name__,
        Contrast(outcomes=(function,), needs="scores", against="pooled_others", reduce=mean),
        formula=f"1/2 - U/(mn) of the scores of {what} examples of the group and of the others;"
        " mean over groups",
        source="Borkan2019",
    )
contrast(
    "average_group_fairness",
    Contrast(outcomes=(wasserstein,), needs="scores", against="pooled", reduce=mean, bound=0.0),
    formula="mean over groups W1(scores of all, scores of the group)",
    source="Huang2020",
)
contrast(
    "ece",
    Contrast(outcomes=(ece,), needs="probabilities", bound=0.0),
    formula="sum over ten bins |mean probability - share of the class| n(bin) / n",
    source="Naeini2015",
)
contrast(
    "ece_range",
    Contrast(outcomes=(ece,), needs="probabilities", reduce=spread, bound=0.0),
    formula="max ece - min ece",
    source="Naeini2015",
)
