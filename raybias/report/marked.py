"""Answer "is this bias, or the template?": what naming any group does, and which words do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.measures.prediction_rows import KIND
from raybias.report import wording
from raybias.report.forest import forest_of
from raybias.report.outs import read_items
from raybias.report.rendering import slug
from raybias.report.table import Cell, Row, TextTable, same, table, worded
from raybias.stats.conclusive import refused
from raybias.stats.scopes import REDRAWN
from raybias.storage import Store

_LARGEST: Final = 3
_KEYS: Final = (*schema.KEYS, "attribute", "score", "group")
_EFFECTS: Final = ("marking_effect", "beyond_neutral", "gap")

#: Readings of the effects on a group together, from the most to the least.
UNNAMED: Final = "a gap; unlike a neutral word, not shown to differ from naming no group"
BEYOND: Final = "a gap; unlike a neutral word, and unlike naming no group"
AMONG: Final = "a gap; not shown to differ from a neutral word"
SHARED: Final = "no gap shown; unlike a neutral word, as other groups are"
MARKING: Final = "no gap shown; being marked at all changes the rate"
NOTHING: Final = "nothing shown"
UNABLE: Final = "no verdict: the classifier is not shown to do its task"


def marked_parts(
    markedness: pl.DataFrame, estimates: pl.DataFrame, *, level: float
) -> list[dict[str, Any]]:
    """Arrange the effects of naming groups (`GapAnalysis.marked`), by probe and attribute."""
    effects = estimates.filter(
        pl.col("condition").is_in(["neutral_effect", *_EFFECTS]), kind=KIND, statistic="difference"
    )
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(markedness)):
        part = markedness.filter(probe=probe, attribute=attribute)
        read = readings(part)
        counts = read.group_by("reading").len().sort("len", "reading", descending=[True, False])
        figure = forest_of(
            effects.filter(probe=probe, attribute=attribute),
            name=slug("markedness", probe, attribute),
            title=f"{attribute}: what naming a group does",
            axis=f"difference of rates; {100 * level:g}% intervals",
            panel=("model", "method", "dataset", "style", "score", "condition"),
        )
        parts.append(
            {
                "anchor": f"marked-{place}",
                "probe": probe,
                "attribute": attribute,
                "n_templates": part["templates"].max(),
                "neutral": [*_neutral(part)],
                "readings": counts.rows(),
                "redrawn": wording.listed(
                    [REDRAWN[scope] for scope in part["scope"].unique(maintain_order=True)]
                ),
                "effects": _effects(read, attribute),
                "figures": [figure] if figure else [],
            }
        )
    return parts


def readings(markedness: pl.DataFrame) -> pl.DataFrame:
    """Read the effects on each classifier, rate and group together (`GapAnalysis.marked`).

    Gives the keys, attribute, score, group; value, low, high and survives of each effect, as
    `gap.value`; and `reading`, which follows from `survives`.
    """
    values = ("value", "low", "high", "survives")
    unable = refused("reason")
    wide = markedness.filter(condition="marking_effect").select(*_KEYS, unable=unable)
    for effect in _EFFECTS:
        named = [pl.col(value).alias(f"{effect}.{value}") for value in values]
        one = markedness.filter(condition=effect).select(*_KEYS, *named)
        wide = wide.join(one, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    gap, beyond, marking = (
        pl.col(f"{effect}.survives").fill_null(False)
        for effect in ("gap", "beyond_neutral", "marking_effect")
    )
    same = pl.col("gap.value").sign() == pl.col("beyond_neutral.value").sign()
    holds = {
        UNABLE: pl.col("unable"), BEYOND: gap & beyond & same & marking,
        UNNAMED: gap & beyond & same, AMONG: gap, SHARED: beyond, MARKING: marking,
    }  # fmt: skip
    read = [pl.when(shown).then(pl.lit(reading)) for reading, shown in holds.items()]
    return wide.with_columns(reading=pl.coalesce(*read, pl.lit(NOTHING))).drop("unable")


def breakdowns(store: Store, tables: Mapping[str, pl.DataFrame]) -> list[TextTable]:
    """Show the terms and templates of each group that lie farthest from the mean."""
    shown = []
    terms, templates = tables["by_term"], tables["by_template"]
    if terms.height:
        rows = stats.largest(terms, "term", k=_LARGEST)
        shown.append(_farthest("Terms farthest from the mean", "term", rows))
    if templates.height:
        rows = stats.largest(templates, "template_id", k=_LARGEST)
        on = ["probe", "group", "template_id"]
        texts = read_items(store, rows["probe"].unique().sort().to_list(), *on[1:], "text")
        texts = texts.unique(on, keep="first", maintain_order=True)
        rows = rows.join(texts, on=on, how="left", nulls_equal=True, maintain_order="left")
        rows = rows.with_columns(sentence=pl.coalesce("text", "template_id"))
        shown.append(_farthest("Templates farthest from their mean", "sentence", rows))
    return shown


def _neutral(part: pl.DataFrame) -> Iterator[str]:
    for rate in part["score"].unique(maintain_order=True):
        rows = part.filter(score=rate, condition="neutral_effect")
        name = f"being {wording.metric(rate).title}"
        begin = f"A neutral word in the group's place changes the rate of {name} by"
        if rows.height == 1:
            row = rows.row(0, named=True)
            verdict = "significant" if row["survives"] else row["reason"] or "not significant"
            yield f"{begin} {_estimate(row)} ({verdict})."
        elif rows.height:
            estimates = sorted(rows["value"].drop_nulls())
            low, high = (wording.signed(end) for end in (estimates[0], estimates[-1]))
            yield (
                f"{begin} {low} to {high}, significantly in {int(rows['survives'].sum())} of "
                f"{rows.height} classifiers."
            )


def _effects(read: pl.DataFrame, attribute: str) -> TextTable:
    def effect(name: str) -> Callable[[Row], str]:
        return lambda row: _estimate(row, f"{name}.") + (" *" if row[f"{name}.survives"] else "")

    return table(
        f"Effects of naming a group: {attribute}",
        read.sort("score", "group", maintain_order=True),
        {
            **same(*wording.naming_keys(read), "score", "group"),
            "named against not named": effect("marking_effect"),
            "against a neutral word": effect("beyond_neutral"),
            "gap on these templates": effect("gap"),
            "reading": "reading",
        },
    )


def _estimate(row: Row, effect: str = "") -> str:
    return wording.interval(row[f"{effect}value"], row[f"{effect}low"], row[f"{effect}high"])


def _farthest(title: str, column: str, rows: pl.DataFrame) -> TextTable:
    columns: dict[str, Cell] = {
        **same("probe", "attribute", "score", "group", column),
        "gap": worded(wording.signed, "value"),
        "its rate": worded(wording.number, "rate"),
    }
    if rows["n_classifiers"].max() != 1:
        columns["over classifiers"] = lambda row: (
            f"{wording.signed(row['lowest'])} to {wording.signed(row['highest'])}"
        )
        columns["classifiers"] = "n_classifiers"
    return table(title, rows, columns)
