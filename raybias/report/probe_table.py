"""A card for each probe that a study reads: what it is, whom it names, who published it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from raybias.config import Study
from raybias.probes import sources
from raybias.probes.registries import probes
from raybias.report import wording
from raybias.report.summary_tables import SummaryTable
from raybias.storage import Store


def probe_tables(
    store: Store, study: Study, tables: Mapping[str, pl.DataFrame]
) -> list[SummaryTable]:
    """Describe the probes of gaps that have no card of their own in OUT/cards.

    Parameters
    ----------
    tables: of `write_tables`; without them nothing is described.
    """
    own = {name.removeprefix("cards/").removesuffix(".yaml") for name in store.files("cards")}
    published, found = sources.registry(), []
    for probe in study.probes if tables else ():
        if probe.name in own or probe.source not in probes:
            continue
        mine = tables["composition"].filter(probe=probe.name)
        groups = mine.group_by("attribute", maintain_order=True).agg(
            pl.col("group").unique().sort()
        )
        rows = [("what it is", probes[probe.source].about)]
        rows += [(f"groups of {a}", wording.listed(names)) for a, names in groups.iter_rows()]
        rows.append(("sentences", f"{mine['items'].sum():,}"))
        if probe.source in published:
            parts = published[probe.source].parts
            rows += [("published at", part.page) for part in parts[:1]]
            rows += [("licence", part.licence) for part in parts[:1]]
        found.append(SummaryTable(f"Probe {probe.name}", ("question", "answer"), tuple(rows)))
    return found
