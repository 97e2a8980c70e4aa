"""Ways to ask one question with options: its prompt, the order of options, and that for unknown.

Each is a level of the facet `prompt`, which a table averages over or draws anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase
from typing import Any, Protocol

from raybias.probes.prompts import filled


class Worded(Protocol):
    """A prompt of a study."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def template(self) -> str:
        """Its text with placeholders."""

    @property
    def system(self) -> str:
        """The system message that goes before it; none where empty."""


@dataclass(frozen=True)
class Asked:
    """A prompt with what may follow it.

    Attributes
    ----------
    prompt: names the wording.
    places: of each option in the published order.
    shown: the options in words, where letters stand for them.
    """

    prompt: str
    text: str
    options: tuple[str, ...]
    places: tuple[int, ...]
    shown: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True)
class Wording:
    """One way to ask a question: a template, options moved on by places, a word for unknown."""

    name: str
    template: str
    moved: int
    unknown: str
    system: str = ""

    def asked(self, item: Mapping[str, Any], *, letters: bool) -> Asked:
        """Ask a row of schema.OPTION_ITEMS; what may follow are options, or their letters."""
        options = list(item["options"])
        if self.unknown and item["unknown"] is not None:
            options[item["unknown"]] = self.unknown
        places = [(n + self.moved) % len(options) for n in range(len(options))]
        shown = [options[place] for place in places]
        names = ascii_uppercase[: len(shown)]
        listed = "\n".join(f"{name}. {each}" for name, each in zip(names, shown, strict=True))
        text = filled(self.template, text=item["text"], question=item["question"], options=listed)
        following = tuple(names) if letters else tuple(shown)
        return Asked(self.name, text, following, tuple(places), tuple(shown), self.system)


def wordings(prompts: Sequence[Worded], orders: int, unknowns: Sequence[str]) -> list[Wording]:
    """Return all combinations, named by what distinguishes them."""
    found = []
    for prompt, moved, unknown in product(prompts, range(orders), unknowns or ("",)):
        parts = [prompt.name]
        parts += [f"order {moved + 1}"] if orders > 1 else []
        parts += [f"unknown: {unknown}"] if len(unknowns) > 1 else []
        found.append(Wording(", ".join(parts), prompt.template, moved, unknown, prompt.system))
    return found
