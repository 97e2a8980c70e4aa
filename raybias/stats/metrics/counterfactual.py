"""Versions of one source example that differ in the group: how far the answers lie apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from raybias.stats.components import Doubles
from raybias.stats.examples import (
    Versions,
    deviation,
    mean_of_known,
    pairs_mean,
    sorted_wasserstein,
    spread,
)
from raybias.stats.metric_types import Contrast, contrast


def gold_probability(versions: Versions) -> Doubles:
    """Average the probability of what the label says: the class, or another."""
    return versions.mean(np.where(versions.gold, versions.score, 1 - versions.score))


def fairness(versions: Versions) -> Doubles:
    """Average the distance (W1) between the scores of two groups' versions."""
    return versions.of_pairs(sorted_wasserstein)


def flips(versions: Versions) -> Doubles:
    """Count the pairs of two groups' versions that are labelled otherwise."""
    labels = np.unique(versions.called)
    share_SGC = np.stack([versions.mean(versions.called == label) for label in labels], axis=-1)
    pairs = [
        1 - (share_SGC[:, s] * share_SGC[:, t]).sum(axis=-1)
        for s, t in combinations(range(versions.shape[1]), 2)
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
