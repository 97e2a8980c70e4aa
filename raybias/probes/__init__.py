"""Read probes, pairs, styles and training sets as Polars frames with the tables of `schema`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config import Probe, QuestionProbe, StyleOptions, TrainingSet
from raybias.errors import ConfigError
from raybias.probes.checks import as_table, attribute_name, choose
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
from raybias.probes.sources import place_of
from raybias.probes.styles.rules import check_style, styled
from raybias.probes.styles.written import own_styled_pairs, refuse_written
from raybias.probes.templates import Slotted, unmarked_forms, with_unmarked
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
    """Read the items of a probe (schema.ITEMS), in their published order."""
    items = base_items(probe)
    if not probe.unmarked:
        return items
    templates = probe_templates(probe, items["attribute"].unique(maintain_order=True))
    return with_unmarked(items, templates, probe=probe.source, placeholders=probe.placeholders)


def base_items(probe: Probe) -> pl.DataFrame:
    """Read the items of a probe (schema.ITEMS) without unmarked forms."""
    source, where = probes[probe.source], f"probe {probe.name}"
    wanted = probe.attributes
    if wanted is not None and source.kinds:
        wanted = tuple(choose(map(attribute_name, wanted), source.kinds, where=where))
    items = source.items(_place(source, probe.source, probe.data, where), wanted)
    if "family" not in items.columns:
        items = items.with_columns(family=pl.lit(None, pl.String))
    return _of_kinds(as_table(items, ITEMS, where=where), "attribute", wanted, where)


def probe_templates(probe: Probe, attributes: Iterable[str]) -> Mapping[str, Sequence[Slotted]]:
    """Read the templates of a probe's attributes with their slots, in published order."""
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
    """List each template's unmarked form, or why it has none (templates.FORMS)."""
    attributes = base_items(probe)["attribute"].unique(maintain_order=True)
    return unmarked_forms(probe_templates(probe, attributes))


def pair_items(
    source: str, data: str | None, *, kinds: Iterable[str] | None = None
) -> pl.DataFrame:
    """Read a pair probe in style "original", in published order; `kinds` None takes all kinds."""
    pair_probes.check(source)
    found, where = pair_probes[source], f"probe {source}"
    items = found.items(_place(found, source, data, where))
    if found.schema == COREFERENCES:
        items = with_others(items)
    return _of_kinds(as_table(items, found.schema, where=where), found.kind, kinds, where)


def _of_kinds(
    items: pl.DataFrame, column: str, wanted: Iterable[str] | None, where: str
) -> pl.DataFrame:
    if wanted is None:
        return items
    there = items[column].unique(maintain_order=True)
    return items.filter(pl.col(column).is_in(choose(wanted, there, where=where)))


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
    """Put the original items of a pair probe into several styles, one style after the other.

    `files` hold the styles without a rule. Those of `rewritten` styles, which a model makes later,
    are the originals, marked as kept.
    """
    found = pair_probes[source]
    parts = []
    for style in dict.fromkeys(names):
        check_style(style, found.styles)
        if style in rewritten:
            refuse_written(style, files)
            parts.append(items.with_columns(style=pl.lit(style), kept=pl.lit(True)))
        elif files and known_styles[style].rule is None:
            parts.append(own_styled_pairs(items, style, files))
        else:
            parts.append(styled(items, style, options=options, seed=seed))
    return pl.concat(parts)


def question_items(probe: QuestionProbe, *, limit: int | None = None) -> pl.DataFrame:
    """Read a question probe in its published order, or a fixed sample of whole `_UNITS`."""
    source, where = question_probes[probe.source], f"probe {probe.name}"
    items = source.items(_place(source, probe.source, probe.data, where))
    items = as_table(items, source.schema, where=where)
    if limit is None:
        return items
    _, within, unit = next(each for each in _UNITS if each[0].equals(source.schema))
    return sample_units(items, limit, within=within, unit=unit, source=probe.source)


def training_sentences(training: TrainingSet) -> Splits:
    """Read the splits (schema.SENTENCES): of one own file `train` alone, as a pool of examples."""
    splits = training_sets[training.source](training)
    where = f"training set {training.name}"
    return {split: as_table(frame, SENTENCES, where=where) for split, frame in splits.items()}


def _place(source: Source, name: str, data: str | None, where: str) -> str:
    """Return where a source's files are; empty for one without files."""
    return place_of(name, data, where=where) if source.data else ""
