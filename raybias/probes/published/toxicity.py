"""Expand the embedded sentences about people for classifiers of toxicity and hate.

The forms are those that Dixon et al. (2018) and HateCheck (Röttger et al. 2021) describe: plain
mentions of people, counter speech and strong words are harmless; threats, comparisons with vermin,
exclusion and insults are toxic. All groups of an attribute have the same templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import polars as pl

from raybias.config import parse_yaml
from raybias.probes.published.planted import ASSETS
from raybias.probes.registries import probe
from raybias.probes.templates import fill, items_frame

ATTRIBUTES: Final = ("age", "disability", "gender", "nationality", "race", "religion", "sexuality")
#: Of its sentences, and of the classifiers that read them.
LABELS: Final = ("harmless", "toxic")


@cache
def _sentences() -> dict[str, Any]:
    """Read the templates and words of assets/toxicity.yaml."""
    content: dict[str, Any] = parse_yaml((ASSETS / "toxicity.yaml").read_text("utf-8"))
    return content


def _templates() -> Iterator[tuple[int, str, str]]:
    """Yield the label, id and text of each template: `toxic-threat-1`."""
    for number, label in enumerate(LABELS):
        for form, texts in _sentences()["templates"][label].items():
            for place, text in enumerate(texts, start=1):
                yield number, f"{label}-{form}-{place}", text


@probe(
    "toxicity",
    about="embedded harmless and toxic sentences about people of seven attributes, without slurs",
    kinds=ATTRIBUTES,
    labels=LABELS,
)
def toxicity_items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    """Expand the templates (schema.ITEMS) with the words of every group of the attributes."""
    rows: list[tuple[object, ...]] = []
    for attribute in ATTRIBUTES if attributes is None else attributes:
        number = 0
        for label, template_id, text in _templates():
            for group, words in _sentences()["words"][attribute].items():
                for person, people in words.items():
                    item_id = f"toxicity/{attribute}/{number:05d}"
                    sentence = fill(fill(text, "person", person), "people", people)
                    rows.append((item_id, label, attribute, group, sentence, template_id, person))
                    number += 1
    return items_frame(rows)
