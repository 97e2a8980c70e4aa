"""Show the sentences behind each gap on its page, and all of each group in OUT/evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.report import wording
from raybias.report.outs import prediction_files, read_items
from raybias.report.rendering import rendered, slug
from raybias.report.sentences import ranked
from raybias.report.table import Cell, TextTable, table, worded
from raybias.stats.metric import counted, shares
from raybias.storage import Store

#: Rows that the folds of a page have together, and the fewest and most of one.
_ROWS: Final = 900
_FEWEST: Final = 5
_MOST: Final = 25
#: Most sentences on a page of OUT/evidence; of more, those labelled wrong most often.
_WHOLE: Final = 4000
_ITEM: Final = ("probe", "attribute", "group", "template_id", "term", "item_id", "label")
_CLASSIFIER: Final = ("model", "method", "dataset", "style")
#: What a sentence is.
_SENTENCE: Final[Mapping[str, Cell]] = {
    "sentence": "text",
    "word": lambda row: row["term"] or "",
    "right label": lambda row: schema.LABELS[row["label"]],
}


def read_sentences(store: Store) -> pl.DataFrame:
    """Count how many runs of an OUT gave each sentence each label.

    Gives the keys of a classifier, `_ITEM`, `pred`, `n`, `answer` (one that was given) and `text`,
    from OUT/items or else from template and word.
    """
    counts = stats.item_counts(prediction_files(store))
    texts = read_items(store, counts["probe"].unique().to_list(), "item_id", "text")
    known = texts.unique(["probe", "item_id"], keep="first", maintain_order=True)
    joined = counts.join(known, on=["probe", "item_id"], how="left", maintain_order="left")
    # Of a single row polars takes no null as a replacement.
    word = pl.col("term").fill_null("")
    filled = pl.when(pl.col("term").is_not_null()).then(
        pl.col("template_id").str.replace_all("{term}", word, literal=True)
    )
    return joined.with_columns(text=pl.coalesce("text", filled, "item_id"))


def evidence(
    gaps: pl.DataFrame, sentences: pl.DataFrame
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Gather the sentences behind each gap that survives."""
    parts = [one for whole in ranked(gaps)
             for one in whole.partition_by("probe", maintain_order=True)]  # fmt: skip
    most = min(_MOST, max(_FEWEST, _ROWS // max(1, len(parts))))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for part in parts:
        row = part.row(0, named=True)
        place = row["probe"], row["attribute"], row["group"]
        about = sentences.filter(probe=place[0], attribute=place[1], group=place[2])
        mine = about.join(part, on=_CLASSIFIER, how="semi", nulls_equal=True)
        heading = wording.heading(row["score"], row["value"]).lower()
        found.setdefault(place[:2], []).append(
            {
                "title": f"{wording.spaced(row['group'])}, {heading}",
                "table": _behind(mine, row["score"], most),
                "link": page_name(*place),
            }
        )
    return found


def page_name(probe: str, attribute: str, group: str) -> str:
    """Return where in OUT the page of all sentences about a group is."""
    return f"evidence/{slug(probe or 'probe', attribute, group)}.html"


def write_evidence(store: Store, sentences: pl.DataFrame) -> None:
    """Write a page for each group: its sentences (of `read_sentences`) by classifier."""
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
        columns: dict[str, Cell] = {**_SENTENCE, "wrong": lambda row: f"{row['share']:.0%}"}
        for name in called["by"].unique(maintain_order=True):
            columns[name] = worded(lambda text: text or "", name)
        title = f"Sentences about {group} ({attribute})" + (f", probe {probe}" if probe else "")
        shown = table(title, rows.head(_WHOLE), columns)
        page = rendered("evidence.html.j2", {"title": title, "shown": shown})
        store.write_text(page_name(probe, attribute, group), page)


def _behind(mine: pl.DataFrame, rate: str, most: int) -> TextTable:
    """Show the sentences that count in a rate, those that the most runs counted first."""
    known = shares([rate, "accuracy"])
    share = known.get(rate, known["accuracy"])
    by = ["item_id", "text", "term", "label"]
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
