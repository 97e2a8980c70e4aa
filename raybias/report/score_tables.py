"""Tables of answers to questions, triples, decisions and metrics, for page and terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias.registry import Score, option_scores, triple_scores
from raybias.report import wording
from raybias.report.summary_tables import Cell, SummaryTable, same, table
from raybias.stats.conclusive import is_refused, refusal, refused


def options_table(measures: pl.DataFrame) -> SummaryTable:
    """Lay schema.OPTION_MEASURES out: a row for each model, category and context, x 100."""
    counts: dict[str, Cell] = {
        "answers": lambda row: str(max(row[name]["n"] for name in option_scores)),
        "unparsed": lambda row: str(row["unparsed"]),
        "templates": lambda row: str(max(row[name]["units"] for name in option_scores)),
    }
    place = [*wording.naming_keys(measures, ("probe", "method")), "category", "context"]
    if measures["prompt"].n_unique() > 1:
        place += ["prompt", "scope"]
    title = "Answers to questions with options, x 100"
    return _by_score(title, measures, [*place, "unparsed"], counts, option_scores, scale=100)


def triples_table(measures: pl.DataFrame) -> SummaryTable:
    """Lay schema.TRIPLE_MEASURES out: a row for each model, domain and task."""
    place = [*wording.naming_keys(measures, ("probe",)), "domain", "task", "terms", "items"]
    return _by_score("Triples of sentences", measures, place, {}, triple_scores, scale=1)


def decisions_table(measures: pl.DataFrame) -> SummaryTable:
    """Lay schema.DECISION_MEASURES out: a row for each model, attribute and group."""
    place = [*wording.naming_keys(measures, ("probe",)), "attribute", "group"]
    columns: dict[str, Cell] = {
        **same(*place),
        "more favourable by": lambda row: _estimate(row, 1, digits=3),
        "p": lambda row: "" if row["p_value"] is None else f"{row['p_value']:.3g}",
        "than": lambda row: row["background"].removeprefix("reference:"),
        **same("decisions", "items"),
    }
    return table("Decisions about people, in logits of the favourable answer", measures, columns)


def sentences_table(measures: pl.DataFrame) -> SummaryTable:
    """Lay schema.SENTENCE_MEASURES out: a row for each model and axis."""
    place = [*wording.naming_keys(measures, ("probe",)), "axis"]
    columns: dict[str, Cell] = {
        **same(*place),
        "likelihood bias": lambda row: _estimate(row, 1, digits=3),
        **same("pairs", "templates"),
    }
    return table("Pairs of descriptors that differ in likelihood", measures, columns)


#: What the intervals of each table cover, and how its numbers are defined.
OPTIONS_COVER: Final = (
    "[low, high]: 95% intervals over question templates (or templates and prompts), "
    "which are redrawn; the model is this one."
)
TRIPLES_COVER: Final = (
    "[low, high]: 95% intervals over target terms, which are redrawn; the model is this one."
)
DECISIONS_COVER: Final = (
    "[low, high]: 95% intervals over decisions, which are redrawn; the model is this one. "
    "p is not corrected for many tests."
)
SENTENCES_COVER: Final = (
    "[low, high]: 95% intervals over templates, which are redrawn; the model is this one. "
    "The share is .05 where no two descriptors differ (Mann-Whitney, p < .05)."
)


def option_definitions() -> list[str]:
    """Say how each score of answers is defined."""
    return [
        "n_b answers follow the stereotype, n_c counter it, n name an option.",
        *_definitions(option_scores),
    ]


def triple_definitions() -> list[str]:
    """Say how each score of triples is defined."""
    return [
        "Shares are of a target term, then averaged over terms; a tie counts for the second.",
        *_definitions(triple_scores),
    ]


def options_text(measures: pl.DataFrame) -> str:
    """Show schema.OPTION_MEASURES, what its intervals cover, and how each score is defined."""
    said = "\n  ".join(option_definitions())
    parts = (*refusals(measures), str(options_table(measures)), OPTIONS_COVER, said)
    return "\n\n".join(parts)


def triples_text(measures: pl.DataFrame) -> str:
    """Show schema.TRIPLE_MEASURES, what its intervals cover, and how each score is defined."""
    said = "\n  ".join(triple_definitions())
    return "\n\n".join((str(triples_table(measures)), TRIPLES_COVER, said))


def decisions_text(measures: pl.DataFrame) -> str:
    """Show schema.DECISION_MEASURES, and what its intervals cover."""
    return "\n\n".join((*refusals(measures), str(decisions_table(measures)), DECISIONS_COVER))


def sentences_text(measures: pl.DataFrame) -> str:
    """Show schema.SENTENCE_MEASURES, and what its intervals cover."""
    return f"{sentences_table(measures)}\n\n{SENTENCES_COVER}"


def _by_score(
    title: str,
    measures: pl.DataFrame,
    place: Sequence[str],
    counts: Mapping[str, Cell],
    scores: Mapping[str, Score[Any]],
    *,
    scale: float,
) -> SummaryTable:
    """Lay scores beside one another."""

    def cell(name: str) -> Cell:
        return lambda row: _estimate(row[name], scale)

    wide = measures.group_by(place, maintain_order=True).agg(
        pl.struct(pl.exclude(place)).filter(score=name).first().alias(name) for name in scores
    )
    columns = {**same(*(n for n in place if n not in counts)), **{n: cell(n) for n in scores}}
    return table(title, wide, {**columns, **counts})


def refusals(measures: pl.DataFrame) -> list[str]:
    """Say which models cannot do the task, why, and what to do; nothing is judged of them.

    Parameters
    ----------
    measures: schema.OPTION_MEASURES or schema.DECISION_MEASURES.
    """
    keys = wording.naming_keys(measures, ("probe", "method"))
    rows = measures.filter(refused("no_interval")).unique([*keys], maintain_order=True)
    return [
        refusal(wording.classifier_name(row, keys), row["no_interval"], "score")
        for row in rows.iter_rows(named=True)
    ]


def _estimate(row: Mapping[str, Any], scale: float, *, digits: int = 1) -> str:
    if row["value"] is None:
        return str(row["no_interval"])
    value, *ends = (
        # Zero is added for what rounds to -0.0.
        "" if row[name] is None else f"{round(row[name] * scale, digits) + 0.0}"
        for name in ("value", "low", "high")
    )
    if is_refused(row["no_interval"]):
        return f"{value} (not judged)"
    return (
        f"{value} ({row['no_interval']})" if row["no_interval"] else f"{value} [{', '.join(ends)}]"
    )


def _definitions(scores: Mapping[str, Score[Any]]) -> list[str]:
    return [f"{name}: {each.formula}; {each.source}" for name, each in scores.items()]


def metric_table(measured: pl.DataFrame) -> SummaryTable:
    """List metrics that are set against a background (schema.METRICS) with their intervals."""
    probe = ["probe"] if measured["probe"].n_unique() > 1 else []
    columns: dict[str, Cell] = {
        **same(*probe, *wording.naming_keys(measured), "attribute", "metric", "group"),
        "value": lambda row: _of_metric(row["value"]),
        "low": lambda row: _of_metric(row["low"]),
        "high": lambda row: _of_metric(row["high"]),
        "background": lambda row: row["background"] or "",
        "covers": lambda row: row["scope"] or "",
        "note": lambda row: row["note"] or "",
    }
    return table("Metrics against a background", measured, columns)


def _of_metric(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
