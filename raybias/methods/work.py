"""Describe what the runs of a method need, as data for the planner, and count tokens for it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.config import Backbone
from raybias.engine import memory
from raybias.engine.encoder import TextEncoder, check_lengths
from raybias.engine.memory import MemoryTerm

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape


T = TypeVar("T")

#: Rows that a mean length is taken from.
_SAMPLE: Final = 200
#: Most tokens of one ASCII character, and those that stand beside a text: a blank that a tokenizer
#: writes as three bytes, each a token, is the worst known.
_PER_CHARACTER, _BESIDE = 4, 16
#: Without any such character a text may have no token at all.
_VISIBLE: Final = "[!-~]"
#: Texts that are tokenised at a time, so that a large probe is never held in tokens.
_AT_ONCE: Final = 10_000
#: Shares of the widths that packed sequences have, of which rows are cut into equal ones.
_PACKED: Final = (0.25,) * 4


@dataclass(frozen=True)
class TokenCounts:
    """Tokenise texts for one backbone and cache their lengths."""

    encoder: TextEncoder
    _lengths: dict[Any, npt.NDArray[np.int32]] = field(default_factory=dict, repr=False)

    @cached_property
    def for_chat(self) -> TokenCounts:
        """Counts of prompts in the tokenizer's chat template."""
        return TokenCounts(self.encoder.for_chat)

    def lengths(self, texts: Sequence[str], *, append_eos: bool = False) -> npt.NDArray[np.int32]:
        """Return each text's number of tokens; ModelError for none, or a missing EOS."""
        digest = hashlib.blake2b(digest_size=16)
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        mark = digest.digest(), append_eos
        if mark not in self._lengths:
            lengths = [np.empty(0, np.int32)]
            for first in range(0, len(texts), _AT_ONCE):
                rows = self.encoder.encode(texts[first : first + _AT_ONCE], append_eos=append_eos)
                lengths.append(np.fromiter(map(len, rows), np.int32, len(rows)))
            self._lengths[mark] = np.concatenate(lengths)
        return self._lengths[mark]

    def check(
        self,
        texts: Sequence[str],
        names: Sequence[str],
        *,
        taken: int = 0,
        by: str = "",
        append_eos: bool = False,
        write: Callable[[str], str] = str,
    ) -> None:
        """Refuse texts that do not fit the context, as `encoder.check_lengths` does.

        Only texts that may not fit are tokenised, and all without ASCII, since a tokenizer may
        write a character as many tokens. ModelError also as `lengths` says.

        write: makes a prompt of a text, which contains it at least once; prompts are measured.
        """
        written = pl.Series(texts, dtype=pl.String)
        characters = written.str.len_chars()
        plain = (characters == written.str.len_bytes()) & written.str.contains(_VISIBLE)
        one, two = write("x"), write("xx")
        beside, times = 2 * len(one) - len(two), len(two) - len(one)
        longest = beside + times * characters.to_numpy().astype(np.int32)
        bounds = _PER_CHARACTER * longest + _BESIDE
        context = self.encoder.context
        room = math.inf if context is None else context - taken
        unsure = np.flatnonzero((bounds > room) | ~(plain & one.isascii()).to_numpy())
        asked = [write(texts[n]) for n in unsure.tolist()]
        bounds[unsure] = self.lengths(asked, append_eos=append_eos)
        check_lengths(bounds, context=context, taken=taken, by=by, names=names)

    def mean(self, texts: Sequence[str], *, append_eos: bool = False) -> float:
        """Return the mean length of texts; 0 of none."""
        lengths = self.lengths(texts, append_eos=append_eos)
        return float(lengths.sum(dtype=np.int64)) / max(1, len(lengths))


@dataclass(frozen=True)
class Widths:
    """How sequences spread over the widths of batches, each of one width.

    `of_row` is sequences per row, below 1 where rows share them; `shares` are of each width.
    """

    of_row: float
    shares: tuple[float, ...]

    @classmethod
    def of(cls, lengths: Sequence[int] | npt.NDArray[np.int32]) -> Widths:
        """Count rows that are sequences of their own, by a sample of their lengths."""
        from raybias.engine.packing import shared_width

        counts = Counter(shared_width(int(length)) for length in lengths)
        return cls(1.0, tuple(count / counts.total() for count in counts.values()))

    @classmethod
    def packed(cls, mean_length: float) -> Widths:
        """Count rows that share sequences, nearly all of them as long as sequences can be."""
        from raybias.engine.packing import MAX_TOKENS

        return cls(mean_length / MAX_TOKENS, _PACKED)

    def batches(self, rows: float) -> float:
        """Return the expected number of batches of `rows`, if none of them fills one."""
        return math.fsum(1 - (1 - share) ** (rows * self.of_row) for share in self.shares)


