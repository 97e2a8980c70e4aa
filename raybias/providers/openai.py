"""A model behind an endpoint that speaks OpenAI's API: chats, completions, likelihoods.

Each process notes its requests in a file in OUT; their sum is checked against a budget and shown in
a report.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from raybias.config.parts import Ability
from raybias.config.section import Place
from raybias.engine.answers import Answers
from raybias.engine.encoder import RoughEncoder, TextEncoder
from raybias.errors import ConfigError
from raybias.opening import read_written
from raybias.providers.base import Prices, Provider, provider
from raybias.redaction import secret
from raybias.storage import Store

#: One folder for each backbone, one file for each process that asked.
FOLDER: Final = "endpoints"


@dataclass
class Asked:
    """Requests and answers.

    read, written: tokens, as the endpoint counts them; `estimated`: replies without such a count,
    whose tokens are estimated as one for four bytes of text.
    models, fingerprints: how many answers name which.
    terms: parameters that the endpoint refused, as `negotiation.Terms` names them.
    twice, same: prompts that were asked again, and those of them with the same answer.
    furthest: the largest difference between two likelihoods of one text.
    cut: answers of chats that ended at their limit of tokens; `cut_empty`: answers that ended there
    before their first word.
    filtered: answers that a filter of contents withheld.
    checked: texts whose echoed log-probabilities were those of the model.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    estimated: int = 0
    models: Counter[str] = field(default_factory=Counter)
    fingerprints: Counter[str] = field(default_factory=Counter)
    terms: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    same: int = 0
    furthest: float = 0.0
    cut: int = 0
    cut_empty: int = 0
    filtered: int = 0
    checked: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that were read and written."""
        return self.read + self.written

    def in_words(self, prices: Prices) -> str:
        """Count requests, tokens and what they cost, if prices are known, in one line."""
        parts = [f"{self.requests:,} requests, {self.tokens:,} tokens"]
        if cost := prices.of(self.read, self.written):
            parts.append(f"cost {cost:,.2f}")
        if self.estimated:
            parts.append(
                f"the tokens of {self.estimated:,} estimated, which the endpoint does not count"
            )
        if self.twice:
            parts.append(f"{self.same} of {self.twice} answers the same when asked again")
        return ", ".join(parts)

    def __add__(self, other: Asked) -> Asked:
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Asked(**sums | {"furthest": max(self.furthest, other.furthest)})


def read_asked(store: Store, backbone: str) -> Asked:
    """Add up the requests to an endpoint; DataError for a malformed note."""
    total = Asked()
    for file in store.files(f"{FOLDER}/{backbone}", suffix=".json"):
        with store.reading(file, "as a note of what was asked"):
            content: dict[str, Any] = json.loads(store.read_text(file))
            for name in ("models", "fingerprints", "terms"):
                content[name] = Counter(content.get(name, {}))
            total += Asked(**content)
    return total


#: What is surely no key.
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


@provider
class OpenAI(Provider):
    """A model behind an endpoint that speaks OpenAI's API."""

    api: Literal["openai"] = "openai"
    """Names the kind of endpoint."""
    endpoint: str = Field(pattern=r"^https?://[^/?#]+")
    """Its base URL, such as https://api.openai.com/v1."""
    model: str
    """The model's name there."""
    id: str = ""
    """The same."""
    offers: tuple[Literal["chat", "text", "first_tokens", "likelihoods"], ...] = ("chat",)
    """What it can: chats, completions of plain text, the log-probabilities of an answer's first
    tokens, and those of a prompt's tokens (completions with `echo`)."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Names the environment variable that holds the key, on the machine that asks; null where no
    key is wanted."""
    key_file: Place | None = None
    """A file that holds the key, on the machine that asks; it goes before the variable."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(5, ge=0, le=100)
    """How often a request is tried again where the endpoint fails or asks to wait."""
    never_change_answers: ClassVar[frozenset[str]] = frozenset(
        (*Provider.never_change_answers, "key_variable", "key_file", "timeout_s", "retries")
    )

    @model_validator(mode="before")
    @classmethod
    def _model_is_its_id(cls, data: Any) -> Any:
        return {**data, "id": data["model"]} if isinstance(data, dict) and "model" in data else data

    @field_validator("key_variable")
    @classmethod
    def _is_no_key(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "names an environment variable, of capitals, digits and _; the key itself must not"
                " stand in a study"
            )
        return name

    @property
    def place(self) -> str:
        return self.endpoint

    @property
    def abilities(self) -> frozenset[Ability]:
        return frozenset(self.offers)

    def text_encoder(self) -> TextEncoder:
        """Return the writer of prompts; ConfigError: the `openai` package is not installed."""
        if find_spec("openai") is None:
            raise ConfigError(
                "the openai package, which asks endpoints, is not installed",
                where=self.name,
                cure="`pip install raybias[endpoints]` on every machine",
            )
        return RoughEncoder(self, None, context=None)

    def answers(self, store: Store) -> Answers:
        from raybias.providers.asking import OpenAIAnswers

        return OpenAIAnswers(self, store)

    def key(self) -> str:
        """Read the key on this machine; empty if none is wanted, ConfigError if none is there."""
        if self.key_file is None and self.key_variable is None:
            return ""
        if self.key_file is None:
            if found := os.environ.get(str(self.key_variable), "").strip():
                return secret(found)
            problem = f"the environment variable {self.key_variable} is not set on this machine"
        else:
            with suppress(OSError, ValueError):
                if found := read_written(Path(self.key_file).expanduser()).strip():
                    return secret(found)
            problem = f"the key file {self.key_file} cannot be read on this machine, or is empty"
        raise ConfigError(
            problem,
            where=self.name,
            cure="set it where raybias or Ray's node was started, or name another by key_variable"
            " or key_file",
        )
