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
from raybias.probes.checks import read_records
from raybias.schema import ITEMS, Label
from raybias.storage import Store

_SLOT: Final = re.compile(r"\{(a:)?(\w+)\}")
#: Words that end a noun phrase, or follow an adjective without any noun.
_ENDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        i a an the and or nor but that this than as if when who which
        of in on at to for from with without by over into through
        is are was were be been being am has have had having does do did
        may might can could will would shall should must also
        makes made feels took annoy living walking based well
        incorporate produce provide provided specialize assess
        actively informally primarily professionally selectively temporarily typically voluntarily
        """,
    )
)
#: Compounds that the rule would cut: nouns ending in -s inside them, or an "and".
_INSIDE: Final = frozenset(
    ("analytics", "awards", "disorders", "effects", "relations", "resources", "services")
)
_JOINED: Final = ("tool and die maker", "meeting and convention planner")
#: Nouns after which nothing belongs to the phrase.
_LAST: Final = frozenset(("person", "people"))
_NEXT_WORD: Final = re.compile(r"\s+([\w'\u2019/-]+)")


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


@dataclass(frozen=True)
class Suite:
    """How one attribute of a template probe is expanded."""

    lexicon: Callable[[Store], Lexicon]
    """Reads the phrases of every slot from the probe's folder."""
    templates: tuple[tuple[str, tuple[str, ...]], ...]
    """Template files in order, each with its slots in order."""


def capital(phrase: str) -> str:
    """Return the phrase with its first letter as a capital."""
    return phrase[:1].upper() + phrase[1:]


def fill(text: str, slot: str, phrase: str) -> str:
    """Put `phrase` into every `{slot}` of `text` and strip both ends.

    `{Slot}` capitalises the first letter alone; `{a:slot}` writes "an" before a
    vowel letter and "a" before any other.
    """

    def one(match: re.Match[str]) -> str:
        name = match[2]
        if _plain(name) != slot:
            return match[0]
        words = phrase if name == slot else capital(phrase)
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


def in_order(templates: Iterable[Template], slot: str) -> list[Slotted]:
    """List the templates that have a slot, in published order."""
    ordered = sorted(templates, key=Template.sort_key)
    return [Slotted(template, slot) for template in ordered if slot in template.slots()]


def expand(slotted: Iterable[Slotted], lexicon: Lexicon) -> Iterator[tuple[Template, Phrase, str]]:
    """Fill templates one after the other: with groups by name, then terms as listed."""
    for each in slotted:
        for phrase in sorted(lexicon[each.slot], key=lambda phrase: phrase.group):
            yield each.template, phrase, fill(each.template.text, each.slot, phrase.text)


def suite_templates(store: Store, suite: Suite) -> list[Slotted]:
    """Read every template of one attribute with its slot, in published order."""
    return [
        each
        for path, slots in suite.templates
        for templates in [read_templates(store, path)]
        for slot in slots
        for each in in_order(templates, slot)
    ]


def expand_suite(store: Store, suite: Suite, *, probe: str, attribute: str) -> pl.DataFrame:
    """Make all items of one attribute (schema.ITEMS); true duplicates are kept."""
    lexicon = suite.lexicon(store)
    filled = expand(suite_templates(store, suite), lexicon)
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
    types = pl.Schema(ITEMS)
    family = types.pop("family")
    return pl.DataFrame(rows, types, orient="row").with_columns(family=pl.lit(None, family))


def noun_phrase(after: str) -> str:
    """Return the nouns that begin `after`, the text behind an adjective; empty if none.

    No tagger: a list of the words that end one, and "-s" verbs after a singular subject; checked
    against every template of Amazon, Regard and NS-Prompts.

    >>> noun_phrase(" truck driver earns a living.")
    'truck driver'
    >>> noun_phrase(" and cool.")
    ''
    """
    for compound in _JOINED:
        if after.startswith(f" {compound} "):
            return compound
    words: list[str] = []
    place = 0
    while match := _NEXT_WORD.match(after, place):
        word = match[1].lower()
        singular_verb = word.endswith("s") and not word.endswith("ss") and word not in _INSIDE
        if word.partition("'")[0] in _ENDS or (words and singular_verb):
            break
        words.append(match[1])
        place = match.end()
        if word in _LAST:
            break
    return " ".join(words)


def _plain(slot: str) -> str:
    return slot[:1].lower() + slot[1:]
