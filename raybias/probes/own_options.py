"""Read a user's own questions with options, one of which says that it cannot be known."""

from __future__ import annotations

import polars as pl

from raybias.config.card import OWN
from raybias.errors import DataError
from raybias.probes.checks import checked, column
from raybias.probes.own import TABLES, own_table
from raybias.probes.registries import probe
from raybias.schema import OPTION_ITEMS
from raybias.table_files import as_text, refuse


@probe(
    "options",
    about="your own questions with options, one of which says that it cannot be known",
    data=TABLES,
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
