"""Check that an endpoint returns the same log-probability for a token generated and echoed.

A server can return the log-probabilities of an echoed prompt from other positions than those of its
tokens, and nothing in the reply shows it. The check needs no other model: the server continues a
text greedily, and then echoes the text with its continuation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from raybias.engine.answers import Written
from raybias.providers.requests import LikelihoodRequest, Reply, Request, prompt_tokens
from raybias.providers.token_alignment import ServerFault, check_log_probability, place_tokens

if TYPE_CHECKING:
    from raybias.providers.negotiation import Terms
    from raybias.providers.openai import OpenAI

#: Texts to continue. A continuation that is empty or cut otherwise when echoed decides nothing, and
#: the next text is taken.
TEXTS: Final = (
    "The weather in the north of the country was",
    "She opened the door of the old house and",
    "In the first chapter of the book, the author",
    "The train to the city leaves every",
    "My brother works in a small shop that sells",
    "Water freezes when the temperature",
    "The meeting began with a short report on",
    "After the rain had stopped, the children",
    "It is well known that the moon",
    "The recipe calls for two cups of",
    "He looked at the map for a long time before",
    "Most of the people in the village",
)
#: Texts whose continuations must agree.
NEEDED: Final = 3
#: Most tokens of a continuation.
LENGTH: Final = 4
#: Largest difference of two log-probabilities of a token, which other batches and kernels explain.
TOLERANCE: Final = 0.05


class GreedyRequest(Request):
    """A request for the greedy continuation of a text, with its log-probabilities."""

    def __init__(self, spec: OpenAI, text: str) -> None:
        super().__init__(spec, text, LENGTH)

    def options(self, terms: Terms) -> dict[str, Any]:
        temperature = {"temperature": 0} if terms.temperature else {}
        return {"prompt": self.prompt, "max_tokens": LENGTH, "logprobs": 1, **temperature}

    def read(self, reply: Reply) -> Written:
        """Return the continuation, without the text, which some servers echo unasked."""
        text = str(reply["choices"][0].get("text") or "")
        return Written(text.removeprefix(self.prompt), (), 0)


class ScoredToken(NamedTuple):
    """A token, the bytes of its text where it starts and ends, and its log-probability."""

    start: int
    end: int
    token: str
    value: Any


def count_agreeing(
    greedy: GreedyRequest, reply: Reply, echo: LikelihoodRequest, again: Reply
) -> int:
    """Count the tokens that have one log-probability, generated and echoed.

    reply, again: the replies to the two requests. Tokens are compared up to the first that the
    echoed text has otherwise, since a tokenizer can cut a text differently from how a model wrote
    it. Raises ConfigError: two log-probabilities differ, or the echoed tokens are not the text.
    """
    try:
        echoed = _score_tokens(again, echo.prompt, behind=greedy.prompt)
        count = 0
        for first, second in zip(_score_generated(greedy, reply), echoed, strict=False):
            if first[:2] != second[:2]:
                break
            for value in (first.value, second.value):
                check_log_probability(value)
            if abs(first.value - second.value) > TOLERANCE:
                raise ServerFault(
                    "returns other log-probabilities for the tokens of a prompt than for those that"
                    f" it generates: {first.token!r} after {greedy.prompt!r} has {second.value:.2f}"
                    f" in a prompt and {first.value:.2f} generated"
                )
            count += 1
    except ServerFault as fault:
        raise echo.refuse(fault, "likelihoods") from None
    return count


def _score_generated(greedy: GreedyRequest, reply: Reply) -> list[ScoredToken]:
    """Return the generated tokens; none if they do not spell the continuation."""
    continuation = greedy.read(reply).text
    whole = str(reply["choices"][0].get("text")) != continuation
    try:
        if whole:
            return _score_tokens(reply, greedy.prompt + continuation, behind=greedy.prompt)
        return _score_tokens(reply, continuation)
    except ServerFault:
        return []


def _score_tokens(reply: Reply, text: str, *, behind: str = "") -> list[ScoredToken]:
    """Return the tokens of a text that start behind another one."""
    tokens, values = prompt_tokens(reply)
    placement, byte = place_tokens(tokens, text), len(behind.encode())
    if len(values) != len(tokens):
        raise ServerFault(f"returned {len(values)} log-probabilities for {len(tokens)} tokens")
    indices = placement.indices_from(byte)
    spans = placement.spans_from(byte)
    return [
        ScoredToken(start, end, tokens[n], values[n])
        for n, (start, end) in zip(indices, spans, strict=True)
    ]
