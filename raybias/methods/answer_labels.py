"""Read the label that a written answer names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from raybias.engine.answers import Written, without_thoughts

#: All of a text up to the end of its last sentence or line.
_SENTENCES: Final = re.compile(r".*(?:[.!?\u3002](?=\W|\Z)|\n)", re.DOTALL)
#: A negation right before a word, with an article or adverb between them or without.
_NEGATED: Final = re.compile(
    r"(?<!\w)(?:not|no|non|nor|neither|never|without|cannot|\w+n['\u2019]t)\W+"
    r"(?:(?:an?|the|so|very|really|quite|entirely|clearly|particularly|necessarily)\W+)?\Z",
    re.IGNORECASE,
)


class ReadLabel(NamedTuple):
    """The label of an answer, or the reason for none.

    The reason is that the answer names no label (`none`), `several`, or a `negated` one; that it
    ended at its limit of tokens before it named one (`cut`); or that a filter of contents withheld
    it (`filtered`).
    """

    label: int | None
    unread: str | None = None


def is_withheld(reply: Written) -> bool:
    """Return whether a filter of contents withheld an answer."""
    return reply.finish_reason == "content_filter"


def after_reasoning(reasoned: Written, reply: Written) -> Written:
    """Return the reply with the tokens of both; withheld if the reasoning before it is."""
    whole = reply._replace(tokens=reasoned.tokens + reply.tokens)
    return whole._replace(finish_reason="content_filter") if is_withheld(reasoned) else whole


def read_reply(
    reply: Written, words: Sequence[str], rule: Literal["first", "only"], *, chat: bool
) -> ReadLabel:
    """Read the label that a reply names, as `read_answer` does, if the reply is an answer.

    An answer that a filter of contents withheld has no label. An answer in a chat that ended at its
    limit of tokens counts up to its last whole sentence, since what is missing can take back what
    the beginning of a sentence says; by the rule `first` the first word counts whatever follows.
    Text that continues plain text has no end of its own, and is read as it is.
    """
    if is_withheld(reply):
        return ReadLabel(None, "filtered")
    if not chat or reply.finish_reason != "length":
        return read_answer(reply.text, words, rule)
    whole = reply.answer if rule == "first" else _whole_sentences(reply.answer)
    reading = read_answer(whole, words, rule)
    return ReadLabel(None, "cut") if reading.unread == "none" else reading


def _whole_sentences(answer: str) -> str:
    """Return an answer up to the end of its last whole sentence; one word is a whole answer."""
    if len(answer.split()) == 1:
        return answer
    sentences = _SENTENCES.match(answer)
    return sentences[0] if sentences else ""


def read_answer(
    answer: str, words: Sequence[str], rule: Literal["first", "only"] = "only"
) -> ReadLabel:
    """Read the label that an answer names, without its thoughts in <think> and </think>.

    `rule`: the first label word, also inside another one ("negatively"), as in the paper's code; or
    the only one: whole, and not negated ("not negative", "neither positive").
    """
    answer = without_thoughts(answer)
    either = "|".join(f"({re.escape(word.strip())})" for word in words)
    if rule == "first":
        found = re.search(either, answer, re.IGNORECASE)
        return (
            ReadLabel(found.lastindex - 1) if found and found.lastindex else ReadLabel(None, "none")
        )
    matches = [*re.finditer(rf"(?<!\w)(?:{either})(?!\w)", answer, re.IGNORECASE)]
    labels = {match.lastindex - 1 for match in matches if match.lastindex}
    if len(labels) != 1:
        return ReadLabel(None, "several" if labels else "none")
    if any(_NEGATED.search(answer, 0, match.start()) for match in matches):
        return ReadLabel(None, "negated")
    return ReadLabel(labels.pop())
