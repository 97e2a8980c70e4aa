"""Show what may explain gaps: their sentences, and "is this bias, or the template?"

All sentences of each group are in OUT/evidence. What naming any group does, and which words and
templates do it, is told beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import KIND
from raybias.report import wording
from raybias.report.forest import forest_of
from raybias.report.headline import ABOUT, ranked
from raybias.report.judged import Judged
from raybias.report.outs import prediction_files, read_items
from raybias.report.rendering import Cell, Row, TextTable, rendered, same, slug, table, worded
from raybias.report.sentences import able
from raybias.stats.breakdown import NEUTRAL, largest
from raybias.stats.conclusive import refused
from raybias.stats.counts import item_counts
from raybias.stats.intervals import NO_ROWS
from raybias.stats.metric import counted, shares
from raybias.storage import Store

#: Rows that the folds of a page have together, and the fewest and most of one.
_ROWS: Final = 900
_FEWEST: Final = 5
_MOST: Final = 25
#: Most sentences on a page of OUT/evidence; of more, those labelled wrong most often.
_WHOLE: Final = 4000
_ITEM: Final = ("probe", "attribute", "group", "template_id", "term", "item_id", "label", "right")
_CLASSIFIER: Final = ("model", "method", "dataset", "style")
#: Columns that show a sentence, its word and its right label.
_SENTENCE: Final[Mapping[str, Cell]] = {
    "sentence": "text",
    "word": lambda row: row["term"] or "",
    "right label": "right",
}


def read_sentences(store: Store, labels: Sequence[str]) -> pl.DataFrame:
    """Count how many runs of an OUT gave each sentence each label.

    Gives the keys of a classifier, `_ITEM`, `pred`, `n`, `answer` (one that was given) and `text`,
    from OUT/items or else from template and word. `right` is the right label in words.

    labels: of the study, in order.
    """
    counts = item_counts(prediction_files(store))
    texts = read_items(store, counts["probe"].unique().to_list(), "item_id", "text")
    known = texts.unique(["probe", "item_id"], keep="first", maintain_order=True)
    joined = counts.join(known, on=["probe", "item_id"], how="left", maintain_order="left")
    # Of a single row polars takes no null as a replacement.
    word = pl.col("term").fill_null("")
    filled = pl.when(pl.col("term").is_not_null()).then(
        pl.col("template_id").str.replace_all("{term}", word, literal=True)
    )
    names = dict(enumerate(labels))
    return joined.with_columns(
        text=pl.coalesce("text", filled, "item_id"),
        right=pl.col("label").replace_strict(names, return_dtype=pl.String),
    )


def evidence(
    judged: Judged, sentences: pl.DataFrame
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Gather the sentences behind each gap that is found."""
    parts = [one for whole in ranked(judged)
             for one in whole.partition_by("probe", maintain_order=True)]  # fmt: skip
    most = min(_MOST, max(_FEWEST, _ROWS // max(1, len(parts))))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for part in parts:
        row = part.row(0, named=True)
        place = row["probe"], row["attribute"], row["group"]
        about = sentences.filter(probe=place[0], attribute=place[1], group=place[2])
        mine = about.join(part, on=_CLASSIFIER, how="semi", nulls_equal=True)
        heading = f"{wording.heading(row['score'], row['value'])}, {ABOUT.get(row['scope'], '')}"
        found.setdefault(place[:2], []).append(
            {
                "title": f"{wording.spaced(row['group'])}, {heading.removesuffix(', ')}",
                "table": _behind(mine, row["score"], most),
                "link": page_name(*place),
            }
        )
    return found


def page_name(probe: str, attribute: str, group: str) -> str:
    """Return where in OUT the page of all sentences about a group is."""
    return f"evidence/{slug(probe or 'probe', attribute, group)}.html"


def write_evidence(store: Store, sentences: pl.DataFrame, labels: Sequence[str]) -> None:
    """Write a page for each group: its sentences (of `read_sentences`) by classifier.

    labels: of the study, in order.
    """
    keys = wording.shortest_keys(sentences)
    for names, part in sentences.group_by("probe", "attribute", "group", maintain_order=True):
        probe, attribute, group = map(str, names)
        numbers = range(len(labels))
        counts = part.group_by([*keys, *_ITEM, "text"], maintain_order=True).agg(
            *(pl.col("n").filter(pl.col("pred") == number).sum().alias(str(number))
              for number in numbers),
            wrong=pl.col("n").filter(pl.col("pred").ne_missing(pl.col("label"))).sum(),
            runs=pl.col("n").sum(),
        )  # fmt: skip
        called = counts.with_columns(
            pl.concat_str(keys, separator=", ").alias("by"),
            said=pl.concat_str(map(str, numbers), separator=" "),
        )
        wide = called.pivot("by", index=["text", *_ITEM], values="said")
        wrong = called.group_by("item_id").agg(share=pl.col("wrong").sum() / pl.col("runs").sum())
        rows = wide.join(wrong, on="item_id").sort(
            "share", "item_id", descending=[True, False], maintain_order=True
        )
        columns: dict[str, Cell] = {**_SENTENCE, "wrong": lambda row: f"{row['share']:.0%}"}
        for name in called["by"].unique(maintain_order=True):
            columns[name] = worded(lambda text: text or "", name)
        title = f"Sentences about {group} ({attribute})" + (f", probe {probe}" if probe else "")
        shown = table(title, rows.head(_WHOLE), columns)
        *others, last = labels
        called_as = f"{', '.join(others)} and {last}"
        context = {"title": title, "shown": shown, "labels": called_as}
        page = rendered("evidence.html.j2", context)
        store.write_text(page_name(probe, attribute, group), page)


def _behind(mine: pl.DataFrame, rate: str, most: int) -> TextTable:
    """Show the sentences that count in a rate, those that the most runs counted first."""
    known = shares([rate, "accuracy"])
    share = known.get(rate, known["accuracy"])
    by = ["item_id", "text", "term", "label", "right"]
    rows = mine.group_by(by, maintain_order=True).agg(
        *counted(share),
        answer=pl.col("answer").filter(share.among & share.holds).drop_nulls().first(),
    )
    rows = rows.filter(pl.col("n_items") > 0)
    shown = rows.sort(
        pl.col("hits") / pl.col("n_items"), "item_id", descending=[True, False], maintain_order=True
    ).head(most)
    columns: dict[str, Cell] = {
        **_SENTENCE,
        wording.metric(rate).title: lambda row: f"{row['hits']} of {row['n_items']} runs",
    }
    if shown["answer"].null_count() < shown.height:
        columns["an answer"] = lambda row: wording.shortened(row["answer"] or "", 80)
    title = f"{shown.height} of its {wording.counted(rows.height, 'sentence')}, most often first"
    return table(title, shown, columns)


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
    markedness: pl.DataFrame,
    estimates: pl.DataFrame,
    redrawn: Mapping[str, str],
    *,
    level: float,
) -> list[dict[str, Any]]:
    """Arrange the effects of naming groups (`GapAnalysis.marked`), by probe and attribute.

    redrawn: what intervals of each scope resample, in words.
    """
    effects = estimates.filter(
        pl.col("condition").is_in([NEUTRAL, *_EFFECTS]), kind=KIND, statistic="difference"
    )
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(markedness)):
        part = markedness.filter(probe=probe, attribute=attribute)
        named = part.filter(pl.col("condition") != NEUTRAL)
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
                    [redrawn[scope] for scope in named["scope"].unique(maintain_order=True)]
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