def sample(rows: Sequence[T]) -> list[T]:
    """Take some 200 rows, evenly spread."""
    return list(rows[:: max(1, len(rows) // _SAMPLE)])


class Asks(NamedTuple):
    """Prompts, their tokens, and the most tokens to write."""

    requests: float
    read: float
    written: float


@dataclass(frozen=True)
class Beside:
    """A model that workers load beside the backbone, and `what` it is to the method."""

    what: str
    spec: Backbone
    shape: ModelShape


class Rows(NamedTuple):
    """Rows that one run reads together: how many, their mean tokens, and their batches' widths."""

    number: int
    length: float
    widths: Widths


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Tuning one backbone on one training set by one method.

    factor: FLOPs of a step for each parameter and token.
    sweep, final: runs of the sweep, 0 without one, and runs after it.
    cut: the step at which the sweep gives runs up, and how many go on; None where it does not.
    step, checked: rows of one run's step, and of one evaluation.
    tested: rows of the test split, which each run reads once at its end.
    every: steps between evaluations.
    first, last: the first step at which a run can stop; the step after which it ends, None where
        nothing says.
    launches: of a block in units of a plain one's: of a pack, and for each of its runs.
    moved: bytes that the optimizer reads and writes for each of the backbone's parameters.
    most: runs that can share a step; None for any number.
    """

    factor: int
    sweep: int
    final: int
    step: Rows
    every: int
    first: int
    last: int | None
    checked: Rows
    tested: Rows
    launches: tuple[float, float]
    cut: tuple[int, int] | None = None
    moved: int = 0
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the runs of a method on one backbone need.

    runs: that read the probes, of all training sets.
    items: of each probe that is read.
    tokens: mean tokens that one run reads and writes for an item of each probe.
    asks: what one run asks of a provider for an item of each probe, in the mean.
    new_tokens: most tokens that are written after one prompt.
    whole_head: whether each token is multiplied by embeddings and head too, not by blocks alone.
    holds_backbone: whether a replica loads the backbone.
    shape: of the model that a replica loads; None for the backbone's usual kind.
    vocabulary: whether logits of the whole vocabulary are needed.
    held_tokens: tokens whose keys and values are held for each token of a pass: itself, and the
        share that a row's opening and new tokens, or its prefix, are of its shortest prompt.
    beside: models that workers load beside the backbone.
    can_shard: whether workers can share the backbone with ZeRO-3.
    item: bytes of one weight; the backbone's by default.
    copies: of all weights that a replica holds, tuned models counted.
    tuning: by training set, where it tunes.
    frozen: whether the backbone's weights stay as they are.
    step: rows of a step that no token budget cuts.
    held: what a worker that tunes holds beside weights and activations; see `Tuned.held`.
    """

    runs: int
    items: Mapping[str, int]
    tokens: Mapping[str, float] = field(default_factory=dict)
    asks: Mapping[str, Asks] = field(default_factory=dict)
    new_tokens: int = 0
    whole_head: bool = False
    holds_backbone: bool = True
    shape: ModelShape | None = None
    vocabulary: bool = True
    held_tokens: float = 1.0
    beside: tuple[Beside, ...] = ()
    can_shard: bool = True
    item: int | None = None
    copies: int = 1
    tuning: Mapping[str, Tuning] = field(default_factory=dict)
    frozen: bool = True
    step: int = 0
    held: Callable[..., tuple[MemoryTerm, ...]] = lambda shape, *, tokens, pack: ()

    def parameters(self, shape: ModelShape) -> int:
        """Count the parameters that multiply one token."""
        own = shape.parameters if self.whole_head else shape.block_parameters
        return own + sum(each.shape.block_parameters for each in self.beside)

    def weight_bytes(self, shape: ModelShape) -> int:
        """Return the bytes of one weight of the backbone."""
        return self.item or shape.item

    def reading_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count a replica's memory for `tokens` at a time; `partitions` workers share weights."""
        if not self.holds_backbone:
            return (memory.process(device),)
        item, held = self.weight_bytes(shape), memory.inference_weights(shape, partitions)
        if self.copies > 1:
            what = "weights of the backbone and of tuned models"
            held = (memory.weights(what, shape.parameters, item, copies=self.copies),)
        beside = "prefixes" if self.tuning else "openings and new tokens"
        note = f", of {beside} too" if self.held_tokens > 1 else ""
        kept = math.ceil(tokens * self.held_tokens)
        logits = [memory.vocabulary_logits(shape, tokens)] if self.vocabulary else []
        others = [(f"weights of {each.what}", each.shape) for each in self.beside]
        return (
            *held,
            memory.activations(shape, tokens, item, "activations of the forward pass"),
            memory.keys_and_values(shape, kept, item, note=note),
            *logits,
            memory.process(device),
            *(memory.weights(what, own.parameters, own.item, beside=True) for what, own in others),
        )

    def tuning_memory(
        self, shape: ModelShape, *, pack: int, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a worker that tunes `pack` runs in passes of `tokens` tokens."""
        item, held = self.weight_bytes(shape), memory.training_weights(shape, partitions)
        if not self.frozen:
            what = "pretrained weights, the run's, gradients, AdamW, best"
            copies = memory.TRAINING_COPIES + 1
            held = (memory.weights(what, shape.parameters, item, copies=copies),)
        longest = min(shape.context or memory.LONGEST, memory.LONGEST)
        kept = max(tokens, self.step * longest)
        return (
            *held,
            *memory.training_activations(shape, kept, item, device, frozen=self.frozen),
            *self.held(shape, tokens=tokens, pack=pack),
            memory.process(device),
        )
