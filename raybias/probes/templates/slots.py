"""Fill the slots of templates with terms: a probe's items in their published order.

The rules are those of the Amazon templates (Tian2023 section 3; TACL 2021), which Regard and
NS-Prompts follow. A `Suite` lists the files and terms of an attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import polars_schema, read_records
from raybias.schema import ITEMS, Label
from raybias.storage import Store

_SLOT: Final = re.compile(r"\{(a:)?(\w+)\}")


@dataclass(frozen=True)
class Template:
    """One sentence with a slot; `id` is the file's stem and the row in it, from 0."""

    id: str
    text: str
    label: int

    def slots(self) -> set[str]:
        """Return the names of its slots, capitals and articles aside."""
        return {_plain(match[2]) for match in _SLOT.finditer(self.text)}

    def sort_key(self) -> str:
        """Return the key of the published order: the text with a slot written `@slot@`."""
        return _SLOT.sub(lambda match: f"@{match[0][1:-1]}@", self.text)


@dataclass(frozen=True)
class Phrase:
    """Words that fill a slot, the group they stand for and the listed term in them."""

    group: str
    text: str
    term: str


Lexicon = Mapping[str, Sequence[Phrase]]


@dataclass(frozen=True)
class Slotted:
    """A template and the slot in it that group terms fill."""

    template: Template
    slot: str


@dataclass(frozen=True, kw_only=True)
class Suite:
    """How one attribute of a template probe is expanded."""

    lexicon: Callable[[Store], Lexicon]
    """Reads the phrases of every slot from the probe's folder."""
    templates: tuple[tuple[str, tuple[str, ...]], ...]
    """Template files in order, each with its slots in order."""


def fill(text: str, slot: str, phrase: str) -> str:
    """Put `phrase` into every `{slot}` of `text` and strip both ends.

    `{Slot}` capitalises the first letter alone; `{a:slot}` writes "an" before a
    vowel letter and "a" before any other.
    """

    def one(match: re.Match[str]) -> str:
        name = match[2]
        if _plain(name) != slot:
            return match[0]
        words = phrase if name == slot else phrase[:1].upper() + phrase[1:]
        if not match[1]:
            return words
        return f"{'an' if words[:1].lower() in tuple('aeiou') else 'a'} {words}"

    return _SLOT.sub(one, text).strip()


def read_templates(store: Store, path: str) -> list[Template]:
    """Read the templates of one file (columns TEMPLATE and SENT) in file order."""
    stem = path.rpartition("/")[2].removesuffix(".csv")
    records = read_records(store, path, columns=("TEMPLATE", "SENT"))
    labels = {str(label.value): label.value for label in Label}
    for row, record in enumerate(records, start=1):
        if record["SENT"] not in labels:
            raise DataError(
                f"SENT is {record['SENT']!r}, not 0, 1 or 2",
                where=f"{store.uri_of(path)} row {row}",
            )
    return [
        Template(f"{stem}-{row:03d}", record["TEMPLATE"], labels[record["SENT"]])
        for row, record in enumerate(records)
    ]


def expand(
    templates: Iterable[Template], slot: str, phrases: Sequence[Phrase]
) -> Iterator[tuple[Template, Phrase, str]]:
    """Fill one slot: templates in published order, then groups by name, then terms as listed."""
    by_group = sorted(phrases, key=lambda phrase: phrase.group)
    for template in sorted(templates, key=Template.sort_key):
        if slot in template.slots():
            for phrase in by_group:
                yield template, phrase, fill(template.text, slot, phrase.text)


def suite_templates(store: Store, suite: Suite) -> list[Slotted]:
    """Read every template of one attribute with its slot, in published order."""
    return [
        Slotted(template, slot)
        for path, slots in suite.templates
        for templates in [sorted(read_templates(store, path), key=Template.sort_key)]
        for slot in slots
        for template in templates
        if slot in template.slots()
    ]


def expand_suite(store: Store, suite: Suite, *, probe: str, attribute: str) -> pl.DataFrame:
    """Make all items of one attribute (schema.ITEMS); true duplicates are kept.

    Raises
    ------
    DataError: a template or term file is missing or malformed.
    """
    lexicon = suite.lexicon(store)
    filled: list[tuple[Template, Phrase, str]] = []
    for path, slots in suite.templates:
        templates = read_templates(store, path)
        for slot in slots:
            filled += expand(templates, slot, lexicon[slot])
    rows = [
        (
            f"{probe}/{attribute}/{number:05d}",
            template.label,
            attribute,
            phrase.group,
            text,
            template.id,
            phrase.term,
        )
        for number, (template, phrase, text) in enumerate(filled)
    ]
    return items_frame(rows)


def items_frame(rows: Sequence[tuple[object, ...]]) -> pl.DataFrame:
    """Make a frame of rows in the order of schema.ITEMS, whose templates have no `family`."""
    types = polars_schema(ITEMS)
    family = types.pop("family")
    return pl.DataFrame(rows, types, orient="row").with_columns(family=pl.lit(None, family))


def _plain(slot: str) -> str:
    return slot[:1].lower() + slot[1:]
