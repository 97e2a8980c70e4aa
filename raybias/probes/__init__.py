"""Read probes, pairs, styles and training sets as Polars frames of the tables in `schema`.

This package loads no model, no tokenizer and no Ray. A new source of sentences is one file in
`templates`, `pairs` or `training` (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from raybias.config import Probe, TrainingSet
from raybias.errors import ConfigError
from raybias.probes.column_checks import as_table, attribute_name, choose
from raybias.probes.registries import ProbeSource, Splits, probes, training_sets
from raybias.probes.sources import place_of
from raybias.probes.templates.markedness import unmarked_forms, with_unmarked
from raybias.probes.templates.slots import Slotted
from raybias.schema import ITEMS, SENTENCES

__all__ = ["base_items", "probe_forms", "probe_items", "probe_templates", "training_sentences"]


def probe_items(probe: Probe) -> pl.DataFrame:
    """Read the items of a probe (schema.ITEMS), in their published order.

    Raises
    ------
    DataError: data that is missing or malformed, or an attribute that is not there.
    ConfigError: unmarked forms of a probe without templates, or a wrong placeholder.
    """
    items = base_items(probe)
    if not probe.unmarked:
        return items
    templates = probe_templates(probe, items["attribute"].unique(maintain_order=True))
    return with_unmarked(items, templates, probe=probe.source, placeholders=probe.placeholders)


def base_items(probe: Probe) -> pl.DataFrame:
    """Read the items of a probe (schema.ITEMS) without unmarked forms.

    Raises
    ------
    DataError: data that is missing or malformed, or an attribute that is not there.
    """
    source, where = probes[probe.source], f"probe {probe.name}"
    wanted = probe.attributes
    if wanted is not None and source.attributes:
        wanted = tuple(choose(map(attribute_name, wanted), source.attributes, where=where))
    items = source.items(_data(probe, source), wanted)
    if "family" not in items.columns:
        items = items.with_columns(family=pl.lit(None, pl.String))
    items = as_table(items, ITEMS, where=where)
    if wanted is None:
        return items
    there = items["attribute"].unique(maintain_order=True)
    return items.filter(pl.col("attribute").is_in(choose(wanted, there, where=where)))


def probe_templates(probe: Probe, attributes: Iterable[str]) -> Mapping[str, Sequence[Slotted]]:
    """Read the templates of a probe's attributes with their slots, in published order.

    Raises
    ------
    ConfigError: the probe is not made from templates.
    DataError: a file is missing or malformed.
    """
    source = probes[probe.source]
    if source.templates is None:
        raise ConfigError(
            f"source {probe.source} has no templates to take the group term from",
            where=f"probe {probe.name}",
            cure="put rows of the groups `unmarked` and `placeholder` into your own file",
        )
    return source.templates(_data(probe, source), list(attributes))


def probe_forms(probe: Probe) -> pl.DataFrame:
    """List each template's unmarked form, or why it has none (markedness.FORMS).

    Raises
    ------
    ConfigError: the probe is not made from templates.
    DataError: data that is missing or malformed, or an attribute that is not there.
    """
    attributes = base_items(probe)["attribute"].unique(maintain_order=True)
    return unmarked_forms(probe_templates(probe, attributes))


def training_sentences(training: TrainingSet) -> Splits:
    """Read the splits `train`, `validation` and, where there is one, `test` (schema.SENTENCES).

    A single file of one's own gives `train` alone: a pool that demonstrations are drawn from.

    Raises
    ------
    DataError: data that is missing or malformed, or labels outside the map.
    """
    splits = training_sets[training.source](training)
    where = f"training set {training.name}"
    return {split: as_table(frame, SENTENCES, where=where) for split, frame in splits.items()}


def _data(probe: Probe, source: ProbeSource) -> str:
    where = f"probe {probe.name}"
    return place_of(probe.source, probe.data, where=where) if source.data else ""