def breakdowns(
    store: Store, tables: Mapping[str, pl.DataFrame], gaps: pl.DataFrame
) -> list[TextTable]:
    """Show the terms and templates of each group that lie farthest from the mean.

    Those of classifiers that cannot do their task, by `gaps`, are left out.
    """
    shown = []
    terms, templates = (able(tables[name], gaps) for name in ("by_term", "by_template"))
    if terms.height:
        rows = largest(terms, "term", k=_LARGEST)
        shown.append(_farthest("Terms farthest from the mean", "term", rows))
    if templates.height:
        rows = largest(templates, "template_id", k=_LARGEST)
        on = ["probe", "group", "template_id"]
        texts = read_items(store, rows["probe"].unique().sort().to_list(), *on[1:], "text")
        texts = texts.unique(on, keep="first", maintain_order=True)
        rows = rows.join(texts, on=on, how="left", nulls_equal=True, maintain_order="left")
        rows = rows.with_columns(sentence=pl.coalesce("text", "template_id"))
        shown.append(_farthest("Templates farthest from their mean", "sentence", rows))
    return shown


def _neutral(part: pl.DataFrame) -> Iterator[str]:
    for rate in part["score"].unique(maintain_order=True):
        rows = part.filter(score=rate, condition=NEUTRAL)
        name = f"being {wording.metric(rate).title}"
        begin = f"A neutral word in the group's place changes the rate of {name} by"
        if rows.height == 1:
            row = rows.row(0, named=True)
            verdict = "significant" if row["survives"] else row["reason"] or "not significant"
            yield f"{begin} {_estimate(row)} ({verdict})."
        elif estimates := sorted(rows["value"].drop_nulls()):
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
    value, low, high = (row[f"{effect}{end}"] for end in ("value", "low", "high"))
    return NO_ROWS if value is None else wording.interval(value, low, high)


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
