"""Show estimates of any kind: one table, what its intervals cover, and how scores are defined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from raybias.measures import Kind, kinds
from raybias.report import wording
from raybias.report.summary_tables import Cell, SummaryTable, table
from raybias.stats.conclusive import is_refused, refusal, refused


def parts(estimates: pl.DataFrame, *, level: float = 0.95) -> list[dict[str, Any]]:
    """Return what the page shows of each kind: `unable`, `table`, `cover` and `definitions`.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    level: of the intervals.
    """
    return [
        {
            "unable": refusals(part),
            "table": table_of(kinds[str(name)], part),
            "cover": _cover(kinds[str(name)], part, level),
            "definitions": _definitions(kinds[str(name)]),
        }
        for (name,), part in estimates.partition_by(
            "kind", as_dict=True, maintain_order=True
        ).items()
    ]


def text(estimates: pl.DataFrame, *, level: float = 0.95) -> Iterator[str]:
    """Yield the parts of the page as plain text."""
    for part in parts(estimates, level=level):
        yield "\n\n".join((*part["unable"], str(part["table"]), part["cover"]))
        yield "\n  ".join(part["definitions"])


def table_of(kind: Kind, estimates: pl.DataFrame) -> SummaryTable:
    """Lay the estimates of one kind out: a row for each place, scores beside one another."""
    keys = wording.naming_keys(estimates, ("probe", "method"))
    keys += [name for name in ("attribute", "condition", "group") if (estimates[name] != "").any()]
    keys += ["style", "scope"] if estimates["style"].n_unique() > 1 else []
    names = estimates["score"].unique(maintain_order=True).to_list()
    wide = estimates.group_by(keys, maintain_order=True).agg(
        *(pl.struct("value", "low", "high", "p", "reason").filter(score=name).first().alias(name)
          for name in names),
        pl.col("n", "units").max(),
    )  # fmt: skip

    def cell(name: str) -> Cell:
        return lambda row: _estimate(row[name], kind)

    def p_value(row: Mapping[str, Any]) -> str:
        known = row[names[0]]["p"]
        return "" if known is None else f"{known:.3g}"

    columns: dict[str, Cell] = {kind.called.get(name, name): name for name in keys}
    columns |= {wording.spaced(name): cell(name) for name in names}
    if estimates["p"].count():
        columns["p"] = p_value
    return table(kind.title, wide, {**columns, kind.called.get("n", "n"): "n", kind.units: "units"})


def refusals(estimates: pl.DataFrame) -> list[str]:
    """Say which models cannot do the task, why, and what to do; nothing is judged of them."""
    keys = wording.naming_keys(estimates, ("probe", "method"))
    rows = estimates.filter(refused("reason")).unique([*keys], maintain_order=True)
    return [
        refusal(wording.classifier_name(row, keys), row["reason"], "score")
        for row in rows.iter_rows(named=True)
    ]


def _estimate(row: Mapping[str, Any] | None, kind: Kind) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return str(row["reason"])
    value, *ends = (
        # Zero is added for what rounds to -0.0.
        "" if row[name] is None else f"{round(row[name] * kind.scale, kind.digits) + 0.0}"
        for name in ("value", "low", "high")
    )
    if is_refused(row["reason"]):
        return f"{value} (not judged)"
    return f"{value} ({row['reason']})" if row["reason"] else f"{value} [{', '.join(ends)}]"


def _cover(kind: Kind, estimates: pl.DataFrame, level: float) -> str:
    scopes = " (or ".join(estimates["scope"].unique(maintain_order=True))
    closed = scopes + ")" * scopes.count("(")
    return (
        f"[low, high]: {level:.0%} intervals as if {closed} were redrawn; the model is this one. "
        f"{kind.about}"
    ).strip()


def _definitions(kind: Kind) -> list[str]:
    return [
        f"{wording.spaced(name)}: {score.formula}; {score.source}"
        for name, score in kind.scores.items()
    ]
