"""Describe how one process computes with one model: device, token budget, precision, ranks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch

from raybias.engine.batching import Batcher, Collective, Pipeline
from raybias.engine.devices import repeat_bits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sharding(Protocol):
    """Shard models over the ranks of a group."""

    @property
    def group(self) -> Collective | None:
        """The ranks, where they share every batch."""

    def loading(self) -> Any:
        """Return a context that shards a model while it is loaded."""

    def begin(self, model: PreTrainedModel, *, whole: bool) -> None:
        """Have a loaded model gather its weights; `whole` where its own forward is called."""


class Way(NamedTuple):
    """How a model is computed for one purpose, and whether no short cut was refused for it."""

    how: str
    fastest: bool


@dataclass(frozen=True)
class Execution:
    """How a process computes with a model; a loaded model keeps it.

    Attributes
    ----------
    tokens_per_batch: token budget of a forward pass, prompt vectors counted; running out of memory
        halves it.
    device: of the model; of several devices the first, with embeddings and head.
    devices: number of devices, from `device` on, that the layers are split over.
    passes: batches computed at a time, where the layers are split (see `Pipeline`).
    ways: by purpose, the computation chosen by the self-check.
    deterministic: whether a GPU repeats its bits, as CPUs do.
    """

    tokens_per_batch: int = 4096
    device: str | torch.device = "cpu"
    threads: int = 1
    sharding: Sharding | None = None
    devices: int = 1
    passes: int = 1
    deterministic: bool = False
    ways: dict[str, Way] = field(default_factory=dict, compare=False, repr=False)

    def set_torch(self) -> None:
        """Set this process's torch: threads, memory share, and repeated bits on request."""
        torch.set_num_threads(self.threads)
        if self.deterministic:
            repeat_bits()

    def split(self) -> list[torch.device]:
        """List the devices that the layers are split over."""
        first = torch.device(self.device)
        return [torch.device(first.type, (first.index or 0) + n) for n in range(self.devices)]

    def loading(self) -> Any:
        """Return a context to load the model in."""
        return nullcontext() if self.sharding is None else self.sharding.loading()

    def begin(self, model: PreTrainedModel, *, whole: bool = False) -> None:
        """Have a sharded model gather its weights; see `Sharding.begin`."""
        if self.sharding is not None:
            self.sharding.begin(model, whole=whole)

    def note(self, purpose: str, *, packs: bool, part: bool, fastest: bool) -> None:
        """Record how a model is computed: rows that share sequences, the head on a part of them."""
        rows = "packed rows" if packs else "each row alone"
        head = "the head where it is needed" if part else "the whole model with its head"
        self.ways[purpose] = Way(f"{rows}, {head}", fastest)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The batches that are under way at one time."""
        return Pipeline(self.split(), self.passes)

    def batcher(
        self,
        where: str,
        *,
        context: int | None = None,
        side_by_side: bool = False,
    ) -> Batcher:
        """Make a batcher of this execution.

        `where`: the model's id, for messages; `context`: its longest input, None without a limit;
        `side_by_side`: whether threads may compute several batches at a time.
        """
        group = None if self.sharding is None else self.sharding.group
        device = torch.device(self.device)
        return Batcher(
            where=where,
            device=device,
            tokens_per_batch=self.tokens_per_batch,
            context=context,
            group=group,
            # A GPU's products round by how many rows share them.
            apart=self.deterministic and device.type != "cpu",
            pipeline=self.pipeline if side_by_side else None,
        )


#: One process on the CPU, with a study's default budget.
ON_CPU: Final = Execution()
