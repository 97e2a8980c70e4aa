"""Judge the embedded calibration by the widest scope: was the planted gap found, and no other?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import gap_rows
from raybias.probes.published.planted import Plant
from raybias.report import wording
from raybias.report.rendering import Cell, Row, TextTable, same, table, worded
from raybias.stats.scopes import SCOPES, Scope

#: What a reader has to know of a study with a planted bias before all else.
PLANTED: Final = (
    "This is a test of the instrument and not a result about anybody: model, sentences and groups "
    "are invented."
)
_GAP = (*schema.KEYS, "attribute", "score", "group")
#: Significant; a gap that never varies has no verdict, but counts if it is not 0.
_FLAGGED = pl.col("survives").fill_null(pl.col("value") != 0)


@dataclass(frozen=True)
class Calibration:
    """Whether the planted gap was found, and no other."""

    detected: bool
    """Whether the planted gap is significant, with its sign, in every classifier."""
    flagged: list[str]
    """Other groups with a significant gap, or with one that no interval can be given for."""
    said: list[str]
    """The plant and the findings in sentences."""
    comparison: TextTable
    """Each gap beside its truth, with its interval under each scope."""

    @property
    def passed(self) -> bool:
        """Whether the planted gap was found and no other."""
        return self.detected and not self.flagged


def calibration(planted: Plant | None, estimates: pl.DataFrame) -> Calibration | None:
    """Compare the planted gap with schema.ESTIMATES; None where nothing was planted."""
    if planted is None:
        return None
    judged = (
        gap_rows(estimates)
        .filter(attribute=planted.attribute)
        .join(truths(planted), on=["score", "group"], how="left")
        .with_columns(holds=pl.col("truth").is_between("low", "high"))
    )
    scopes: list[Scope] = [scope for scope in SCOPES if (judged["scope"] == scope).any()]
    widest = judged.filter(scope=scopes[-1]) if scopes else judged
    target = pl.col("group") == planted.group
    rows = widest.filter(target, score=planted.rate)
    right = rows.filter(_FLAGGED, pl.col("value").sign() == pl.col("truth").sign()).height
    found = 0 < rows.height == right
    others = widest.filter(~target, _FLAGGED)["group"].unique().sort().to_list()
    measured = wording.listed(
        [wording.interval(*row) for row in rows.select("value", "low", "high").iter_rows()]
    )
    said = [
        f"Planted: {planted.group} ({planted.attribute}) is {wording.metric(planted.rate).title} "
        f"{'more' if planted.size > 0 else 'less'} often than the other groups, by "
        f"{wording.signed(planted.size)} over all words for it and all sentences. The others are "
        "treated alike over all words; single words differ by chance, as they do in real models, "
        "so that differences for these words alone, or on these very sentences, are to be found.",
        f"The planted gap {'was found' if found else 'was NOT found'}"
        f"{f' in {right} of {rows.height} classifiers' if rows.height > 1 else ''}: "
        f"measured {measured or 'nothing'}.",
        f"Significant without cause: {wording.listed(others)}."
        if others
        else "No other group is significant after correction under the widest scope, which this "
        "test judges: findings that are said to be for these words or sentences are no bias "
        "against a group.",
    ]
    wrong = judged.filter(~target, _FLAGGED)
    counts = [(wrong.filter(scope=scope).height, scope) for scope in scopes[:-1]]
    if flagged := [f"{n} under {scope}" for n, scope in counts if n]:
        gaps = judged.filter(~target).select(_GAP).n_unique()
        said.append(
            f"Of the other groups' {gaps} gaps, narrower intervals would have flagged "
            f"{wording.listed(flagged)}."
        )
    holds = [(judged.filter(scope=scope)["holds"], scope) for scope in reversed(scopes)]
    shares = [f"{each.sum()} of {each.count()} gaps under {scope}" for each, scope in holds]
    said.append(f"The truth lies inside the interval of {', '.join(shares) or 'no gap'}.")
    return Calibration(found, others, said, _comparison(judged, scopes))


def truths(planted: Plant) -> pl.DataFrame:
    """List the true gaps: score, group, truth."""
    rows = [(r, g, gap) for r, of_groups in planted.truth.items() for g, gap in of_groups.items()]
    types = {"score": pl.String, "group": pl.String, "truth": pl.Float64}
    return pl.DataFrame(rows, types, orient="row")


def _comparison(judged: pl.DataFrame, scopes: list[Scope]) -> TextTable:
    wide = judged.group_by(_GAP, maintain_order=True).agg(
        pl.col("value", "truth").first(),
        *(pl.struct("low", "high", "holds").filter(scope=scope).first().alias(scope)
          for scope in scopes),
    )  # fmt: skip
    columns: dict[str, Cell] = {
        **same(*wording.naming_keys(wide), "score", "group"),
        "truth": worded(wording.signed, "truth"),
        "found": worded(wording.signed, "value"),
        **{f"interval: {scope}": worded(_interval, scope) for scope in scopes},
    }
    return table("Each gap and its truth; ✓ where the interval holds it", wide, columns)


def _interval(found: Row | None) -> str:
    if found is None or found["low"] is None:
        return ""
    held = {True: " ✓", False: " ✗", None: ""}[found["holds"]]
    return wording.span(found["low"], found["high"]) + held
