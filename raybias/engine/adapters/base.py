"""Define a kind of adapter for the one loop that tunes them all, and its files.

A trainer keeps no run: the weights of a run are a dictionary of tensors, given to each call.
Adapters are saved as PEFT and transformers save them, in safetensors; `raybias.json`, the record of
the run, is written last and marks the folder as whole. Shapes: S runs, N rows, L labels.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.options import ClassifierOptions
from raybias.engine.classifier import Classifier
from raybias.engine.context import Batcher
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder
from raybias.engine.packing import Batch, PackedSequence, Placed, pack
from raybias.errors import ModelError
from raybias.schema import LABELS
from raybias.storage import Store

#: File names of PEFT's adapters and transformers' models.
ADAPTER: Final = "adapter_model.safetensors"
MODEL: Final = "model.safetensors"
#: As in `torch.amp.GradScaler`: the first factor, and the finite steps until it doubles.
FIRST_SCALE: Final = 2.0**16
_GROWS_AFTER: Final = 2000
_NUMBERS: Final = {"factor": torch.float64, "finite": torch.int64, "skipped": torch.int64}


def write_folder(
    store: Store,
    folder: str,
    tensors: Mapping[str, Tensor],
    *,
    file: str,
    parts: Sequence[Any],
    record: Mapping[str, object],
) -> None:
    """Write the folder of an adapter or a model.

    `file`: ADAPTER or MODEL; `parts`: configurations and tokenizers with a `save_pretrained`;
    `record`: the content of `raybias.json`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    store.write_bytes(f"{folder}/{file}", save(plain, metadata={"format": "pt"}))
    with tempfile.TemporaryDirectory() as place:
        for part in parts:
            part.save_pretrained(place)
        for path in sorted(Path(place).iterdir()):
            store.write_bytes(f"{folder}/{path.name}", path.read_bytes())
    store.write_text(f"{folder}/raybias.json", json.dumps(dict(record), indent=2))


def read_tensors(
    store: Store, folder: str, shapes: Mapping[str, Sequence[int] | None], *, file: str
) -> dict[str, Tensor]:
    """Load tensors by name and shape (None: any), float32; ModelError where one is not there so."""
    where = store.uri_of(f"{folder}/{file}")
    if not store.exists(f"{folder}/{file}"):
        raise ModelError("no such adapter", where=where, cure="tune it first")
    try:
        tensors = load(store.read_bytes(f"{folder}/{file}"))
    except SafetensorError as error:
        raise ModelError("does not hold an adapter", where=where) from error
    for name, shape in shapes.items():
        if name not in tensors:
            problem = f"lacks {name}"
        elif shape is not None and tensors[name].shape != tuple(shape):
            problem = f"holds {name} as {list(tensors[name].shape)}, but {list(shape)} is needed"
        else:
            continue
        raise ModelError(
            problem, where=where, cure="use the backbone and options that it was tuned with"
        )
    return {name: tensors[name].float() for name in shapes}


#: The trainable tensors of one run by name, float32.
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class TrainingBatch:
    """One run's batch of a step.

    weights: the run's tensors; left unchanged.
    seed, step: keys of the dropout.
    loss_scale: factor of the loss in the backward pass, and divisor of the gradient (`LossScale`).
    """

    weights: Weights
    rows: Sequence[Sequence[int]]
    labels: Sequence[int]
    seed: int
    step: int
    dropout: bool
    loss_scale: float = 1.0


#: The runs' batches of a step; None in evaluation, which has no dropout.
Training = Sequence[TrainingBatch] | None


