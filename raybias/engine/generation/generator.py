"""Generate text after many prompts, each sampled under its own key.

What a row gets depends on its key, its prompt and the model: not on the rows beside it, on
their order, on the batch, or on the worker. What all prompts of a call begin with, such as
nine demonstrations, is computed once and kept for the next call; the rest is packed as prefix
trees behind it. Architectures that do not take such masks are read plainly, in batches of
equal length; which way is right is measured when a backbone is taken into use.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from raybias.engine.attention import attention_window
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.context import Way
from raybias.engine.generation.decode_loop import (
    Continuation,
    DecodeLoop,
    DecodeRequest,
    Generated,
    Key,
    WaitingRows,
)
from raybias.engine.generation.kv_cache import BufferCache
from raybias.engine.generation.packed_rows import PackedRows
from raybias.engine.generation.sampling import (
    PlainRows,
    PrefixCache,
    Sampler,
    Sampling,
    common_length,
    reads_packed,
)
from raybias.engine.packing import FULL, Batch, PackedSequence, Placed, Row, pack
from raybias.engine.self_check import in_words
from raybias.errors import ModelError

#: Tokens of prompts that take as long as a step of few rows, which reads all weights.
STEP: Final = 32
#: Rows of a sequence. More of them share more and need fewer copies of the prefix, but each new
#: token attends to all of them; between these bounds neither matters much.
MEMBERS: Final = (4, 16)


class _Held(threading.local):
    """The key-value cache of the last batch, of which each thread has its own."""

    cache: BufferCache | None = None


class TextGenerator:
    """Generate text after prompts with one backbone.

    Its token budget is that of the forward pass over the prompts; the keys and values of what they
    have in common, and of new tokens, come on top.
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.batcher = backbone.batcher(side_by_side=True)
        self.prefix = PrefixCache(backbone)
        self.packs = reads_packed(backbone)
        how = in_words(packs=self.packs, part=True)
        backbone.execution.ways["generation"] = Way(how, self.packs)
        self._held = _Held()

    def generate(
        self,
        rows: Sequence[Row],
        keys: Sequence[Key],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        label_ids: Sequence[int] = (),
    ) -> list[Generated]:
        """Generate text after each row, in the order of `rows`.

        Parameters
        ----------
        rows: whole prompts in tokens.
        keys: what decides each row's draws; token t uses number t of `keyed_draws.uniforms`.
        max_new_tokens: 0 reads the label logits only.

        Raises
        ------
        ModelError: a prompt that leaves no room for its new tokens.
        WorkFailed: a single sequence does not fit the device's memory.
        """
        check_room(rows, context=self.backbone.context, max_new_tokens=max_new_tokens)
        request = DecodeRequest(rows, keys, Sampler(sampling), max_new_tokens, list(label_ids))
        if not rows:
            return []
        longest = max(map(len, rows)) + max_new_tokens
        with torch.no_grad():
            if self.packs and longest <= attention_window(self.backbone.model.config):
                return [first for (first,) in self._packed(request)]
            return self._plain(request)

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
        """Generate text after each row, and after the second prompt made of that.

        The same as two calls of `generate`, whose parameters and errors these are; but what a
        second prompt begins with and has been read or written as such is not read again.
        """
        # How long the second prompts will be is not known yet, so any window is too short.
        if rows and self.packs and attention_window(self.backbone.model.config) == math.inf:
            check_room(rows, context=self.backbone.context, max_new_tokens=max_new_tokens)
            ids = list(label_ids)
            request = DecodeRequest(
                rows, keys, Sampler(sampling), max_new_tokens, ids, self._checked(then)
            )
            with torch.no_grad():
                both = self._packed(request)
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

    def _packed(self, request: DecodeRequest) -> list[tuple[Generated, ...]]:
        """Generate after each row, and after its second prompt where there is one."""
        shortest = min(map(len, request.rows))
        prefix_length = min(common_length(request.rows), shortest - 1)
        self.prefix.set(request.rows[0][:prefix_length])
        stems = [row[prefix_length:-1] for row in request.rows]
        most = _members(prefix_length, stems)
        sequences = _sequences(stems, most)
        columns = most * max(1, request.max_new_tokens)
        results: dict[int, tuple[Generated, ...]] = {}

        def work(waiting: list[Placed], batch: Batch) -> dict[int, tuple[Generated, ...]]:
            count, width = batch.tokens_RT.shape
            room = prefix_length + width + columns
            if waiting:
                # Rows that come later share less with their neighbours.
                apart = most * max(len(stems[n]) for _, n in batch.rows)
                room += min(width // 2, apart - width)
            # The last place is nobody's.
            cache = self._room(count, room + 1)
            try:
                rows = PackedRows(self.backbone, batch, cache)
                loop = DecodeLoop(rows, request, [n for _, n in batch.rows])
                loop.run(WaitingRows(rows, waiting, self.prefix))
            except RuntimeError:
                # Out of memory: the next try must not find this one's buffers.
                self._held.cache = None
                raise
            return loop.results

        # A batch is as full as its sequences are long, what will be written counted; and one more
        # batch, for the shorter ones, has all its steps to take.
        lengths = [max(1, len(each.tokens)) for each in sequences]
        steps = STEP * request.max_new_tokens / sum(lengths)
        full = max(0.0, min(FULL - (1 - FULL) * columns / max(lengths), 1 - steps))
        for found in self.batcher.with_rest(work, sequences, more=most, full=full):
            results |= found
        self._held = _Held()
        return [results[n] for n in range(len(stems))]

    def _checked(self, then: Continuation) -> Continuation:
        """Refuse second prompts that leave no room for their new tokens."""

        def prompts(numbers: Sequence[int], found: Sequence[tuple[int, ...]]) -> Sequence[Row]:
            made = then.prompts(numbers, found)
            check_room(made, context=self.backbone.context, max_new_tokens=then.max_new_tokens)
            return made

        return replace(then, prompts=prompts)

    def _plain(self, request: DecodeRequest) -> list[Generated]:
        by_length: dict[int, list[PackedSequence]] = {}
        for sequence in pack(request.rows, max_tokens=0):
            by_length.setdefault(len(sequence.tokens), []).append(sequence)
        by_row: dict[int, Generated] = {}

        def work(batch: Batch) -> list[Generated]:
            numbers = [n for _, n in batch.rows]
            rows = PlainRows(self.backbone, [request.rows[n] for n in numbers])
            loop = DecodeLoop(rows, request, numbers)
            loop.run()
            return [loop.results[n][0] for n in numbers]

        for group in by_length.values():
            by_row |= self.batcher.by_row(work, group)
        return [by_row[n] for n in range(len(request.rows))]

    def _room(self, count: int, capacity: int) -> BufferCache:
        """Return a key-value cache of at least this size, the last batch's where it suffices."""
        cache = self._held.cache
        if cache is not None and cache.count >= count and cache.capacity >= capacity:
            return cache
        # Freed before others are taken.
        self._held.cache = cache = None
        self._held.cache = new = self.prefix.cache(count=count, capacity=capacity)
        return new


def _members(prefix_length: int, stems: Sequence[Row]) -> int:
    """Choose how many rows share a sequence: as many as are half as long as the prefix together."""
    fewest, most = MEMBERS
    stem = max(1, sum(map(len, stems)) // len(stems))
    return min(most, max(fewest, prefix_length // (2 * stem)))


def _sequences(stems: Sequence[Row], each: int) -> list[PackedSequence]:
    """Pack prefix trees of `each` rows, neighbours in lexicographic order.

    Equally many rows a sequence, because every step costs as much as the largest has.
    """
    order = sorted(range(len(stems)), key=lambda n: tuple(stems[n]))
    trees = []
    for first in range(0, len(order), each):
        numbers = order[first : first + each]
        (tree,) = pack([stems[n] for n in numbers], max_tokens=sum(map(len, stems)))
        members = tuple(numbers[member] for member in tree.members)
        trees.append(replace(tree, members=members))
    return trees


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
