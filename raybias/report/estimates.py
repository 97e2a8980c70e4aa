"""Show estimates of any kind: sentences, tables, forests, what intervals cover, definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from raybias.measures import Kind, Table, kinds
from raybias.measures.kind import ALL
from raybias.measures.prediction_rows import BY, OUTSIDE, WITHHELD, under
from raybias.report import sentences, wording
from raybias.report.figure_parts import Drawn
from raybias.report.forest import forest_of
from raybias.report.summary_tables import Cell, Row, SummaryTable, table
from raybias.stats.conclusive import is_refused, refusal, refused

_ENDS = ("value", "low", "high", "p", "q", "significant", "survives", "reason", "scope")


def parts(
    estimates: pl.DataFrame, *, level: float = 0.95, scope: str = "widest"
) -> list[dict[str, Any]]:
    """Return what the page shows of each kind, with its figures.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    level: of the intervals.
    scope: of the tables, for kinds whose estimates have several; figures show them all.
    """
    found = []
    for (name,), part in estimates.partition_by("kind", as_dict=True, maintain_order=True).items():
        kind = kinds[str(name)]
        shown = part if not kind.redrawn else under(part, [*kind.redrawn], scope)
        found.append(
            {
                "unable": refusals(part),
                "title": kind.title,
                "said": [*sentences.of(kind, part)],
                "tables": [*_tables(kind, shown, folded=False)],
                "folded": [*_tables(kind, shown, folded=True)],
                # Drawn when they are asked for: text shows none.
                "drawn": _figures(kind, part),
                "cover": _cover(kind, part, level),
                "definitions": _definitions(kind, part),
            }
        )
    return found


def text(estimates: pl.DataFrame, *, level: float = 0.95, scope: str = "widest") -> Iterator[str]:
    """Yield the parts of the page as plain text."""
    for part in parts(estimates, level=level, scope=scope):
        yield "\n\n".join((*part["unable"], *map(str, part["tables"]), part["cover"]))
        for said in (part["said"], part["definitions"]):
            if said:
                yield "\n  ".join(said)


def further(kind: Kind, estimates: pl.DataFrame, scope: str) -> dict[str, list[SummaryTable]]:
    """Lay out what a page of gaps shows beside its own tables: `tables`, and `folded` ones."""
    part = under(estimates.filter(kind=kind.name), [*kind.redrawn], scope)
    shown = [*_tables(kind, part, folded=False)]
    return {"tables": shown[1:], "folded": [*_tables(kind, part, folded=True)]}


def _tables(kind: Kind, estimates: pl.DataFrame, *, folded: bool) -> Iterator[SummaryTable]:
    for one in kind.tables:
        part = estimates.filter(one.where)
        if one.listed and one.folded == folded and part.height:
            yield table_of(kind, part, one)


def _figures(kind: Kind, estimates: pl.DataFrame) -> Iterator[Drawn]:
    for one in kind.tables:
        part = estimates.filter(one.where)
        found = None
        if one.neutral is not None:
            found = forest_of(
                kind, part, title=one.title or kind.title, neutral=one.neutral, scale=kind.scale,
                digits=kind.digits, logarithmic=one.logarithmic,
            )  # fmt: skip
        if found is not None:
            yield found.drawn()


def table_of(kind: Kind, estimates: pl.DataFrame, shown: Table) -> SummaryTable:
    """Lay estimates of one kind out: a row for each place, scores beside one another."""
    if shown.beside == "statistic":
        # A ratio names its own background, and stands beside rates without one.
        own = pl.col("condition").str.contains(f"^({BY}|{OUTSIDE})")
        estimates = estimates.with_columns(condition=pl.when(~own).then("condition").fill_null(""))
    keys = [*wording.naming_keys(estimates, ("probe", "method"))]
    told = ["attribute", "condition", "group", *(["score"] if shown.beside != "score" else [])]
    keys += [name for name in told if (estimates[name] != "").any()]
    varied = ("style", "scope") if not kind.redrawn else ("style",)
    keys += [name for name in varied if estimates[name].n_unique() > 1]
    names = estimates[shown.beside].unique(maintain_order=True).to_list()
    beside = pl.col(shown.beside)
    wide = estimates.group_by(keys, maintain_order=True).agg(
        *(pl.struct(_ENDS).filter(beside == name).first().alias(f"its {name}") for name in names),
        pl.col("n", "units", "mde").max(),
    )
    tested = [n for n in names if wide[f"its {n}"].struct.field("survives").count()] or names

    def test(row: Row) -> Row:
        return row[f"its {tested[0]}"] or dict.fromkeys(_ENDS)

    def cell(name: str) -> Cell:
        form = replace(shown, signed=True) if name in ("gap", "difference") else shown
        return lambda row: _estimate(row[f"its {name}"], kind, form)

    columns: dict[str, Cell] = {kind.called.get(name, name): _texts(name) for name in keys}
    columns |= {"value" if name == "score" else wording.spaced(name): cell(name) for name in names}
    if estimates["p"].count():
        columns["p"] = lambda row: wording.probability(test(row)["p"])
    if estimates["q"].count():
        columns["q"] = lambda row: wording.probability(test(row)["q"])
    if estimates["survives"].count():
        columns["reading"] = lambda row: _reading(test(row))
    if kind.redrawn and estimates["scope"].n_unique() > 1:
        columns["redrawn"] = lambda row: str(test(row)["scope"] or "")
    for name, header in (("n", kind.called.get("n", "n")), ("units", kind.units)):
        known = wide[name].drop_nulls()
        if known.len() and (name == "n" or not wide["units"].equals(wide["n"])):
            columns[header] = _count(name)
    title = ": ".join(filter(None, (kind.title, shown.title)))
    return table(title, wide, columns)


def refusals(estimates: pl.DataFrame) -> list[str]:
    """Say which models cannot do the task, why, and what to do; nothing is judged of them."""
    estimates = estimates.filter(pl.col("model") != ALL, pl.col("score") != WITHHELD)
    keys = wording.naming_keys(estimates, ("probe", "method"))
    rows = estimates.filter(refused("reason")).unique([*keys], maintain_order=True)
    return [
        refusal(wording.classifier_name(row, keys), row["reason"], "score")
        for row in rows.iter_rows(named=True)
    ]


def _texts(name: str) -> Cell:
    return lambda row: wording.bias_type(row[name])


def _count(name: str) -> Cell:
    return lambda row: "" if row[name] is None else f"{row[name]:,}"


def _reading(row: Mapping[str, Any]) -> str:
    if row["significant"] is None or row["p"] is None:
        return "no test"
    if row["survives"]:
        return "significant"
    return "significant, not after correction" if row["significant"] else "not significant"


def _estimate(row: Mapping[str, Any] | None, kind: Kind, shown: Table) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return str(row["reason"] or "")
    digits = kind.digits if shown.digits is None else shown.digits
    refuse = is_refused(row["reason"])
    why = "not judged" if refuse else row["reason"]
    ends = () if refuse else sentences.ends(row, kind)
    value = wording.estimate(row["value"] * kind.scale, ends, digits, plus=shown.signed)
    return f"{value} ({why})" if why else value


def _cover(kind: Kind, estimates: pl.DataFrame, level: float) -> str:
    scopes = estimates.filter(pl.col("low").is_not_null(), pl.col("scope") != "models")["scope"]
    names = scopes.unique(maintain_order=True).to_list()
    if kind.redrawn:
        told = [f"{name}: {kind.redrawn.get(name, name)}" for name in names]
        return f"[low, high]: {level:.0%} intervals. {'; '.join(told)}. {kind.about}"
    said = wording.listed(names).replace(" and ", " or ")
    covers = f"[low, high]: {level:.0%} intervals as if {said} were redrawn; the model is this one."
    return f"{covers if said else ''} {kind.about}".strip()


def _definitions(kind: Kind, estimates: pl.DataFrame) -> list[str]:
    if kind.defined is not None:
        return [*kind.defined(estimates["score"].unique().to_list())]
    return [
        f"{wording.spaced(name)}: {score.formula}; {score.source}"
        for name, score in kind.scores.items()
    ]
