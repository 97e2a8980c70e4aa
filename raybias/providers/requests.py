"""Requests to an OpenAI-compatible endpoint, and how their replies are read.

A reply is read as JSON, since servers differ in what they leave out, and checked here: nothing is
taken for an answer that could be something else.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from raybias.engine.answers import FinishReason, Key, Writing, Written
from raybias.errors import ConfigError
from raybias.providers.negotiation import Terms
from raybias.providers.token_alignment import (
    ServerFault,
    check_log_probability,
    find_spelling,
    place_tokens,
    read_log_probabilities,
)
from raybias.seeding import key as number_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from raybias.providers.openai import OpenAI

#: A seed of the API is smaller, and so is the share of a key in all keys.
_SEEDS: Final = 2**31
_KEYS: Final = 2**64
#: Characters of a reply that a message shows.
_SHOWN: Final = 120
#: Finish reasons of answers that the limit of tokens ended; they begin so in some servers.
_CUT: Final = ("length", "max_tokens", "model_length")
_FILTERED: Final = "content_filter"
_THOUGHTS: Final = ("<think>", "</think>")
#: A reply, as JSON.
Reply = dict[str, Any]


class Request(ABC):
    """One request; `share`, in [0, 1), decides whether it is sent twice.

    prompt: its text, by which tokens are estimated.
    max_tokens: most tokens of its answer.
    chat: whether it is a chat.
    """

    share: float = 1.0
    chat: bool = False

    def __init__(self, spec: OpenAI, prompt: str, max_tokens: int) -> None:
        self.spec, self.prompt, self.max_tokens = spec, prompt, max(1, max_tokens)

    async def ask(self, client: AsyncOpenAI, terms: Terms) -> Reply:
        """Send the request; return a reply that has a choice; ValueError: there is none."""
        resource = client.chat.completions if self.chat else client.completions
        create: Any = resource.with_raw_response.create
        response = (await create(model=self.spec.id, **self.options(terms))).http_response
        return _parse_reply(response.headers.get("Content-Type", ""), response.text)

    @abstractmethod
    def options(self, terms: Terms) -> dict[str, Any]:
        """Return the parameters of the request that an endpoint of these terms accepts."""

    @abstractmethod
    def read(self, reply: Reply) -> Written:
        """Read the reply, whose tokens are counted elsewhere; ConfigError: it cannot be used."""

    def refuse(self, fault: ServerFault, ability: str) -> ConfigError:
        """Return the error of a reply that lacks what `ability`, one of `offers`, promises."""
        return ConfigError(
            f"the endpoint {fault}",
            where=f"{self.spec.name} at {self.spec.place}",
            cure=f"take {ability} out of `offers`, or use a server that returns them rightly",
        )


class AnswerRequest(Request):
    """A request to write after a prompt."""

    def __init__(self, spec: OpenAI, prompt: str, key: Key, how: Writing) -> None:
        super().__init__(spec, prompt, how.most)
        self.how = how
        self.share = number_of("repeat", prompt, *key) / _KEYS
        self.seed = number_of(*key) % _SEEDS
        # A model that answers to chats alone is asked plain text as the only message.
        self.chat = how.chat or "text" not in spec.offers
        self.wants_scores = bool(how.labels) and "first_tokens" in spec.offers

    def options(self, terms: Terms) -> dict[str, Any]:
        options: dict[str, Any] = {terms.length if self.chat else "max_tokens": self.max_tokens}
        if terms.temperature:
            options["temperature"] = self.how.temperature
        if terms.seed and self.how.temperature:
            options["seed"] = self.seed
        if not self.chat:
            counts = {"logprobs": terms.logprobs} if self.wants_scores else {}
            return {"prompt": self.prompt, **options, **counts}
        counts = {"logprobs": True, "top_logprobs": terms.top_logprobs} if self.wants_scores else {}
        message = {"role": "user", "content": self.prompt}
        messages = json.loads(self.prompt) if self.how.chat else [message]
        return {"messages": messages, **options, **counts}

    def read(self, reply: Reply) -> Written:
        choice = reply["choices"][0]
        finish = _finish_reason(choice)
        if not self.how.most:
            # The first token alone is asked for.
            finish = "stop" if finish == "length" else finish
        answer, thoughts = _split_chat(choice) if self.chat else (_text(choice), "")
        refusal = choice["message"].get("refusal") if self.chat and not answer else None
        if refusal:
            answer = str(refusal)
            finish = "content_filter"
        text = f"<think>{thoughts}</think>{answer}" if thoughts else answer
        if not self.wants_scores:
            return Written(text, (), 0, (), finish)
        try:
            scores, bounds = self._score_labels(choice, answer, thoughts, finish)
        except ServerFault as fault:
            raise self.refuse(fault, "first_tokens") from None
        return Written(text, scores, 0, bounds, finish)

    def withheld(self) -> Written:
        """Return the answer to a prompt that a filter of contents refused: there is none."""
        scores, bounds = self._unknown_scores()
        return Written("", scores, 0, bounds, "content_filter")

    def _unknown_scores(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the upper bound of any log-probability for each label, if scores are wanted."""
        count = len(self.how.labels) * self.wants_scores
        return (0.0,) * count, tuple(range(count))

    def _score_labels(
        self, choice: dict[str, Any], answer: str, thoughts: str, finish: FinishReason
    ) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Score the labels by the first token of an answer; ServerFault: it is another's."""
        tokens, likeliest = _first_tokens(choice.get("logprobs"))
        if finish == "content_filter" or not (tokens or answer.strip()):
            return self._unknown_scores()
        if not likeliest:
            raise ServerFault("returned no log-probabilities of an answer's first token")
        thinks = any(mark in answer for mark in _THOUGHTS)
        if thinks or (thoughts and not answer.strip()):
            raise ServerFault("returned log-probabilities of the model's thoughts, not its answer")
        try:
            spell = find_spelling(tokens, answer)
        except ServerFault:
            if thoughts:
                raise ServerFault(
                    f"returned log-probabilities of the model's thoughts ({tokens[0]!r} ..), not"
                    f" of its answer ({answer[:_SHOWN]!r})"
                ) from None
            raise
        for _, value in likeliest:
            check_log_probability(value)
        spelled = [
            (spell([token])[0].decode("utf-8", "replace"), float(value))
            for token, value in likeliest
        ]
        return _label_scores(spelled, self.how.labels)


