"""Say what a judge's labels rest on, and show gaps corrected for its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.report import wording
from raybias.report.judge_labels import judged_methods
from raybias.report.summary_tables import Cell, SummaryTable, same, table
from raybias.stats.scopes import REDRAWN

#: What is to be said where nobody labelled texts that a judge labelled.
UNMEASURED: Final = (
    "The judge's errors were not measured, and no interval covers them: where it errs more on texts"
    " about one group, that looks like a gap of the model. `raybias judge export OUT --out"
    " sheet.csv` draws a sample for people to label."
)
_CORRECTED: Final = (
    "Corrected: the verdicts on all texts, and what people say instead of the judge on those that "
    "they labelled (prediction-powered inference, Angelopoulos et al. 2023). The interval covers "
    "both the texts and the judge's errors; it supposes that people label rightly."
)


def judged_table(judged: pl.DataFrame) -> SummaryTable:
    """Lay schema.JUDGED out: corrected gaps beside those of the verdicts."""
    keys = wording.naming_keys(judged, ("method", "probe", "dataset", "style"))
    columns: dict[str, Cell] = {
        **same(*keys, "attribute", "group", "rate"),
        "corrected gap": lambda row: wording.signed(row["gap"]),
        "interval": lambda row: wording.span(row["low"], row["high"]),
        "by the judge": lambda row: wording.signed(row["judged_gap"]),
        "its interval": lambda row: wording.span(row["judged_low"], row["judged_high"]),
        "labelled": "labelled",
        "wrongly called so": lambda row: (
            f"{row['wrongly_held']} of {row['labelled'] - row['held']}"
        ),
        "missed": lambda row: f"{row['missed']} of {row['held']}",
        "verdict": _verdict,
    }
    return table("Gaps corrected for the judge's errors", judged, columns)


def judge_section(study: Study, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any] | None:
    """Arrange what report.html.j2 says of judges; None where no method has one."""
    judges = judged_methods(study)
    if not judges:
        return None
    said = [
        f"What models wrote ({method}) was labelled by {judge}. Elsewhere on this page, to be"
        " called negative or positive is that verdict; the right label is taken to be that of the"
        " prompt."
        for method, judge in judges.items()
    ]
    judged = tables["judged"]
    if judged.is_empty():
        return {"said": [*said, UNMEASURED], "tables": [], "measured": False}
    return {"said": [*said, *told(judged)], "tables": [judged_table(judged)], "measured": True}


def told(judged: pl.DataFrame) -> list[str]:
    """Say what the corrected gaps are, what is redrawn, and how many are significant."""
    found = judged.filter(pl.col("no_verdict").is_null())
    alone = ((found["judged_low"] > 0) | (found["judged_high"] < 0)).sum()
    asked = wording.listed([REDRAWN[scope] for scope in found["scope"].unique().sort()])
    counts = (
        f"Of {wording.counted(found.height, 'gap')}, the judge's verdicts alone would make {alone} "
        f"significant; corrected, {found['significant'].sum()} are, and {found['survives'].sum()} "
        "after correction for many tests."
    )
    lacking = sorted({*judged["no_verdict"].drop_nulls()})
    return [_CORRECTED, *([f"In them {asked}.", counts] if found.height else []),
            *(f"Not corrected: {reason}." for reason in lacking)]  # fmt: skip


def judged_text(judged: pl.DataFrame) -> str:
    """Write the corrected gaps for a terminal, or that there are none."""
    if judged.is_empty():
        return UNMEASURED
    return "\n\n".join([str(judged_table(judged)), "\n".join(told(judged))])


def _verdict(row: Mapping[str, Any]) -> str:
    if row["no_verdict"]:
        return str(row["no_verdict"])
    if not row["significant"]:
        return "not significant"
    return "significant" if row["survives"] else "alone, not after correction"
