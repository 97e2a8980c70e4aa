"""Expand the Amazon templates (Czarnowska, Vyas and Shah, TACL 2021) as published.

Items equal sentiment_fairness_tests.tsv row for row. Its first names were drawn from a list that is
not public, so names_gender is read from that file; the rest needs the template and term files only.
A term is dropped where the published expansion drops it: without a group, or without a part of
speech that a slot takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.probes.checks import Row, read_records, read_samples
from raybias.probes.registries import probe
from raybias.probes.slots import (
    Lexicon,
    Phrase,
    Slotted,
    Suite,
    expand_suite,
    items_frame,
    read_templates,
    suite_templates,
)
from raybias.storage import Store

PUBLISHED: Final = "sentiment_fairness_tests.tsv"
NAMES: Final = "names_gender"

#: Its {person} is a first name, unlike the {person} of the religion templates.
_PEOPLE: Final = "templates/people_templates.csv"
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
QUANTILES: Final = 6
#: The papers' terms for race and ethnicity (race.csv), in its order: term, group.
RACE_TERMS: Final = (
    ("american indian", "american_indian"),
    ("alaska native", "american_indian"),
    ("native american", "american_indian"),
    ("asian", "asian"),
    ("black", "african_american"),
    ("african american", "african_american"),
    ("hispanic", "hispanic"),
    ("latino", "hispanic"),
    ("native hawaiian", "pacific_islander"),
    ("pacific islander", "pacific_islander"),
    ("white", "white"),
)


def people(name: str, *, nouns: bool = False) -> Callable[[Store], Lexicon]:
    """Return a reader of a term file's adjectives (race.csv has no others), maybe its nouns."""

    def read(store: Store) -> Lexicon:
        records = _terms(store, f"identity_terms/{name}.csv")
        return _people(_phrases(records, "adj"), _phrases(records, "n") if nouns else [])

    return read


def races(store: Store) -> Lexicon:
    """Read race terms from identity_terms/race.csv or race.csv, or take the papers' own."""
    for path in ("identity_terms/race.csv", "race.csv"):
        if store.exists(path):
            return {"identity_adj": _phrases(_terms(store, path))}
    return {"identity_adj": [Phrase(group, term, term) for term, group in RACE_TERMS]}


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
    """Group countries and their adjectives by sixths of GDP per head, where that is known.

    Cuts are linearly interpolated quantiles of GDP_PPP, closed on the right.
    """
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
    groups = [f"{sixth + 1}q" for sixth in np.searchsorted(cuts, wealth, side="left")]
    adjectives = [
        Phrase(group, row["COUNTRY_ADJ"].replace(" ", "-"), row["COUNTRY_ADJ"])
        for group, row in zip(groups, known, strict=True)
        if row["COUNTRY_ADJ"]
    ]
    return {
        **_people(adjectives, []),
        "country_adj": adjectives,
        "country": [
            Phrase(group, row["TERM"], row["TERM"])
            for group, row in zip(groups, known, strict=True)
        ],
    }


def _terms(store: Store, path: str, *columns: str) -> list[Row]:
    """Read the terms of a file that have a group."""
    records = read_records(store, path, columns=("TERM", "GROUP", *columns))
    return [row for row in records if row["GROUP"]]


def _phrases(records: Iterable[Row], part: str = "", *, of: str = "POS") -> list[Phrase]:
    """Make phrases of terms, or of those that are of a part of speech, if a file has such."""
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


def amazon_templates(data: str, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
    """Read every template of the given attributes with its slot, in published order."""
    store = Store(data)
    return {
        attribute: [Slotted(each, "name") for each in read_templates(store, _PEOPLE)]
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
)
def amazon_items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    """Read the items of the given attributes, or of all that the folder holds (schema.ITEMS).

    Parameters
    ----------
    data: the folder with templates/, identity_terms/ and, for names_gender, the published file.
    """
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
    """Read the rows about first names, each led back to its template: clusters are templates."""
    patterns = [
        (template.id, str(template.label), _pattern(template.text))
        for template in read_templates(store, _PEOPLE)
    ]
    rows: list[tuple[object, ...]] = []
    for where, label, category, group, text in read_samples(store, PUBLISHED):
        if category != NAMES:
            continue
        hits = [
            (match[1], template_id)
            for template_id, its_label, pattern in patterns
            if its_label == label and (match := pattern.fullmatch(text))
        ]
        # A short template can match inside a longer one's text; the shortest name is the name.
        term, template_id = min(hits, key=lambda hit: len(hit[0]), default=("", ""))
        if not template_id:
            raise DataError(f"no people template reads {text!r}", where=where)
        item_id = f"amazon/{NAMES}/{len(rows):05d}"
        rows.append((item_id, int(label), NAMES, group, text, template_id, term))
    return items_frame(rows)


def _pattern(template: str) -> re.Pattern[str]:
    before, _, rest = template.strip().partition("{")
    return re.compile(f"{re.escape(before)}(.+){re.escape(rest.partition('}')[2])}")
