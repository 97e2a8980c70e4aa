"""Read question probes by name, with a study's limit."""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config import QuestionProbe
from raybias.probes.column_checks import as_table
from raybias.probes.registries import question_probes
from raybias.probes.sampling import sample_units
from raybias.probes.sources import place_of
from raybias.schema import DECISIONS, OPTION_ITEMS, SENTENCE_ITEMS, TRIPLES

#: By table, the columns that say what is drawn together by a limit: within which, and as a whole.
_UNITS: Final[tuple[tuple[pa.Schema, tuple[str, ...], str], ...]] = (
    (OPTION_ITEMS, ("category",), "template_id"),
    (TRIPLES, ("domain", "task"), "term"),
    (DECISIONS, (), "decision_id"),
    (SENTENCE_ITEMS, ("axis",), "template_id"),
)


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
    place = place_of(probe.source, probe.data, where=where)
    items = as_table(source.items(place), source.schema, where=where)
    if limit is None:
        return items
    _, within, unit = next(each for each in _UNITS if each[0].equals(source.schema))
    return sample_units(items, limit, within=within, unit=unit, source=probe.source)
