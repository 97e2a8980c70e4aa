"""Read a user's own CSV, TSV, JSON Lines or Parquet, or a card that maps its columns.

The columns are those of `config.card`. A commented example of a card is written here too.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from importlib import resources
from typing import Final

import polars as pl
from pydantic import TypeAdapter

from raybias.columns import CONDITIONS
from raybias.config import Study, parse_yaml, to_yaml
from raybias.config.card import OWN, SEVERAL, Card, CardKind, Column, Validity, names_of, parse_card
from raybias.errors import ConfigError, DataError
from raybias.probes.checks import (
    among,
    checked,
    coding_said,
    column,
    filled,
    label_spellings,
    sentiment_coding,
)
from raybias.probes.published.crows_pairs import ORIGINAL, pair_table
from raybias.probes.published.questions import person_of, written
from raybias.probes.published.training import load_splits
from raybias.probes.registries import probe
from raybias.probes.tables import check_columns, read_table
from raybias.schema import COREFERENCES, DECISIONS, ITEMS, LABELS, PAIRS, TRIPLES
from raybias.storage import split_uri
from raybias.table_files import as_text, conformed, match_columns, refuse

#: What the `data` of a source of tables is.
TABLES: Final = "one .csv, .tsv, .jsonl or .parquet file, a folder of `save_to_disk`, or a card"
#: By kind of card, the source of a study that reads it.
SOURCES: Final[dict[CardKind, str]] = {
    "label": "file",
    "pair": "pairs",
    "triple": "triples",
    "options": "options",
    "decision": "decisions",
}
_LIST: Final = TypeAdapter(list[str], config={"strict": True})
_WIDTH: Final = 96
#: Most labels of a file that writes them as numbers from 0.
_MOST_NUMBERED: Final = 1000
#: Written, though they are empty, so that they are filled in.
_ASKED: Final = ("facets",)
#: Shown as a comment only: keys of data sets of the hub, mapped values and labels of one's own.
_OPTIONAL: Final = ("hub", "revision", "subset", "split", "codes", "labels", "favourable")


@probe("file", about="your own sentences: text, label, attribute, group", data=TABLES, labels=None)
def own_items(
    uri: str, attributes: Sequence[str] | None = None, *, labels: Sequence[str] = LABELS
) -> pl.DataFrame:
    """Read the items of one file (schema.ITEMS), in its order.

    Items without item_id are numbered after the file's name; without template_id, every item is a
    cluster of its own.

    labels: of the study, in order.
    """
    items = checked(own_table(uri, "label"), OWN["label"], where=uri, labels=labels)
    items = conformed(items, pl.Schema(ITEMS))
    return items.with_columns(pl.col("template_id").fill_null(pl.col("item_id")))


@probe(
    "pairs",
    about="your own pairs: sent_more, sent_less, bias_type; cluster, if some are alike",
    data=TABLES,
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
    data=TABLES,
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


def is_card(uri: str) -> bool:
    """Tell whether a file's name is that of a card."""
    return uri.endswith((".yaml", ".yml"))


def read_card(uri: str) -> Card:
    """Read a card; `ConfigError` for unknown or wrong keys, `DataError` where there is no file."""
    store, name = split_uri(uri)
    return parse_card(store.read_text(name), where=uri)


def card_texts(study: Study) -> dict[str, str]:
    """Read the cards of a study's probes, by the probe's name."""
    found = {}
    for each in (*study.probes, *study.pairs, *study.questions):
        if each.data is not None and is_card(each.data):
            store, name = split_uri(each.data)
            found[each.name] = store.read_text(name)
    return found


def own_table(uri: str, kind: str) -> pl.DataFrame:
    """Read a table, or the table of a card of that kind; `ConfigError` for a wrong card."""
    if not is_card(uri):
        frame = read_table(uri)
        check_columns(frame, kind, uri)
        return frame
    card = read_card(uri)
    if card.kind != kind:
        raise ConfigError(
            f"is of kind {card.kind}",
            where=uri,
            cure=f"read it with source {SOURCES[card.kind]}",
        )
    return card_table(card, uri)


