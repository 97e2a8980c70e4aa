"""Keys and values of packed rows, in buffers that are written in place.

transformers' growing cache copies itself at every token and its fixed one hands out its
whole length; this one does neither, and begins with the prefix that all rows share.

Shapes: R sequences, H heads, T tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

#: Keys and values [1, H, T, E] of one layer.
KeysValues = tuple[Tensor, Tensor]


class BufferLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [R, H, capacity, E] each, on the layer's device.

    Parameters
    ----------
    prefix: keys and values that every sequence begins with, or None.
    count: how many sequences there is room for.
    capacity: how many tokens a sequence has room for, the prefix counted.
    """

    is_sliding = False

    def __init__(self, prefix: KeysValues | None, *, count: int, capacity: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.room = count, capacity
        self.count = count
        self.length = self.prefix_length
        self.places_RK: Tensor | None = None

    @property
    def prefix_length(self) -> int:
        """Tokens of the prefix."""
        return 0 if self.prefix is None else self.prefix[0].shape[2]

    def rewind(self, count: int) -> None:
        """Begin anew with `count` sequences behind the same prefix, token after token."""
        self.count, self.length, self.places_RK = count, self.prefix_length, None

    def write_at(self, places_RK: Tensor, length: int) -> None:
        """Have the next pass write at these places, and see the first `length` of each sequence."""
        self.places_RK, self.length = places_RK, length

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers once the layer's sizes are known."""
        count, capacity = self.room
        # Places of sequences that were left out for a while are masked, but must be finite.
        buffers = [
            states.new_zeros(count, states.shape[1], capacity, states.shape[3])
            for states in (key_states, value_states)
        ]
        for buffer, prefix_length in zip(buffers, self.prefix or (), strict=False):
            buffer[:, :, : self.prefix_length] = prefix_length
        self.keys, self.values = buffers
        self.is_initialized = True

    def reorder(self, index_R: Tensor) -> None:
        """Put sequences into another order."""
        index_R = index_R.to(self.keys.device)
        for buffer in (self.keys, self.values):
            buffer[: len(index_R), :, : self.length] = buffer[index_R, :, : self.length]

    def reserve(self, capacity: int) -> None:
        """Make room for sequences of this many tokens."""
        self.room = self.room[0], capacity
        if self.is_initialized:
            more = capacity - self.keys.shape[2]
            self.keys = pad(self.keys, (0, 0, 0, more))
            self.values = pad(self.values, (0, 0, 0, more))

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_options: Any
    ) -> KeysValues:
        """Write the keys and values of new tokens; return all so far, uncopied."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys[: self.count], self.values[: self.count]
        if self.places_RK is None:
            start, self.length = self.length, self.length + key_states.shape[2]
            keys[:, :, start : self.length] = key_states
            values[:, :, start : self.length] = value_states
        else:
            place_RK = self.places_RK.to(keys.device)
            row_R1 = torch.arange(len(place_RK), device=keys.device)[:, None]
            keys[row_R1, :, place_RK] = key_states.transpose(1, 2)
            values[row_R1, :, place_RK] = value_states.transpose(1, 2)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def copy(
        self, other: BufferLayer, rows: tuple[Tensor, Tensor], places: tuple[Tensor, Tensor]
    ) -> None:
        """Copy another layer's keys and values, from the second rows and places to the first."""
        to_t, from_t, at_t, was_t = (each.to(self.keys.device) for each in (*rows, *places))
        self.keys[to_t, :, at_t] = other.keys[from_t, :, was_t]
        self.values[to_t, :, at_t] = other.values[from_t, :, was_t]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a query sees, and from where."""
        return self.length + (query_length if self.places_RK is None else 0), 0

    def get_seq_length(self) -> int:
        """Return the tokens so far."""
        return self.length

    def get_max_length(self) -> int:
        """Return the tokens there is room for."""
        return self.room[1]


class BufferCache(Cache):  # type: ignore[misc]
    """All layers' buffers; see `BufferLayer`."""

    def __init__(
        self, prefix: Sequence[KeysValues], *, layers: int, count: int, capacity: int
    ) -> None:
        self.count, self.capacity = count, capacity
        parts: list[KeysValues | None] = [*prefix] or [None] * layers
        super().__init__([BufferLayer(kv, count=count, capacity=capacity) for kv in parts])
        self.prefix_length = int(self.layers[0].prefix_length)

    def rewind(self, count: int) -> None:
        """Begin anew with `count` sequences."""
        for layer in self.layers:
            layer.rewind(count)

    def narrow(self, count: int) -> None:
        """Go on with the first sequences; the others stay as they are."""
        for layer in self.layers:
            layer.count = count

    def reorder(self, index_R: Tensor) -> None:
        """Put sequences into another order."""
        for layer in self.layers:
            layer.reorder(index_R)

    def write_at(self, places_RK: Tensor, length: int) -> None:
        """Have the next pass write at these places; see `BufferLayer.write_at`."""
        for layer in self.layers:
            layer.write_at(places_RK, length)

    def copy(
        self, other: BufferCache, *, rows: tuple[Tensor, Tensor], places: tuple[Tensor, Tensor]
    ) -> None:
        """Copy places of another cache's sequences; see `BufferLayer.copy`."""
        for layer, source in zip(self.layers, other.layers, strict=True):
            layer.copy(source, rows, places)

    def reserve(self, capacity: int) -> None:
        """Make room for sequences of this many tokens."""
        if capacity > self.capacity:
            self.capacity = capacity
            for layer in self.layers:
                layer.reserve(capacity)

    def first(self, length: int) -> list[KeysValues]:
        """Return the first sequence's keys and values of `length` tokens, one pair a layer."""
        return [(layer.keys[:1, :, :length], layer.values[:1, :, :length]) for layer in self.layers]


def layer_count(model: torch.nn.Module) -> int:
    """Count the layers of a model that keep keys and values."""
    config: Any = model.config
    return int(config.get_text_config().num_hidden_layers)
