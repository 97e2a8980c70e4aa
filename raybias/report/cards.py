"""Cards of the probes of a study: what a probe measures, whom it names, who published it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from raybias.config import Study
from raybias.config.card import Card, parse_card
from raybias.probes import sources
from raybias.probes.registries import probes
from raybias.report import wording
from raybias.report.summary_tables import SummaryTable
from raybias.storage import Store

_SAID = {
    "about": "what is measured",
    "harm": "who is harmed, and how",
    "metric": "number to look at",
    "gold": "what the right answer means",
    "units": "what is drawn anew",
}
_VALIDITY = {
    "language": "language",
    "use_context": "use in which it would come about",
    "bias": "what is called bias",
    "desired_outcome": "without bias",
    "demographics": "people",
    "proxy": "what stands for them",
    "origin": "origin of the texts",
    "limits": "what it cannot show",
}


def cards(store: Store) -> list[SummaryTable]:
    """Read OUT/cards and make a table of each.

    Raises
    ------
    ConfigError: a card that was changed and is wrong now.
    """
    found = []
    for name in store.files("cards", suffix=".yaml"):
        card = parse_card(store.read_text(name), where=store.uri_of(name))
        probe = name.removeprefix("cards/").removesuffix(".yaml")
        title = f"{probe}, by its author's card"
        found.append(SummaryTable(title, ("question", "answer"), tuple(_rows(card))))
    return found


def _rows(card: Card) -> Iterator[tuple[str, str]]:
    for field, title in _SAID.items():
        if text := getattr(card, field):
            yield title, text
    for group, people in card.groups.items():
        yield f"group {group}", people
    if card.facets:
        yield "what else varies", ", ".join(card.facets)
    if card.hub:
        yield "data", f"{card.hub} at {card.revision}"
    for field, title in _VALIDITY.items():
        yield title, getattr(card.validity, field) or "not said"


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
