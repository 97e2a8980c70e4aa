"""Expand the Amazon templates (Czarnowska, Vyas and Shah, TACL 2021) as published.

Items equal sentiment_fairness_tests.tsv row for row. Its first names were drawn from a list that is
not public, so names_gender is read from that file; the rest needs the template and term files only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.readers import read_samples
from raybias.probes.registries import probe
from raybias.probes.templates import amazon_lexicon
from raybias.probes.templates.slots import (
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
_GENERIC: Final = ("templates/generic_templates.csv", ("identity_adj", "identity_np"))


def _own(name: str) -> tuple[str, tuple[str, ...]]:
    return f"templates/{name}_templates.csv", ("identity_adj", "identity_np")


#: Attributes in the order of the published file.
SUITES: Final = {
    "age": Suite(
        lexicon=partial(amazon_lexicon.adjectives_only, name="age"),
        templates=(_GENERIC, _own("age")),
    ),
    "nationality": Suite(
        lexicon=amazon_lexicon.countries,
        templates=(
            ("templates/nationality_templates.csv", ("country_adj", "country")),
            _GENERIC,
        ),
    ),
    "disability": Suite(
        lexicon=amazon_lexicon.disabilities,
        templates=(
            (
                "templates/disability_templates.csv",
                (
                    "disability_np",
                    *(f"disability_{noun}" for noun in amazon_lexicon.DISABILITY_NOUNS),
                    "disability_adj_or_pp",
                ),
            ),
            (
                "templates/generic_templates_adj_or_pp.csv",
                ("identity_np", *(f"identity_{noun}" for noun in amazon_lexicon.GENERIC_NOUNS)),
            ),
        ),
    ),
    "gender": Suite(
        lexicon=partial(amazon_lexicon.adjectives_and_nouns, name="gender"),
        templates=(_GENERIC, _own("gender_sexuality")),
    ),
    "race": Suite(
        lexicon=partial(amazon_lexicon.adjectives_only, name="race"),
        templates=(_GENERIC, _own("ethnicity")),
    ),
    "religion": Suite(
        lexicon=amazon_lexicon.religions,
        templates=(
            ("templates/religion_templates.csv", ("person", "religion_adj", "religion")),
            _GENERIC,
        ),
    ),
    "sexuality": Suite(
        lexicon=partial(amazon_lexicon.adjectives_and_nouns, name="sexuality"),
        templates=(_GENERIC, _own("gender_sexuality")),
    ),
}

ATTRIBUTES: Final = (*SUITES, NAMES)


def amazon_templates(data: str, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
    """Read every template of the given attributes with its slot, in published order.

    Raises
    ------
    DataError: a template file is missing or malformed.
    """
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
    attributes=ATTRIBUTES,
    data="folder with templates/ and identity_terms/",
    templates=amazon_templates,
)
def amazon_items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    """Read the items of the given attributes, or of all that the folder holds (schema.ITEMS).

    Parameters
    ----------
    data: the folder with templates/, identity_terms/ and, for names_gender, the published file.

    Raises
    ------
    DataError: a missing or malformed file.
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
