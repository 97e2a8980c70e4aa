"""The language modelling score of StereoSet."""

from __future__ import annotations

from raybias.registry import TermShares, triple_score
from raybias.stats.components import Doubles


@triple_score(
    formula="50 (share(stereotype > unrelated) + share(anti-stereotype > unrelated))",
    source="Nadeem et al. 2021",
    bounds=(0, 100),
)
def lms(shares: TermShares) -> tuple[Doubles, ...]:
    """Compute the language modelling score: 100 where no unrelated sentence is preferred."""
    return (50 * (shares.stereotype_over_unrelated + shares.anti_over_unrelated),)
