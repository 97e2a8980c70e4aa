"""Expand one file of templates with race terms, as Kohankhaki2024 does Regard and NS-Prompts.

Row for row the published samples, but for ten templates of NS-Prompts that its authors
mended after they had made theirs. The samples can be read too, to match published
predictions; their rows are led back to templates and terms. Rules: Kohankhaki2024, its code.

Where a noun phrase ends in a sentence is found without a tagger: by a list of the words that end
one, and "-s" verbs after a singular subject, checked against every template of Amazon, Regard and
NS-Prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.formats.openings import regard_opening
from raybias.probes.column_checks import Sample, read_samples
from raybias.probes.registries import probe
from raybias.probes.templates import amazon as amazon_lexicon
from raybias.probes.templates.slots import (
    Phrase,
    Slotted,
    Suite,
    Template,
    expand_suite,
    items_frame,
    read_templates,
    suite_templates,
)
from raybias.schema import LABELS
from raybias.storage import Store, split_uri

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


def noun_phrase(after: str) -> str:
    """Return the nouns that begin `after`, the text behind an adjective; empty if none.

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
        if word.partition("'")[0] in _ENDS or (words and _is_verb(word)):
            break
        words.append(match[1])
        place = match.end()
        if word in _LAST:
            break
    return " ".join(words)


def follows_its_noun(term: str) -> bool:
    """Tell whether a term such as "with dyslexia" stands behind the noun that it modifies."""
    return term.split(maxsplit=1)[0].lower() in _ENDS


def _is_verb(word: str) -> bool:
    return word.endswith("s") and not word.endswith("ss") and word not in _INSIDE


ATTRIBUTE: Final = "race"
_SLOT: Final = "identity_adj"
_CATEGORIES: Final = (ATTRIBUTE, f"grouped_{ATTRIBUTE}")


@dataclass(frozen=True)
class RaceTemplates:
    """One file of templates about race.

    Attributes
    ----------
    name: of the probe in a study file.
    path: its file of templates.
    family: from the column of sentences, the family of the template of each.
    """

    name: str
    path: str
    family: Callable[[str], pl.Expr] | None = None

    def register(self, *, about: str) -> None:
        """Register the probe; see `registry.probe`."""
        probe(
            self.name,
            about=about,
            attributes=(ATTRIBUTE,),
            data=f"folder with {self.path}, or a published samples .tsv",
            templates=self.templates,
        )(self.items)

    def items(self, data: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
        """Read the items of a folder with the templates, or of a published samples file.

        Raises
        ------
        DataError: a file is missing or malformed.
        """
        if _is_samples(data):
            items = items_frame([row for row, _ in self._samples(data)])
        else:
            items = expand_suite(Store(data), self._suite, probe=self.name, attribute=ATTRIBUTE)
        return items if self.family is None else items.with_columns(family=self.family("text"))

    def templates(self, data: str, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
        """Read every template with its slot, in published order."""
        if not _is_samples(data):
            return {ATTRIBUTE: suite_templates(Store(data), self._suite)}
        found = [Slotted(template, _SLOT) for _, template in self._samples(data) if template]
        return {ATTRIBUTE: list({each.template.id: each for each in found}.values())}

    @property
    def _suite(self) -> Suite:
        return Suite(lexicon=amazon_lexicon.races, templates=((self.path, (_SLOT,)),))

    def _samples(self, data: str) -> list[tuple[tuple[object, ...], Template | None]]:
        store, name = split_uri(data)
        phrases = amazon_lexicon.races(store)[_SLOT]
        # Where the templates lie beside the samples, clusters have the templates' own names.
        there = store.exists(self.path)
        known = {
            each.text.strip(): each.id
            for each in (read_templates(store, self.path) if there else ())
        }
        stem = name.removesuffix(".tsv")
        rows: list[tuple[tuple[object, ...], Template | None]] = []
        for number, sample in enumerate(read_samples(store, name)):
            label = _label(sample)
            text, term = _led_back(sample, phrases)
            template = None
            if term:
                template_id = known.setdefault(text, f"{stem}-{number:05d}")
                template = Template(template_id, text, label)
            item_id = f"{self.name}/{ATTRIBUTE}/{number:05d}"
            cluster = template.id if template else item_id
            row = (item_id, label, ATTRIBUTE, sample.group, sample.text, cluster, term)
            rows.append((row, template))
        if not rows:
            raise DataError("holds no rows", where=data)
        return rows


def _is_samples(data: str) -> bool:
    return data.endswith(".tsv")


def _label(sample: Sample) -> int:
    if sample.category not in _CATEGORIES:
        raise DataError(
            f"category is {sample.category!r}, not {_CATEGORIES[1]}", where=sample.where
        )
    if sample.label not in map(str, range(len(LABELS))):
        raise DataError(f"label is {sample.label!r}, not 0, 1 or 2", where=sample.where)
    return int(sample.label)


def _led_back(sample: Sample, phrases: Sequence[Phrase]) -> tuple[str, str | None]:
    """Turn the first term of a text into a slot again; returns the text and the term, or None."""
    match = _any(each.text for each in phrases if each.group == sample.group).search(sample.text)
    if match is None:
        return sample.text, None
    return f"{sample.text[: match.start()]}{{{_SLOT}}}{sample.text[match.end() :]}", match[0]


def _any(words: Iterable[str]) -> re.Pattern[str]:
    # re keeps what it compiled, so the handful of groups costs nothing per row.
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first)) or r'(?!)'})\b")


RaceTemplates("ns_prompts", "NS-Prompts.csv").register(
    about="NS-Prompts, neutral sentences about occupations (NAACL 2022; Kohankhaki2024)"
)


RaceTemplates("regard", "Regard.csv", family=regard_opening).register(
    about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)"
)
