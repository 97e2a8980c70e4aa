"""The cards of a study's own probes on its page: what is measured, who is harmed, and why so."""

from __future__ import annotations

from collections.abc import Iterator

from raybias.config.card import Card, parse_card
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