def card_table(card: Card, uri: str) -> pl.DataFrame:
    """Read the table of a card in our columns, and those of `people` under their own names."""
    frame, where = _raw(card, uri)
    mapped = [place.partition(".")[0] for places in card.columns.values() for place in places]
    known = [name for name in names_of(card.kind) if name not in card.columns]
    frame = frame.rename(match_columns(frame.columns, known, where, taken=[*mapped, *card.parts]))
    found: dict[str, pl.Series] = {}
    for name, pattern in card.parts.items():
        found |= _parts(_at(frame, name, where), pattern, where)
    needed = names_of(card.kind, needed=True)
    for name in (*names_of(card.kind), *card.people):
        if name in card.values:
            found[name] = pl.Series(name, [card.values[name]]).new_from_index(0, len(frame))
        elif name in SEVERAL and (name in needed or name in (*card.columns, *frame.columns)):
            found[name] = _several(card, name, frame, where)
        elif name in card.columns:
            found[name] = _at(frame, card.columns[name][0], where)
        elif name in found:
            continue
        elif name in frame.columns or name in needed or name in card.people:
            found[name] = column(frame, name, where=where)
    for name, codes in card.codes.items():
        if name not in found:
            raise DataError(f"codes are of {name!r}, which is no column", where=uri)
        # Other values are refused, since they may mean anything.
        text = as_text(found[name], where=where)
        found[name] = text.replace_strict(codes, default=None, return_dtype=pl.String)
        cure = f"codes are of {', '.join(codes)}; add it to the card"
        refuse(found[name].is_null() & text.is_not_null(), text, "has no code", where, cure)
    table = pl.DataFrame({name: values.alias(name) for name, values in found.items()})
    checked = ("group",) if card.kind == "label" else card.people
    for name in checked if card.groups else ():
        cure = "add it to `groups` of the card, or take its rows out"
        among(as_text(table[name], where=where), [*card.groups], where=where, cure=cure)
    return table


def _raw(card: Card, uri: str) -> tuple[pl.DataFrame, str]:
    if card.hub is not None:
        loaded = load_splits(card.hub, [card.split], config=card.subset, revision=card.revision)
        return pl.DataFrame(loaded[card.split].with_format("arrow")[:]), f"data set {card.hub}"
    store, name = split_uri(uri)[0], str(card.file)
    if "://" in name or name.startswith("/"):
        store, name = split_uri(name)
    return read_table(store.uri_of(name)), store.uri_of(name)


def _at(frame: pl.DataFrame, place: str, where: str) -> pl.Series:
    """Return a column, or a field of one (`a.b`)."""
    if place in frame.columns or "." not in place:
        return column(frame, place, where=where)
    name, *fields = place.split(".")
    values = column(frame, name, where=where)
    for field in fields:
        if not isinstance(values.dtype, pl.Struct) or field not in values.struct.fields:
            raise DataError(f"{name} has no field {field!r}", where=where, cure="mend the card")
        values, name = values.struct.field(field), f"{name}.{field}"
    return values


def _parts(values: pl.Series, pattern: str, where: str) -> dict[str, pl.Series]:
    """Extract several of our columns from the texts of one."""
    text = as_text(values, where=where)
    try:
        # Polars' expressions take linear time, whatever the pattern.
        taken = text.str.extract_groups(f"^(?:{pattern})$").struct.unnest()
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"parts.{values.name} cannot be matched ({error})", where=where, cure="write it plainer"
        ) from error
    parts = {name: taken[name] for name in re.compile(pattern).groupindex}
    unmatched = next(iter(parts.values())).is_null()
    refuse(unmatched, text, f"does not match {pattern!r} of `parts`", where, "mend the expression")
    return parts


