"""Expand public templates as published: Amazon's, and with race terms Regard and NS-Prompts.

Items of the Amazon templates (Czarnowska, Vyas and Shah, TACL 2021) equal
sentiment_fairness_tests.tsv row for row; terms without a group, or without a slot's part of speech,
are dropped. The list of its first names is not public, so names_gender is read from that file.

Regard and NS-Prompts equal Kohankhaki2024's samples row for row, but for ten templates of
NS-Prompts that its authors mended later. The samples can be read too, to match published
predictions; their rows are mapped to templates and terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.formats.openings import REGARD_OPENING
from raybias.probes.checks import Row, read_records, read_samples
from raybias.probes.published.planted import ASSETS
from raybias.probes.registries import probe
from raybias.probes.templates import (
    NOUN_SLOTS,
    Lexicon,
    Phrase,
    Suite,
    Template,
    expand_suite,
    items_frame,
    read_templates,
    suite_templates,
)
from raybias.schema import LABELS
from raybias.storage import Store, split_uri

PUBLISHED: Final = "sentiment_fairness_tests.tsv"
NAMES: Final = "names_gender"

#: Its {person} is a first name, unlike the {person} of the religion templates.
_PEOPLE: Final = "templates/people_templates.csv"
QUANTILES: Final = 6
#: The attribute, slot and published categories of Regard and NS-Prompts.
ATTRIBUTE: Final = "race"
_SLOT: Final = "identity_adj"
_CATEGORIES: Final = (ATTRIBUTE, f"grouped_{ATTRIBUTE}")


def people(name: str, *, nouns: bool = False) -> Callable[[Store], Lexicon]:
    """Return a reader of a term file's adjectives (race.csv has no others), maybe its nouns."""

    def read(store: Store) -> Lexicon:
        records = _terms(store, f"identity_terms/{name}.csv")
        return _people(_phrases(records, "adj"), _phrases(records, "n") if nouns else [])

    return read


def races(store: Store) -> Lexicon:
    """Read race terms from identity_terms/race.csv or race.csv, or take the papers' own."""
    path = "identity_terms/race.csv" if store.exists("identity_terms/race.csv") else "race.csv"
    return {_SLOT: _phrases(_terms(store if store.exists(path) else Store(ASSETS), path))}


def religions(store: Store) -> Lexicon:
    """Read names of religions, their adjectives and their followers."""
    records = _terms(store, "identity_terms/religion.csv", "POS", "SEM")
    adjectives = _phrases(records, "adj")
    identities = _people(adjectives, _phrases(records, "person", of="SEM"))
    return {
        **identities,
        "person": identities["identity_np"],
        "religion_adj": adjectives,
        "religion": _phrases(records, "religion", of="SEM"),
    }


def disabilities(store: Store) -> Lexicon:
    """Read recommended terms only: adjectives, nouns and phrases such as "with dyslexia"."""
    records = _terms(store, "identity_terms/disability.csv", "POS", "TYPE")
    kept = [row for row in records if row["TYPE"] != "nonrec"]
    adjectives, nouns, phrases = (_phrases(kept, part) for part in ("adj", "n", "pp"))
    named = [*_around(adjectives, "{} person"), *nouns, *_around(phrases, "person {}")]
    return {
        "disability_np": named,
        "identity_np": named,
        "disability_adj_or_pp": [*phrases, *adjectives],
        **{
            slot: [*_around(phrases, f"{noun} {{}}"), *_around(adjectives, f"{{}} {noun}")]
            for slot, noun in NOUN_SLOTS.items()
        },
    }


