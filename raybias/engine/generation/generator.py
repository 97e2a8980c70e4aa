"""Text that a backbone writes after many prompts, each drawn under its own key.

What a row gets depends on its key, its prompt and the model: not on the rows beside it, on
their order, on the batch, or on the worker. What all prompts of a call begin with, such as
nine demonstrations, is computed once and kept for the next call; the rest is packed as prefix
trees behind it. Architectures that do not take such masks are read plainly, in batches of
equal length; which way is right is measured when a backbone is taken into use.

It knows nothing of prompts' words or of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias import seeding
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.batching import Batcher
from raybias.engine.generation.decoding import (
    PackedRows,
    PlainRows,
    PrefixCache,
    Rows,
    common_length,
    reads_packed,
)
from raybias.engine.generation.kv_cache import BufferCache
from raybias.engine.generation.sampling import Sampler, Sampling
from raybias.engine.packing import FULL, Batch, PackedSequence, Placed, Row, pack
from raybias.errors import ModelError

Key = tuple[str | int, ...]
Result = TypeVar("Result")

#: Rows of a sequence. More of them share more and need fewer copies of the opening, but each new
#: token is held against all of them; between these bounds neither matters much.
MEMBERS: Final = (4, 16)


@dataclass(frozen=True)
class Generated:
    """What was written after one prompt.

    Attributes
    ----------
    tokens: new tokens, without the one that ended the row.
    label_logits: logits of the label ids at the prompt's last token, float32.
    """

    tokens: tuple[int, ...]
    label_logits: tuple[float, ...]


@dataclass(frozen=True)
class Continuation:
    """A second prompt for each row, made of what was written after the first one.

    Attributes
    ----------
    prompts: from numbers of rows and what was written after each of them to whole prompts in
        tokens; it may be asked for a row more than once.
    keys, max_new_tokens: as for `generate`.
    """

    prompts: Callable[[Sequence[int], Sequence[tuple[int, ...]]], Sequence[Row]]
    keys: Sequence[Key]
    max_new_tokens: int


@dataclass(frozen=True)
class _DecodeRequest:
    """Rows that are written after in one way."""

    rows: Sequence[Row]
    keys: Sequence[Key]
    sampler: Sampler
    max_new_tokens: int
    label_ids: list[int]

    def of(self, numbers: Sequence[int]) -> _DecodeRequest:
        """The order of some rows alone."""
        rows, keys = [self.rows[n] for n in numbers], [self.keys[n] for n in numbers]
        return replace(self, rows=rows, keys=keys)


class TextGenerator:
    """Writes after prompts with one backbone.

    Parameters
    ----------
    tokens_per_batch: token budget of the forward pass over the prompts; the keys and values
        of what they have in common, and of new tokens, come on top.
    """

    def __init__(self, backbone: LoadedBackbone, *, tokens_per_batch: int = 4096) -> None:
        self.backbone = backbone
        self.batcher = Batcher(
            where=backbone.spec.id, device=backbone.device, tokens_per_batch=tokens_per_batch
        )
        self.opening = PrefixCache(backbone)
        self.packs = reads_packed(backbone)
        self._cache: BufferCache | None = None

    def generate(
        self,
        rows: Sequence[Row],
        keys: Sequence[Key],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        label_ids: Sequence[int] = (),
    ) -> list[Generated]:
        """What follows each row, in the order of `rows`.

        Parameters
        ----------
        rows: whole prompts in tokens.
        keys: what decides each row's draws; token t uses `seeding.generator(*key, t)`.
        max_new_tokens: 0 reads the label logits only.

        Raises
        ------
        ModelError: a prompt that leaves no room for its new tokens.
        WorkFailed: a single sequence does not fit the device's memory.
        """
        check_room(rows, context=self.backbone.context, max_new_tokens=max_new_tokens)
        order = _DecodeRequest(rows, keys, Sampler(sampling), max_new_tokens, list(label_ids))
        if not rows:
            return []
        longest = max(map(len, rows)) + max_new_tokens
        with torch.no_grad():
            if self.packs and longest <= attention_window(self.backbone.model.config):
                return [first for (first,) in self._packed(order)]
            return self._plain(order)

    def generate_twice(
        self,
        rows: Sequence[Row],
        keys: Sequence[Key],
        *,
        then: Continuation,
        sampling: Sampling,
        max_new_tokens: int,
        label_ids: Sequence[int] = (),
    ) -> tuple[list[Generated], list[Generated]]:
        """What follows each row, and what follows the prompt made of that.

        The same as two calls of `generate`, whose parameters and errors these are; but what a
        second prompt begins with and has been read or written as such is not read again.
        """
        # How long the second prompts will be is not known yet, so any window is too short.
        if rows and self.packs and attention_window(self.backbone.model.config) == math.inf:
            check_room(rows, context=self.backbone.context, max_new_tokens=max_new_tokens)
            order = _DecodeRequest(rows, keys, Sampler(sampling), max_new_tokens, list(label_ids))
            with torch.no_grad():
                both = self._packed(order, then)
            return [first for first, _ in both], [second for _, second in both]
        first = self.generate(
            rows, keys, sampling=sampling, max_new_tokens=max_new_tokens, label_ids=label_ids
        )
        second = self.generate(
            then.prompts(range(len(rows)), [each.tokens for each in first]),
            then.keys,
            sampling=sampling,
            max_new_tokens=then.max_new_tokens,
            label_ids=label_ids,
        )
        return first, second

    def _packed(
        self, order: _DecodeRequest, then: Continuation | None = None
    ) -> list[tuple[Generated, ...]]:
        """What was written after each row, and after its second prompt where there is one."""
        shortest = min(map(len, order.rows))
        opened = min(common_length(order.rows), shortest - 1)
        self.opening.set(order.rows[0][:opened])
        stems = [row[opened:-1] for row in order.rows]
        most = _members(opened, stems)
        sequences = _sequences(stems, most)
        columns = most * max(1, order.max_new_tokens)

        def work(batch: Batch) -> list[tuple[Generated, ...]]:
            count, width = batch.tokens_RT.shape
            cache = self._room(count, opened + width + columns)
            numbers = [n for _, n in batch.rows]
            mine = order.of(numbers)
            try:
                rows = PackedRows(self.backbone, batch, [len(row) for row in mine.rows], cache)
                first = _extend(rows, mine)
                if then is None:
                    return list(zip(first, strict=True))
                return list(zip(first, self._second(rows, mine, first, numbers, then), strict=True))
            except RuntimeError:
                # Out of memory: the next try must not find this one's buffers.
                self._cache = None
                raise

        # A batch is as full as its sequences are long, what will be written counted.
        longest = max(1, *(len(each.tokens) for each in sequences))
        full = max(0.0, FULL - (1 - FULL) * columns / longest)
        batches = math.ceil(len(sequences) * (longest + most) / self.batcher.tokens_per_batch)
        groups = _evenly(sequences, batches)
        found = self._collect(work, groups, len(stems), columns=most, full=full)
        self._cache = None
        return found

    def _second(
        self,
        rows: PackedRows,
        order: _DecodeRequest,
        first: Sequence[Generated],
        numbers: Sequence[int],
        then: Continuation,
    ) -> list[Generated]:
        """Go on with the rows `numbers` behind their second prompts."""
        new = then.max_new_tokens
        prompts = then.prompts(numbers, [each.tokens for each in first])
        check_room(prompts, context=self.backbone.context, max_new_tokens=new)
        paths = [[*row, *each.tokens] for row, each in zip(order.rows, first, strict=True)]
        shared = [common_length(pair) for pair in zip(paths, prompts, strict=True)]
        rows.fork(prompts, shared, columns=MEMBERS[1] * max(1, new))
        keys = [then.keys[n] for n in numbers]
        return _extend(rows, replace(order, rows=prompts, keys=keys, max_new_tokens=new))

    def _plain(self, order: _DecodeRequest) -> list[Generated]:
        by_length: dict[int, list[PackedSequence]] = {}
        for sequence in pack(order.rows, max_tokens=0):
            by_length.setdefault(len(sequence.tokens), []).append(sequence)

        def work(batch: Batch) -> list[Generated]:
            mine = order.of([n for _, n in batch.rows])
            return _extend(PlainRows(self.backbone, mine.rows), mine)

        return self._collect(work, list(by_length.values()), len(order.rows))

    def _collect(
        self,
        work: Callable[[Batch], list[Result]],
        groups: Sequence[Sequence[PackedSequence]],
        count: int,
        *,
        columns: int = 0,
        full: float = FULL,
    ) -> list[Result]:
        """The results of all groups' batches, in the order of the rows.

        `columns` are the tokens that a step adds to a sequence.
        """
        found: dict[int, Result] = {}
        for group in groups:
            placed = [Placed(0, 0, sequence) for sequence in group]
            batches = self.batcher.each(work, placed, prompt_length=columns, full=full)
            for batch, results in batches:
                found.update(zip((n for _, n in batch.rows), results, strict=True))
        return [found[n] for n in range(count)]

    def _room(self, count: int, capacity: int) -> BufferCache:
        """Buffers with this much room, those of the batch before where they do."""
        held = self._cache
        if held is not None and held.count >= count and held.capacity >= capacity:
            return held
        # Freed before others are taken.
        self._cache = held = None
        self._cache = made = self.opening.cache(count=count, capacity=capacity)
        return made


def _extend(batch: Rows, order: _DecodeRequest) -> list[Generated]:
    """Write after the prompts of an order, which `batch` holds."""
    written: list[list[int]] = [[] for _ in order.rows]
    live_n = np.arange(len(order.rows))
    last_n = np.array([row[-1] for row in order.rows])
    labels_NL: list[list[float]] = [[] for _ in order.rows]
    for t in range(max(1, order.max_new_tokens)):
        logits_nV = batch.step(live_n, last_n)
        if t == 0:
            labels_NL = logits_nV[:, order.label_ids].tolist()
        if t == order.max_new_tokens:
            break
        drawn_n = _draw(logits_nV, live_n.tolist(), written, t, order)
        going_n = ~np.isin(drawn_n, order.sampler.sampling.eos_ids)
        live_n, last_n = live_n[going_n], drawn_n[going_n]
        for i, token in zip(live_n, last_n, strict=True):
            written[i].append(int(token))
        if not len(live_n):
            break
    return [
        Generated(tuple(tokens), tuple(labels_L))
        for tokens, labels_L in zip(written, labels_NL, strict=True)
    ]


def _draw(
    logits_nV: Tensor,
    live: Sequence[int],
    written: Sequence[list[int]],
    t: int,
    order: _DecodeRequest,
) -> NDArray[np.int64]:
    """Token t of each live row, after what was written so far."""
    sampler = order.sampler
    history: list[list[int]] = []
    if sampler.needs_history:
        history = [[*order.rows[n], *written[n]] for n in live]
    uniforms: list[float] = []
    if not sampler.is_greedy:
        uniforms = [seeding.generator(*order.keys[n], t).random() for n in live]
    return np.array(sampler.choose(logits_nV, history=history, uniforms=uniforms))


def _evenly(sequences: Sequence[PackedSequence], parts: int) -> list[list[PackedSequence]]:
    """Sequences of like length together, in parts of about equally many."""
    order = sorted(sequences, key=lambda each: -len(each.tokens))
    size = math.ceil(len(order) / parts)
    return [order[first : first + size] for first in range(0, len(order), size)]


def _members(opened: int, stems: Sequence[Row]) -> int:
    """How many rows share a sequence: as many as are half as long as the opening together."""
    fewest, most = MEMBERS
    stem = max(1, sum(map(len, stems)) // len(stems))
    return min(most, max(fewest, opened // (2 * stem)))


def _sequences(stems: Sequence[Row], each: int) -> list[PackedSequence]:
    """Prefix trees of `each` rows, neighbours in lexicographic order.

    Equally many rows a sequence, because every step costs as much as the largest has.
    """
    order = sorted(range(len(stems)), key=lambda n: tuple(stems[n]))
    found = []
    for first in range(0, len(order), each):
        numbers = order[first : first + each]
        (tree,) = pack([stems[n] for n in numbers], max_tokens=sum(map(len, stems)))
        members = tuple(numbers[member] for member in tree.members)
        found.append(replace(tree, members=members))
    return found


def attention_window(config: Any) -> float:
    """How many tokens a row may have before a layer sees only a part of it.

    transformers puts windows into the masks that it makes, and ours replace these.
    """
    text = config.get_text_config()
    sizes = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((size for size in sizes if size is not None), default=math.inf)


def check_room(rows: Sequence[Row], *, context: int | None, max_new_tokens: int) -> None:
    """Refuse prompts that leave no room for their new tokens; nothing is ever cut silently.

    Raises
    ------
    ModelError: counts the prompts and the longest one's tokens.
    """
    if context is None:
        return
    long = [len(row) for row in rows if len(row) + max_new_tokens > context]
    if long:
        raise ModelError(
            f"{len(long)} of {len(rows)} prompts do not fit the context of {context} tokens "
            f"beside {max_new_tokens} new ones (longest: {max(long)} tokens)",
            cure="use fewer or shorter demonstrations, or a backbone with a longer context",
        )
