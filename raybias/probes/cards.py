"""Read tables of one's own and cards that map their columns, and write a commented card."""

from __future__ import annotations

import ast
import re
import textwrap
from importlib import resources
from typing import Final

import polars as pl

from raybias.config import Study, parse_yaml, to_yaml
from raybias.config.card import SEVERAL, Card, CardKind, Validity, names_of, parse_card
from raybias.errors import ConfigError, DataError
from raybias.probes.checks import among, as_text, column
from raybias.probes.published.training import load_splits
from raybias.storage import split_uri
from raybias.table_files import read_frame, refuse

#: By kind of card, the source of a study that reads it.
SOURCES: Final[dict[CardKind, str]] = {
    "label": "file",
    "pair": "pairs",
    "triple": "triples",
    "options": "options",
    "decision": "decisions",
}
_WIDTH: Final = 96
#: Written, though they are empty, so that they are filled in.
_ASKED: Final = ("facets",)
#: Not of a file that lies beside the card.
_OF_HUB: Final = ("hub", "revision", "subset", "split")


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
    for probe in (*study.probes, *study.pairs, *study.questions):
        if probe.data is not None and is_card(probe.data):
            store, name = split_uri(probe.data)
            found[probe.name] = store.read_text(name)
    return found


def own_table(uri: str, kind: str) -> pl.DataFrame:
    """Read a table, or the table of a card of that kind; `ConfigError` for a wrong card."""
    if not is_card(uri):
        return read_frame(*split_uri(uri))
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
    if frame.is_empty():
        raise DataError("holds no rows", where=where)
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
        elif name in _OF_HUB:
            parts.append(_comment(f"{about} ({name}: ..)"))
    return "\n".join(parts)


def _raw(card: Card, uri: str) -> tuple[pl.DataFrame, str]:
    if card.hub is not None:
        loaded = load_splits(card.hub, [card.split], config=card.subset, revision=card.revision)
        return pl.DataFrame(loaded[card.split].with_format("arrow")[:]), f"data set {card.hub}"
    store, name = split_uri(uri)[0], str(card.file)
    if "://" in name or name.startswith("/"):
        store, name = split_uri(name)
    return read_frame(store, name), store.uri_of(name)


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

    def written(text: str | None) -> list[str]:
        found = ast.literal_eval(text or "")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ValueError("is no list of texts")
        return found

    kind = pl.List(pl.String)
    try:
        if isinstance(values.dtype, pl.List):
            return values.cast(kind)
        lists = {text: written(text) for text in values.cast(pl.String).unique()}
        return pl.Series(values.name, [lists[text] for text in values.cast(pl.String)], kind)
    except (
        *(pl.exceptions.PolarsError, ValueError, TypeError),
        *(SyntaxError, RecursionError, MemoryError),
    ) as error:
        raise DataError(
            f"{values.name} is {values.dtype}, not a list of {name}",
            where=where,
            cure=f"name the column of each: {name}: [a, b, c]",
        ) from error


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _WIDTH))