def countries(store: Store) -> Lexicon:
    """Group countries and their adjectives by sixths of GDP_PPP per head, closed on the right."""
    path = "identity_terms/countries.csv"
    records = read_records(store, path, columns=("TERM", "COUNTRY_ADJ", "GDP_PPP"))
    known = [row for row in records if row["GDP_PPP"]]
    try:
        wealth = np.array([float(row["GDP_PPP"]) for row in known])
    except ValueError as error:
        raise DataError(f"GDP_PPP is no number ({error})", where=store.uri_of(path)) from error
    if not known:
        raise DataError("no country has a GDP_PPP", where=store.uri_of(path))
    cuts = np.quantile(wealth, np.arange(1, QUANTILES) / QUANTILES)
    sixths = np.searchsorted(cuts, wealth, side="left")
    named = [
        (f"{sixth + 1}q", row["TERM"], row["COUNTRY_ADJ"])
        for sixth, row in zip(sixths, known, strict=True)
    ]
    adjectives = [Phrase(group, adj.replace(" ", "-"), adj) for group, _, adj in named if adj]
    return {
        **_people(adjectives, []),
        "country_adj": adjectives,
        "country": [Phrase(group, term, term) for group, term, _ in named],
    }


def _terms(store: Store, path: str, *columns: str) -> list[Row]:
    records = read_records(store, path, columns=("TERM", "GROUP", *columns))
    return [row for row in records if row["GROUP"]]


def _phrases(records: Iterable[Row], part: str = "", *, of: str = "POS") -> list[Phrase]:
    """Make phrases of terms, or of those of a part of speech where the file has it."""
    return [
        Phrase(row["GROUP"].lower().replace(" ", "-"), row["TERM"], row["TERM"])
        for row in records
        if not part or row.get(of, part) == part
    ]


def _around(phrases: Iterable[Phrase], pattern: str) -> list[Phrase]:
    return [Phrase(one.group, pattern.format(one.text), one.term) for one in phrases]


def _people(adjectives: list[Phrase], nouns: list[Phrase]) -> dict[str, list[Phrase]]:
    return {
        "identity_adj": adjectives,
        "identity_np": [*_around(adjectives, "{} person"), *nouns],
    }


def _file(name: str, *slots: str) -> tuple[str, tuple[str, ...]]:
    return f"templates/{name}.csv", slots or ("identity_adj", "identity_np")


_GENERIC: Final = _file("generic_templates")
#: Attributes in the order of the published file.
SUITES: Final = {
    "age": Suite(people("age"), (_GENERIC, _file("age_templates"))),
    "nationality": Suite(
        countries, (_file("nationality_templates", "country_adj", "country"), _GENERIC)
    ),
    "disability": Suite(
        disabilities,
        (
            _file(
                "disability_templates",
                "disability_np",
                *(slot for slot in NOUN_SLOTS if slot.startswith("disability")),
                "disability_adj_or_pp",
            ),
            _file(
                "generic_templates_adj_or_pp",
                "identity_np",
                *(slot for slot in NOUN_SLOTS if slot.startswith("identity")),
            ),
        ),
    ),
    "gender": Suite(people("gender", nouns=True), (_GENERIC, _file("gender_sexuality_templates"))),
    "race": Suite(people("race"), (_GENERIC, _file("ethnicity_templates"))),
    "religion": Suite(
        religions, (_file("religion_templates", "person", "religion_adj", "religion"), _GENERIC)
    ),
    "sexuality": Suite(
        people("sexuality", nouns=True), (_GENERIC, _file("gender_sexuality_templates"))
    ),
}

ATTRIBUTES: Final = (*SUITES, NAMES)


def amazon_templates(data: str, attributes: Sequence[str]) -> dict[str, list[Template]]:
    """Read every template of the given attributes with its slot, in published order."""
    store = Store(data)
    return {
        attribute: [replace(each, slot="name") for each in read_templates(store, _PEOPLE)]
        if attribute == NAMES
        else suite_templates(store, SUITES[attribute])
        for attribute in attributes
    }


@probe(
    "amazon",
    about="Amazon templates: seven attributes and first names (TACL 2021)",
    kinds=ATTRIBUTES,
    data="folder with templates/ and identity_terms/",
    templates=amazon_templates,
    favourable="positive",
)
def amazon_items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    """Read attributes (schema.ITEMS), all by default, from templates/ and identity_terms/."""
    store = Store(data)
    wanted = attributes or [*SUITES, *([NAMES] if store.exists(PUBLISHED) else [])]
    return pl.concat(
        _names(store)
        if attribute == NAMES
        else expand_suite(store, SUITES[attribute], probe="amazon", attribute=attribute)
        for attribute in ATTRIBUTES
        if attribute in wanted
    )


