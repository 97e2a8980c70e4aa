"""Write an audit statement: a short page to file, in the terms of regulators.

Rates and ratios are laid out as in the rules on New York City's Local Law 144 (6 RCNY 5-300 to
5-304): how many of a group there are, how many have the outcome, that rate, and the rate by that of
a reference group; intersections of attributes are groups too. What an interval draws anew is
named as in NIST AI 800-3: benchmark accuracy of these very items, or generalized accuracy over all
items that they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias.measures.class_rows import CLASS
from raybias.measures.kind import kinds
from raybias.measures.prediction_rows import KIND, WIDTHS, gap_rows, under
from raybias.report import wording
from raybias.report.headline import conclusion, families_said, findings
from raybias.report.judged import Judged
from raybias.report.rendering import Cell, Row, TextTable, rendered, table, worded
from raybias.report.sentences import able, once, refusals
from raybias.schema import ALL, TABLE
from raybias.stats.intervals import NO_ROWS
from raybias.stats.ratios import BY, SMALL
from raybias.storage import Store

#: By scope, what NIST AI 800-3 calls it, and the question that its intervals answer.
_ASKED: Final = {
    "runs": ("benchmark accuracy", "Would other seeds give this result on these sentences?"),
    "sentences": ("generalized accuracy", "Would it hold for other sentences of this kind?"),
    "items": ("generalized accuracy", "Would it hold for other items of this kind?"),
    "clusters": ("generalized accuracy", "Would it hold for other rows of this kind?"),
    "wording": ("one level further", "Would it hold for other words for the groups too?"),
}
#: The rate of Local Law 144, shown alone where it is measured.
_SELECTED: Final = "selection_rate"
#: Most findings that are filed one by one.
_FILED: Final = 20
#: Rates of errors; the word of Local Law 144 is for rates of selection alone.
_OF_ERRORS: Final = frozenset(("fpr", "fnr", "negative_fpr", "positive_fpr"))


def write_statement(
    store: Store,
    judged: Judged,
    estimates: pl.DataFrame,
    parts: Sequence[Mapping[str, Any]],
    *,
    name: str,
    population: Sequence[str],
    cautions: Sequence[str],
    provenance: Sequence[TextTable],
    level: float,
    accuracy: Sequence[TextTable] = (),
) -> None:
    """Write statement.html of schema.ESTIMATES, whose `parts` are those of `estimates.parts_of`.

    `judged` are its gaps, `population` says which predictions were read, `provenance` by what;
    `level` is that of intervals.
    """
    predicted = [part for part in parts if part["kind"] == KIND]
    parts = [part for part in parts if part["kind"] != KIND]
    by_class = predicted if estimates["condition"].str.starts_with(CLASS).any() else []
    of_predictions, of_probe = KIND in estimates["kind"], is_of_probe(estimates)
    tables = [*_group_tables(estimates, judged)]
    selected = [shown for score, shown in tables if score == _SELECTED]
    context = {
        "title": f"Audit statement: {name}",
        "name": name,
        "questions": [*_questions(estimates, judged)],
        "population": [*population, *_answered(estimates)],
        "accuracy": accuracy,
        "scopes": _scopes(judged),
        "families": _families(judged, estimates, level),
        "percent": f"{100 * level:g}%",
        "unable": refusals(judged.gaps, "gap") if judged.gaps.height else [],
        "said": [*_answer(judged, by_class, parts)],
        "favourable": wording.declared() if of_predictions else "",
        "rates": f"Rates and {'impact ' * bool(selected and wording.is_favourable())}ratios",
        "note": _note(f"{100 * level:g}%", of_selection=bool(selected)),
        "of_table": of_predictions and not of_probe,
        "of_probe": bool(parts) or of_probe,
        "tables": [
            *(selected or [shown for _, shown in tables]),
            *(shown for part in parts for shown in part["tables"]),
        ],
        "folded": [*_folded(tables, by_class)],
        "covers": [part["cover"] for part in parts],
        "cautions": cautions,
        "provenance": provenance,
    }
    store.write_text("statement.html", rendered("statement.html.j2", context))


def _answer(
    judged: Judged,
    by_class: Sequence[Mapping[str, Any]],
    parts: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Yield what gaps show, by class too, and what answers of other kinds show."""
    if judged.gaps.height:
        yield from findings(judged, most=_FILED) or conclusion(judged)
    yield from (text for part in by_class for text in part["said"] if "by class" in text)
    yield from (text for part in parts for text in (*part["unable"], *part["said"]))


