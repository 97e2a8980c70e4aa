"""Rows packed behind a shared prefix, decoded with tree attention at places that they own.

Packed rows stay where `packing` wrote them: a step writes one token per live row at a free place
of its sequence, which sees the prefix and its row's own path. Rows can then go on behind other
prompts: each is a branch of its row's path, at the depth where they part. Where a row has ended,
another's stem is copied to free places.

Shapes: R sequences, N rows, n live rows, K columns, C cache places, T or t
tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.devices import to_device
from raybias.engine.generation.kv_cache import BufferCache
from raybias.engine.packing import Batch, Row, tree_mask

Numbers = NDArray[np.int64]

#: A cache that is too small grows by at least one part in this many.
_GROWTH: Final = 8


class PackedRows:
    """Packed stems behind a prefix, with places for new tokens.

    A place of a sequence belongs to the rows whose paths lead through it, and is free again once
    no row's does.

    Parameters
    ----------
    batch: stems without the prefix.
    cache: begins with the prefix, and has room for the batch, all steps, and one place more.
    """

    def __init__(self, backbone: LoadedBackbone, batch: Batch, cache: BufferCache) -> None:
        self.model: Any = backbone.model
        self.device = backbone.device
        self.cache = cache
        self.total, width = batch.tokens_RT.shape
        self.count = self.total
        self.sequence_N = batch.at_R.numpy()
        self.at_R = np.arange(self.total)
        cache.rewind(self.count)
        self._read_stems(batch, cache)
        self.filled = cache.prefix_length + width
        count = len(batch.rows)
        # Empty columns belong to a row that nobody reads, the last of `seen_NC`. It sees something,
        # and what is written for it goes to the last place, which no other row sees.
        self.seen_NC = torch.zeros(count + 1, cache.capacity, dtype=torch.bool, device=self.device)
        self.seen_NC[-1, 0] = True
        prefix = np.arange(cache.prefix_length)
        self.paths = [[*prefix, *(len(prefix) + path_T)] for path_T in _ancestors(batch)]
        self.users_RC = np.zeros((self.total, cache.capacity), np.int64)
        self.users_RC[:, prefix] = self.users_RC[:, -1] = 1
        self.free: list[list[int]] = [[] for _ in range(self.total)]
        for n in range(count):
            self._count(n, self.paths[n], 1)
        self._settled(range(count))

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """See `Rows.step`."""
        self._leave_finished(live_n)
        column_n = _ranks(self.sequence_N[live_n])
        logits_RKV = self._read(self.model, live_n, column_n, tokens_n).logits
        at_n = self.at_R[self.sequence_N[live_n]] * logits_RKV.shape[1] + column_n
        logits_nV: Tensor = logits_RKV.flatten(0, 1)
        if not np.array_equal(at_n, np.arange(len(logits_nV))):
            logits_nV = logits_nV[self._tensor(at_n)]
        return logits_nV.float()

    def leave(self, rows: Sequence[int]) -> None:
        """See `Rows.leave`."""
        for n in rows:
            self._cut(n, 0)
        self._find_free(rows)

    def room(self, steps_N: Numbers) -> Numbers:
        """Count the places of each sequence that are free beside those of steps to come."""
        free_R = np.array([len(places) for places in self.free])
        return free_R - np.bincount(self.sequence_N, weights=steps_N, minlength=self.total).astype(
            np.int64
        )

    def replace(self, rows: Sequence[int], batch: Batch, cache: BufferCache) -> None:
        """Read other stems into the places of rows that have left.

        Parameters
        ----------
        rows: that are replaced, in the order of `batch.rows`.
        cache: begins with the prefix, and has room for the batch.
        """
        self._read_stems(batch, cache)
        start = cache.prefix_length
        found: dict[tuple[int, int, int], int] = {}
        for n, r, path_T in zip(rows, batch.at_R.numpy().tolist(), _ancestors(batch), strict=True):
            home = int(self.sequence_N[n])
            self.paths[n] = [*range(start)]
            for place in path_T.tolist():
                if (home, r, place) not in found:
                    found[home, r, place] = self.free[home].pop()
                self.paths[n].append(found[home, r, place])
            self._count(n, self.paths[n], 1)
        self._widen()
        if found:
            home_t, from_t, place_t = np.array([*found]).T
            to_t = np.array([*found.values()])
            self.cache.copy(
                cache,
                rows=(self._tensor(self.at_R[home_t]), self._tensor(from_t)),
                places=(self._tensor(to_t), self._tensor(start + place_t)),
            )
        self._settled(rows)

    def fork(
        self,
        rows: Sequence[int],
        prompts: Sequence[Row],
        shared: Sequence[int],
        steps_N: Numbers,
    ) -> None:
        """Go on behind other prompts, keeping what they have in common with the paths so far.

        Parameters
        ----------
        rows: that go on.
        prompts: whole prompts in tokens, one a row; their last tokens are left to `step`.
        shared: how many tokens each prompt has in common with its row's path.
        steps_N: how many steps each row may still take, these behind their prompts.
        """
        new = []
        for n, prompt, common in zip(rows, prompts, shared, strict=True):
            self._cut(n, min(len(self.paths[n]), common, len(prompt) - 1))
            new.append(prompt[len(self.paths[n]) : -1])
        self._widen()
        self._find_free(rows)
        row_t = np.repeat(np.array(rows), [len(tokens) for tokens in new])
        tokens_t = np.array([token for tokens in new for token in tokens], np.int64)
        added_R = np.bincount(self.sequence_N[row_t], minlength=self.total)
        self._reserve(int((added_R - self.room(steps_N)).max()))
        self._settled(rows)
        while len(row_t):
            self._leave_finished(row_t)
            column_t = _ranks(self.sequence_N[row_t])
            # Half of the sequences end with this pass: without padding where all are alike.
            lengths_R = np.bincount(self.at_R[self.sequence_N[row_t]], minlength=self.count)
            now_t = column_t < max(1, np.sort(lengths_R)[(self.count - 1) // 2])
            now = self._tensor(tokens_t[now_t])
            self._read(self.model.base_model, row_t[now_t], column_t[now_t], now)
            row_t, tokens_t = row_t[~now_t], tokens_t[~now_t]
        self._widen()

    def _read_stems(self, batch: Batch, cache: BufferCache) -> None:
        """Compute the keys and values of a batch's stems behind the prefix that a cache holds."""
        if not batch.tokens_RT.shape[1]:
            return
        mask_RTT = tree_mask(to_device(batch.ends_RT, self.device))
        self.model.base_model(
            input_ids=to_device(batch.tokens_RT, self.device),
            attention_mask=pad(mask_RTT, (cache.prefix_length, 0), value=True)[:, None],
            position_ids=to_device(batch.depths_RT, self.device) + cache.prefix_length,
            past_key_values=cache,
            use_cache=True,
        )

    def _read(self, model: Any, row_t: Numbers, column_t: Numbers, tokens_t: Tensor) -> Any:
        """Run the model on new tokens of some rows, each at a free place of its sequence."""
        shape = self.count, int(column_t.max()) + 1
        at_t = self.at_R[self.sequence_N[row_t]], column_t
        positions_RK = np.zeros(shape, np.int64)
        row_RK = np.full(shape, len(self.paths))
        place_RK = np.full(shape, self.cache.capacity - 1)
        row_RK[at_t] = row_t
        positions_RK[at_t], place_RK[at_t] = self._take(row_t)
        self.filled = max(self.filled, int(place_RK[at_t].max()) + 1)
        to_t = self._tensor(at_t[0] * shape[1] + at_t[1])
        tokens_RK = tokens_t.new_zeros(shape).view(-1).index_copy(0, to_t, tokens_t).view(shape)
        own_RK, places_RK = self._tensor(row_RK), self._tensor(place_RK)
        self.seen_NC[own_RK, places_RK] = True
        mask_RKC = self.seen_NC[own_RK]
        if len(row_t) > len(set(row_t.tolist())):
            # Of the tokens of its row that are read with it, a token sees none that come later.
            later_RKK = (own_RK[:, :, None] == own_RK[:, None]).triu(1)
            at_RKK = places_RK[:, None].expand_as(later_RKK)
            mask_RKC &= ~torch.zeros_like(mask_RKC).scatter(2, at_RKK, later_RKK)
        self.cache.write_at(places_RK, self.filled)
        return model(
            input_ids=tokens_RK,
            position_ids=self._tensor(positions_RK),
            attention_mask=mask_RKC[:, None, :, : self.filled],
            past_key_values=self.cache,
            use_cache=True,
        )

    def _take(self, row_t: Numbers) -> tuple[list[int], list[int]]:
        """Give a free place to each new token, the lowest first; return depths and places."""
        depths, places = [], []
        for n, home in zip(row_t.tolist(), self.sequence_N[row_t].tolist(), strict=True):
            place = self.free[home].pop()
            self.users_RC[home, place] = 1
            depths.append(len(self.paths[n]))
            places.append(place)
            self.paths[n].append(place)
        return depths, places

    def _cut(self, n: int, kept: int) -> None:
        """Shorten a row's path."""
        self._count(n, self.paths[n][kept:], -1)
        del self.paths[n][kept:]

    def _count(self, n: int, places: Sequence[int], users: int) -> None:
        self.users_RC[self.sequence_N[n], np.array(places, np.int64)] += users

    def _settled(self, rows: Sequence[int]) -> None:
        """Have rows see their paths, after these have changed."""
        self._find_free(rows)
        seen_nC = np.zeros((len(rows), self.cache.capacity), np.bool_)
        for seen_C, n in zip(seen_nC, rows, strict=True):
            seen_C[self.paths[n]] = True
        self.seen_NC[self._tensor(np.array(rows))] = self._tensor(seen_nC)

    def _find_free(self, rows: Sequence[int]) -> None:
        """List the free places of some rows' sequences, and count up to the last in use."""
        for home in set(self.sequence_N[np.array(rows, np.int64)].tolist()):
            self.free[home] = np.flatnonzero(self.users_RC[home] == 0)[::-1].tolist()
        self.filled = 1 + int(np.flatnonzero(self.users_RC[:, :-1].any(0)).max(initial=-1))

    def _reserve(self, more: int) -> None:
        """Make room for `more` places than there are; for a few besides, as each time copies."""
        if more > 0:
            more = max(more, self.cache.capacity // _GROWTH)
            self.users_RC[:, -1] = 0
            self.cache.reserve(self.cache.capacity + more)
            self.users_RC = np.pad(self.users_RC, ((0, 0), (0, more)))
            self.users_RC[:, -1] = 1
            self.seen_NC = pad(self.seen_NC, (0, more))
            self._find_free(range(len(self.paths)))

    def _leave_finished(self, live_n: Numbers) -> None:
        """Leave out sequences without live rows once they are half of all: it copies them."""
        live_R = np.unique(self.at_R[self.sequence_N[live_n]])
        if 2 * len(live_R) <= self.count:
            order_R = np.append(live_R, np.setdiff1d(np.arange(self.count), live_R))
            self.cache.reorder(self._tensor(order_R))
            place_R = np.arange(self.total)
            place_R[order_R] = place_R[: self.count]
            self.at_R = place_R[self.at_R]
            self.count = len(live_R)
            self.cache.narrow(self.count)

    def _widen(self) -> None:
        """Take all sequences in again."""
        self.count = self.total
        self.cache.narrow(self.count)

    def _tensor(self, numbers: NDArray[Any]) -> Tensor:
        return to_device(numbers, self.device)


def _ancestors(batch: Batch) -> list[Numbers]:
    """List the places of each row's tokens in its sequence, in their order."""
    ends_RT, place_T = batch.ends_RT.numpy(), np.arange(batch.tokens_RT.shape[1])
    return [
        np.flatnonzero((place_T <= at) & (at < ends_RT[r]))
        for r, at in zip(batch.at_R.numpy(), batch.at_T.numpy(), strict=True)
    ]


def _ranks(group_t: Numbers) -> Numbers:
    """Count for each entry the earlier ones that are equal to it."""
    order_t = np.argsort(group_t, kind="stable")
    ranked_t, found_t = group_t[order_t], np.empty_like(group_t)
    found_t[order_t] = np.arange(len(group_t)) - np.searchsorted(ranked_t, ranked_t)
    return found_t
