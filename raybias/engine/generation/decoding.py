"""Decode rows token by token, packed behind a shared prefix (tree attention) or plainly.

A row's stem is all of its prompt but the last token. Stems are read first, without any
logits; then every step feeds one token per live row, the last prompt token to begin with,
through the model's own forward pass and head. So logits are the model's own whatever it does
after its head, and they exist for the tokens that are needed only.

Shapes: R sequences, N rows, n live rows, K columns, C cache places, T or t
tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.generation.kv_cache import BufferCache, KeysValues, layer_count
from raybias.engine.generation.packed_rows import Numbers, PackedRows
from raybias.engine.packing import Placed, Row, pack, stack
from raybias.engine.self_check import TOLERANCE, agrees, sample_tokens
from raybias.engine.transfers import to_device


class Rows(Protocol):
    """A batch that is being extended."""

    device: torch.device

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """Compute the logits [n, V] float32 after one more token of each live row.

        `live_n` are places in the batch, ascending; a row may be left out for some steps.
        """

    def leave(self, rows: Sequence[int]) -> None:
        """Forget rows that have ended."""


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
                input_ids=to_device([new[first:end]], device),
                position_ids=torch.arange(first, end, device=device)[None],
                past_key_values=cache,
                use_cache=True,
            )
            self.tokens, self.keys_values = new[:end], cache.first(end)

    def cache(self, *, count: int, capacity: int) -> BufferCache:
        """Allocate a key-value cache for `count` sequences that begin with the prefix."""
        layers = layer_count(self.backbone.model)
        return BufferCache(self.keys_values, layers=layers, count=count, capacity=capacity)


class PlainRows:
    """Rows of one length, read as the model reads a batch without padding.

    A model that hands out no keys and values reads its rows from the start at every step.
    """

    def __init__(self, backbone: LoadedBackbone, rows: Sequence[Row]) -> None:
        self.model: Any = backbone.model
        self.device = backbone.device
        self.tokens_NT = to_device([row[:-1] for row in rows], self.device).long()
        self.cache: Any = None
        if self.tokens_NT.shape[1]:
            read = self.model.base_model(input_ids=self.tokens_NT, use_cache=True)
            self.cache = getattr(read, "past_key_values", None)

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """See `Rows.step`; a row that is left out is left for good: it is read on unseen."""
        live = to_device(live_n, self.device)
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

    def leave(self, rows: Sequence[int]) -> None:
        """See `Rows.leave`; rows that have ended keep their places."""


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
        stems = PackedRows(backbone, batch, cache)
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


def common_length(rows: Sequence[Row]) -> int:
    """Count the tokens that all rows begin with."""
    first, last = min(map(tuple, rows)), max(map(tuple, rows))
    shared = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared += 1
    return shared
