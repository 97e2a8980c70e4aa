"""Probes and training sets: where the text comes from, and what its labels are.

Everything becomes a Polars frame of `schema.ITEMS` or `schema.SENTENCES`.
This room knows no model, no tokenizer and no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.config import Probe, TrainingSet
from raybias.errors import ConfigError, DataError
from raybias.probes.column_checks import choose
from raybias.probes.templates.amazon import ATTRIBUTES as AMAZON_ATTRIBUTES
from raybias.probes.templates.amazon import amazon_items, amazon_templates, attribute_name
from raybias.probes.templates.custom_file import own_items
from raybias.probes.templates.markedness import unmarked_forms, with_unmarked
from raybias.probes.templates.regard_nsprompts import ATTRIBUTE as RACE
from raybias.probes.templates.regard_nsprompts import NS_PROMPTS, REGARD, RaceProbe
from raybias.probes.templates.slots import Slotted
from raybias.probes.training.sentiment import hub, own_files, semeval2018, sst5
from raybias.storage import Store

__all__ = [
    "PROBES",
    "ProbeSource",
    "probe_forms",
    "probe_items",
    "probe_templates",
    "training_sentences",
]


@dataclass(frozen=True, kw_only=True)
class ProbeSource:
    """One kind of probe."""

    items: Callable[[Probe], pl.DataFrame]
    """Reads its items, narrowed to the attributes asked for."""
    about: str
    """What it is, in a line."""
    attributes: tuple[str, ...]
    """The attributes it has, or none where the data says."""
    data: str
    """What `data` must point at; empty where nothing is needed."""
    templates: Callable[[Probe, Sequence[str]], Mapping[str, Sequence[Slotted]]] | None = None
    """Its templates with their slots by attribute, of the given ones; None where it has none."""


def probe_items(probe: Probe) -> pl.DataFrame:
    """The items of a probe (schema.ITEMS), in their published order.

    Raises
    ------
    DataError: data that is missing or malformed, or an attribute that is not there.
    ConfigError: unmarked forms of a probe without templates, or a wrong placeholder.
    """
    items = PROBES[probe.source].items(probe)
    if not probe.unmarked:
        return items
    templates = probe_templates(probe, items["attribute"].unique(maintain_order=True))
    return with_unmarked(items, templates, probe=probe.source, placeholders=probe.placeholders)


def probe_templates(
    probe: Probe, attributes: Sequence[str] | pl.Series
) -> Mapping[str, Sequence[Slotted]]:
    """The templates of a probe's attributes with their slots, in published order.

    Raises
    ------
    ConfigError: it is not made from templates.
    DataError: a file is missing or malformed.
    """
    read = PROBES[probe.source].templates
    if read is None:
        raise ConfigError(
            f"source {probe.source} has no templates to take the group term from",
            where=f"probe {probe.name}",
            cure="put rows of the groups `unmarked` and `placeholder` into your own file",
        )
    return read(probe, list(attributes))


def probe_forms(probe: Probe) -> pl.DataFrame:
    """Each template's unmarked form, or why it has none (markedness.FORMS).

    Raises
    ------
    ConfigError: the probe is not made from templates.
    DataError: data that is missing or malformed, or an attribute that is not there.
    """
    items = PROBES[probe.source].items(probe)
    return unmarked_forms(probe_templates(probe, items["attribute"].unique(maintain_order=True)))


def training_sentences(training: TrainingSet) -> dict[str, pl.DataFrame]:
    """The splits `train`, `validation` and, where there is one, `test` (schema.SENTENCES).

    A single file of one's own gives `train` alone: a pool that demonstrations are drawn from.

    Raises
    ------
    DataError: data that is missing or malformed, or labels outside the map.
    """
    if training.source == "planted":
        from raybias.probes.planted import planted_sentences

        return planted_sentences()
    data = _data(training.data, where=f"training set {training.name}")
    if training.source == "hub":
        return hub(training)
    if training.source == "file":
        return own_files(training, data)
    store = Store(data)
    return sst5(store) if training.source == "sst5" else semeval2018(store)


def _data(data: str | None, *, where: str) -> str:
    if not data:
        raise DataError("needs `data`", where=where, cure="say where its files are")
    return data


def _amazon(probe: Probe) -> pl.DataFrame:
    return amazon_items(Store(_data(probe.data, where=f"probe {probe.name}")), probe.attributes)


def _amazon_templates(probe: Probe, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
    return amazon_templates(Store(_data(probe.data, where=f"probe {probe.name}")), attributes)


def _race(source: RaceProbe, *, about: str) -> ProbeSource:
    def items(probe: Probe) -> pl.DataFrame:
        if probe.attributes is not None:
            plain = map(attribute_name, probe.attributes)
            choose(plain, (RACE,), where=f"probe {probe.name}")
        return source.items(_data(probe.data, where=f"probe {probe.name}"))

    def templates(probe: Probe, attributes: Sequence[str]) -> dict[str, list[Slotted]]:
        return {RACE: source.templates(_data(probe.data, where=f"probe {probe.name}"))}

    return ProbeSource(
        items=items,
        templates=templates,
        about=about,
        attributes=(RACE,),
        data=f"folder with {source.path}, or a published samples .tsv",
    )


def _planted(probe: Probe) -> pl.DataFrame:
    from raybias.probes.planted import planted_items

    return _narrowed(planted_items(), probe)


def _own(probe: Probe) -> pl.DataFrame:
    return _narrowed(own_items(_data(probe.data, where=f"probe {probe.name}")), probe)


def _narrowed(items: pl.DataFrame, probe: Probe) -> pl.DataFrame:
    if probe.attributes is None:
        return items
    there = items["attribute"].unique(maintain_order=True)
    wanted = choose(probe.attributes, there, where=f"probe {probe.name}")
    return items.filter(pl.col("attribute").is_in(wanted))


#: Every probe by its name in a study file; a new template probe is one line here
#: and one `Suite`.
PROBES: Final = {
    "amazon": ProbeSource(
        items=_amazon,
        templates=_amazon_templates,
        about="Amazon templates: seven attributes and first names (TACL 2021)",
        attributes=AMAZON_ATTRIBUTES,
        data="folder with templates/ and identity_terms/",
    ),
    "regard": _race(
        REGARD, about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)"
    ),
    "ns_prompts": _race(
        NS_PROMPTS,
        about="NS-Prompts, neutral sentences about occupations (NAACL 2022; Kohankhaki2024)",
    ),
    "planted": ProbeSource(
        items=_planted,
        about="embedded calibration over invented groups",
        attributes=(),
        data="",
    ),
    "file": ProbeSource(
        items=_own,
        about="your own sentences: text, label, attribute, group",
        attributes=(),
        data="one .csv, .tsv or .parquet file",
    ),
}