class LikelihoodRequest(Request):
    """A request for the log-likelihood of a continuation of a text."""

    def __init__(self, spec: OpenAI, text: str, after: str) -> None:
        # Servers that echo want to write a token too.
        super().__init__(spec, text + after, 1)
        # Blanks at the end of a text go to what follows, where tokenizers have them.
        self.begin = len(text.rstrip().encode("utf-8", "surrogatepass"))
        self.share = number_of("repeat", text, after) / _KEYS

    def options(self, terms: Terms) -> dict[str, Any]:
        temperature = {"temperature": 0} if terms.temperature else {}
        return {"prompt": self.prompt, "max_tokens": 1, "echo": True, "logprobs": 1, **temperature}

    def read(self, reply: Reply) -> Written:
        """Add up the log-probabilities of the tokens that begin in the continuation."""
        try:
            tokens, values = prompt_tokens(reply)
            chosen = place_tokens(tokens, self.prompt).indices_from(self.begin)
            numbers = read_log_probabilities(tokens, values, chosen)
        except ServerFault as fault:
            raise self.refuse(fault, "likelihoods") from None
        return Written("", (float(np.sum(numbers)),), 0)


def prompt_tokens(reply: Reply) -> tuple[list[str], list[Any]]:
    """Return a completion's tokens and their log-probabilities; ServerFault: there are none."""
    logprobs = reply["choices"][0].get("logprobs")
    tokens, values = _list_in(logprobs, "tokens"), _list_in(logprobs, "token_logprobs")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise ServerFault("did not return log-probabilities of a prompt's tokens")
    return tokens, values


