"""Note in OUT what was asked of an endpoint, and what it said of itself.

Each process that asks keeps a file of its own, so that none is written twice over; their sum is
what a budget is held against, and what a report shows.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from raybias.providers.base import Prices
from raybias.storage import Store

#: One folder for each backbone, one file for each process that asked.
FOLDER: Final = "endpoints"


@dataclass
class Asked:
    """What was asked, and answered.

    Attributes
    ----------
    read, written: tokens, as the endpoint counts them.
    models, fingerprints: how many answers said that they come from which.
    twice, same: prompts that were asked again, and those of them with the same answer.
    furthest: the largest difference between two likelihoods of one text.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    models: Counter[str] = field(default_factory=Counter)
    fingerprints: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    same: int = 0
    furthest: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.read + self.written

    def in_words(self, prices: Prices) -> str:
        """Say what was asked, what it cost, and how often the same prompt had the same answer."""
        parts = [f"{self.requests:,} requests, {self.tokens:,} tokens"]
        if cost := prices.of(self.read, self.written):
            parts.append(f"cost {cost:,.2f}")
        if self.twice:
            parts.append(f"{self.same} of {self.twice} answers the same when asked again")
        return ", ".join(parts)

    def __add__(self, other: Asked) -> Asked:
        return Asked(
            self.requests + other.requests,
            self.read + other.read,
            self.written + other.written,
            self.models + other.models,
            self.fingerprints + other.fingerprints,
            self.twice + other.twice,
            self.same + other.same,
            max(self.furthest, other.furthest),
        )


class Ledger:
    """What this process asked, and what others did before it."""

    def __init__(self, store: Store, backbone: str) -> None:
        self.store, self.before = store, read_asked(store, backbone)
        self.own = Asked()
        self._file = f"{FOLDER}/{backbone}/{uuid.uuid4().hex}.json"

    @property
    def all(self) -> Asked:
        """What all processes asked."""
        return self.before + self.own

    def save(self) -> None:
        """Write down what this process asked."""
        if self.own.requests:
            self.store.write_text(self._file, json.dumps(vars(self.own), indent=1))


def read_asked(store: Store, backbone: str) -> Asked:
    """Add up what was asked of an endpoint.

    Raises
    ------
    DataError: a file that is no such note.
    """
    return sum(_notes(store, store.files(f"{FOLDER}/{backbone}", suffix=".json")), Asked())


def _notes(store: Store, names: Iterable[str]) -> Iterable[Asked]:
    for file in names:
        with store.reading(file, "as a note of what was asked"):
            content: dict[str, Any] = json.loads(store.read_text(file))
            for name in ("models", "fingerprints"):
                content[name] = Counter(content[name])
            yield Asked(**content)
