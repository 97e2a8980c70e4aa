"""Generate text after many prompts, each sampled under its own key.

What a row gets depends on its key, its prompt and the model: not on the rows beside it, on
their order, on the batch, or on the worker. What all prompts of a call begin with, such as
nine demonstrations, is computed once and kept for the next call; the rest is packed as prefix
trees behind it. Architectures that do not take such masks are read plainly, in batches of
equal length; which way is right is measured when a backbone is taken into use.
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
from raybias.engine import keyed_draws
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.context import Way
from raybias.engine.generation.decoding import (
    PackedRows,
    PlainRows,
    PrefixCache,
    Rows,
    common_length,
    reads_packed,
)
from raybias.engine.generation.kv_cache import BufferCache
from raybias.engine.generation.sampling import Sampler, Sampling, rectangle
from raybias.engine.packing import FULL, Batch, PackedSequence, Row, pack
from raybias.engine.self_check import in_words
from raybias.errors import ModelError

Key = tuple[str | int, ...]
Result = TypeVar("Result")

#: Rows of a sequence. More of them share more and need fewer copies of the prefix, but each new
#: token attends to all of them; between these bounds neither matters much.
MEMBERS: Final = (4, 16)
#: Steps after which a device of this kind is asked which rows have ended. To ask a GPU is to wait
#: for it; on a CPU a step for a row that has ended costs what any other costs.
_LOOK: Final = {"cpu": 1, "cuda": 8}


@dataclass(frozen=True)
class Generated:
    """Text generated after one prompt.

    Attributes
    ----------
    tokens: new tokens, without the one that ended the row.
    label_logits: logits of the label ids at the prompt's last token, float32.
    """

    tokens: tuple[int, ...]
    label_logits: tuple[float, ...]


@dataclass(frozen=True)
class Continuation:
    """A second prompt for each row, built from the text generated after the first one.

    Attributes
    ----------
    prompts: from numbers of rows and the tokens generated after each of them to whole prompts in
        tokens; it may be called for a row more than once.
    keys, max_new_tokens: as for `generate`.
    """

    prompts: Callable[[Sequence[int], Sequence[tuple[int, ...]]], Sequence[Row]]
    keys: Sequence[Key]
    max_new_tokens: int


@dataclass(frozen=True)
class _DecodeRequest:
    """Prompts that are decoded with the same options."""

    rows: Sequence[Row]
    keys: Sequence[Key]
    sampler: Sampler
    max_new_tokens: int
    label_ids: list[int]

    def of(self, numbers: Sequence[int]) -> _DecodeRequest:
        """Return the request for some rows alone."""
        rows, keys = [self.rows[n] for n in numbers], [self.keys[n] for n in numbers]
        return replace(self, rows=rows, keys=keys)


class TextGenerator:
    """Generate text after prompts with one backbone.

    Its token budget is that of the forward pass over the prompts; the keys and values of what they
    have in common, and of new tokens, come on top.
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.batcher = backbone.batcher()
        self.prefix = PrefixCache(backbone)
        self.packs = reads_packed(backbone)
        how = in_words(packs=self.packs, part=True)
        backbone.execution.ways["generation"] = Way(how, self.packs)
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
        request = _DecodeRequest(rows, keys, Sampler(sampling), max_new_tokens, list(label_ids))
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
            request = _DecodeRequest(rows, keys, Sampler(sampling), max_new_tokens, list(label_ids))
            with torch.no_grad():
                both = self._packed(request, then)
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
        self, request: _DecodeRequest, then: Continuation | None = None
    ) -> list[tuple[Generated, ...]]:
        """Generate after each row, and after its second prompt where there is one."""
        shortest = min(map(len, request.rows))
        prefix_length = min(common_length(request.rows), shortest - 1)
        self.prefix.set(request.rows[0][:prefix_length])
        stems = [row[prefix_length:-1] for row in request.rows]
        most = _members(prefix_length, stems)
        sequences = _sequences(stems, most)
        columns = most * max(1, request.max_new_tokens)

        def work(batch: Batch) -> list[tuple[Generated, ...]]:
            count, width = batch.tokens_RT.shape
            cache = self._room(count, prefix_length + width + columns)
            numbers = [n for _, n in batch.rows]
            mine = request.of(numbers)
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
        results = self._collect(work, groups, len(stems), columns=most, full=full)
        self._cache = None
        return results

    def _second(
        self,
        rows: PackedRows,
        request: _DecodeRequest,
        first: Sequence[Generated],
        numbers: Sequence[int],
        then: Continuation,
    ) -> list[Generated]:
        """Go on with the rows `numbers` behind their second prompts."""
        new = then.max_new_tokens
        prompts = then.prompts(numbers, [each.tokens for each in first])
        check_room(prompts, context=self.backbone.context, max_new_tokens=new)
        paths = [[*row, *each.tokens] for row, each in zip(request.rows, first, strict=True)]
        shared = [common_length(pair) for pair in zip(paths, prompts, strict=True)]
        rows.fork(prompts, shared, columns=MEMBERS[1] * max(1, new))
        keys = [then.keys[n] for n in numbers]
        return _extend(rows, replace(request, rows=prompts, keys=keys, max_new_tokens=new))

    def _plain(self, request: _DecodeRequest) -> list[Generated]:
        by_length: dict[int, list[PackedSequence]] = {}
        for sequence in pack(request.rows, max_tokens=0):
            by_length.setdefault(len(sequence.tokens), []).append(sequence)

        def work(batch: Batch) -> list[Generated]:
            mine = request.of([n for _, n in batch.rows])
            return _extend(PlainRows(self.backbone, mine.rows), mine)

        return self._collect(work, list(by_length.values()), len(request.rows))

    def _collect(
        self,
        work: Callable[[Batch], list[Result]],
        groups: Sequence[Sequence[PackedSequence]],
        count: int,
        *,
        columns: int = 0,
        full: float = FULL,
    ) -> list[Result]:
        """Return the results of all groups' batches, in the order of the rows.

        `columns` are the tokens that a step adds to a sequence.
        """
        by_row: dict[int, Result] = {}
        for group in groups:
            by_row |= self.batcher.by_row(work, group, prompt_length=columns, full=full)
        return [by_row[n] for n in range(count)]

    def _room(self, count: int, capacity: int) -> BufferCache:
        """Return a key-value cache of at least this size, the last batch's where it suffices."""
        cache = self._cache
        if cache is not None and cache.count >= count and cache.capacity >= capacity:
            return cache
        # Freed before others are taken.
        self._cache = cache = None
        self._cache = new = self.prefix.cache(count=count, capacity=capacity)
        return new


