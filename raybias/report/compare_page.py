"""Write the page of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybias.report.figure_parts import inlined
from raybias.report.gap_forests import change_figures
from raybias.report.rendering import rendered

if TYPE_CHECKING:
    from raybias.report.compare import Comparison


def page(found: Comparison) -> str:
    """Return compare.html: the verdict, a figure per attribute, all changes and what they cover."""
    return rendered(
        "compare.html.j2",
        {
            "title": f"Comparison: {found.candidate} against {found.base}",
            "base": found.base,
            "candidate": found.candidate,
            "verdict": found.verdict,
            "headline": found.headline,
            "figures": inlined(change_figures(found.changes, margin=found.margin), "c"),
            "all_tables": found.tables,
            "notes": found.notes,
        },
    )
