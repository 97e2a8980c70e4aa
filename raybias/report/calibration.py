"""Judge the embedded calibration: was the planted gap found, nothing else, and the truth covered?

The verdicts are those of the widest scope that the design allows; narrower ones stand beside
them, to show what they would have missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import gap_rows
from raybias.probes.published.planted import Plant
from raybias.report import wording
from raybias.report.table import Cell, Row, TextTable, same, table, worded
from raybias.stats.scopes import SCOPES, Scope

_GAP = (*schema.KEYS, "attribute", "score", "group")


@dataclass(frozen=True)
class Calibration:
    """Whether what was planted was found, and nothing else."""

    detected: bool
    """Whether the planted gap is significant, with its sign, in every classifier."""
    flagged: tuple[str, ...]
    """Other groups with a significant gap, or with one that no interval can be given for."""
    said: tuple[str, ...]
    """What was planted and found, in sentences."""
    comparison: TextTable
    """Each gap beside its truth, with its interval under each scope."""

    @property
    def passed(self) -> bool:
        """Whether the planted gap was found and no other."""
        return self.detected and not self.flagged


def calibration(planted: Plant | None, estimates: pl.DataFrame) -> Calibration | None:
    """Compare what was planted with what was found; None where nothing was planted.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    """
    if planted is None:
        return None
    judged = (
        gap_rows(estimates)
        .filter(attribute=planted.attribute)
        .join(truths(planted), on=["score", "group"], how="left")
    )
    judged = judged.with_columns(holds=pl.col("truth").is_between("low", "high"))
    allowed: list[Scope] = [scope for scope in SCOPES if (judged["scope"] == scope).any()]
    widest = judged.filter(scope=allowed[-1]) if allowed else judged
    target = pl.col("group") == planted.group
    rows = widest.filter(target, score=planted.rate)
    right = rows.filter(_flagged(), pl.col("value").sign() == pl.col("truth").sign())
    others = widest.filter(~target, _flagged())["group"].unique().sort().to_list()
    found = bool(rows.height) and right.height == rows.height
    return Calibration(
        detected=found,
        flagged=tuple(others),
        said=(
            _planted(planted),
            _found(rows, right.height),
            f"Significant without cause: {wording.listed(others)}." if others
            else "No other group is significant after correction.",
            *_narrower(judged.filter(~target), allowed[:-1]),
            _covered(judged, allowed),
        ),
        comparison=_comparison(judged, allowed),
    )  # fmt: skip


def truths(planted: Plant) -> pl.DataFrame:
    """List the true gaps: score, group, truth."""
    rows = [(r, g, gap) for r, of_groups in planted.truth.items() for g, gap in of_groups.items()]
    types = {"score": pl.String, "group": pl.String, "truth": pl.Float64}
    return pl.DataFrame(rows, types, orient="row")


def _flagged() -> pl.Expr:
    """Select what is significant; a gap that never varies has no verdict, but is one if not 0."""
    return pl.col("survives").fill_null(pl.col("value") != 0)


def _planted(planted: Plant) -> str:
    often = "more" if planted.size > 0 else "less"
    return (
        f"Planted: {planted.group} ({planted.attribute}) is {wording.rate_title(planted.rate)} "
        f"{often} often than the other groups, by {wording.signed(planted.size)} over all words "
        "for it and all sentences; the others are treated alike."
    )


def _found(rows: pl.DataFrame, right: int) -> str:
    share = "" if rows.height < 2 else f" in {right} of {rows.height} classifiers"
    verdict = "was found" if rows.height and right == rows.height else "was NOT found"
    measured = [
        wording.interval(row["value"], row["low"], row["high"])
        for row in rows.iter_rows(named=True)
    ]
    return f"The planted gap {verdict}{share}: measured {wording.listed(measured) or 'nothing'}."


def _narrower(others: pl.DataFrame, scopes: list[Scope]) -> list[str]:
    """Say how often narrower scopes would have flagged a group without cause."""
    gaps = others.select(_GAP).n_unique()
    counts = [(scope, others.filter(_flagged(), scope=scope).height) for scope in scopes]
    said = wording.listed([f"{n} under {scope}" for scope, n in counts if n])
    narrower = f"Of the other groups' {gaps} gaps, narrower intervals would have flagged {said}."
    return [narrower] if said else []


def _covered(judged: pl.DataFrame, scopes: list[Scope]) -> str:
    shares = []
    for scope in reversed(scopes):
        holds = judged.filter(scope=scope)["holds"]
        shares.append(f"{holds.sum()} of {holds.count()} gaps under {scope}")
    return f"The truth lies inside the interval of {', '.join(shares) or 'no gap'}."


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
        **{f"interval: {scope}": _interval(scope) for scope in scopes},
    }
    return table("Each gap and its truth; ✓ where the interval holds it", wide, columns)


def _interval(scope: str) -> Cell:
    def text(row: Row) -> str:
        found = row[scope]
        if found is None or found["low"] is None:
            return ""
        held = {True: " ✓", False: " ✗", None: ""}[found["holds"]]
        return wording.span(found["low"], found["high"]) + held

    return text