class AdapterTrainer(ABC):
    """Compute gradients and label logits of one kind of adapter on one backbone.

    max_packed: runs that can share a step; None for any number.
    label_ids: the label words' tokens, if any.
    prompt_length, prompt_token_id: vectors before each row, and the token that they start from.
    encoder, device: tokenizer and device of the backbone.
    batcher: cuts the rows of all runs into forward passes.
    """

    max_packed: ClassVar[int | None] = None
    label_ids: tuple[int, ...] = ()
    prompt_length: int = 0
    prompt_token_id: int | None = None
    encoder: TextEncoder
    device: torch.device
    batcher: Batcher

    @abstractmethod
    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return a run's initial weights, keyed by its seed."""

    @abstractmethod
    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [N, L] of a batch's rows, in the order of `batch.rows`.

        `stacked`: the weights of all runs by name, [S, ...] each; `training`: the runs' batches of
        the step, for dropout.
        """

    @abstractmethod
    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write an adapter; `raybias.json`, which holds `record`, comes last."""

    @abstractmethod
    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """Load an adapter that `save` wrote; ModelError: missing, or of another backbone."""

    def prepare(
        self, rows: Sequence[Sequence[int]], *, dropout: bool = False
    ) -> list[PackedSequence]:
        """Put rows into the sequences of `forward`; with `dropout` they share no token."""
        return pack(rows, max_tokens=0)

    def gradients(self, batches: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Compute the gradient of each run's mean loss by name, and the losses [S]."""
        stacked = stack_weights([each.weights for each in batches])
        leaves = {name: tensor.requires_grad_() for name, tensor in stacked.items()}
        sums = {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
        loss_S = torch.zeros(len(batches), device=self.device)
        share_S = [each.loss_scale / len(each.labels) for each in batches]

        def work(batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
            run_N = to_device([s for s, _ in batch.rows], self.device)
            target_N = to_device([batches[s].labels[row] for s, row in batch.rows], self.device)
            weight_N = to_device([share_S[s] for s, _ in batch.rows], self.device)
            with torch.enable_grad():
                logits_NL = self.forward(batch, leaves, batches)
                loss_N = cross_entropy(logits_NL, target_N, reduction="none") * weight_N
                parts = torch.autograd.grad(loss_N.sum(), list(leaves.values()))
            return parts, torch.zeros_like(loss_S).index_add(0, run_N, loss_N.detach())

        placed = [
            Placed(s, sequence)
            for s, each in enumerate(batches)
            for sequence in self.prepare(each.rows, dropout=each.dropout)
        ]
        passes = self.batcher.each_adapter(work, placed, prompt_length=self.prompt_length)
        for _, (parts, part_S) in passes:
            loss_S += part_S
            for name, part in zip(leaves, parts, strict=True):
                sums[name] += part
        summed = {name: self.batcher.sum(total) for name, total in sums.items()}
        gradients = [
            unscaled({name: total[s] for name, total in summed.items()}, each.loss_scale)
            for s, each in enumerate(batches)
        ]
        scale_S = to_device([each.loss_scale for each in batches], self.device)
        return gradients, self.batcher.sum(loss_S) / scale_S

    def shares_passes(self) -> bool:
        """Check on a few tokens whether runs get the same bits in a shared pass as alone.

        A mixture of experts does not: an expert's batch is whatever rows were routed to it.
        """
        tokens = [(7919 * n) % (self.encoder.rows or 1) for n in range(1, 60)]
        batches = []
        for s in range(3):
            rows = [tokens[s:][:3], tokens[9 * s :][:20]]
            batches.append(TrainingBatch(self.init_weights(s), rows, (0, 1), s, 0, False))
        together, _ = self.gradients(batches)
        alone = [self.gradients([each])[0][0] for each in batches]
        pairs = zip(together, alone, strict=True)
        return all(torch.equal(shared[name], own[name]) for shared, own in pairs for name in own)

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Compute per run the label logits [N, L] of its sequences' rows, float32 on the CPU."""
        stacked = stack_weights(weights)
        return self.batcher.logits(
            lambda batch: self.forward(batch, stacked),
            sequences,
            labels=len(LABELS),
            prompt_length=self.prompt_length,
        )


class ClassifierTrainer(AdapterTrainer):
    """Train a classifier; `side_by_side`: whether threads may compute several passes at a time."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, classifier: Classifier, options: ClassifierOptions) -> None:
        self.classifier, self.label_ids = classifier, classifier.label_ids
        self.encoder, self.device = classifier.encoder, classifier.device
        self.batcher = Batcher(
            classifier.execution,
            self.encoder.spec.id,
            context=self.encoder.context,
            side_by_side=self.side_by_side,
        )


@dataclass
class LossScale:
    """Scale one run's loss where gradients are computed in float16 (Micikevicius et al. 2018).

    Rule and numbers are those of `torch.amp.GradScaler` (a gradient that is not finite skips the
    step and halves the factor), with one factor per run, so that runs of a pack stay independent.

    factor: stays 1 for a run whose gradients are not in float16.
    finite: steps since the factor changed.
    skipped: steps without an update.
    """

    factor: float = 1.0
    finite: int = 0
    skipped: int = 0
    dynamic: bool = False

    def update(self, *, finite: bool) -> bool:
        """Change the factor after a step; return whether the step is to be taken."""
        if not self.dynamic:
            return finite
        if not finite:
            self.factor, self.finite, self.skipped = self.factor / 2, 0, self.skipped + 1
            return False
        self.finite += 1
        if self.finite == _GROWS_AFTER:
            self.factor, self.finite = self.factor * 2, 0
        return True

    def state(self) -> dict[str, Tensor]:
        """Return its numbers as tensors; none for a factor that stays 1."""
        kept = _NUMBERS if self.dynamic else {}
        return {name: torch.tensor(getattr(self, name), dtype=d) for name, d in kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`."""
        for name, value in state.items():
            setattr(self, name, value.item())


def unscaled(gradient: Weights, loss_scale: float) -> dict[str, Tensor]:
    """Divide the gradient of a scaled loss by its scale, which as a power of two changes no bit."""
    if loss_scale == 1:
        return dict(gradient)
    return {name: part / loss_scale for name, part in gradient.items()}


def stack_weights(weights: Sequence[Weights]) -> dict[str, Tensor]:
    """Stack the tensors of all runs by name, [S, ...] each."""
    return {name: torch.stack([each[name].detach() for each in weights]) for name in weights[0]}
