"""Read questions, triples and decisions of any source, or a user's own: a table or a card."""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config import QuestionProbe
from raybias.errors import DataError
from raybias.probes.card_table import is_card, own_table, read_card
from raybias.probes.column_checks import (
    among,
    as_table,
    as_text,
    column,
    distinct,
    filled,
    filled_columns,
    refuse,
)
from raybias.probes.registries import question_probe, question_probes
from raybias.probes.sampling import sample_units
from raybias.probes.sources import place_of
from raybias.schema import CONTEXTS, DECISIONS, OPTION_ITEMS, POLARITIES, SENTENCE_ITEMS, TRIPLES

#: By table, the columns that say what is drawn together by a limit: within which, and as a whole.
_UNITS: Final[tuple[tuple[pa.Schema, tuple[str, ...], str], ...]] = (
    (OPTION_ITEMS, ("category",), "template_id"),
    (TRIPLES, ("domain", "task"), "term"),
    (DECISIONS, (), "decision_id"),
    (SENTENCE_ITEMS, ("axis",), "template_id"),
)


def question_items(probe: QuestionProbe, *, limit: int | None = None) -> pl.DataFrame:
    """Read the items of a question probe, in their published order.

    Parameters
    ----------
    limit: a fixed sample of whole templates, terms or decisions, of at most so many items of each
        category, domain and task, or axis; at least one.

    Raises
    ------
    DataError: data that is missing or malformed.
    """
    source, where = question_probes[probe.source], f"probe {probe.name}"
    place = place_of(probe.source, probe.data, where=where)
    items = as_table(source.items(place), source.schema, where=where)
    if limit is None:
        return items
    _, within, unit = next(each for each in _UNITS if each[0].equals(source.schema))
    return sample_units(items, limit, within=within, unit=unit, source=probe.source)


_DATA: Final = "one .csv, .tsv, .jsonl or .parquet file, or a card"
_PLACES: Final = ("label", "unknown", "target", "follows")
_ANSWERS: Final = {"favourable": "yes", "unfavourable": "no"}


@question_probe(
    "options",
    about="your own questions with options, one of which says that it cannot be known",
    data=_DATA,
    schema=OPTION_ITEMS,
)
def own_options(uri: str) -> pl.DataFrame:
    """Read questions with options (schema.OPTION_ITEMS).

    `label`, `unknown` and `target` are the place of an option, or its text. For `target` may stand
    `follows`, the option that follows the stereotype, which in a question that is not negative is
    another group's; or `named`, the group of each option, with `stereotyped`, the groups that the
    stereotype is about. Without `item_id`, questions are numbered after the file's name.

    Raises
    ------
    DataError: no such file or column, an empty cell, an unknown context or polarity, or an option
        that is not there.
    """
    frame, stem = own_table(uri, "options")
    texts = ("category", "template_id", "context", "polarity", "text", "question")
    items = filled_columns(frame, texts, where=uri)
    for name, known in (("context", CONTEXTS), ("polarity", POLARITIES)):
        among(items[name], known, where=uri, cure="map it with `codes` of a card")
    options = _lists(frame, "options", uri)
    refuse(
        (options.list.len() < 2) | options.list.eval(pl.element().is_null()).list.any(),
        lambda row: f"question has the options {options[row].to_list()}",
        where=uri,
        cure="give at least two, none of them empty",
    )
    there: list[str] = [n for n in _PLACES if n in frame.columns]
    places = {name: _places(frame[name], options, where=uri) for name in there}
    if "named" in frame.columns:
        named, about = (_lists(frame, name, uri) for name in ("named", "stereotyped"))
        places["target"] = _of_groups(named, about, options, uri)
    return (
        _with_places(items, options, places, uri)
        .with_columns(item_id=_ids(frame, stem, uri))
        .select(OPTION_ITEMS.names)
    )


def _lists(frame: pl.DataFrame, name: str, where: str) -> pl.Series:
    values = column(frame, name, where=where)
    if not isinstance(values.dtype, pl.List):
        raise DataError(
            f"{name} is {values.dtype}, not a list",
            where=where,
            cure="give a card that names the column of each",
        )
    return values.cast(pl.List(pl.String))


def _places(values: pl.Series, options: pl.Series, *, where: str) -> pl.Series:
    """Return the place of the option that each value names, by its text or its place."""
    text = as_text(values, where=where).str.strip_chars()
    row = pl.DataFrame({"text": text, "options": options}).with_row_index("row")
    found = (
        row.with_columns(place=pl.int_ranges(pl.col("options").list.len()))
        .explode("options", "place")
        .filter(pl.col("options").str.strip_chars() == pl.col("text"))
        .group_by("row")
        .agg(pl.col("place").first())
    )
    by_text = row.join(found, on="row", how="left", maintain_order="left")["place"]
    number = text.cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
    counted = number.is_between(0, options.list.len().cast(pl.Int64) - 1)
    place = by_text.fill_null(number.set(~counted.fill_null(False), None)).cast(pl.Int8)
    refuse(
        place.is_null() & text.is_not_null() & (text != ""),
        lambda row: f"{values.name} {text[row]!r} is none of the options",
        where=where,
        cure="write an option as it stands, or its place from 0",
    )
    return place