def _list_in(logprobs: Any, name: str) -> list[Any]:
    values = logprobs.get(name) if isinstance(logprobs, dict) else None
    return values if isinstance(values, list) else []


def _parse_reply(kind: str, content: str) -> Reply:
    """Return a reply as JSON with its first choice; ValueError with what it is instead."""
    begin = " ".join(content.split())[:_SHOWN]
    if "event-stream" in kind:
        raise ValueError("a stream of events, which was not asked for")
    try:
        reply = json.loads(content)
    except ValueError:
        raise ValueError(f"no JSON: {begin}") from None
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise ValueError(f"no `choices`: {begin}")
    return dict(reply)


def _finish_reason(choice: dict[str, Any]) -> FinishReason:
    reason = str(choice.get("finish_reason") or "").lower()
    if reason.startswith(_FILTERED):
        return "content_filter"
    return "length" if reason.startswith(_CUT) else "stop"


def _split_chat(choice: dict[str, Any]) -> tuple[str, str]:
    """Return the answer of a chat, and the thoughts that come separately; ValueError: neither."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError("a choice without a message")
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    content = message.get("content") or ""
    if isinstance(content, list):
        # Mistral's reasoning models return parts.
        kinds = [
            (part.get("type"), _join_parts(part)) for part in content if isinstance(part, dict)
        ]
        content = "".join(text for kind, text in kinds if kind == "text")
        thoughts = "".join(text for kind, text in kinds if kind == "thinking") or thoughts
    if not isinstance(content, str):
        raise ValueError(f"its text is {type(content).__name__}")
    return content, thoughts if isinstance(thoughts, str) else ""


def _join_parts(part: dict[str, Any]) -> str:
    """Return the text of a part of a message, which can consist of parts."""
    text = part.get("text") or part.get("thinking") or ""
    if isinstance(text, list):
        return "".join(_join_parts(each) for each in text if isinstance(each, dict))
    return str(text)


def _text(choice: dict[str, Any]) -> str:
    text = choice.get("text")
    if not isinstance(text, str):
        raise ValueError(f"its text is {type(text).__name__}")
    return text


def _first_tokens(logprobs: Any) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return an answer's tokens, and the likeliest first ones with their log-probabilities.

    logprobs: of a choice, in the form of chats or, as some servers return it in chats too, of
    completions.
    """
    entries = [each for each in _list_in(logprobs, "content") if isinstance(each, dict)]
    if entries:
        first = entries[0].get("top_logprobs") or entries[:1]
        tokens = [str(each.get("token", "")) for each in entries]
        return tokens, [(str(each.get("token", "")), each.get("logprob")) for each in first]
    tokens, likeliest = _list_in(logprobs, "tokens"), _list_in(logprobs, "top_logprobs")
    first = likeliest[0] if likeliest and isinstance(likeliest[0], dict) else {}
    return [str(token) for token in tokens], [*first.items()]


def _label_scores(
    likeliest: Sequence[tuple[str, float]], labels: Sequence[object]
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the log-probability of the tokens that begin each label word alone, in any case.

    A word without any counts as the least likely of them, an upper bound; these words come second.
    """
    least = min(value for _, value in likeliest)
    words = [str(label).strip().lower() for label in labels]
    values: list[list[float]] = [[] for _ in words]
    for token, value in likeliest:
        start = token.strip().lower()
        labels_begun = [n for n, word in enumerate(words) if start and word.startswith(start)]
        if len(labels_begun) == 1:
            values[labels_begun[0]].append(value)
    scores = tuple(float(np.logaddexp.reduce(some)) if some else least for some in values)
    return scores, tuple(n for n, some in enumerate(values) if not some)
