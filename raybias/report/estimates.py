"""Show estimates of any kind: sentences, tables, forests, what intervals cover, definitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import polars as pl

from raybias.measures.class_rows import CLASS, class_of
from raybias.measures.kind import Kind, Table, kinds
from raybias.measures.prediction_rows import KIND, WIDTHS, WITHHELD, gap_rows, no_wider, under
from raybias.report import headline, sentences, wording
from raybias.report.doubts import doubts
from raybias.report.forest import forest_of
from raybias.report.judged import Judged
from raybias.report.rendering import Cell, Drawn, Row, TextTable, count, slug, table
from raybias.stats.conclusive import is_refused, refused
from raybias.stats.gaps import OUTSIDE
from raybias.stats.intervals import NO_ROWS
from raybias.stats.metric import metrics
from raybias.stats.ratios import BY
from raybias.stats.redrawn import redrawn_by, seeds_drawn
from raybias.stats.scopes import ADDED

_ENDS: Final = (
    "score", "value", "low", "high", "p", "q", "significant", "survives", "reason", "scope",
)  # fmt: skip


def parts_of(
    estimates: pl.DataFrame, *, level: float = 0.95, scope: str = "widest"
) -> list[dict[str, Any]]:
    """Arrange each kind's sentences, tables (under `scope`, if it has several) and figures."""
    found = []
    estimates = sentences.own_readings(estimates)
    for (name,), part in estimates.partition_by("kind", as_dict=True, maintain_order=True).items():
        kind = kinds[str(name)]
        judged = part.filter(pl.col("score") != WITHHELD) if name != KIND else gap_rows(part)
        gaps = Judged.of(part, scope) if name == KIND else None
        found.append(
            {
                "kind": kind.name,
                "unable": sentences.refusals(judged),
                "title": kind.title,
                "said": [*_said(kind, part, scope, gaps, level)],
                "doubts": [] if gaps is None else [*doubts(part, gaps)],
                "tables": [*tables_of(kind, part, scope, folded=False)],
                "folded": [*tables_of(kind, part, scope, folded=True)],
                # A generator: the text of a terminal needs no figures.
                "drawn": _figures(kind, no_wider(part, scope) if name == KIND else part),
                "cover": _cover(kind, part, level),
                "definitions": _definitions(kind, part),
            }
        )
    return found


def text(estimates: pl.DataFrame, *, level: float = 0.95, scope: str = "widest") -> Iterator[str]:
    """Yield the parts of the page as plain text."""
    for part in parts_of(estimates, level=level, scope=scope):
        yield "\n\n".join((*part["unable"], *map(str, part["tables"]), part["cover"]))
        for said in (part["said"], part["doubts"], part["definitions"]):
            if said:
                yield "\n  ".join(said)


def _said(
    kind: Kind, estimates: pl.DataFrame, scope: str, gaps: Judged | None, level: float
) -> Iterator[str]:
    """State what is found among gaps of groups, count what is significant, and name the clearest.

    gaps: of predictions.
    """
    within = ""
    if gaps is not None and gaps.rows.height:
        yield from headline.conclusion(gaps, with_effect=True)
        within = wording.within_families(gaps.family_sizes)
    yield from sentences.of(kind, estimates, _redrawn(kind, estimates), scope, within)
    if gaps is not None:
        yield from filter(None, [headline.families_said(gaps, estimates, level)])


def _redrawn(kind: Kind, estimates: pl.DataFrame) -> Mapping[str, str]:
    """Return what intervals of each scope resample, in words, for these estimates of a kind."""
    return redrawn_by(seeds_drawn(estimates)) if kind.name == KIND else kind.redrawn


def tables_of(
    kind: Kind, estimates: pl.DataFrame, scope: str, *, folded: bool
) -> Iterator[TextTable]:
    """Yield the tables of a kind that have rows: those that a page shows, or that it folds."""
    for one in kind.tables:
        part = estimates.filter(one.where)
        shown = under(part, [*kind.redrawn], scope) if kind.redrawn else part
        if one.listed and one.folded == folded and shown.height:
            yield table_of(kind, part, one, scope)


