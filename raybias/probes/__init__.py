"""Probes and training sets: where the text comes from, and what its labels are.

Everything becomes a Polars frame of `schema.ITEMS` or `schema.SENTENCES`.
This room knows no model, no tokenizer and no cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.config import Probe, TrainingSet
from raybias.errors import DataError
from raybias.probes.amazon import ATTRIBUTES as AMAZON_ATTRIBUTES
from raybias.probes.amazon import amazon_items
from raybias.probes.own import own_items
from raybias.probes.sentiment import hub, own_files, semeval2018, sst5
from raybias.probes.tables import choose
from raybias.storage import Store

__all__ = ["PROBES", "ProbeSource", "probe_items", "training_sentences"]


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


def probe_items(probe: Probe) -> pl.DataFrame:
    """The items of a probe (schema.ITEMS), in their published order.

    Raises
    ------
    DataError: data that is missing or malformed, or an attribute that is not there.
    """
    return PROBES[probe.source].items(probe)


def training_sentences(training: TrainingSet) -> dict[str, pl.DataFrame]:
    """The splits `train`, `validation` and, where there is one, `test` (schema.SENTENCES).

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
    store = Store(data)
    if training.source == "file":
        return own_files(training, store)
    return sst5(store) if training.source == "sst5" else semeval2018(store)


def _data(data: str | None, *, where: str) -> str:
    if not data:
        raise DataError("needs `data`", where=where, cure="say where its files are")
    return data


def _amazon(probe: Probe) -> pl.DataFrame:
    return amazon_items(Store(_data(probe.data, where=f"probe {probe.name}")), probe.attributes)


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
        about="Amazon templates: seven attributes and first names (TACL 2021)",
        attributes=AMAZON_ATTRIBUTES,
        data="folder with templates/ and identity_terms/",
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
        data="one .csv or .parquet file",
    ),
}
