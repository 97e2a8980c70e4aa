"""Understand what an endpoint refuses: which parameter, which prompt, and in which words.

Servers differ in the parameters that they accept. A request begins with the API's own; what a
server refuses is left out or renamed once, and recorded, so that no option is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from raybias.redaction import without_secrets

#: Characters of a server's message that are shown.
SHOWN: Final = 300
#: Most alternatives to a token in the API's chats and completions, and what is tried below them.
_OF_CHATS, _OF_TEXT = 20, 5
_FEWER: Final = (10, 8, 5, 4, 3, 2, 1)
_LENGTH, _NEW_LENGTH = "max_tokens", "max_completion_tokens"
_COUNTS: Final = ("top_logprobs", "logprobs")
_PARAMETERS: Final = (_LENGTH, _NEW_LENGTH, "seed", "temperature", *_COUNTS)
_NAMED: Final = re.compile(rf"(?<!\w)({'|'.join(_PARAMETERS)})(?!\w)")
#: Words of a server that does not take a parameter at all, or not this value.
_REFUSES: Final = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|not permitted|forbidden|"
    r"not allowed|unexpected|incompatible|not available|invalid|only the default|is fixed|"
    r"extra (?:inputs|fields)|less than|greater than|at most|no more than|more than|maximum|"
    r"max(?:imum)? allowed|range|must be",
    re.IGNORECASE,
)
_UNSUPPORTED: Final = re.compile(
    r"unsupported|not support|not permitted|forbidden|unrecogni[sz]ed|unknown", re.IGNORECASE
)
#: A prompt that is too long is refused with words that name max_tokens too.
_TOO_LONG: Final = re.compile(r"context (?:length|window|size)|too (?:large|long)|input tokens")
_NUMBER: Final = re.compile(r"(?<![\w.])(\d{1,2})(?![\w.]*\d)")
_FILTERS: Final = frozenset(
    ("content_filter", "content_policy_violation", "responsibleaipolicyviolation")
)
#: Codes in words, and the HTTP status that has this meaning.
_STATUS_OF: Final = {
    "rate_limit": 429, "too_many": 429, "quota": 429, "overloaded": 503, "unavailable": 503,
    "timeout": 504, "server_error": 500, "internal": 500, "not_found": 404, "auth": 401,
    "api_key": 401, "permission": 403,
}  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """What a server says about a request that it does not answer.

    words: its message, in one line without keys.
    parameters: the parameters that it names.
    filtered: whether a filter of contents refused the prompt.
    """

    words: str
    parameters: frozenset[str]
    filtered: bool


def read_refusal(body: Any) -> Refusal:
    """Read a server's error: OpenAI's, FastAPI's `detail`, or one inside another."""
    fields = list(_walk(body))
    messages = [
        text for name, text in fields if name in ("message", "msg", "detail", "error", "raw")
    ]
    named = {text for name, text in fields if name in ("param", "loc") and text in _PARAMETERS}
    if not messages:
        messages = [
            json.dumps(body, ensure_ascii=False) if isinstance(body, dict | list) else str(body)
        ]
    located = [text for name, text in fields if name == "loc"]
    words = " ".join(" ".join(dict.fromkeys([*located, *messages])).split())
    parameters = named or {match[1] for match in _NAMED.finditer(words)}
    codes = {text.lower() for name, text in fields if name in ("code", "type")}
    flagged = any(name == "flagged_input" for name, _ in fields)
    filtered = bool(codes & _FILTERS) or flagged or "ContentPolicyViolation" in words
    return Refusal(without_secrets(words)[:SHOWN], frozenset(parameters), filtered)


def _walk(body: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of every text and number in an error; JSON inside a text is read too."""
    if isinstance(body, dict):
        for key, value in body.items():
            yield from _walk(value, str(key))
    elif isinstance(body, list):
        # FastAPI's place of a field is ["body", name].
        for value in body[-1:] if name == "loc" else body:
            yield from _walk(value, name)
    elif isinstance(body, str) and body.lstrip().startswith(("{", "[")):
        try:
            inner = json.loads(body)
        except ValueError:
            yield name, body
        else:
            yield from _walk(inner, name)
    elif isinstance(body, str | int) and not isinstance(body, bool):
        yield name, str(body)


def status_of(error: Any) -> int:
    """Return the HTTP status that an error inside a reply of status 200 means; 400 if unknown."""
    codes = [text.lower() for name, text in _walk(error) if name in ("code", "status", "type")]
    for code in codes:
        if code.isdigit() and 400 <= int(code) <= 599:
            return int(code)
    for code in codes:
        for part, status in _STATUS_OF.items():
            if part in code:
                return status
    return 400


@dataclass(frozen=True)
class Terms:
    """The parameters that an endpoint accepts.

    length: the name of the limit of an answer's tokens in chats.
    seed, temperature: whether it takes them.
    top_logprobs: alternatives to a token in chats; `logprobs` in completions.
    """

    length: str = _LENGTH
    seed: bool = True
    temperature: bool = True
    top_logprobs: int = _OF_CHATS
    logprobs: int = _OF_TEXT

    def describe(self) -> tuple[str, ...]:
        """Name what differs from the API's own parameters."""
        names = [_NEW_LENGTH] if self.length == _NEW_LENGTH else []
        names += [] if self.seed else ["no seed"]
        names += [] if self.temperature else ["no temperature"]
        for name, most in zip(_COUNTS, (_OF_CHATS, _OF_TEXT), strict=True):
            count = getattr(self, name)
            names += [f"{name} {count}"] if count < most else []
        return tuple(names)

    @classmethod
    def parse(cls, names: Iterable[str]) -> Terms:
        """Return the terms that `describe` named, of several the narrowest."""
        options: dict[str, Any] = {}
        for name in names:
            word, _, rest = name.partition(" ")
            if word == _NEW_LENGTH:
                options["length"] = word
            elif word == "no":
                options[rest] = False
            else:
                options[word] = min(int(rest), options.get(word, int(rest)))
        return cls(**options)

    def after(self, refusal: Refusal, *, chat: bool) -> Terms | None:
        """Return narrower terms that meet a refusal; None if it is not understood."""
        words, names = refusal.words, refusal.parameters
        if not _REFUSES.search(words):
            return None
        renamed = _NEW_LENGTH in words or names == {_LENGTH}
        if chat and self.length == _LENGTH and renamed and not _TOO_LONG.search(words):
            return replace(self, length=_NEW_LENGTH)
        if self.seed and "seed" in names:
            return replace(self, seed=False)
        if self.temperature and "temperature" in names:
            return replace(self, temperature=False)
        fewer = _fewer(words, self.top_logprobs if chat else self.logprobs)
        if not fewer or not names & set(_COUNTS):
            return None
        return replace(self, top_logprobs=fewer) if chat else replace(self, logprobs=fewer)


def _fewer(words: str, count: int) -> int:
    """Return the count that a message allows, or the next smaller one; 0: there is none."""
    allowed = [int(number) for number in _NUMBER.findall(words) if 0 < int(number) < count]
    if allowed:
        return max(allowed)
    unsupported = _UNSUPPORTED.search(words)
    return 0 if unsupported else next((fewer for fewer in _FEWER if fewer < count), 0)
