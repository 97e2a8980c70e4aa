"""Read probes, pairs, styles and training sets as Polars frames with the tables of `schema`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from raybias import schema
from raybias.config import PairProbe, Probe, QuestionProbe, StyleOptions, TrainingSet
from raybias.errors import ConfigError
from raybias.probes.checks import as_table, attribute_name, choose
from raybias.probes.own import is_card, read_card
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
from raybias.probes.templates import with_unmarked
from raybias.table_files import refuse

AnyProbe = Probe | PairProbe | QuestionProbe
#: Columns that a source may leave out.
_MAY_LACK: Final = {"family", "other"}
#: Columns over whose values results are pooled, as `schema.ALL`.
_POOLED: Final = {"attribute", "group", "bias_type", "domain", "task", "axis", "category"}
#: By table, the columns within which `limit` samples, and those whose rows it keeps together.
_UNITS: Final[tuple[tuple[pa.Schema, tuple[str, ...], str], ...]] = (
    (schema.OPTION_ITEMS, ("category",), "template_id"),
    (schema.TRIPLES, ("domain", "task"), "term"),
    (schema.DECISIONS, (), "decision_id"),
    (schema.SENTENCE_ITEMS, ("axis",), "template_id"),
)


def declared_labels(part: Probe | TrainingSet) -> tuple[str, ...] | None:
    """Return the labels that a probe's or training set's source or card declares, in order.

    None if they are the study's.
    """
    if isinstance(part, TrainingSet):
        return training_sets[part.source].labels
    labels = probes[part.source].labels
    if labels is None and part.data is not None and is_card(part.data):
        return read_card(part.data).labels or None
    return labels


def declared_favourable(probe: Probe) -> str:
    """Return the label that a probe's source or card declares to be good; empty if none is."""
    source = probes[probe.source]
    if source.labels is None and probe.data is not None and is_card(probe.data):
        return read_card(probe.data).favourable
    return source.favourable


def probe_items(probe: Probe, *, labels: Sequence[str] | None = None) -> pl.DataFrame:
    """Read the items of a probe (schema.ITEMS), in their published order.

    labels: of the study, in order, for a probe that declares none; None for those of sentiment.
    """
    source, wanted, where = probes[probe.source], probe.attributes, f"probe {probe.name}"
    if wanted is not None and source.kinds:
        wanted = tuple(choose(map(attribute_name, wanted), source.kinds, where=where))
    known = source.labels or tuple(labels or declared_labels(probe) or schema.LABELS)
    more = {"labels": known} if source.labels is None else {}
    items = _of_kinds(_read(source, probe, wanted, **more), "attribute", wanted, probe)
    _refuse_numbers(items, known, where)
    if not probe.unmarked:
        return items
    if source.templates is None:
        raise ConfigError(
            f"source {probe.source} has no templates to take the group term from",
            where=where,
            cure="put rows of the groups `unmarked` and `placeholder` into your own file",
        )
    attributes = items["attribute"].unique(maintain_order=True).to_list()
    templates = source.templates(_place(source, probe), attributes)
    return with_unmarked(items, templates, probe=probe.source, placeholders=probe.placeholders)


def base_pairs(probe: PairProbe) -> pl.DataFrame:
    """Read the pairs of a probe in style "original", in their published order."""
    source = pair_probes[probe.source]
    items = _read(source, probe)
    if source.schema == schema.COREFERENCES:
        items = with_others(items)
    return _of_kinds(items, source.kind, probe.kinds, probe)