def _figures(kind: Kind, estimates: pl.DataFrame) -> Iterator[Drawn]:
    for one in kind.tables:
        title = one.title or kind.title
        if one.neutral is not None and (drawn := forest_of(
            estimates.filter(one.where), title=title, neutral=one.neutral, scale=kind.scale,
            name=slug(kind.name, *title.partition(":")[0].lower().split()),
            digits=kind.digits, logarithmic=one.logarithmic,
        )):  # fmt: skip
            yield drawn


def table_of(
    kind: Kind,
    estimates: pl.DataFrame,
    shown: Table,
    scope: str,
    *,
    without: Collection[str] = (),
    redrawn: Mapping[str, str] | None = None,
) -> TextTable:
    """Lay estimates of one kind out: a row for each place, scores beside one another.

    Of several scopes one is shown, and others are named if they find something.

    without: columns that stand above the table.
    redrawn: what intervals of each scope resample, in words; by default as the estimates tell.
    """
    if shown.beside == "statistic":
        # A ratio names its own background, and stands beside rates without one.
        own = pl.col("condition").str.contains(f"^({BY}|{OUTSIDE})")
        estimates = estimates.with_columns(condition=pl.when(~own).then("condition").fill_null(""))
    every = estimates
    if kind.redrawn:
        estimates = under(estimates, [*kind.redrawn], scope)
    keys = wording.naming_keys(estimates, ("probe", "method", "dataset"))
    told = ["attribute", "condition", "group", *(["score"] if shown.beside != "score" else [])]
    keys += [name for name in told if (estimates[name] != "").any()]
    varied = ["style", *(["scope"] if not kind.redrawn else [])]
    keys += [name for name in varied if estimates[name].n_unique() > 1]
    keys = [name for name in keys if name not in without]
    names = estimates[shown.beside].unique(maintain_order=True).to_list()
    beside = pl.col(shown.beside)
    wide = estimates.group_by(keys, maintain_order=True).agg(
        *(pl.struct(_ENDS).filter(beside == name).first().alias(f"its {name}") for name in names),
        pl.col("n", "units", "mde").max(),
    )
    tested = [n for n in names if wide[f"its {n}"].struct.field("survives").count()] or names

    def test(row: Row) -> Row:
        found = row[f"its {tested[0]}"] or dict.fromkeys(_ENDS)
        return {**found, "p": None, "q": None} if is_refused(found["reason"]) else found

    def cell(name: str) -> Cell:
        form = replace(shown, signed=True) if name in ("gap", "difference") else shown
        return lambda row: _estimate(row[f"its {name}"] or absent(row), kind, form)

    def absent(row: Row) -> Row | None:
        """Return another estimate that has no rows: then there is none of this one either."""
        rows = (row[f"its {name}"] for name in names)
        return next((one for one in rows if one and one["reason"] == NO_ROWS), None)

    columns: dict[str, Cell] = {kind.called.get(name, name): _texts(name) for name in keys}
    columns |= {"value" if name == "score" else wording.spaced(name): cell(name) for name in names}
    judged = estimates.filter(~refused("reason"))
    for name in ("p", "q"):
        if judged[name].count():
            columns[name] = lambda row, name=name: wording.probability(test(row)[name])  # type: ignore[misc]
    if estimates["survives"].count():
        columns["reading"] = lambda row: _reading(kind, test(row), row)
    again = (
        every.filter(pl.col("survives"), beside == tested[0], pl.col("scope").is_in([*ADDED]))
        .with_columns(scope=pl.col("scope").replace_strict(ADDED, default=""))
        .group_by(keys).agg(again=pl.col("scope").unique(maintain_order=True))
    )  # fmt: skip
    scopes = judged.drop_nulls("low")["scope"].unique()
    if kind.redrawn and again.height and every["scope"].n_unique() > 1:
        wide = wide.join(again, on=keys, how="left", nulls_equal=True, maintain_order="left")
        columns["significant for other"] = lambda row: ", ".join(row["again"] or ())
    if kind.redrawn and len(scopes) > 1:
        columns["interval over"] = lambda row: str(test(row)["scope"] or "")
    columns |= _counts(kind, shown, wide, estimates)
    words = _redrawn(kind, every) if redrawn is None else redrawn
    drawn = words.get(scopes[0]) if len(scopes) == 1 and "gap" in names else None
    title = ": ".join(filter(None, (kind.title, shown.title)))
    return table(f"{title}; intervals as if {drawn}" if drawn else title, wide, columns)


