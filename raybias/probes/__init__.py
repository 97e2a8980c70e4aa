"""Read probes, pairs, styles and training sets as Polars frames of the tables in `schema`.

This package loads no model, no tokenizer and no Ray. A new source of sentences is one file in
`templates`, `pairs` or `training` (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config import Probe, QuestionProbe, StyleOptions, TrainingSet
from raybias.errors import ConfigError
from raybias.probes.checks import as_table, attribute_name, choose
from raybias.probes.markedness import unmarked_forms, with_unmarked
from raybias.probes.published.winobias import with_others
from raybias.probes.registries import (
    Source,
    Splits,
    pair_probes,
    probes,
    question_probes,
    training_sets,
)
from raybias.probes.registries import styles as known_styles
from raybias.probes.sampling import sample_units
from raybias.probes.slots import Slotted
from raybias.probes.sources import place_of
from raybias.probes.styles.rules import check_style, styled
from raybias.probes.styles.written import own_styled_pairs, refuse_written
from raybias.schema import (
    COREFERENCES,
    DECISIONS,
    ITEMS,
    OPTION_ITEMS,
    SENTENCE_ITEMS,
    SENTENCES,
    TRIPLES,
)

__all__ = [
    "base_items",
    "in_styles",
    "pair_items",
    "probe_forms",
    "probe_items",
    "probe_templates",
    "question_items",
    "training_sentences",
]

#: By table, the columns within which `limit` samples, and those whose rows it keeps together.
_UNITS: Final[tuple[tuple[pa.Schema, tuple[str, ...], str], ...]] = (
    (OPTION_ITEMS, ("category",), "template_id"),
    (TRIPLES, ("domain", "task"), "term"),
    (DECISIONS, (), "decision_id"),
    (SENTENCE_ITEMS, ("axis",), "template_id"),
)


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
    if wanted is not None and source.kinds:
        wanted = tuple(choose(map(attribute_name, wanted), source.kinds, where=where))
    items = source.items(_place(source, probe.source, probe.data, where), wanted)
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
    source, where = probes[probe.source], f"probe {probe.name}"
    if source.templates is None:
        raise ConfigError(
            f"source {probe.source} has no templates to take the group term from",
            where=where,
            cure="put rows of the groups `unmarked` and `placeholder` into your own file",
        )
    data = _place(source, probe.source, probe.data, where)
    return source.templates(data, list(attributes))


def probe_forms(probe: Probe) -> pl.DataFrame:
    """List each template's unmarked form, or why it has none (markedness.FORMS).

    Raises
    ------
    ConfigError: the probe is not made from templates.
    DataError: data that is missing or malformed, or an attribute that is not there.
    """
    attributes = base_items(probe)["attribute"].unique(maintain_order=True)
    return unmarked_forms(probe_templates(probe, attributes))


def pair_items(
    source: str, data: str | None, *, kinds: Iterable[str] | None = None
) -> pl.DataFrame:
    """Read the pairs of a registered pair probe in style "original", in their published order.

    Parameters
    ----------
    kinds: bias types (crows_pairs, pairs) or types (winobias, coreferences); all without it.

    Raises
    ------
    ConfigError: no such probe.
    DataError: data that is missing or malformed, or a kind that is not there.
    """
    pair_probes.check(source)
    found, where = pair_probes[source], f"probe {source}"
    items = found.items(_place(found, source, data, where))
    if found.schema == COREFERENCES:
        items = with_others(items)
    items = as_table(items, found.schema, where=where)
    if kinds is None:
        return items
    there = items[found.kind].unique(maintain_order=True)
    return items.filter(pl.col(found.kind).is_in(choose(kinds, there, where=where)))


def in_styles(
    source: str,
    items: pl.DataFrame,
    names: Sequence[str],
    *,
    files: Sequence[str] = (),
    rewritten: Collection[str] = (),
    options: StyleOptions | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Put original items of a pair probe into several styles, each once, one after the other.

    Parameters
    ----------
    names: of the styles.
    files: the styled pairs that a style without a rule is read from.
    rewritten: styles that a model makes later: their rows hold the originals, marked as kept.

    Raises
    ------
    ConfigError: a style that the probe has not, one that neither a rule nor a file makes, or
        one that a file and a model make.
    DataError: the files miss or repeat pairs, or are malformed.
    """
    found = pair_probes[source]
    parts = []
    for style in dict.fromkeys(names):
        check_style(style, found.styles)
        if style in rewritten:
            refuse_written(style, files)
            parts.append(
                items.with_columns(pl.lit(style).alias("style"), pl.lit(True).alias("kept"))
            )
        elif files and known_styles[style].rule is None:
            parts.append(own_styled_pairs(items, style, files))
        else:
            parts.append(styled(items, style, options=options, seed=seed))
    return pl.concat(parts)


def question_items(probe: QuestionProbe, *, limit: int | None = None) -> pl.DataFrame:
    """Read the items of a question probe, in their published order.

    Parameters
    ----------
    limit: a fixed sample of whole templates, terms or decisions, of at most so many items of each
        category, domain and task, or axis; at least one.

    Raises
    ------
    DataError: data that is missing or malformed.
    """
    source, where = question_probes[probe.source], f"probe {probe.name}"
    items = source.items(_place(source, probe.source, probe.data, where))
    items = as_table(items, source.schema, where=where)
    if limit is None:
        return items
    _, within, unit = next(each for each in _UNITS if each[0].equals(source.schema))
    return sample_units(items, limit, within=within, unit=unit, source=probe.source)


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


def _place(source: Source, name: str, data: str | None, where: str) -> str:
    """Return where the files of a source are; empty for one that has none."""
    return place_of(name, data, where=where) if source.data else ""