def _of_groups(
    named: pl.Series, stereotyped: pl.Series, options: pl.Series, where: str
) -> pl.Series:
    """Return the place of the one option whose group is stereotyped; null where it is not one.

    Of `people, old` the group is what stands behind the last comma.
    """
    refuse(
        named.list.len() != options.list.len(),
        lambda row: f"{options.list.len()[row]} options, but `named` has {named[row].to_list()}",
        where=where,
        cure="name the group of every option",
    )
    wanted = stereotyped.list.eval(pl.element().str.strip_chars().str.to_lowercase())
    found = []
    for groups, about in zip(named.to_list(), wanted.to_list(), strict=True):
        of = [(each or "").rpartition(",")[2].strip().lower() in about for each in groups]
        found.append(of.index(True) if sum(of) == 1 else None)
    return pl.Series("target", found, pl.Int8)


def _with_places(
    items: pl.DataFrame, options: pl.Series, places: dict[str, pl.Series], uri: str
) -> pl.DataFrame:
    """Add label, unknown and target; the unknown option is the right one of ambiguous contexts."""
    label = places["label"]
    refuse(label.is_null(), lambda row: "label is empty", where=uri, cure="fill it in")
    unknown = places.get("unknown")
    if unknown is None:
        unknown = label.set(items["context"] != "ambig", None)
        if unknown.null_count():
            raise DataError("no column 'unknown'", where=uri, cure="say which option it is")
    target = places.get("target", pl.Series([None] * len(items), dtype=pl.Int8))
    if "follows" in places:
        others = pl.DataFrame(
            {"n": options.list.len().cast(pl.Int64), "u": unknown, "f": places["follows"]}
        )
        # Of three options, what is neither unknown nor follows counters.
        opposite = others.select(
            pl.when(pl.col("n") == 3).then(3 - pl.col("u") - pl.col("f")).cast(pl.Int8)
        ).to_series()
        follows = places["follows"]
        target = follows.zip_with(items["polarity"] == "neg", opposite)
    return items.with_columns(options=options, label=label, unknown=unknown, target=target)


@question_probe(
    "triples",
    about="your own triples: a stereotype, its opposite and an unrelated sentence",
    data=_DATA,
    schema=TRIPLES,
)
def own_triples(uri: str) -> pl.DataFrame:
    """Read triples (schema.TRIPLES); without `task` all are of `sentences`.

    Raises
    ------
    DataError: no such file or column, or an empty cell.
    """
    frame, stem = own_table(uri, "triple")
    needed = ("domain", "term", "stereotype", "anti_stereotype", "unrelated")
    items = filled_columns(frame, needed, where=uri).with_columns(item_id=_ids(frame, stem, uri))
    for name, default in (("task", "sentences"), ("context", "")):
        given = frame[name] if name in frame.columns else pl.Series([default] * len(items))
        items = items.with_columns(as_text(given, where=uri).fill_null(default).alias(name))
    return items.select(TRIPLES.names)


@question_probe(
    "decisions",
    about="your own decisions about people, answered with yes or no (a card says who they are)",
    data="a card",
    schema=DECISIONS,
)
def own_decisions(uri: str) -> pl.DataFrame:
    """Read decisions (schema.DECISIONS); the favourable answer is yes unless the card says else.

    Raises
    ------
    DataError: no card, no such file or column, or an empty cell.
    """
    if not is_card(uri):
        raise DataError(
            "is no card, and columns do not say which of them are people's",
            where=uri,
            cure="`raybias probes new decision` writes one",
        )
    card = read_card(uri)
    frame, stem = own_table(uri, "decision")
    people = filled_columns(frame, card.people, where=uri)
    items = filled_columns(frame, ("decision_id", "text"), where=uri).with_columns(
        item_id=_ids(frame, stem, uri),
        person=person_of(people),
        reference=pl.lit(written(card.reference) or None, pl.String),
    )
    for name, default in _ANSWERS.items():
        given = filled(frame[name], where=uri) if name in frame.columns else pl.lit(default)
        items = items.with_columns(given.alias(name))
    return items.select(DECISIONS.names)


def person_of(people: pl.DataFrame) -> pl.Series:
    """Write the groups of each row as `age=60; gender=female`."""
    parts = [pl.format(f"{name}={{}}", pl.col(name)) for name in people.columns]
    return people.select(pl.concat_str(parts, separator="; ")).to_series()


def written(groups: dict[str, str]) -> str:
    """Write groups by attribute as `age=60; gender=female`."""
    return "; ".join(f"{name}={group}" for name, group in groups.items())


def _ids(frame: pl.DataFrame, stem: str, where: str) -> pl.Series:
    if "item_id" in frame.columns:
        return distinct(filled(frame["item_id"], where=where), where=where)
    return pl.Series("item_id", [f"{stem}/{row:05d}" for row in range(len(frame))], pl.String)
