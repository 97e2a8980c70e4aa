"""Layers that compute each row of a pass with the tensors of its run.

Shapes: S runs, R sequences, U runs with equally many sequences, T tokens, I and O layer widths.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from raybias.engine.adapters.base import Stacked, Weights
from raybias.engine.devices import to_device
from raybias.engine.packing import Batch

#: Called with a layer's path and its input's rows [R, T, I]; 1 where dropout keeps, else 0.
Masks = Callable[[str, Tensor], Tensor]


@dataclass
class RowAdapters(threading.local):
    """Look up each row's adapter in the current forward pass, one per thread.

    run_R: the run of each sequence; a run's are adjacent, and so are runs with equally many.
    groups: per number of sequences, how many the runs with that number have, which runs these are,
        None for all of them, and the shapes of their tensors where runs differ.
    stacked: all runs' tensors by name, [S, ...] each.
    masks: dropout of the layers' inputs.
    """

    run_R: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Masks | None = None
    groups: list[tuple[int, Tensor | None, Mapping[str, torch.Size] | None]] = field(
        default_factory=list
    )

    def begin(self, batch: Batch, stacked: Weights, device: torch.device) -> None:
        """Set the tensors of all runs, and a batch of sequences."""
        self.stacked = stacked
        self.run_R = to_device(batch.adapters, device)
        self.groups = []
        shapes = stacked.shapes if isinstance(stacked, Stacked) else ()
        every = list(range(len(next(iter(stacked.values())))))

        def size(run: tuple[int, int]) -> tuple[int, Mapping[str, torch.Size] | None]:
            return run[1], shapes[run[0]] if shapes else None

        for (count, own), alike in groupby(Counter(batch.adapters).items(), size):
            runs = [run for run, _ in alike]
            which = None if runs == every else to_device(runs, device)
            self.groups.append((count * len(runs), which, own))

    def of_rows(self, name: str, device: torch.device) -> Tensor:
        """Return the tensor `name` of each sequence's run, [R, ...]."""
        return self.stacked[name][self.run_R].to(device)

    def by_run(self, rows_RTI: Tensor, *names: str) -> Iterator[tuple[Tensor, ...]]:
        """Yield a layer's input and tensors `names` per group of runs with equally many sequences.

        For U runs of N tokens each [U, N, I] and [U, ...], so that their products are batched. A
        tensor that runs do not have is empty.
        """
        tensors, device = [self.stacked[name] for name in names], rows_RTI.device
        sizes = [size for size, *_ in self.groups]
        # The gradient of a split of one part would be copied.
        parts = torch.split(rows_RTI, sizes) if len(sizes) > 1 else (rows_RTI,)
        for part_RTI, (_, runs, shapes) in zip(parts, self.groups, strict=True):
            mine = tensors if runs is None else [each[runs] for each in tensors]
            if shapes is not None:
                # Laid out as alone, so that products are computed as alone.
                places = [map(slice, shapes.get(name, (0,))) for name in names]
                mine = [each[(slice(None), *place)].contiguous()
                        for each, place in zip(mine, places, strict=True)]  # fmt: skip
            count = len(self.stacked[names[0]]) if runs is None else len(runs)
            there = [each.to(device) for each in mine]
            yield part_RTI.reshape(count, -1, part_RTI.shape[-1]), *there

    def by_row(self, inputs: Tensor) -> Tensor:
        """View as [R, T, I] what some models flatten to [R * T, I], and heads to [R, I]."""
        return inputs.reshape(len(self.run_R), -1, inputs.shape[-1])


def together(parts: Sequence[Tensor]) -> Tensor:
    """Join the parts of `RowAdapters.by_run` again, [R * T, O]."""
    flat = [part.flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


class PackedLayer(torch.nn.Module):
    """A frozen linear layer at `path` of the model, with the adapters of many runs."""

    def __init__(self, base: torch.nn.Module, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.base, self.path, self.adapters = base, path, adapters


class PackedHead(torch.nn.Module):
    """A linear layer of a classification head, with the weights of many runs."""

    def __init__(self, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.path, self.adapters = path, adapters

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs [R, .., O] of each row by the weights of its run, float32."""
        rows_RTI = self.adapters.by_row(inputs).float()
        names = (f"{self.path}.weight", f"{self.path}.bias")
        own = [name for name in names if name in self.adapters.stacked]
        parts = []
        for mine_UNI, weight_UOI, *bias in self.adapters.by_run(rows_RTI, *own):
            product_UNO = mine_UNI @ weight_UOI.mT
            parts.append(product_UNO + bias[0][:, None] if bias else product_UNO)
        return together(parts).view(*inputs.shape[:-1], -1)


class PackedNorm(torch.nn.Module):
    """A norm layer of a classification head, with the weights of many runs."""

    def __init__(self, base: torch.nn.Module, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.path, self.adapters = path, adapters
        self.names = [name for name, _ in base.named_parameters()]
        with torch.no_grad():
            for name, parameter in base.named_parameters():
                parameter.fill_(1.0 if name == "weight" else 0.0)
        self.base = base.float()

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs [R, .., I], and scale each row by the weights of its run, float32."""
        rows_RTI = self.adapters.by_row(self.base(inputs.float()))
        names = [f"{self.path}.{name}" for name in self.names]
        parts = []
        for mine_UNI, weight_UI, *bias in self.adapters.by_run(rows_RTI, *names):
            scaled_UNI = mine_UNI * weight_UI[:, None]
            parts.append(scaled_UNI + bias[0][:, None] if bias else scaled_UNI)
        return together(parts).view(inputs.shape)
