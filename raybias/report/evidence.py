"""The sentences behind each gap: which were labelled how, by how many runs.

A page shows those that a gap rests on most; OUT/evidence has a page for each group with all of them
and every classifier's labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.report import wording
from raybias.report.outs import item_texts
from raybias.report.rendering import rendered, slug
from raybias.report.sentences import ranked
from raybias.report.table import TextTable, table, worded
from raybias.stats.metric import counted, shares
from raybias.storage import Store

#: Rows that the folds of a page have together, and the fewest and most of one.
_ROWS: Final = 900
_FEWEST: Final = 5
_MOST: Final = 25
#: Words and templates that a fold names.
_NAMED: Final = 4
#: Most sentences on a page of OUT/evidence; of more, those labelled wrong most often.
_WHOLE: Final = 4000
_ITEM: Final = ("probe", "attribute", "group", "template_id", "term", "item_id", "label")
_CLASSIFIER: Final = ("model", "method", "dataset", "style")


@dataclass(frozen=True)
class Evidence:
    """What one gap rests on."""

    title: str
    tables: list[TextTable]
    link: str
    """The page of all sentences about the group, from OUT."""
    n: int


def read_sentences(files: Sequence[stats.Source]) -> pl.DataFrame:
    """Count how many runs gave each sentence each label.

    Parameters
    ----------
    files: of predictions. Texts are those of the OUT that they are in, or else put together from
        template and word.

    Returns
    -------
    The keys of a classifier, `_ITEM`, `pred`, `n`, `answer` (one that was given) and `text`.
    """
    counts = stats.item_counts(files)
    probes = counts["probe"].unique().to_list()
    stores = {file.store.uri: file.store for file in files}
    texts = pl.concat([item_texts(store, probes) for store in stores.values()])
    known = texts.unique(["probe", "item_id"], keep="first", maintain_order=True)
    joined = counts.join(known, on=["probe", "item_id"], how="left", maintain_order="left")
    # Of a single row polars takes no null as a replacement.
    word = pl.col("term").fill_null("")
    filled = pl.when(pl.col("term").is_not_null()).then(
        pl.col("template_id").str.replace_all("{term}", word, literal=True)
    )
    return joined.with_columns(text=pl.coalesce("text", filled, "item_id"))


def evidence(
    gaps: pl.DataFrame, sentences: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> dict[tuple[str, str], list[Evidence]]:
    """Gather the sentences, words and templates of each gap that survives, by probe and attribute.

    Parameters
    ----------
    gaps: one row each.
    sentences: of `read_sentences`.
    tables: `by_term` and `by_template`.
    """
    parts = [
        part for whole in ranked(gaps) for part in whole.partition_by("probe", maintain_order=True)
    ]
    most = min(_MOST, max(_FEWEST, _ROWS // max(1, len(parts))))
    found: dict[tuple[str, str], list[Evidence]] = {}
    for part in parts:
        row = part.row(0, named=True)
        about = sentences.filter(probe=row["probe"], attribute=row["attribute"], group=row["group"])
        mine = about.join(part, on=_CLASSIFIER, how="semi", nulls_equal=True)
        shown, n = _behind(mine, row["score"], most)
        drivers = [
            _drivers(tables[name], part, column, title)
            for name, column, title in (
                ("by_term", "term", "Words farthest from the average"),
                ("by_template", "template_id", "Templates farthest from their average"),
            )
        ]
        title = (
            f"{wording.spaced(row['group'])}, {wording.heading(row['score'], row['value']).lower()}"
        )
        link = page_name(row["probe"], row["attribute"], row["group"])
        each = Evidence(title, [one for one in (shown, *drivers) if one.rows], link, n)
        found.setdefault((row["probe"], row["attribute"]), []).append(each)
    return found


def page_name(probe: str, attribute: str, group: str) -> str:
    """Return where in OUT the page of all sentences about a group is."""
    return f"evidence/{slug(probe or 'probe', attribute, group)}.html"


def _known(text: str | None) -> str:
    return text or ""


def evidence_pages(sentences: pl.DataFrame) -> Iterator[tuple[str, str, TextTable]]:
    """Yield the file, title and table of each group's sentences, a column per classifier."""
    keys = wording.shortest_keys(sentences)
    for names, part in sentences.group_by("probe", "attribute", "group", maintain_order=True):
        probe, attribute, group = map(str, names)
        labels = part.group_by([*keys, *_ITEM, "text"], maintain_order=True).agg(
            *(pl.col("n").filter(pl.col("pred") == label).sum().alias(name)
              for label, name in enumerate(schema.LABELS)),
            wrong=pl.col("n").filter(pl.col("pred").ne_missing(pl.col("label"))).sum(),
            runs=pl.col("n").sum(),
        )  # fmt: skip
        called = labels.with_columns(
            pl.concat_str(keys, separator=", ").alias("by"),
            said=pl.concat_str(schema.LABELS, separator=" "),
        )
        wide = called.pivot("by", index=["text", *_ITEM], values="said")
        wrong = called.group_by("item_id").agg(share=pl.col("wrong").sum() / pl.col("runs").sum())
        rows = wide.join(wrong, on="item_id").sort(
            "share", "item_id", descending=[True, False], maintain_order=True
        )
        columns: dict[str, Any] = {
            "sentence": "text",
            "word": worded(_known, "term"),
            "right label": lambda row: schema.LABELS[row["label"]],
            "wrong": lambda row: f"{row['share']:.0%}",
        }
        for name in called["by"].unique(maintain_order=True):
            columns[name] = worded(_known, name)
        title = f"Sentences about {group} ({attribute})" + (f", probe {probe}" if probe else "")
        yield page_name(probe, attribute, group), title, table(title, rows.head(_WHOLE), columns)