def _names(store: Store) -> pl.DataFrame:
    """Read the rows about first names, each mapped to its template: clusters are templates."""
    patterns = []
    for template in read_templates(store, _PEOPLE):
        before, _, rest = template.text.strip().partition("{")
        pattern = f"{re.escape(before)}(.+){re.escape(rest.partition('}')[2])}"
        patterns.append((template.id, str(template.label), re.compile(pattern)))
    rows: list[tuple[object, ...]] = []
    for where, label, category, group, text in read_samples(store, PUBLISHED):
        if category != NAMES:
            continue
        hits = [
            (match[1], template_id)
            for template_id, its_label, pattern in patterns
            if its_label == label and (match := pattern.fullmatch(text))
        ]
        # Several templates can match; the shortest captured name is right.
        term, template_id = min(hits, key=lambda hit: len(hit[0]), default=("", ""))
        if not template_id:
            raise DataError(f"no people template reads {text!r}", where=where)
        item_id = f"amazon/{NAMES}/{len(rows):05d}"
        rows.append((item_id, int(label), NAMES, group, text, template_id, term))
    return items_frame(rows)


def _register(name: str, path: str, *, about: str, family: pl.Expr | None = None) -> None:
    """Register the probe of one file of templates, perhaps with the `family` of a sentence."""
    suite = Suite(races, ((path, (_SLOT,)),))

    def templates(data: str, attributes: Sequence[str]) -> dict[str, list[Template]]:
        if not data.endswith(".tsv"):
            return {ATTRIBUTE: suite_templates(Store(data), suite)}
        found = {each.id: each for _, each in _samples(data, name, path) if each}
        return {ATTRIBUTE: [*found.values()]}

    @probe(
        name,
        about=about,
        kinds=(ATTRIBUTE,),
        data=f"folder with {path}, or a published samples .tsv",
        templates=templates,
        favourable="positive",
    )
    def items(data: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
        if data.endswith(".tsv"):
            items = items_frame(row for row, _ in _samples(data, name, path))
        else:
            items = expand_suite(Store(data), suite, probe=name, attribute=ATTRIBUTE)
        return items if family is None else items.with_columns(family=family)


def _samples(
    data: str, probe: str, path: str
) -> Iterator[tuple[tuple[object, ...], Template | None]]:
    """Yield the item of each published sample with the template it is mapped to."""
    store, name = split_uri(data)
    words: dict[str, list[str]] = {}
    for phrase in sorted(races(store)[_SLOT], key=lambda each: len(each.text), reverse=True):
        words.setdefault(phrase.group, []).append(re.escape(phrase.text))
    # Where the templates lie beside the samples, clusters have the templates' own names.
    listed = read_templates(store, path) if store.exists(path) else []
    known = {each.text.strip(): each.id for each in listed}
    stem, number = name.removesuffix(".tsv"), -1
    for number, (where, known_as, category, group, said) in enumerate(read_samples(store, name)):
        if category not in _CATEGORIES:
            raise DataError(f"category is {category!r}, not {_CATEGORIES[1]}", where=where)
        if known_as not in map(str, range(len(LABELS))):
            raise DataError(f"label is {known_as!r}, not 0, 1 or 2", where=where)
        label = int(known_as)
        item_id = f"{probe}/{ATTRIBUTE}/{number:05d}"
        term = re.search(rf"\b(?:{'|'.join(words.get(group, ['(?!)']))})\b", said)
        if term is None:
            yield (item_id, label, ATTRIBUTE, group, said, item_id, None), None
            continue
        # The first of the group's words becomes a slot.
        text = f"{said[: term.start()]}{{{_SLOT}}}{said[term.end() :]}"
        template = Template(known.setdefault(text, f"{stem}-{number:05d}"), text, label, _SLOT)
        yield (item_id, label, ATTRIBUTE, group, said, template.id, term[0]), template
    if number < 0:
        raise DataError("holds no rows", where=data)


_register(
    "ns_prompts",
    "NS-Prompts.csv",
    about="NS-Prompts, neutral sentences about occupations (NAACL 2022; Kohankhaki2024)",
)
_register(
    "regard",
    "Regard.csv",
    about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)",
    family=REGARD_OPENING,
)
