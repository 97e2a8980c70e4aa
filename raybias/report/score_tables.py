"""Terminal tables of scores of answers to questions with options, and of triples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from raybias.registry import Score, option_scores, triple_scores
from raybias.report import wording
from raybias.report.summary_tables import Cell, same, table


def options_text(measures: pl.DataFrame) -> str:
    """Show schema.OPTION_MEASURES: a row for each model, category and context, x 100.

    Returns
    -------
    The table, what its intervals cover, and how each score is defined.
    """
    counts: dict[str, Cell] = {
        "answers": lambda row: str(max(row[name]["n"] for name in option_scores)),
        "unparsed": lambda row: str(row["unparsed"]),
        "templates": lambda row: str(max(row[name]["units"] for name in option_scores)),
    }
    place = [*wording.naming_keys(measures, ("probe",)), "category", "context"]
    shown = _by_score(measures, [*place, "unparsed"], counts, option_scores, scale=100)
    return "\n\n".join(
        (
            f"Answers to questions with options, x 100\n{shown}",
            "[low, high]: 95% intervals over question templates: would other templates like "
            "these, answered by the same model, show it?",
            "n_b answers follow the stereotype, n_c counter it, n name an option.\n"
            + _definitions(option_scores),
        )
    )


def triples_text(measures: pl.DataFrame) -> str:
    """Show schema.TRIPLE_MEASURES: a row for each model, domain and task.

    Returns
    -------
    The table, what its intervals cover, and how each score is defined.
    """
    place = [*wording.naming_keys(measures, ("probe",)), "domain", "task", "terms", "items"]
    shown = _by_score(measures, place, {}, triple_scores, scale=1)
    return "\n\n".join(
        (
            f"Triples of sentences\n{shown}",
            "[low, high]: 95% intervals over target terms: would other terms like these, read by "
            "the same model, show it?",
            "Shares are of a target term, then averaged over terms; a tie counts for the second.\n"
            + _definitions(triple_scores),
        )
    )


def _by_score(
    measures: pl.DataFrame,
    place: Sequence[str],
    counts: Mapping[str, Cell],
    scores: Mapping[str, Score[Any]],
    *,
    scale: float,
) -> str:
    """Lay scores beside one another."""

    def cell(name: str) -> Cell:
        return lambda row: _estimate(row[name], scale)

    wide = measures.group_by(place, maintain_order=True).agg(
        pl.struct(pl.exclude(place)).filter(score=name).first().alias(name) for name in scores
    )
    columns = {**same(*(n for n in place if n not in counts)), **{n: cell(n) for n in scores}}
    return str(table("", wide, {**columns, **counts}))


def _estimate(row: Mapping[str, Any], scale: float) -> str:
    if row["value"] is None:
        return str(row["no_interval"])
    value, *ends = (
        # Zero is added for what rounds to -0.0.
        "" if row[name] is None else f"{round(row[name] * scale, 1) + 0.0}"
        for name in ("value", "low", "high")
    )
    return (
        f"{value} ({row['no_interval']})" if row["no_interval"] else f"{value} [{', '.join(ends)}]"
    )


def _definitions(scores: Mapping[str, Score[Any]]) -> str:
    return "\n".join(f"  {name}: {each.formula}; {each.source}" for name, each in scores.items())