def _counts(
    kind: Kind, shown: Table, wide: pl.DataFrame, estimates: pl.DataFrame
) -> dict[str, Cell]:
    """Return the columns that count items and units, of the scope that is shown."""
    columns: dict[str, Cell] = {}
    if wide["n"].drop_nulls().len():
        columns[kind.called.get("n", "n")] = count("n")
    if wide["units"].drop_nulls().len() and not wide["units"].equals(wide["n"]):
        scopes = estimates.drop_nulls("units")["scope"].unique(maintain_order=True)
        names = [shown.units or kind.units_by_scope.get(str(scope), kind.units) for scope in scopes]
        columns[" or ".join(dict.fromkeys(names))] = count("units")
    return columns


def gaps_table(estimates: pl.DataFrame, judged: Judged) -> TextTable:
    """Show the gaps of groups under the scope that decides with their verdicts, a row each."""
    kind = kinds[KIND]
    estimates = sentences.own_readings(estimates)
    shown = replace(next(one for one in kind.tables if one.neutral is not None), beside="statistic")
    rows = estimates.filter(pl.col("kind") == KIND, shown.where)
    return table_of(kind, rows, shown, judged.scope, redrawn=judged.redrawn)


def _texts(name: str) -> Cell:
    return lambda row: wording.bias_type(row[name]).replace("_", " " if name == "group" else "_")


def _reading(kind: Kind, row: Mapping[str, Any], place: Row) -> str:
    """Read the test of an estimate `row`, in a table's row `place`."""
    gap = kind.name == KIND and row["score"] in metrics and row["reason"] is None
    if not gap and (row["significant"] is None or row["p"] is None):
        return "no test"
    if not row["significant"]:
        return _not_significant(row["scope"], place.get("again") or ())
    if not row["survives"]:
        return "significant, not after correction"
    if not gap:
        return "significant"
    condition = place.get("condition") or ""
    of_class = class_of(condition) if condition.startswith(CLASS) else ""
    return wording.verdict(row["score"], row["value"], of_class)


def _not_significant(scope: str, holds: Collection[str]) -> str:
    """Name what a gap is not significant for, if it is significant under a narrower scope.

    scope: under which it is not.
    holds: the facets (`ADDED`) of the scopes under which it is.
    """
    if not holds:
        return "not significant"
    facets = [what for name, what in ADDED.items() if WIDTHS[name] <= WIDTHS.get(scope, -1)]
    narrower = [number for number, facet in enumerate(facets[:-1]) if facet in holds]
    if not narrower:
        return "not significant"
    return f"not significant for other {facets[narrower[-1] + 1]}"


def _estimate(row: Mapping[str, Any] | None, kind: Kind, shown: Table) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return str(row["reason"] or "")
    digits = kind.digits if shown.digits is None else shown.digits
    why = row["reason"]
    if is_refused(why):
        row, why = {**row, "low": None}, "not judged"
    value = wording.interval(*sentences.scaled(row, kind), digits=digits, plus=shown.signed)
    return f"{value} ({why})" if why else value


def _cover(kind: Kind, estimates: pl.DataFrame, level: float) -> str:
    of_models = pl.col("scope").str.starts_with("models")
    scopes = estimates.filter(pl.col("low").is_not_null(), ~of_models)["scope"]
    names = scopes.unique(maintain_order=True).to_list()
    if kind.redrawn:
        redrawn = _redrawn(kind, estimates)
        told = [f"{name}: {redrawn.get(name, name)}" for name in names]
        return f"[low, high]: {level:.0%} intervals. {'; '.join(told)}. {kind.about}"
    said = wording.listed(names).replace(" and ", " or ")
    covers = f"[low, high]: {level:.0%} intervals as if {said} were redrawn; the model is this one."
    return f"{covers if said else ''} {kind.about}".strip()


def _definitions(kind: Kind, estimates: pl.DataFrame) -> list[str]:
    measured = estimates["score"].unique().to_list()
    if kind.defined is not None:
        return [*kind.defined(measured)]
    return [
        f"{wording.spaced(name)}: {score.formula}; {score.source}"
        for name, score in kind.scores.items()
        if name in measured
    ]
