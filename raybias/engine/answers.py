"""What methods ask of any backbone: to write after prompts, and how likely texts are.

The built-in engine (`engine.answering`) is the reference; an endpoint, another engine and a memory
of answers are others. This module loads no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raybias.engine.encoder import TextEncoder

#: What decides the draws of one answer.
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Writing:
    """How answers are written.

    Attributes
    ----------
    most: tokens of an answer; 0 where only the labels' probabilities are asked for.
    temperature: of sampling; 0 takes the likeliest token.
    chat: whether prompts are messages, as `TextEncoder.chat` writes them.
    labels: by label, the tokens that may begin its word, or the word where tokens are not known
        (`Asking.label_ids`).
    """

    most: int
    temperature: float = 0.0
    chat: bool = False
    labels: tuple[tuple[int, ...], ...] | tuple[str, ...] = ()

    @property
    def label_ids(self) -> list[int]:
        """The tokens of all labels, one label after the other."""
        return [int(token) for tokens in self.labels for token in tokens]


class Written(NamedTuple):
    """What was written after one prompt.

    `label_scores` are natural log-probabilities that the answer begins with each label's word;
    none where a provider tells none. `tokens` is how many were read and written.
    """

    text: str
    label_scores: tuple[float, ...]
    tokens: int


class Answers(ABC):
    """What answers for one backbone.

    Of each question a part can be done before a device is free, such as tokenising: `begin_...`
    does it and returns what does the rest. By default that is all.

    Attributes
    ----------
    encoder: what writes prompts as the backbone reads them.
    """

    encoder: TextEncoder

    @abstractmethod
    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Write an answer after each prompt, in their order; what is sampled is keyed."""

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute the natural log-likelihood of each second text behind its first.

        Parameters
        ----------
        chat: whether the first texts are messages, as `TextEncoder.chat` writes them.

        Returns these, and how many tokens were read.
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
