"""Read a user's own CSV, TSV, JSON Lines or Parquet with the columns of config.card, or a card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias.config.card import OWN, Column, names_of
from raybias.errors import DataError
from raybias.probes.cards import is_card, own_table, read_card
from raybias.probes.checks import as_text, checked, column
from raybias.probes.published.crows_pairs import ORIGINAL, pair_table
from raybias.probes.published.questions import person_of, written
from raybias.probes.registries import probe
from raybias.schema import CONDITIONS, COREFERENCES, DECISIONS, ITEMS, OPTION_ITEMS, PAIRS, TRIPLES
from raybias.table_files import conformed, refuse

_DATA: Final = "one .csv, .tsv, .jsonl or .parquet file, or a card"


@probe("file", about="your own sentences: text, label, attribute, group", data=_DATA)
def own_items(uri: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
    """Read the items of one file (schema.ITEMS), in its order.

    Items without item_id are numbered after the file's name; without template_id, every item is a
    cluster of its own.
    """
    items = checked(own_table(uri, "label"), OWN["label"], where=uri)
    items = conformed(items, pl.Schema(ITEMS))
    return items.with_columns(pl.col("template_id").fill_null(pl.col("item_id")))


@probe(
    "pairs",
    about="your own pairs: sent_more, sent_less, bias_type; cluster, if some are alike",
    data=_DATA,
    schema=PAIRS,
)
def own_pairs(uri: str) -> pl.DataFrame:
    """Read the pairs of one file (schema.PAIRS, style "original"), in its order.

    Needs sent_more, sent_less and bias_type; direction is "stereo" by default, and pair_id a number
    after the file's name. Intervals resample the clusters. `PairWarning` counts types that
    CrowS-Pairs does not have.
    """
    return pair_table(_originals(own_table(uri, "pair")), where=uri)


@probe(
    "coreferences",
    about="your own sentences with a pronoun: pair_id, condition, text, pronoun, referent",
    data="one .csv, .tsv, .jsonl or .parquet file",
    schema=COREFERENCES,
)
def own_coreferences(uri: str) -> pl.DataFrame:
    """Read one file of sentences with a pronoun (schema.COREFERENCES), those of style "original".

    Every pair has one sentence of each condition. `wino_type` is "own" by default, and `other`
    whichever other referent of the file stands in the text.
    """
    frame = _originals(own_table(uri, "coreference"))
    items = conformed(checked(frame, OWN["coreference"], where=uri), pl.Schema(COREFERENCES))
    for name in ("pronoun", "referent", "other"):
        for row, (word, text) in enumerate(zip(items[name], items["text"], strict=True), start=1):
            if word and not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
                problem = f"{name} {word!r} is not in the text"
                raise DataError(problem, where=f"{uri} row {row}", cure="mend either")
    for (pair_id,), part in items.group_by("pair_id", maintain_order=True):
        if sorted(part["condition"]) != sorted(CONDITIONS) or part["wino_type"].n_unique() > 1:
            raise DataError(
                f"pair {pair_id!r} is {', '.join(part['condition'])} of type"
                f" {', '.join(part['wino_type'].unique(maintain_order=True))}",
                where=uri,
                cure="give each pair one pro and one anti sentence of the same type",
            )
    item_id = pl.format("{}/{}", "pair_id", "condition")
    return items.with_columns(item_id=item_id, style=pl.lit(ORIGINAL))


def _originals(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("style") == ORIGINAL) if "style" in frame.columns else frame


@probe(
    "triples",
    about="your own triples: a stereotype, its opposite and an unrelated sentence",
    data=_DATA,
    schema=TRIPLES,
)
def own_triples(uri: str) -> pl.DataFrame:
    """Read triples (schema.TRIPLES); without `task` all are of `sentences`."""
    return checked(own_table(uri, "triple"), OWN["triple"], where=uri)


@probe(
    "decisions",
    about="your own decisions about people, answered with yes or no (a card says who they are)",
    data="a card",
    schema=DECISIONS,
)
def own_decisions(uri: str) -> pl.DataFrame:
    """Read decisions (schema.DECISIONS); the favourable answer is yes unless the card says else."""
    if not is_card(uri):
        raise DataError(
            "is no card, and columns do not say which of them are people's",
            where=uri,
            cure="`raybias probes new decision` writes one",
        )
    card = read_card(uri)
    known = names_of("decision")
    people = [Column(name) for name in card.people if name not in known]
    items = checked(own_table(uri, "decision"), (*OWN["decision"], *people), where=uri)
    reference = pl.lit(written(card.reference) or None, pl.String)
    return items.with_columns(person=person_of(items.select(card.people)), reference=reference)


@probe(
    "options",
    about="your own questions with options, one of which says that it cannot be known",
    data=_DATA,
    schema=OPTION_ITEMS,
)
def own_options(uri: str) -> pl.DataFrame:
    """Read questions with options (schema.OPTION_ITEMS).

    `label`, `unknown` and `target` name an option by its place or text; `unknown` is by default the
    right option of ambiguous contexts. In place of `target`, `follows` is the option that follows
    the stereotype (the target in a negative question, another group's in others), or `named` the
    group of each option and `stereotyped` the groups of the stereotype.
    """
    items = checked(own_table(uri, "options"), OWN["options"], where=uri)
    options = items["options"]
    few = (options.list.len() < 2) | options.list.eval(pl.element().is_null()).list.any()
    cure = "give at least two, none of them empty"
    refuse(few, options, lambda n: f"question has the options {options[n].to_list()}", uri, cure)
    label = _places(items["label"], options, where=uri)
    unknown, target, follows = (
        _places(items[name], options, where=uri) if name in items.columns else None
        for name in ("unknown", "target", "follows")
    )
    refuse(label.is_null(), label, "is empty", uri, "fill it in")
    if unknown is None:
        unknown = label.set(items["context"] != "ambig", None)
        if unknown.null_count():
            raise DataError("no column 'unknown'", where=uri, cure="say which option it is")
    if "named" in items.columns:
        target = _of_groups(items["named"], column(items, "stereotyped", where=uri), options, uri)
    if follows is not None:
        # Of three options, what is neither unknown nor follows counters.
        opposite = (3 - unknown - follows).set(options.list.len() != 3, None)
        target = follows.zip_with(items["polarity"] == "neg", opposite)
    found = {"label": label, "unknown": unknown, "target": target}
    return items.with_columns(**found).select(OPTION_ITEMS.names)


def _places(values: pl.Series, options: pl.Series, *, where: str) -> pl.Series:
    """Return the place of each named option (int8), which is given by its text or place."""
    text = as_text(values, where=where).str.strip_chars()
    found = [_place(word, among) for word, among in zip(text, options.to_list(), strict=True)]
    places = pl.Series(values.name, found, pl.Int8)
    unknown = places.is_null() & text.is_not_null() & (text != "")
    cure = "write an option as it stands, or its place from 0"
    refuse(unknown, text, "is none of the options", where, cure)
    return places


def _place(word: str | None, options: list[str]) -> int | None:
    plain = [option.strip() for option in options]
    if word is None or word in plain:
        return None if word is None else plain.index(word)
    try:
        number = int(float(word))
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < len(options) else None


def _of_groups(
    named: pl.Series, stereotyped: pl.Series, options: pl.Series, where: str
) -> pl.Series:
    """Return the place of the only option of a stereotyped group (`old` in `people, old`)."""
    counts = options.list.len()
    refuse(
        named.list.len() != counts,
        named,
        lambda row: f"{counts[row]} options, but `named` has {named[row].to_list()}",
        where,
        "name the group of every option",
    )
    wanted = stereotyped.list.eval(pl.element().str.strip_chars().str.to_lowercase())
    found = []
    for groups, about in zip(named.to_list(), wanted.to_list(), strict=True):
        of = [(each or "").rpartition(",")[2].strip().lower() in about for each in groups]
        found.append(of.index(True) if sum(of) == 1 else None)
    return pl.Series("target", found, pl.Int8)
