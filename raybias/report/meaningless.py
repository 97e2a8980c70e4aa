"""State what the rules of a page find in meaningless group labels (`stats.null_check`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from raybias.config import Statistics

_MEANINGLESS: Final = {
    "runs": "the groups' predictions exchanged at random within every template, alike in all runs",
    "sentences": "the groups' predictions exchanged at random within every template, alike in all "
    "runs",
    "wording": "the groups' words dealt anew at random, each with all its sentences",
}
_LIMITS: Final = {
    "runs": "Of other sentences and words it says nothing.",
    "sentences": "Of other words for the groups it says nothing.",
    "wording": "It supposes that the word of a group that has one varies as other words do.",
}


def meaningless(estimates: pl.DataFrame, gaps: pl.DataFrame, rules: Statistics) -> Iterator[str]:
    """Yield a sentence on each scope under which gaps are judged, and of what it does not say.

    Parameters
    ----------
    estimates: with the rows of `stats.null_check`.
    gaps: one row each under the rules' scope.
    """
    rows = estimates.filter(pl.col("score").str.starts_with("meaningless_"))
    shares = {(row["score"], row["scope"]): row["value"] for row in rows.iter_rows(named=True)}
    judged = {*gaps.filter(pl.col("significant").is_not_null())["scope"]}
    for scope, how in _MEANINGLESS.items():
        flagged = shares.get(("meaningless_flagged", scope))
        survivor = shares.get(("meaningless_with_survivor", scope))
        if scope not in judged or not shares:
            continue
        if flagged is None or survivor is None:
            yield (
                f"How often the rule ({scope}, {rules.interval}) finds a gap in meaningless groups "
                "is not known: not all groups' words are."
            )
            continue
        said = (
            f"With {how}, the rule ({scope}, {rules.interval}) would have called {flagged:.1%} of "
            f"gaps significant ({1 - rules.level:.0%} expected); {survivor:.0%} of such studies "
            "would have had a survivor."
        )
        far = max(flagged, survivor) > 2 * (1 - rules.level)
        wider = "" if scope == "wording" else "; use a wider scope"
        above = f" That is far above its level: its findings can be chance{wider}." if far else ""
        yield f"{said}{above} {_LIMITS[scope]}"