def _several(card: Card, name: str, frame: pl.DataFrame, where: str) -> pl.Series:
    """Return the several values of a row as a list of texts; of lists in each column, the last."""
    places = card.columns.get(name, (name,))
    if len(places) == 1:
        return _as_list(_at(frame, places[0], where), name, where)
    found = [_at(frame, place, where) for place in places]
    texts = [
        as_text(each.list.last() if isinstance(each.dtype, pl.List) else each, where=where)
        for each in found
    ]
    joined = pl.DataFrame({str(n): text for n, text in enumerate(texts)})
    return joined.select(pl.concat_list(pl.all())).to_series()


def _as_list(values: pl.Series, name: str, where: str) -> pl.Series:
    """Cast lists of texts, or lists written as text in JSON or Python."""
    kind = pl.List(pl.String)
    try:
        if isinstance(values.dtype, pl.List):
            return values.cast(kind)
        texts = values.cast(pl.String).fill_null("")
        lists = {text: _LIST.validate_python(ast.literal_eval(text)) for text in texts.unique()}
        return pl.Series(values.name, [lists[text] for text in texts], kind)
    except (
        *(pl.exceptions.PolarsError, ValueError, TypeError),
        *(SyntaxError, RecursionError, MemoryError),
    ) as error:
        raise DataError(
            f"{values.name} is {values.dtype}, not a list of {name}",
            where=where,
            cure=f"name the column of each: {name}: [a, b, c]",
        ) from error


def held_labels(uri: str) -> tuple[str, ...]:
    """Return the labels of a user's own sentences: a card's, those of sentiment, or its words.

    Words are in order of their first row. Numbers above 2 are named `label 0`, `label 1`, and so
    on, since a file does not say what they mean.
    """
    if is_card(uri) and (declared := read_card(uri).labels):
        return declared
    words = _label_words(uri)
    if {word.lower() for word in words} <= {*label_spellings(LABELS), "-1"}:
        return LABELS
    if all(word.isdecimal() and word.isascii() for word in words):
        most = max(map(int, words))
        if most < _MOST_NUMBERED:
            return tuple(f"label {number}" for number in range(most + 1))
    by_word = {word.lower(): word for word in reversed(words)}
    return tuple(by_word[word] for word in dict.fromkeys(map(str.lower, words)))


def numbers_said(uri: str) -> str:
    """Say how labels of sentiment that a file writes as numbers are read; empty without numbers."""
    coding = sentiment_coding(_label_words(uri), where=uri)
    return f"; its labels are read as {coding_said(coding)}" if coding else ""


def _label_words(uri: str) -> list[str]:
    """List the distinct labels of a user's own sentences as written, in order of their rows."""
    values = filled(column(own_table(uri, "label"), "label", where=uri), where=uri)
    return values.str.strip_chars().unique(maintain_order=True).to_list()


def commented_card(kind: str) -> str:
    """Write an example of a card, each key with a comment; `ConfigError` for an unknown kind."""
    examples = parse_yaml(
        resources.files("raybias").joinpath("assets/cards.yaml").read_text("utf-8")
    )
    if kind not in examples:
        raise ConfigError(f"no kind of probe {kind!r}", cure=f"choose from {', '.join(examples)}")
    needed, others = (", ".join(names_of(kind, needed=needed)) for needed in (True, False))
    about = f"A probe of one's own. Its file needs the columns {needed}; it may have {others}."
    parts = [_comment(about)]
    example = {"kind": kind, **examples[kind]}
    for name, field in Card.model_fields.items():
        about = str(field.description)
        if name == "validity":
            fields = Validity.model_fields.items()
            asked = (_comment(str(each.description)) + f"{key}: ''\n" for key, each in fields)
            parts.append(f"{_comment(about)}{name}:\n" + textwrap.indent("".join(asked), "  "))
        elif name in example or name in _ASKED:
            given = to_yaml({name: example.get(name, [])}, width=_WIDTH)
            parts.append(_comment(about) + given)
        elif name in _OPTIONAL and (kind == "label" or name not in ("labels", "favourable")):
            parts.append(_comment(f"{about} ({name}: ..)"))
    return "\n".join(parts)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _WIDTH))
