"""Define what a method asks of any backbone: texts after prompts, and the likelihood of texts.

The built-in engine, endpoints, vLLM and the cache of answers implement it. Loads no torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

from raybias.engine.encoder import TextEncoder

#: Seeds the draws of one answer.
Key = tuple[str | int, ...]
_THOUGHTS: Final = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
#: What ended an answer: the model; the limit of tokens; or a filter of contents, which leaves none.
FinishReason = Literal["stop", "length", "content_filter"]


@dataclass(frozen=True)
class Writing:
    """How answers are written.

    most: tokens of an answer; 0 computes the labels' probabilities alone.
    temperature: of sampling; 0 takes the likeliest token.
    chat: whether prompts are messages, as `TextEncoder.chat` writes them.
    labels: by label, the tokens that may begin its word, or the word where tokens are unknown.
    """

    most: int
    temperature: float = 0.0
    chat: bool = False
    labels: tuple[tuple[int, ...], ...] | tuple[str, ...] = ()

    @property
    def label_ids(self) -> list[int]:
        """The tokens of all labels, label by label."""
        return [int(token) for tokens in self.labels for token in tokens]


class Written(NamedTuple):
    """An answer; `tokens` counts those read and written.

    `label_scores`: natural log-probabilities that it begins with each label's word; may be empty.
    `bounds`: the labels whose score is an upper bound, where a model tells its likeliest tokens
    alone.
    `finish_reason`: what ended the answer.
    """

    text: str
    label_scores: tuple[float, ...]
    tokens: int
    bounds: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"

    @property
    def answer(self) -> str:
        """The text without thoughts."""
        return without_thoughts(self.text)


def without_thoughts(answer: str) -> str:
    """Leave out the text between <think> and </think> before an answer."""
    return _THOUGHTS.sub("", answer)


class Answers(ABC):
    """Answer prompts for one backbone; `encoder` writes prompts as the backbone reads them.

    A `begin_...` method does the part that needs no device, such as tokenising, and returns a call
    that does the rest.
    """

    encoder: TextEncoder

    @abstractmethod
    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Write an answer after each prompt, in their order; samples are keyed."""

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute each second text's natural log-likelihood after its first, and count tokens read.

        `chat`: whether the first texts are messages, as `TextEncoder.chat` writes them.
        """
        raise NotImplementedError

    def begin_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        """Begin `write`."""
        return partial(self.write, prompts, keys, how)

    def begin_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        """Begin `likelihoods`."""
        return partial(self.likelihoods, texts, chat=chat)