def _behind(mine: pl.DataFrame, rate: str, most: int) -> tuple[TextTable, int]:
    """Show the sentences that count in a rate, those that the most runs counted first."""
    share = shares([rate]).get(rate)
    if share is None:
        share = shares(["accuracy"])["accuracy"]
    by = ["item_id", "text", "term", "label"]
    rows = mine.group_by(by, maintain_order=True).agg(
        *counted(share),
        answer=pl.col("answer").filter(share.among & share.holds).drop_nulls().first(),
    )
    rows = rows.filter(pl.col("n_items") > 0)
    shown = rows.sort(
        pl.col("hits") / pl.col("n_items"), "item_id", descending=[True, False], maintain_order=True
    ).head(most)
    columns: dict[str, Any] = {
        "sentence": "text",
        "word": worded(_known, "term"),
        "right label": lambda row: schema.LABELS[row["label"]],
        wording.rate_title(rate): lambda row: f"{row['hits']} of {row['n_items']} runs",
    }
    if shown["answer"].null_count() < shown.height:
        columns["an answer"] = lambda row: wording.shortened(row["answer"] or "", 80)
    title = f"{shown.height} of its {wording.counted(rows.height, 'sentence')}, most often first"
    return table(title, shown, columns), rows.height


def _drivers(source: pl.DataFrame, part: pl.DataFrame, column: str, title: str) -> TextTable:
    """Show the words or templates whose own gap is largest in the gap's direction."""
    by = [*schema.KEYS, "attribute", "score", "group"]
    mine = source.join(part.select(by), on=by, how="semi", nulls_equal=True)
    sign = 1 if part["value"][0] > 0 else -1
    rows = (
        mine.group_by(column, maintain_order=True)
        .agg(pl.col("value", "rate").mean())
        .sort(sign * pl.col("value"), column, descending=[True, False], nulls_last=True)
        .head(_NAMED)
    )
    columns: dict[str, Any] = {
        column.removesuffix("_id"): column,
        "gap": worded(wording.signed, "value"),
        "its rate": worded(wording.number, "rate"),
    }
    return table(title, rows, columns)


def write_evidence(store: Store, sentences: pl.DataFrame) -> None:
    """Write a page for each group: its sentences, and the labels that each classifier gave them.

    Parameters
    ----------
    sentences: of `read_sentences`.

    Raises
    ------
    OutputError: the store cannot be written.
    """
    for name, title, shown in evidence_pages(sentences):
        store.write_text(name, rendered("evidence.html.j2", {"title": title, "shown": shown}))
