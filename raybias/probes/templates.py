"""Fill the slots of templates with terms, or leave the terms out.

The rules are those of the Amazon templates (Tian2023 section 3; TACL 2021). Since naming any group
may move a classifier, the *unmarked* form of a template leaves the term out and keeps the grammar,
and the *placeholder* form puts a neutral word there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import polars as pl

from raybias.errors import ConfigError
from raybias.probes.checks import among, column
from raybias.schema import ITEMS, PLACEHOLDER, UNMARKED, Label
from raybias.storage import Store
from raybias.table_files import read_frame

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
#: Nouns that end the noun phrase.
_LAST: Final = frozenset(("person", "people"))
_NEXT_WORD: Final = re.compile(r"\s+([\w'\u2019/-]+)")

#: Slots such as {disability_friend}: the noun that a disability is put around.
NOUN_SLOTS: Final = {
    **{f"disability_{noun}": noun for noun in ("people", "friend", "athletes", "student", "liar")},
    **{
        f"identity_{noun}": noun
        for noun in (
            *("writer", "researcher", "individuals", "people", "folk", "activist"),
            *("writers", "lawyer", "students", "character"),
        )
    },
}
#: Slots that take "<adjective> person" or a noun for a person; without the term, "person".
_PERSON_SLOTS: Final = ("identity_np", "disability_np", "person")

#: Templates whose unmarked form the rule would make, and should not: `of descent` needs an
#: adjective, a count noun would stand without an article, or the sentence speaks of the term.
_EXCEPTIONS: Final = re.compile(
    r"\bof \{\w+\} descent\b|\bby \{\w+\} community house\b|\bhas \{a:\w+\} voice\b"
    r"|\bnon-practicing \{\w+\}|\bas \{a:\w+\} but strayed from those beliefs\b"
)


@dataclass(frozen=True)
class Template:
    """One sentence and the slot in it that group terms fill.

    `id` is the file's stem and the row in it, from 0.
    """

    id: str
    text: str
    label: int
    slot: str = ""


@dataclass(frozen=True)
class Phrase:
    """Words that fill a slot, the group they stand for and the listed term in them."""

    group: str
    text: str
    term: str


Lexicon = Mapping[str, Sequence[Phrase]]


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
    """Put `phrase` into every `{slot}`, capitalised for `{Slot}`, behind a or an for `{a:slot}`."""

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
    stem, where = path.rpartition("/")[2].removesuffix(".csv"), store.uri_of(path)
    frame = read_frame(store, path)
    texts, labels = (column(frame, name, where=where) for name in ("TEMPLATE", "SENT"))
    among(labels, [str(label.value) for label in Label], where=where, cure="mend it")
    return [
        Template(f"{stem}-{row:03d}", text or "", int(label))
        for row, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def suite_templates(store: Store, suite: Suite) -> list[Template]:
    """Read every template of one attribute with its slot, in published order."""
    found = []
    for path, slots in suite.templates:
        # Sorted as the authors did, who wrote a slot as `@slot@`.
        templates = sorted(
            read_templates(store, path), key=lambda each: _SLOT.sub(r"@\1\2@", each.text)
        )
        for slot in slots:
            found += [
                replace(each, slot=slot)
                for each in templates
                if slot in (_plain(match[2]) for match in _SLOT.finditer(each.text))
            ]
    return found


def expand_suite(store: Store, suite: Suite, *, probe: str, attribute: str) -> pl.DataFrame:
    """Make all items of one attribute (schema.ITEMS); true duplicates are kept.

    Templates are filled one after the other: with groups by name, then terms as listed.
    """
    lexicon = suite.lexicon(store)
    filled = (
        (each, phrase)
        for each in suite_templates(store, suite)
        for phrase in sorted(lexicon[each.slot], key=attrgetter("group"))
    )
    rows = [
        (f"{probe}/{attribute}/{number:05d}", each.label, attribute, phrase.group,
         fill(each.text, each.slot, phrase.text), each.id, phrase.term)
        for number, (each, phrase) in enumerate(filled)
    ]  # fmt: skip
    return items_frame(rows)


def items_frame(rows: Iterable[tuple[object, ...]]) -> pl.DataFrame:
    """Make a frame of rows in the order of schema.ITEMS, whose templates have no `family`."""
    return pl.DataFrame([(*row, None) for row in rows], pl.Schema(ITEMS), orient="row")


def with_unmarked(
    items: pl.DataFrame,
    templates: Mapping[str, Sequence[Template]],
    *,
    probe: str,
    placeholders: Sequence[str],
) -> pl.DataFrame:
    """Add unmarked and placeholder items behind the items of each attribute (schema.ITEMS).

    Each of `placeholders`, none empty or repeated (`ConfigError`), makes an item of every template
    in which an adjective stands before a noun. `probe` begins their ids.
    """
    for word in placeholders:
        if not word.strip():
            raise ConfigError("a placeholder is empty", where="placeholders", cure="give a word")
        if placeholders.count(word) > 1:
            raise ConfigError(
                f"the placeholder {word!r} is given twice", where="placeholders", cure="keep one"
            )
    parts: list[pl.DataFrame] = []
    for (attribute,), own in items.group_by("attribute", maintain_order=True):
        extra = _extra_rows(str(attribute), templates[str(attribute)], probe, placeholders)
        parts += [own, items_frame(extra)]
    return pl.concat(parts)


def _extra_rows(
    attribute: str, templates: Iterable[Template], probe: str, placeholders: Sequence[str]
) -> list[tuple[object, ...]]:
    unmarked: list[tuple[object, ...]] = []
    neutral: list[tuple[object, ...]] = []
    stem = f"{probe}/{attribute}"
    for each in templates:
        if (text := unmarked_form(each)) is not None:
            item_id = f"{stem}/{UNMARKED}/{each.id}"
            unmarked.append((item_id, each.label, attribute, UNMARKED, text, each.id, None))
        noun = marked_noun(each)
        for word in placeholders if noun is not None else ():
            item_id = f"{stem}/{PLACEHOLDER}/{word}/{each.id}"
            phrase = word if _takes_adjective(each.slot) else f"{word} {noun}"
            filled = fill(each.text, each.slot, phrase)
            neutral.append((item_id, each.label, attribute, PLACEHOLDER, filled, each.id, word))
    return [*unmarked, *neutral]


def unmarked_form(each: Template) -> str | None:
    """Return the template without its term; None for one that has no such form.

    The term is then a whole phrase, such as a name, or stands before no noun of its own.
    """
    noun, text = marked_noun(each), each.text
    if noun is None or _EXCEPTIONS.search(text):
        return None
    if _takes_adjective(each.slot):
        # The next word takes the slot's place, so that article and capital come out as for a term.
        noun = noun.partition(" ")[0]
        text = re.sub(rf"\}}\s+{re.escape(noun)}", "}", text, count=1)
    return fill(text, each.slot, noun)


def marked_noun(each: Template) -> str | None:
    """Return the nouns before which the term is an adjective in this template, or None."""
    if _takes_adjective(each.slot):
        return noun_phrase(each.text.partition("}")[2]) or None
    return "person" if each.slot in _PERSON_SLOTS else NOUN_SLOTS.get(each.slot)


def _takes_adjective(slot: str) -> bool:
    return slot.endswith(("_adj", "_adj_or_pp"))


def noun_phrase(after: str) -> str:
    """Return the nouns that begin `after`, the text behind an adjective; empty if none.

    Uses word lists, not a tagger; checked against all templates of Amazon, Regard and NS-Prompts.

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