def _folded(
    tables: Sequence[tuple[str, TextTable]], by_class: Sequence[Mapping[str, Any]]
) -> Iterator[TextTable]:
    """Yield the other rates' tables if one is shown alone, and what is measured by class."""
    if any(score == _SELECTED for score, _ in tables):
        yield from (shown for score, shown in tables if score != _SELECTED)
    for part in by_class:
        yield from part["tables"]


def is_of_probe(estimates: pl.DataFrame) -> bool:
    """Return whether predictions are of sentences made for a test: of a probe, or of templates."""
    predicted = estimates.filter(kind=KIND)
    of_templates = pl.col("scope").is_in(["sentences", "wording"])
    return bool(predicted.select(((pl.col("probe") != "") | of_templates).any()).item())


def _note(percent: str, *, of_selection: bool) -> str:
    """Explain the columns of the tables of rates."""
    said = (
        f"Brackets are {percent} intervals. A ratio divides a group's rate by that of the "
        "reference group, of which it is 1; if none was named, by the highest of groups with 2% "
        "of the rows or more. A gap is taken from a mean in which each group counts the same, so "
        "that one group far above puts others below: a gap that is not significant and a ratio "
        "that is far from 1 answer different questions. "
    )
    if of_selection:
        said += {
            True: "Of rates of selection it is the impact ratio of 6 RCNY 5-300. ",
            False: "Being predicted so is not the favourable outcome here, so this is no impact "
            "ratio of 6 RCNY 5-300, and below 1 is better for a group. ",
            None: "Of rates of selection it is the impact ratio of 6 RCNY 5-300 if people are "
            "selected by being predicted so, which was not declared. ",
        }[wording.is_favourable()]
        said += "No limit, such as four fifths, is applied to it. "
    return (
        f"{said}* marks groups of less than 2% of the rows, which 6 RCNY 5-301 lets an auditor "
        "leave out."
    )


def _questions(estimates: pl.DataFrame, judged: Judged) -> Iterator[str]:
    """Ask what is answered: of groups, of the widest scope that is judged, and of other kinds."""
    column = estimates.filter(~pl.col("model").is_in(["", ALL]))["model"]
    models = column.unique(maintain_order=True).to_list()
    named = wording.listed(models)
    gaps = gap_rows(estimates)
    names = gaps["attribute"].unique(maintain_order=True).to_list()
    if names:
        does = "Does" if len(models) == 1 else "Do"
        # Of crossed attributes the name is a list itself.
        attributes = wording.listed([name.replace(", ", " with ") for name in names])
        yield f"{does} {named} treat groups of {attributes} differently?"
        scopes = {*judged.gaps.filter(pl.col("significant").is_not_null())["scope"]}
        yield from (question for scope, (_, question) in _ASKED.items() if scope in scopes)
    for kind in estimates["kind"].unique(maintain_order=True):
        if kind != KIND:
            yield f"{kinds[kind].title}: {named}."


def _answered(estimates: pl.DataFrame) -> Iterator[str]:
    """Count the answers of each kind but predictions: the most of any score."""
    own = estimates.filter(
        pl.col("kind") != KIND, pl.col("model") != ALL, pl.col("n").is_not_null()
    )
    for name in own["kind"].unique(maintain_order=True):
        by = [*TABLE, "score", "statistic", "scope", "condition"]
        counts = own.filter(kind=name).group_by(by).agg(pl.col("n").sum())["n"]
        yield f"{max(counts):,} {kinds[name].units}."


