"""What is asked of OpenAI's API, and how its replies are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from raybias.engine.answers import Key, Writing
from raybias.errors import ConfigError
from raybias.seeding import key as number_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from raybias.providers.openai import OpenAI

#: Most alternatives that the API tells of a token, by chats and by completions.
_OF_CHATS, _OF_TEXT = 20, 5
#: A seed of the API is smaller, and so is the share of a key in all keys.
_SEEDS: Final = 2**31
_KEYS: Final = 2**64


class Reply(NamedTuple):
    """An answer, log-probabilities (of labels, or of all that followed a text), and tokens."""

    text: str
    scores: tuple[float, ...]
    tokens: int


class Request(Protocol):
    """One request.

    Attributes
    ----------
    share: a number in [0, 1) that decides whether it is asked twice.
    """

    prompt: str
    share: float

    async def ask(self, client: AsyncOpenAI) -> Any:
        """Send it."""

    def read(self, reply: Any) -> Reply:
        """Read what came back."""


class Prompt:
    """A prompt to write after."""

    def __init__(self, spec: OpenAI, prompt: str, key: Key, how: Writing) -> None:
        self.spec, self.prompt, self.how = spec, prompt, how
        self.share = number_of("repeat", prompt, *key) / _KEYS
        self.seed = number_of(*key) % _SEEDS
        # A model that answers to chats alone is asked plain text as the only message.
        self.chat = how.chat or "text" not in spec.offers

    async def ask(self, client: AsyncOpenAI) -> Any:
        """Send it."""
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

    def read(self, reply: Any) -> Reply:
        """Read the answer, with thoughts that come apart from it before it."""
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
        return Reply(text, _label_scores(likeliest, self.how.labels), _tokens(reply))


class Continued:
    """A text, and what may follow it."""

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

    def read(self, reply: Any) -> Reply:
        """Add up the log-probabilities of the tokens that begin in what follows."""
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
        return Reply("", (float(found),), _tokens(reply))


def _tokens(reply: Any) -> int:
    """Count the tokens read and written, where a server tells them."""
    return int(reply.usage.total_tokens) if reply.usage else 0


def _label_scores(
    likeliest: Sequence[tuple[str, float]], labels: Sequence[object]
) -> tuple[float, ...]:
    """Return the log-probability of the tokens that begin each label word alone, in any case.

    A word that none begins is at most as likely as the least likely of them, and counts so.
    """
    if not likeliest:
        return ()
    least = min(value for _, value in likeliest)
    words = [str(each).strip().lower() for each in labels]
    found: list[list[float]] = [[] for _ in words]
    for token, value in likeliest:
        begun = token.strip().lower()
        places = [n for n, word in enumerate(words) if begun and word.startswith(begun)]
        if len(places) == 1:
            found[places[0]].append(value)
    return tuple(float(np.logaddexp.reduce(each)) if each else least for each in found)
