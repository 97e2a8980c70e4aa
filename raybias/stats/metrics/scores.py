"""Compare scores of groups, and how far apart answers to versions of a source example lie."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np

from raybias.stats.components import Doubles
from raybias.stats.contrasts import (
    Examples,
    Laid,
    auc,
    deviation,
    mean,
    mean_of_known,
    pairs_mean,
    ratio,
    sorted_wasserstein,
    spread,
    wasserstein,
)
from raybias.stats.metric import Contrast, contrast

_BINS = 10


def _excess_auc(group: Examples, others: Examples, *, gold: bool) -> Doubles:
    """Compare the scores of examples of the class, or of others."""
    return 0.5 - auc(group.only(gold=gold), others.only(gold=gold))


def ece(group: Examples) -> Doubles:
    """Compare the mean probability with the share of the class in ten bins of equal width."""
    place_N = np.clip(np.ceil(group.score * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    excess_N = group.score - group.gold
    apart = sum(
        np.abs(group.weights[:, place_N == b] @ excess_N[place_N == b]) for b in range(_BINS)
    )
    return ratio(np.asarray(apart), group.weights.sum(axis=1))


for name, outcome, what in (
    (
        "subgroup_auc",
        lambda group, _: auc(group.only(gold=True), group.only(gold=False)),
        "the group's positive and negative examples",
    ),
    (
        "bpsn_auc",
        lambda group, others: auc(others.only(gold=True), group.only(gold=False)),
        "positive examples of other groups and negative ones of the group",
    ),
    (
        "bnsp_auc",
        lambda group, others: auc(group.only(gold=True), others.only(gold=False)),
        "positive examples of the group and negative ones of other groups",
    ),
):
    contrast(
        name,
        Contrast(outcomes=(outcome,), needs="scores", against="pooled_others"),
        formula=f"AUC of {what}",
        source="Borkan2019",
        above="benefit",
    )
for name, gold in (("positive_aeg", True), ("negative_aeg", False)):
    contrast(
        name,
        Contrast(
            outcomes=(partial(_excess_auc, gold=gold),), needs="scores", against="pooled_others",
            reduce=mean,
        ),
        formula=f"1/2 - U/(mn) of the scores of {name.removesuffix('_aeg')} examples of the group"
        " and of the others; mean over groups",
        source="Borkan2019",
    )  # fmt: skip
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


def gold_probability(laid: Laid) -> Doubles:
    """Average the probability of what the label says: the class, or another."""
    return laid.version_means(np.where(laid.gold_N, laid.score_N, 1 - laid.score_N))


def fairness(laid: Laid) -> Doubles:
    """Average the distance (W1) between the scores of two groups' versions."""
    return laid.over_version_pairs(sorted_wasserstein)


def flips(laid: Laid) -> Doubles:
    """Count the pairs of two groups' versions that are labelled otherwise."""
    labels = np.unique(laid.label_N)
    share_SGC = np.stack([laid.version_means(laid.label_N == label) for label in labels], axis=-1)
    pairs = [
        1 - (share_SGC[:, s] * share_SGC[:, t]).sum(axis=-1)
        for s, t in combinations(range(share_SGC.shape[1]), 2)
    ]
    return mean_of_known(np.stack(pairs, axis=-1))


for name, reduce, formula, source in (
    ("counterfactual_gap", pairs_mean, "mean over pairs |phi - phi|", "Garg2019, Prabhakaran2019"),
    ("perturbation_range", spread, "max phi - min phi", "Prabhakaran2019"),
    ("perturbation_deviation", deviation, "standard deviation of phi", "Prabhakaran2019"),
):
    contrast(
        name,
        Contrast(
            outcomes=(gold_probability,), needs="probabilities", within="source", reduce=reduce
        ),
        formula=f"mean over source examples of: {formula} of groups, phi = p(label)",
        source=source,
    )
contrast(
    "average_individual_fairness",
    Contrast(outcomes=(fairness,), needs="scores", within="source"),
    formula="mean over source examples and pairs of groups W1(scores, scores)",
    source="Huang2020",
)
contrast(
    "counterfactual_flip_rate",
    Contrast(outcomes=(flips,), within="source"),
    formula="share of pairs of versions, of two groups, whose predicted labels differ",
    source="Garg2019",
)
