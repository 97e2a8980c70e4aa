"""The section "is this bias, or the template?": what naming any group does, and which words.

It reads the tables of markedness, terms, templates and corpus; where a table is empty
its part of the section is left out. Source: raybias's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from markupsafe import Markup

from raybias import schema, stats
from raybias.report import figure_style, wording
from raybias.report.figures import Drawn
from raybias.report.load_results import example_texts
from raybias.report.summary_tables import SummaryTable
from raybias.storage import Store

#: Terms and templates shown of each group.
_LARGEST: Final = 3
_KEYS: Final = (*schema.KEYS, "attribute", "rate", "group")

#: What the effects on a group say together, from the most to the least.
UNNAMED: Final = "a gap; unlike a neutral word, not shown to differ from naming no group"
BEYOND: Final = "a gap; unlike a neutral word, and unlike naming no group"
AMONG: Final = "a gap; not shown to differ from a neutral word"
SHARED: Final = "no gap shown; unlike a neutral word, as other groups are"
MARKING: Final = "no gap shown; being marked at all changes the rate"
NOTHING: Final = "nothing shown"
UNREAD: Final = "no verdict: most answers name no label word"


@dataclass(frozen=True)
class MarkedPart:
    """What was found on one attribute of one probe."""

    anchor: str
    probe: str
    attribute: str
    n_templates: int
    neutral: tuple[str, ...]
    """What a neutral word does, a sentence per rate."""
    readings: tuple[tuple[str, int], ...]
    """How many (classifier, group, rate) have each reading."""
    effects: SummaryTable
    figures: tuple[Markup, ...]


def marked_parts(
    markedness: pl.DataFrame, drawn: Mapping[tuple[str, ...], Drawn]
) -> list[MarkedPart]:
    """The parts about marked and unmarked templates, by probe and attribute."""
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(markedness)):
        part = markedness.filter(probe=probe, attribute=attribute)
        table = readings(part)
        counts = table.group_by("reading").len().sort("len", "reading", descending=[True, False])
        figures = [drawn[key] for key in drawn if key[3] == probe and key[5] == attribute]
        parts.append(
            MarkedPart(
                anchor=f"marked-{place}",
                probe=probe,
                attribute=attribute,
                n_templates=int(part["n_templates"].max()),  # type: ignore[arg-type]
                neutral=tuple(_neutral(part)),
                readings=tuple((str(reading), int(n)) for reading, n in counts.iter_rows()),
                effects=_effect_facts(table, attribute),
                figures=tuple(
                    Markup(figure_style.inline(figure.svg, f"m{place}-{i}"))
                    for i, figure in enumerate(figures)
                ),
            )
        )
    return parts


def readings(markedness: pl.DataFrame) -> pl.DataFrame:
    """One row per classifier, rate and group with its effects and what they say together.

    Parameters
    ----------
    markedness: schema.MARKEDNESS.

    Returns
    -------
    The keys, attribute, rate, group; the columns of schema.MARKEDNESS from estimate to
    survives for each effect, as `gap.estimate`; and `reading`. What counts is `survives`.
    """
    values = ("estimate", "low", "high", "survives")
    unread = pl.col("no_verdict").str.ends_with(stats.UNREADABLE).fill_null(False)
    wide = markedness.filter(effect="marking_effect").select(*_KEYS, unread=unread)
    for effect in ("marking_effect", "beyond_neutral", "gap"):
        named = [pl.col(value).alias(f"{effect}.{value}") for value in values]
        one = markedness.filter(effect=effect).select(*_KEYS, *named)
        wide = wide.join(one, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    gap, beyond, marking = (
        pl.col(f"{effect}.survives").fill_null(False)
        for effect in ("gap", "beyond_neutral", "marking_effect")
    )
    same = pl.col("gap.estimate").sign() == pl.col("beyond_neutral.estimate").sign()
    reading = (
        pl.when("unread")
        .then(pl.lit(UNREAD))
        .when(gap & beyond & same & marking)
        .then(pl.lit(BEYOND))
        .when(gap & beyond & same)
        .then(pl.lit(UNNAMED))
        .when(gap)
        .then(pl.lit(AMONG))
        .when(beyond)
        .then(pl.lit(SHARED))
        .when(marking)
        .then(pl.lit(MARKING))
        .otherwise(pl.lit(NOTHING))
    )
    return wide.with_columns(reading=reading).drop("unread")


def breakdown_facts(store: Store, tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """The terms and templates of each group that lie farthest from the mean."""
    found = []
    terms, templates = tables["by_term"], tables["by_template"]
    if terms.height:
        rows = stats.largest(terms, "term", k=_LARGEST)
        found.append(_driving("Terms farthest from the mean", "term", rows))
    if templates.height:
        rows = stats.largest(templates, "template_id", k=_LARGEST)
        texts = example_texts(store, rows["probe"].unique().sort().to_list())
        on = ["probe", "group", "template_id"]
        rows = rows.join(texts, on=on, how="left", nulls_equal=True, maintain_order="left")
        rows = rows.with_columns(sentence=pl.coalesce("text", "template_id"))
        found.append(_driving("Templates farthest from their mean", "sentence", rows))
    return found


def corpus_facts(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """How often the corpus marks each group, and the rank correlations."""
    rates, table = tables["corpus_rates"], tables["corpus"]
    if rates.is_empty():
        return []
    shown = tuple(
        (row["attribute"], row["group"], f"{row['marked']:,}", f"{row['nouns']:,}",
         "" if row["marked_rate"] is None else f"{row['marked_rate']:.4%}")
        for row in rates.iter_rows(named=True)
    )  # fmt: skip
    columns = ("attribute", "group", "named before a noun", "nouns", "share")
    found = [SummaryTable("How often the corpus names each group", columns, shown)]
    if table.height:
        keys = wording.naming_keys(table)
        rows = tuple(
            (
                *(str(row[key]) for key in keys),
                row["probe"], row["attribute"], row["rate"], row["effect"].replace("_", " "),
                f"{wording.signed(row['rho'], 2)} {wording.span(row['low'], row['high'], 2)}",
                wording.probability(row["p_value"]), str(row["n_groups"]),
            )
            for row in table.iter_rows(named=True)
        )  # fmt: skip
        headers = (*keys, "probe", "attribute", "rate", "effect", "rank correlation", "p", "groups")
        found.append(SummaryTable("Does the corpus go with the effects?", headers, rows))
    return found


def _neutral(part: pl.DataFrame) -> list[str]:
    said = []
    for rate in part["rate"].unique(maintain_order=True):
        rows = part.filter(rate=rate, effect="neutral_effect")
        name = f"being {wording.rate_title(rate)}"
        if rows.is_empty():
            continue
        if rows.height == 1:
            row = rows.row(0, named=True)
            verdict = "significant" if row["survives"] else row["no_verdict"] or "not significant"
            said.append(
                f"A neutral word in the group's place changes the rate of {name} by "
                f"{wording.signed(row['estimate'])} "
                f"{wording.span(row['low'], row['high'])} ({verdict})."
            )
            continue
        low, high = (wording.signed(rows["estimate"].min()), wording.signed(rows["estimate"].max()))  # type: ignore[arg-type]
        said.append(
            f"A neutral word in the group's place changes the rate of {name} by {low} to {high}, "
            f"significantly in {int(rows['survives'].sum())} of {rows.height} classifiers."
        )
    return said


def _effect_facts(table: pl.DataFrame, attribute: str) -> SummaryTable:
    keys = wording.naming_keys(table)
    order = table.sort("rate", "group", maintain_order=True)
    rows = tuple(
        (
            *(str(row[key]) for key in keys),
            row["rate"],
            row["group"],
            _effect(row, "marking_effect"),
            _effect(row, "beyond_neutral"),
            _effect(row, "gap"),
            row["reading"],
        )
        for row in order.iter_rows(named=True)
    )
    headers = (*keys, "rate", "group", "named against not named", "against a neutral word",
               "gap on these templates", "reading")  # fmt: skip
    return SummaryTable(f"Effects of naming a group: {attribute}", headers, rows)


def _effect(row: Mapping[str, Any], effect: str) -> str:
    ends = wording.span(row[f"{effect}.low"], row[f"{effect}.high"])
    star = " *" if row[f"{effect}.survives"] else ""
    return f"{wording.signed(row[f'{effect}.estimate'])} {ends}{star}".strip()


def _driving(title: str, column: str, rows: pl.DataFrame) -> SummaryTable:
    several = rows["n_classifiers"].max() != 1
    shown = []
    for row in rows.iter_rows(named=True):
        reach = f"{wording.signed(row['lowest'])} to {wording.signed(row['highest'])}"
        shown.append(
            (
                row["probe"], row["attribute"], row["rate"], row["group"], str(row[column]),
                wording.signed(row["gap"]), wording.number(row["mean_rate"]),
                *((reach, str(row["n_classifiers"])) if several else ()),
            )
        )  # fmt: skip
    more = ("over classifiers", "classifiers") if several else ()
    headers = ("probe", "attribute", "rate", "group", column, "gap", "its rate", *more)
    return SummaryTable(title, headers, tuple(shown))
