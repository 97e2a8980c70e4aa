"""A model behind an endpoint that speaks OpenAI's API: chats, completions, likelihoods.

Each process notes its requests in a file in OUT; their sum is checked against a budget and shown in
a report.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from raybias.config.parts import Ability
from raybias.config.section import Location
from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.engine.encoder import RoughEncoder, TextEncoder
from raybias.errors import ConfigError
from raybias.providers.base import Prices, Provider, provider
from raybias.redaction import secret
from raybias.seeding import key as number_of
from raybias.storage import Store

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: One folder for each backbone, one file for each process that asked.
FOLDER: Final = "endpoints"


@dataclass
class Asked:
    """Requests and answers.

    read, written: tokens, as the endpoint counts them.
    models, fingerprints: how many answers name which.
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
        """Tokens that were read and written."""
        return self.read + self.written

    def in_words(self, prices: Prices) -> str:
        """Count requests, tokens and what they cost, if prices are known, in one line."""
        parts = [f"{self.requests:,} requests, {self.tokens:,} tokens"]
        if cost := prices.of(self.read, self.written):
            parts.append(f"cost {cost:,.2f}")
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
            for name in ("models", "fingerprints"):
                content[name] = Counter(content[name])
            total += Asked(**content)
    return total


#: Most alternatives to a token in the API's chats and completions.
_OF_CHATS, _OF_TEXT = 20, 5
#: A seed of the API is smaller, and so is the share of a key in all keys.
_SEEDS: Final = 2**31
_KEYS: Final = 2**64


class Prompt:
    """A prompt to write after; `share`, in [0, 1), decides whether it is asked twice."""

    def __init__(self, spec: OpenAI, prompt: str, key: Key, how: Writing) -> None:
        self.spec, self.prompt, self.how = spec, prompt, how
        self.share = number_of("repeat", prompt, *key) / _KEYS
        self.seed = number_of(*key) % _SEEDS
        # A model that answers to chats alone is asked plain text as the only message.
        self.chat = how.chat or "text" not in spec.offers

    async def ask(self, client: AsyncOpenAI) -> Any:
        options: dict[str, Any] = {
            "model": self.spec.id,
            "temperature": self.how.temperature,
            "max_tokens": max(1, self.how.most),
        }
        if self.how.temperature:
            options["seed"] = self.seed
        told = bool(self.how.labels) and "first_tokens" in self.spec.offers
        if not self.chat:
            alternatives = {"logprobs": _OF_TEXT} if told else {}
            return await client.completions.create(prompt=self.prompt, **options, **alternatives)
        said = {"role": "user", "content": self.prompt}
        return await client.chat.completions.create(
            messages=json.loads(self.prompt) if self.how.chat else [said],
            **options,
            **({"logprobs": True, "top_logprobs": _OF_CHATS} if told else {}),
        )

    def read(self, reply: Any) -> Written:
        """Read the answer, after thoughts that come separately."""
        choice = reply.choices[0]
        if self.chat:
            text = choice.message.content or choice.message.refusal or ""
            if thoughts := (choice.message.model_extra or {}).get("reasoning_content"):
                text = f"<think>{thoughts}</think>{text}"
            first = choice.logprobs.content[0].top_logprobs if choice.logprobs else ()
            likeliest = [(each.token, each.logprob) for each in first]
        else:
            text = choice.text
            likeliest = [*choice.logprobs.top_logprobs[0].items()] if choice.logprobs else []
        if not isinstance(text, str):
            raise TypeError(f"its text is {type(text).__name__}")
        scores, bounds = _label_scores(likeliest, self.how.labels)
        return Written(text, scores, _tokens(reply), bounds)


class Continued:
    """A text and a possible continuation."""

    def __init__(self, spec: OpenAI, text: str, after: str) -> None:
        self.spec, self.prompt = spec, text + after
        # Blanks at the end of a text go to what follows, where tokenizers have them.
        self.begins = len(text.rstrip())
        self.share = number_of("repeat", text, after) / _KEYS

    async def ask(self, client: AsyncOpenAI) -> Any:
        """Send it; servers that echo want to write a token too."""
        return await client.completions.create(
            model=self.spec.id,
            prompt=self.prompt,
            max_tokens=1,
            temperature=0,
            echo=True,
            logprobs=1,
        )

    def read(self, reply: Any) -> Written:
        """Add up the log-probabilities of the continuation's tokens."""
        told = reply.choices[0].logprobs
        if told is None or not told.text_offset:
            raise ConfigError(
                "tells no log-probabilities of a prompt's tokens",
                where=f"{self.spec.name} at {self.spec.place}",
                cure="take likelihoods out of `offers`",
            )
        # A begin token is echoed too, and no part of the prompt.
        shift = 0 if self.prompt.startswith(told.tokens[0]) else len(told.tokens[0])
        places = range(self.begins + shift, len(self.prompt) + shift)
        pairs = zip(told.text_offset, told.token_logprobs, strict=True)
        # The first token of all has no log-probability.
        found = sum(value for place, value in pairs if place in places and value is not None)
        return Written("", (float(found),), _tokens(reply))


def _tokens(reply: Any) -> int:
    """Count the tokens read and written, where a server reports them."""
    return int(reply.usage.total_tokens) if reply.usage else 0


def _label_scores(
    likeliest: Sequence[tuple[str, float]], labels: Sequence[object]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the log-probability of the tokens that begin each label word alone, in any case.

    A word without any counts as the least likely of them, an upper bound; these words come second.
    """
    if not likeliest:
        return (), ()
    least = min(value for _, value in likeliest)
    words = [str(each).strip().lower() for each in labels]
    found: list[list[float]] = [[] for _ in words]
    for token, value in likeliest:
        begun = token.strip().lower()
        places = [n for n, word in enumerate(words) if begun and word.startswith(begun)]
        if len(places) == 1:
            found[places[0]].append(value)
    scores = tuple(float(np.logaddexp.reduce(each)) if each else least for each in found)
    return scores, tuple(n for n, each in enumerate(found) if not each)


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
    key_file: Location | None = None
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
                if found := Path(self.key_file).expanduser().read_text("utf-8").strip():
                    return secret(found)
            problem = f"the key file {self.key_file} cannot be read on this machine, or is empty"
        raise ConfigError(
            problem,
            where=self.name,
            cure="set it where raybias or Ray's node was started, or name another by key_variable"
            " or key_file",
        )