def pair_items(
    probe: PairProbe,
    styles: Sequence[str] = ("original",),
    *,
    files: Sequence[str] = (),
    options: StyleOptions | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Read the pairs of a probe in styles, one after another (`schema.PAIRS` or `COREFERENCES`).

    Parameters
    ----------
    files: styled pairs, which formal and informal are read from.
    options: what the rule styles leave open.
    seed: of random draws.

    Raises
    ------
    DataError: its data is missing or malformed.
    ConfigError: a style that the probe does not have.
    """
    items = base_pairs(probe)
    return in_styles(probe.source, items, styles, files=files, options=options, seed=seed)


def in_styles(
    source: str,
    items: pl.DataFrame,
    names: Sequence[str],
    *,
    files: Sequence[str] = (),
    rewritten: Collection[str] = (),
    options: StyleOptions | None = None,
    seed: int = 0,
    repeats: int = 1,
) -> pl.DataFrame:
    """Put the original items of a pair probe into several styles, one style after the other.

    `files` hold the styles without a rule. Those of `rewritten` styles, which a model makes later,
    are the originals, marked as kept. Pairs of schema.PAIRS come `repeats` times in each style.
    """
    found = pair_probes[source]
    several = repeats if found.schema.equals(schema.PAIRS) else 1
    whole = repeated(items, several)
    parts = []
    for style in dict.fromkeys(names):
        check_style(style, found.styles)
        if style in rewritten:
            refuse_written(style, files)
            parts.append(whole.with_columns(style=pl.lit(style), kept=pl.lit(True)))
        elif files and known_styles[style].rule is None:
            parts.append(repeated(own_styled_pairs(items, style, files), several))
        else:
            parts.append(styled(whole, style, options=options, seed=seed))
    return pl.concat(parts)


def repeated(pairs: pl.DataFrame, repeats: int) -> pl.DataFrame:
    """Return pairs so many times, one repeat after another, as clusters that are alike.

    The second repeat of pair `7` has the id `7#repeat2`. Its cluster is the pair's, or the pair.
    """
    if repeats == 1:
        return pairs
    ids = pairs["pair_id"]
    refuse(
        ids.str.contains(schema.REPEAT),
        ids,
        "ends as the ids of repeated pairs do",
        "pairs, pair_id",
        "give it another id, or take `repeats` of styles out",
    )
    alike = pairs.with_columns(cluster=pl.coalesce("cluster", "pair_id"))
    more = [
        alike.with_columns(pair_id=pl.format(f"{{}}#repeat{number}", "pair_id"))
        for number in range(2, repeats + 1)
    ]
    return pl.concat([alike, *more])


def question_items(probe: QuestionProbe, *, limit: int | None = None) -> pl.DataFrame:
    """Read a question probe in its published order, or a fixed sample of whole `_UNITS`."""
    source = question_probes[probe.source]
    items = _read(source, probe)
    if limit is None:
        return items
    _, within, unit = next(each for each in _UNITS if each[0].equals(source.schema))
    return sample_units(items, limit, within=within, unit=unit, source=probe.source)


def training_sentences(training: TrainingSet, *, labels: Sequence[str] = schema.LABELS) -> Splits:
    """Read the splits (schema.SENTENCES): of one own file `train` alone, as a pool of examples.

    labels: of the study, in order, for a training set that declares none.
    """
    source = training_sets[training.source]
    known = source.labels or tuple(labels)
    more = {"labels": known} if source.labels is None else {}
    where = f"training set {training.name}"
    splits = {
        split: as_table(frame, schema.SENTENCES, where=where)
        for split, frame in source.splits(training, **more).items()
    }
    for sentences in splits.values():
        _refuse_numbers(sentences, known, where)
    return splits


def _refuse_numbers(rows: pl.DataFrame, labels: Sequence[str], where: str) -> None:
    """Refuse a number in the column `label` that is the index of no label, by a DataError."""
    numbers = rows["label"]
    outside = ~numbers.is_between(0, len(labels) - 1).fill_null(False)
    problem = f"is no number of the labels {', '.join(labels)}"
    refuse(outside, numbers, problem, where, "have its source declare its labels")


def _read(
    source: Source, probe: AnyProbe, *wanted: Sequence[str] | None, **more: Sequence[str]
) -> pl.DataFrame:
    items = source.items(_place(source, probe), *wanted, **more)
    lacking = _MAY_LACK & {*source.schema.names} - {*items.columns}
    items = items.with_columns(pl.lit(None, pl.String).alias(name) for name in lacking)
    table = as_table(items, source.schema, where=f"probe {probe.name}")
    for name in _POOLED & {*table.columns}:
        problem = "stands for all of them in results"
        reserved = table[name] == schema.ALL
        refuse(reserved, table[name], problem, f"probe {probe.name}", "give it another name")
    return table


def _place(source: Source, probe: AnyProbe) -> str:
    """Return where a source's files are; empty for one without files."""
    where = f"probe {probe.name}"
    return place_of(probe.source, probe.data, where=where) if source.data else ""


def _of_kinds(
    items: pl.DataFrame, column: str, wanted: Sequence[str] | None, probe: AnyProbe
) -> pl.DataFrame:
    if wanted is None:
        return items
    there = items[column].unique(maintain_order=True)
    return items.filter(pl.col(column).is_in(choose(wanted, there, where=f"probe {probe.name}")))
