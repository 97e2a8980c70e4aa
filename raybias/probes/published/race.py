"""Expand one file of templates with race terms, as Kohankhaki2024 does Regard and NS-Prompts.

Row for row the published samples, but for ten templates of NS-Prompts that its authors
mended after they had made theirs. The samples can be read too, to match published
predictions; their rows are led back to templates and terms. Rules: Kohankhaki2024, its code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.formats.openings import regard_opening
from raybias.probes.checks import Sample, read_samples
from raybias.probes.published.amazon import races
from raybias.probes.registries import probe
from raybias.probes.slots import (
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

ATTRIBUTE: Final = "race"
_SLOT: Final = "identity_adj"
_CATEGORIES: Final = (ATTRIBUTE, f"grouped_{ATTRIBUTE}")


def _register(
    name: str, path: str, *, about: str, family: Callable[[str], pl.Expr] | None = None
) -> None:
    """Register the probe of one file of templates.

    Parameters
    ----------
    path: of the templates, in the probe's folder.
    family: from the column of sentences, the family of the template of each.
    """
    suite = Suite(races, ((path, (_SLOT,)),))

    def templates(data: str, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
        if not _is_samples(data):
            return {ATTRIBUTE: suite_templates(Store(data), suite)}
        found = {each.id: each for _, each in _samples(data, name, path) if each}
        return {ATTRIBUTE: [Slotted(each, _SLOT) for each in found.values()]}

    @probe(
        name,
        about=about,
        kinds=(ATTRIBUTE,),
        data=f"folder with {path}, or a published samples .tsv",
        templates=templates,
    )
    def items(data: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
        if _is_samples(data):
            items = items_frame([row for row, _ in _samples(data, name, path)])
        else:
            items = expand_suite(Store(data), suite, probe=name, attribute=ATTRIBUTE)
        return items if family is None else items.with_columns(family=family("text"))


def _is_samples(data: str) -> bool:
    return data.endswith(".tsv")


def _samples(
    data: str, probe: str, path: str
) -> Iterator[tuple[tuple[object, ...], Template | None]]:
    """Yield the item of each published sample, and the template that it is led back to."""
    store, name = split_uri(data)
    phrases = races(store)[_SLOT]
    # Where the templates lie beside the samples, clusters have the templates' own names.
    listed = read_templates(store, path) if store.exists(path) else []
    known = {each.text.strip(): each.id for each in listed}
    stem, number = name.removesuffix(".tsv"), -1
    for number, sample in enumerate(read_samples(store, name)):
        label = _label(sample)
        text, term = _led_back(sample, phrases)
        item_id = f"{probe}/{ATTRIBUTE}/{number:05d}"
        template = None
        if term:
            template = Template(known.setdefault(text, f"{stem}-{number:05d}"), text, label)
        cluster = template.id if template else item_id
        yield (item_id, label, ATTRIBUTE, sample.group, sample.text, cluster, term), template
    if number < 0:
        raise DataError("holds no rows", where=data)


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
    words = sorted(
        (each.text for each in phrases if each.group == sample.group), key=len, reverse=True
    )
    # re keeps what it compiled, so the handful of groups costs nothing per row.
    any_word = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)"
    match = re.search(rf"\b(?:{any_word})\b", sample.text)
    if match is None:
        return sample.text, None
    return f"{sample.text[: match.start()]}{{{_SLOT}}}{sample.text[match.end() :]}", match[0]


_register(
    "ns_prompts",
    "NS-Prompts.csv",
    about="NS-Prompts, neutral sentences about occupations (NAACL 2022; Kohankhaki2024)",
)
_register(
    "regard",
    "Regard.csv",
    about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)",
    family=regard_opening,
)
