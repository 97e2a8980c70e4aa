"""Ways to ask one question with options: its prompt, the order of options, and that for unknown.

Each is a level of the facet `prompt`, which a table averages over or draws anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase
from typing import Any, Final, Protocol

#: Behind these an answer begins without a blank.
_OPEN: Final = frozenset("\"'(\u201c\u2018\u00ab")


class Worded(Protocol):
    """A prompt of a study."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def system(self) -> str:
        """The system message that goes before it; none where empty."""

    def fill(self, *, chat: bool, **values: str) -> tuple[str, str]:
        """Write its question and the cue of the answer, for a chat or as plain text."""


@dataclass(frozen=True)
class Asked:
    """A prompt with what may follow it.

    Attributes
    ----------
    prompt: names the wording.
    text: the question.
    cue: what the answer begins with (`methods.asking`).
    places: of each option in the published order.
    shown: the options in words, where letters stand for them.
    """

    prompt: str
    text: str
    options: tuple[str, ...]
    places: tuple[int, ...]
    shown: tuple[str, ...] = ()
    cue: str = ""
    system: str = ""

    def following(self, *, chat: bool) -> list[str]:
        """Return the options as they follow the prompt: behind a blank, but where a turn begins.

        There is none behind a cue that ends in an open quote or a blank either.
        """
        last = self.cue[-1:]
        joined = last in _OPEN or last.isspace() or (chat and not last)
        return [f"{'' if joined else ' '}{option}" for option in self.options]


@dataclass(frozen=True)
class Wording:
    """One way to ask a question: a prompt, options moved on by places, a word for unknown."""

    name: str
    prompt: Worded
    moved: int
    unknown: str

    def asked(self, item: Mapping[str, Any], *, letters: bool, chat: bool) -> Asked:
        """Ask a row of schema.OPTION_ITEMS; what may follow are options, or their letters."""
        options = list(item["options"])
        if self.unknown and item["unknown"] is not None:
            options[item["unknown"]] = self.unknown
        places = [(n + self.moved) % len(options) for n in range(len(options))]
        shown = [options[place] for place in places]
        names = ascii_uppercase[: len(shown)]
        listed = "\n".join(f"{name}. {each}" for name, each in zip(names, shown, strict=True))
        text, cue = self.prompt.fill(
            chat=chat, text=item["text"], question=item["question"], options=listed
        )
        following = tuple(names) if letters else tuple(shown)
        return Asked(
            self.name, text, following, tuple(places), tuple(shown), cue, self.prompt.system
        )


def wordings(prompts: Sequence[Worded], orders: int, unknowns: Sequence[str]) -> list[Wording]:
    """Return all combinations, named by what distinguishes them."""
    found = []
    for prompt, moved, unknown in product(prompts, range(orders), unknowns or ("",)):
        parts = [prompt.name]
        parts += [f"order {moved + 1}"] if orders > 1 else []
        parts += [f"unknown: {unknown}"] if len(unknowns) > 1 else []
        found.append(Wording(", ".join(parts), prompt, moved, unknown))
    return found
