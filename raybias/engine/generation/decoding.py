"""Decode rows token by token, packed behind a shared prefix (tree attention) or plainly.

A row's stem is all of its prompt but the last token. Stems are read first, without any
logits; then every step feeds one token per live row, the last prompt token to begin with,
through the model's own forward pass and head. So logits are the model's own whatever it does
after its head, and they exist for the tokens that are needed only.

Packed rows stay where `packing` wrote them: a step appends one column per live row to each
sequence, which sees the prefix, its row's own path and its own earlier columns. Rows can then
go on behind other prompts: each is a branch of its row's path, at the depth where they part.

Shapes: R sequences, N rows, n live rows, K columns, C cache places, T or t
tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.generation.kv_cache import BufferCache, KeysValues, layer_count
from raybias.engine.packing import Batch, Placed, Row, pack, stack, tree_mask
from raybias.engine.self_check import TOLERANCE, agrees, sample_tokens

Numbers = NDArray[np.int64]


class Rows(Protocol):
    """A batch that is being extended."""

    device: torch.device

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """Compute the logits [n, V] float32 after one more token of each live row.

        `live_n` are places in the batch, ascending; a row that is left out is left for good.
        """


#: Tokens of one pass over a prefix.
BLOCK: Final = 64


class PrefixCache:
    """The keys and values of the tokens that all rows begin with.

    They are computed block by block. Another prefix reuses whole blocks that it has in common with
    this one, so its values are, on a CPU to the bit, what they are where nothing was held before.
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.tokens: tuple[int, ...] = ()
        self.keys_values: list[KeysValues] = []

    def set(self, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens, computing those that are new."""
        new = tuple(tokens)
        if new == self.tokens:
            return
        held = common_length([self.tokens, new]) // BLOCK * BLOCK
        self.tokens = new[:held]
        self.keys_values = [
            (keys[:, :, :held], values[:, :, :held]) for keys, values in self.keys_values if held
        ]
        device = self.backbone.device
        for first in range(held, len(new), BLOCK):
            end = min(first + BLOCK, len(new))
            cache = self.cache(count=1, capacity=end)
            self.backbone.model.base_model(
                input_ids=torch.tensor([new[first:end]], device=device),
                position_ids=torch.arange(first, end, device=device)[None],
                past_key_values=cache,
                use_cache=True,
            )
            self.tokens, self.keys_values = new[:end], cache.first(end)

    def cache(self, *, count: int, capacity: int) -> BufferCache:
        """Allocate a key-value cache for `count` sequences that begin with the prefix."""
        layers = layer_count(self.backbone.model)
        return BufferCache(self.keys_values, layers=layers, count=count, capacity=capacity)


class PackedRows:
    """Packed stems behind a prefix, with room for new columns.

    Parameters
    ----------
    batch: stems without the prefix.
    lengths: tokens of each row's whole prompt, in the order of `batch.rows`.
    cache: begins with the prefix, and has room for the batch and all steps.
    """

    def __init__(
        self, backbone: LoadedBackbone, batch: Batch, lengths: Sequence[int], cache: BufferCache
    ) -> None:
        self.model: Any = backbone.model
        self.device = backbone.device
        self.cache = cache
        self.total, width = batch.tokens_RT.shape
        self.count = self.total
        self.filled = cache.prefix_length + width
        self.sequence_N = batch.at_R.numpy()
        self.position_N = np.array(lengths) - 1
        cache.rewind(self.count)
        ends_RT = batch.ends_RT.to(self.device)
        self.seen_NC = self._paths(batch, ends_RT)
        if width:
            self.model.base_model(
                input_ids=batch.tokens_RT.to(self.device),
                attention_mask=pad(tree_mask(ends_RT), (cache.prefix_length, 0), value=True)[
                    :, None
                ],
                position_ids=batch.depths_RT.to(self.device) + cache.prefix_length,
                past_key_values=cache,
                use_cache=True,
            )

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """See `Rows.step`."""
        self._leave_finished(live_n)
        column_n = _ranks(self.sequence_N[live_n])
        logits_RKV = self._read(self.model, live_n, column_n, tokens_n).logits
        at_n = self.sequence_N[live_n] * logits_RKV.shape[1] + column_n
        logits_nV: Tensor = logits_RKV.flatten(0, 1)
        if not np.array_equal(at_n, np.arange(len(logits_nV))):
            logits_nV = logits_nV[self._tensor(at_n)]
        return logits_nV.float()

    def fork(self, prompts: Sequence[Row], shared: Sequence[int], *, columns: int) -> None:
        """Go on behind other prompts, keeping what they have in common with the paths so far.

        Parameters
        ----------
        prompts: whole prompts in tokens, one a row; their last tokens are left to `step`.
        shared: how many tokens each prompt has in common with its row's path.
        columns: how many tokens the steps behind the prompts will add to a sequence.
        """
        lasts_N = np.array([len(prompt) - 1 for prompt in prompts])
        self.position_N = np.minimum.reduce([self.position_N, np.array(shared), lasts_N])
        # A row sees its path in the order of depth, so its first places are those it keeps.
        kept_N1 = self._tensor(np.append(self.position_N, 0))[:, None]
        self.seen_NC &= self.seen_NC.cumsum(-1) <= kept_N1
        row_t = np.repeat(np.arange(len(prompts)), lasts_N - self.position_N)
        tokens_t = self._tensor(
            np.array(
                [
                    token
                    for at, row in zip(self.position_N, prompts, strict=True)
                    for token in row[at:-1]
                ],
                np.int64,
            )
        )
        self._widen()
        longest = int(np.bincount(self.sequence_N[row_t], minlength=1).max())
        self.cache.reserve(self.filled + longest + columns)
        self.seen_NC = pad(self.seen_NC, (0, self.cache.capacity - self.seen_NC.shape[1]))
        while len(row_t):
            self._leave_finished(row_t)
            column_t = _ranks(self.sequence_N[row_t])
            # Half of the sequences end with this pass: without padding where all are alike.
            lengths_R = np.bincount(self.sequence_N[row_t], minlength=self.count)
            now_t = column_t < np.sort(lengths_R)[(self.count - 1) // 2]
            now, later = self._tensor(now_t), self._tensor(~now_t)
            self._read(self.model.base_model, row_t[now_t], column_t[now_t], tokens_t[now])
            row_t, tokens_t = row_t[~now_t], tokens_t[later]
        self._widen()

    def _read(self, model: Any, row_t: Numbers, column_t: Numbers, tokens_t: Tensor) -> Any:
        """Run the model on new tokens of some rows, each appended to its packed sequence."""
        shape = self.count, int(column_t.max()) + 1
        end = self.filled + shape[1]
        at_t = self.sequence_N[row_t], column_t
        positions_RK = np.zeros(shape, np.int64)
        # Empty columns belong to a row that nobody reads, the last of `seen_NC`.
        row_RK = np.full(shape, len(self.position_N))
        row_RK[at_t] = row_t
        positions_RK[at_t] = self.position_N[row_t] + _ranks(row_t)
        self.position_N += np.bincount(row_t, minlength=len(self.position_N))
        place_t = self._tensor(at_t[0] * shape[1] + at_t[1])
        tokens_RK = tokens_t.new_zeros(shape).view(-1).index_copy(0, place_t, tokens_t).view(shape)
        own_RK = self._tensor(row_RK)
        mask_RKC = self.seen_NC[own_RK, :end]
        mask_RKC[:, :, self.filled :] = (own_RK[:, :, None] == own_RK[:, None]).tril()
        self.seen_NC[own_RK, torch.arange(self.filled, end, device=self.device)] = True
        self.filled = end
        return model(
            input_ids=tokens_RK,
            position_ids=self._tensor(positions_RK),
            attention_mask=mask_RKC[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )

    def _paths(self, batch: Batch, ends_RT: Tensor) -> Tensor:
        """Mark the cache places that each row sees: the prefix and its stem.

        [N + 1, C]; the last row stands for none.
        """
        seen_NC = torch.zeros(
            len(batch.at_T) + 1, self.cache.capacity, dtype=torch.bool, device=self.device
        )
        seen_NC[:, : self.cache.prefix_length] = True
        place_T = torch.arange(ends_RT.shape[1], device=self.device)
        at_N1 = batch.at_T.to(self.device)[:, None]
        stem_NT = (place_T <= at_N1) & (at_N1 < ends_RT[batch.at_R.to(self.device)])
        seen_NC[:-1, self.cache.prefix_length : self.filled] = stem_NT
        return seen_NC

    def _leave_finished(self, live_n: Numbers) -> None:
        """Leave out sequences without live rows once they are half of all: it copies them."""
        live_R = np.unique(self.sequence_N[live_n])
        if 2 * len(live_R) <= self.count:
            order_R = np.append(live_R, np.setdiff1d(np.arange(self.count), live_R))
            self.cache.reorder(self._tensor(order_R))
            place_R = np.arange(self.total)
            place_R[order_R] = place_R[: self.count]
            self.sequence_N = place_R[self.sequence_N]
            self.count = len(live_R)
            self.cache.narrow(self.count)

    def _widen(self) -> None:
        """Take all sequences in again."""
        self.count = self.total
        self.cache.narrow(self.count)

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)


class PlainRows:
    """Rows of one length, read as the model reads a batch without padding.

    A model that hands out no keys and values reads its rows from the start at every step.
    """

    def __init__(self, backbone: LoadedBackbone, rows: Sequence[Row]) -> None:
        self.model: Any = backbone.model
        self.device = backbone.device
        self.tokens_NT = torch.tensor([row[:-1] for row in rows], device=self.device).long()
        self.cache: Any = None
        if self.tokens_NT.shape[1]:
            read = self.model.base_model(input_ids=self.tokens_NT, use_cache=True)
            self.cache = getattr(read, "past_key_values", None)

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """See `Rows.step`; finished rows are read on, and nobody looks."""
        live = torch.from_numpy(live_n).to(self.device)
        new_N1 = torch.zeros(len(self.tokens_NT), 1, dtype=torch.long, device=self.device)
        new_N1[live, 0] = tokens_n
        self.tokens_NT = torch.cat([self.tokens_NT, new_N1], dim=1)
        read = self.model(
            input_ids=self.tokens_NT if self.cache is None else new_N1,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = getattr(read, "past_key_values", None)
        logits_nV: Tensor = read.logits[live, -1].float()
        return logits_nV


def reads_packed(backbone: LoadedBackbone) -> bool:
    """Check whether a model reads packed rows, step by step, as it reads each of them alone."""
    token = sample_tokens(backbone.model, 15)
    rows = [token[:5], token[:3] + token[6:9], token[:2] + token[9:12], token[:2] + token[11:12]]
    batch = stack([Placed(0, 0, each) for each in pack([row[2:-1] for row in rows])])
    order = [rows[n] for _, n in batch.rows]

    def packed() -> Tensor:
        prefix = PrefixCache(backbone)
        prefix.set(token[:2])
        cache = prefix.cache(count=1, capacity=64)
        stems = PackedRows(backbone, batch, [len(row) for row in order], cache)
        return _forced(stems, len(rows), token)

    with torch.no_grad():
        alone = [_forced(PlainRows(backbone, [row]), 1, token) for row in order]
    tolerance = TOLERANCE[backbone.model.dtype]
    return agrees(packed, torch.cat(alone), tolerance=tolerance)


def _forced(rows: Rows, count: int, tokens: Sequence[int]) -> Tensor:
    """Compute the logits [N, steps, V] of steps whose tokens are given."""
    every_N = np.arange(count)
    forced = [torch.full((count,), token, device=rows.device) for token in tokens[:3]]
    return torch.stack([rows.step(every_N, tokens_N) for tokens_N in forced], dim=1)


def _ranks(group_t: Numbers) -> Numbers:
    """Count for each entry the earlier ones that are equal to it."""
    order_t = np.argsort(group_t, kind="stable")
    ranked_t, found_t = group_t[order_t], np.empty_like(group_t)
    found_t[order_t] = np.arange(len(group_t)) - np.searchsorted(ranked_t, ranked_t)
    return found_t


def common_length(rows: Sequence[Row]) -> int:
    """Count the tokens that all rows begin with."""
    first, last = min(map(tuple, rows)), max(map(tuple, rows))
    shared = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared += 1
    return shared
