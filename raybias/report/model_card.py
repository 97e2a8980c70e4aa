"""OUT/tables/model_card.md: a section for the model card of what was measured, and tables in LaTeX.

The Markdown is for the section "Bias, Risks, and Limitations" of a model card (Mitchell et al.
2019); LaTeX tables need the package booktabs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from raybias.config import Study
from raybias.report.summary_tables import SummaryTable, markdown_text
from raybias.storage import Store


def write_model_card(
    store: Store,
    study: Study,
    all_tables: Sequence[SummaryTable],
    *,
    answer: Sequence[str],
    said: Sequence[str],
) -> None:
    """Write OUT/tables/model_card.md, and each table as OUT/tables/summary_NUMBER.tex.

    Parameters
    ----------
    answer: what was found, or why nothing can be concluded; it stands first.
    said: what a reader must know before relying on the numbers.

    Raises
    ------
    OutputError: OUT cannot be written.
    """
    store.write_text(
        "tables/model_card.md", "\n".join(_card(study, all_tables, answer, said)) + "\n"
    )
    for number, each in enumerate(all_tables, start=1):
        store.write_text(f"tables/summary_{number}.tex", latex(each))


def latex(table: SummaryTable) -> str:
    """Format a table in LaTeX; whatever LaTeX takes for a command is escaped."""
    align = ["right" if kind == "number" else "left" for kind in table.kinds]
    body = tabulate(
        table.rows, table.headers, "latex_booktabs", colalign=align, disable_numparse=True
    )
    return f"% {' '.join(table.title.split())}\n{body}\n"


def _card(
    study: Study, all_tables: Sequence[SummaryTable], answer: Sequence[str], said: Sequence[str]
) -> Iterator[str]:
    models = ", ".join(backbone.name for backbone in study.backbones)
    yield f"## Bias, Risks, and Limitations: {study.name}\n"
    yield f"Measured on {models} with raybias, profile {study.profile}.\n"
    yield from (f"{text}\n" for text in answer)
    for each in all_tables:
        yield f"### {markdown_text(each.title)}\n"
        rows = [[markdown_text(value) for value in row] for row in each.rows]
        headers = [markdown_text(header) for header in each.headers]
        yield tabulate(rows, headers, "pipe", disable_numparse=True) + "\n"
    if said:
        yield "### Before you rely on it\n"
        yield from (f"- {markdown_text(text)}" for text in said)
        yield ""
    yield (
        "Small numbers, or no significant ones, do not make a model fair: other harms are not"
        " measured here."
    )