def _extend(batch: Rows, request: _DecodeRequest) -> list[Generated]:
    """Decode after the prompts of a request, which `batch` holds."""
    sampler, device, most = request.sampler, batch.device, request.max_new_tokens
    live_n = np.arange(len(request.rows))
    at_n = torch.from_numpy(live_n).to(device)
    last_n = torch.tensor([row[-1] for row in request.rows], device=device)
    uniforms_NT = None if sampler.is_greedy else _uniforms(request, device)
    history_nT = rectangle(request.rows, device) if sampler.needs_history else None
    written: list[list[int]] = [[] for _ in request.rows]
    unseen: list[Tensor] = []
    labels_NL = torch.empty(len(request.rows), 0)
    for t in range(max(1, most)):
        logits_nV = batch.step(live_n, last_n)
        if t == 0:
            labels_NL = logits_nV[:, request.label_ids]
        if t == most:
            break
        uniforms_n = None if uniforms_NT is None else uniforms_NT[at_n, t]
        last_n = sampler.choose(logits_nV, history_NT=history_nT, uniforms_N=uniforms_n)
        if history_nT is not None:
            history_nT = torch.cat([history_nT, last_n[:, None]], dim=1)
        unseen.append(last_n)
        if t + 1 < most and len(unseen) < _LOOK.get(device.type, _LOOK["cuda"]):
            continue
        going_n = _write(written, live_n, torch.stack(unseen, dim=1), sampler.sampling.eos_ids)
        unseen, live_n = [], live_n[going_n]
        if not len(live_n):
            break
        if not going_n.all():
            going = torch.from_numpy(going_n).to(device)
            at_n, last_n = at_n[going], last_n[going]
            history_nT = None if history_nT is None else history_nT[going]
    return [
        Generated(tuple(tokens), tuple(labels_L))
        for tokens, labels_L in zip(written, labels_NL.tolist(), strict=True)
    ]


def _uniforms(request: _DecodeRequest, device: torch.device) -> Tensor:
    """Draw all numbers of a request's rows [N, T]."""
    rows = keyed_draws.keys([seeding.key(*each) for each in request.keys], device)
    return keyed_draws.uniforms(rows, request.max_new_tokens)


def _write(
    written: Sequence[list[int]], live_n: NDArray[np.int64], drawn_nT: Tensor, eos: Sequence[int]
) -> NDArray[np.bool_]:
    """Write down what live rows drew, up to a token that ends them; return which go on."""
    tokens_nT = drawn_nT.cpu().numpy()
    ended_nT = np.isin(tokens_nT, eos)
    going_n = np.asarray(~ended_nT.any(-1))
    lengths_n = np.where(going_n, tokens_nT.shape[1], ended_nT.argmax(-1))
    for n, tokens_T, length in zip(live_n, tokens_nT, lengths_n, strict=True):
        written[n].extend(tokens_T[:length].tolist())
    return going_n


def _evenly(sequences: Sequence[PackedSequence], parts: int) -> list[list[PackedSequence]]:
    """Group sequences of similar length, in parts of about equally many."""
    order = sorted(sequences, key=lambda each: -len(each.tokens))
    size = math.ceil(len(order) / parts)
    return [order[first : first + size] for first in range(0, len(order), size)]


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


def attention_window(config: Any) -> float:
    """Return how many tokens a row may have before a layer sees only a part of it.

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