def _families(judged: Judged, estimates: pl.DataFrame, level: float) -> str:
    """Say which tests are corrected together, and what that allows over all of them."""
    if not judged.family_sizes:
        return ""
    within = wording.within_families(judged.family_sizes)
    said = families_said(judged, estimates, level)
    return f"Corrected {within}. {said}".strip()


def _scopes(judged: Judged) -> TextTable:
    """Count, by what is drawn anew, the gaps that are significant."""
    tested = once(judged.rows.filter(pl.col("significant").is_not_null()))
    rows = []
    for scope, (nist, question) in _ASKED.items():
        if len(part := tested.filter(scope=scope)):
            survive = part["survives"].sum()
            rows.append({
                "drawn anew": f"{scope}: {judged.redrawn[scope]}", "in NIST AI 800-3": nist,
                "question": question,
                "significant gaps": f"{part['significant'].sum()} of {part.height}",
                "after correction": f"{survive} of {part['survives'].count()}",
            })  # fmt: skip
    return TextTable.of("What the intervals draw anew", rows)


def _group_tables(estimates: pl.DataFrame, judged: Judged) -> Iterator[tuple[str, TextTable]]:
    """Yield each rate, and its table of a classifier's ratios on an attribute.

    Classifiers that cannot do their task have none.
    """
    one = estimates.filter(
        pl.col("kind") == KIND, pl.col("group") != ALL, pl.col("model") != ALL,
        pl.col("condition").str.contains(f"^($|{BY})"),
    )  # fmt: skip
    rates, ratios = (
        under(one.filter(statistic=name), [*WIDTHS], judged.scope) for name in ("rate", "ratio")
    )
    keys = [*TABLE, "score", "group"]
    both = able(rates, gap_rows(estimates)).join(
        ratios.select(*keys, ratio=pl.struct("value", "low", "high", "reason")),
        on=keys, how="left", nulls_equal=True, maintain_order="left",
    ).with_columns(share=pl.col("n") / pl.col("n").sum().over(*TABLE, "score"))  # fmt: skip
    names = wording.naming_keys(both, ("method", "dataset", "probe", "style"))
    for _, part in both.group_by(*TABLE, "score", maintain_order=True):
        row = part.row(0, named=True)
        metric = wording.metric(row["score"])
        if part["ratio"].null_count() == part.height:
            continue
        columns: dict[str, Cell] = {
            "group": lambda row: wording.spaced(row["group"]) + " *" * (row["share"] < SMALL),
            "number": worded("{:,}".format, "n"),
            metric.words: _outcomes,
            "rate": _rate,
            _ratio_name(row["score"]): _ratio,
        }
        title = f"{row['attribute']}: {metric.title} ({wording.classifier_name(row, names)})"
        scopes = part.drop_nulls("low")["scope"].unique()
        if len(scopes) == 1:
            title = f"{title}; intervals as if {judged.redrawn.get(scopes[0], scopes[0])}"
        yield row["score"], table(title, part, columns)


def _ratio_name(rate: str) -> str:
    """Name the ratio of a rate: an impact ratio if being selected is declared to be favourable."""
    if rate == _SELECTED:
        return "impact ratio" if wording.is_favourable() else "ratio of rates"
    return "ratio of error rates" if rate in _OF_ERRORS else "ratio of rates"


def _outcomes(row: Row) -> str:
    """Count the rows of a group that have the outcome."""
    return NO_ROWS if row["value"] is None else f"{row['value'] * row['n']:,.0f}"


def _rate(row: Row) -> str:
    if row["value"] is None:
        return NO_ROWS
    return wording.interval(row["value"], row["low"], row["high"], plus=False)


def _ratio(row: Row) -> str:
    ratio = row["ratio"]
    if row["value"] is None:
        return NO_ROWS
    if ratio is None or ratio["value"] is None:
        return "not defined"
    return wording.interval(ratio["value"], ratio["low"], ratio["high"], plus=False)
