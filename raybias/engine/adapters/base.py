"""Define a kind of adapter for the one loop that tunes them all, and its files.

A trainer keeps no run: the weights of a run are a dictionary of tensors, given to each call.
Adapters are saved as PEFT and transformers save them, in safetensors; `raybias.json`, the record of
the run, is written last and marks the folder as whole.
Shapes: S runs, N rows, L labels.
"""

from __future__ import annotations

import copy
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from raybias.engine.adapter_folder import RAYBIAS
from raybias.engine.adapters.options import AdapterSize, ClassifierOptions
from raybias.engine.checkpoint import dtype_of
from raybias.engine.classifier import Classifier, initial_head
from raybias.engine.context import Batcher
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder
from raybias.engine.keyed_draws import KeyedDropout
from raybias.engine.packing import Batch, PackedSequence, Placed, single_rows, stack
from raybias.errors import ModelError
from raybias.storage import Store

#: File name of transformers' models.
MODEL: Final = "model.safetensors"


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

    file: ADAPTER_WEIGHTS or MODEL.
    parts: configurations and tokenizers with a `save_pretrained`.
    record: the content of `raybias.json`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    store.write_bytes(f"{folder}/{file}", save(plain, metadata={"format": "pt"}))
    with tempfile.TemporaryDirectory() as place:
        for part in parts:
            part.save_pretrained(place)
        for path in sorted(Path(place).iterdir()):
            store.write_bytes(f"{folder}/{path.name}", path.read_bytes())
    store.write_text(f"{folder}/{RAYBIAS}", json.dumps(dict(record), indent=2))


def read_tensors(
    store: Store, folder: str, shapes: Mapping[str, Sequence[int]], *, file: str
) -> dict[str, Tensor]:
    """Load tensors by name and shape, float32; ModelError where one is not there so."""
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
        elif tensors[name].shape != tuple(shape):
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
    label_count: how many labels there are.
    prompt_token_id: the token that soft prompts start from; None without soft prompts.
    encoder, device: tokenizer and device of the backbone.
    batcher: cuts the rows of all runs into forward passes.
    """

    max_packed: ClassVar[int | None] = None
    label_ids: tuple[int, ...] = ()
    label_count: int
    prompt_token_id: int | None = None
    encoder: TextEncoder
    device: torch.device
    batcher: Batcher

    @abstractmethod
    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return a run's initial weights, keyed by its seed."""

    def sized_weights(self, seed: int, size: AdapterSize) -> dict[str, Tensor]:
        """Return a run's initial weights, of this size if a sweep varies it."""
        return self.init_weights(seed)

    def count_prompt_vectors(self, weights: Weights) -> int:
        """Return the number of vectors before each row of a run; alike in all runs of a pass."""
        return 0

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
        return single_rows(rows)

    def gradients(self, batches: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Compute the gradient of each run's mean loss by name, and the losses [S]."""
        stacked = stack_weights([each.weights for each in batches])
        leaves = [tensor.requires_grad_() for tensor in stacked.values()]
        sums = {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
        loss_S = torch.zeros(len(batches), device=self.device)
        share_S = [each.loss_scale / len(each.labels) for each in batches]

        def work(batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
            run_N = to_device([s for s, _ in batch.rows], self.device)
            target_N = to_device([batches[s].labels[row] for s, row in batch.rows], self.device)
            weight_N = to_device([share_S[s] for s, _ in batch.rows], self.device)
            with torch.enable_grad():
                logits_NL = self.forward(batch, stacked, batches)
                loss_N = cross_entropy(logits_NL, target_N, reduction="none") * weight_N
                # A layer that no run of a pass adapts has no gradient.
                some = bool(stacked.shapes)
                parts = torch.autograd.grad(
                    loss_N.sum(), leaves, allow_unused=some, materialize_grads=some
                )
            return parts, torch.zeros_like(loss_S).index_add(0, run_N, loss_N.detach())

        placed = [
            Placed(s, sequence)
            for s, each in enumerate(batches)
            for sequence in self.prepare(each.rows, dropout=each.dropout)
        ]
        prompt_length = self.count_prompt_vectors(batches[0].weights)
        passes = self.batcher.each_adapter(work, placed, prompt_length=prompt_length)
        for _, (parts, part_S) in passes:
            loss_S += part_S
            for name, part in zip(sums, parts, strict=True):
                sums[name] += part
        summed = {name: self.batcher.sum(total) for name, total in sums.items()}
        gradients = [
            unscaled(own_part(summed, s, each.weights), each.loss_scale)
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
        read = partial(self.forward, stacked=stacked)
        return self.batcher.logits(
            read,
            sequences,
            label_count=self.label_count,
            prompt_length=self.count_prompt_vectors(weights[0]),
        )


class ClassifierTrainer(AdapterTrainer):
    """Train a classifier; `side_by_side`: whether threads may compute several passes at a time."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, classifier: Classifier, options: ClassifierOptions) -> None:
        self.classifier, self.label_ids = classifier, classifier.label_ids
        self.label_count = classifier.label_count
        self.encoder, self.device = classifier.encoder, classifier.device
        self.batcher = Batcher(
            classifier.execution,
            self.encoder.spec.id,
            context=self.encoder.context,
            side_by_side=self.side_by_side,
        )


class FullTrainer(ClassifierTrainer):
    """Tune whole models; the weights of a run are all the model's, float32.

    A backbone in half precision computes under autocast. Only evaluation obeys the token budget: a
    training step is one padded pass over its batch.
    """

    max_packed = 1

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the pretrained weights, with a head keyed by the seed."""
        model = self.classifier.model
        weights = {name: tensor.float() for name, tensor in model.named_parameters()}
        head = initial_head(self.classifier, seed)
        return {name: head.get(name, tensor).clone() for name, tensor in weights.items()}

    def gradients(self, batches: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        made = [self._gradient(each) for each in batches]
        return [gradient for gradient, _ in made], torch.stack([loss for _, loss in made])

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        # Run by run: stacking would copy whole models.
        return [
            self.batcher.logits(
                partial(self.forward, stacked=each), [rows], label_count=self.label_count
            )[0]
            for each, rows in zip(weights, sequences, strict=True)
        ]

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in stacked.items()}
        dtype = dtype_of(self.encoder.spec)
        half = dtype is not torch.float32
        with torch.autocast(self.device.type, dtype=dtype if half else None, enabled=half):
            logits_RL: Tensor = functional_call(
                self.classifier, named, self.classifier.read(batch), tie_weights=True
            )
        return logits_RL.float()

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write a checkpoint for transformers' `from_pretrained`."""
        # `save_pretrained` writes on the first rank only; here every rank has its own runs.
        model = self.classifier.model
        names = dict(model.named_parameters())
        tied = {each.data_ptr() for each in names.values()}
        tensors = {
            name: weights.get(name, tensor)
            for name, tensor in model.state_dict().items()
            if name in names or tensor.data_ptr() not in tied
        }
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        parts = [config, self.encoder.tokenizer]
        write_folder(store, folder, tensors, file=MODEL, parts=parts, record=record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        shapes = {name: each.shape for name, each in self.classifier.model.named_parameters()}
        tensors = read_tensors(store, folder, shapes, file=MODEL)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _gradient(self, training: TrainingBatch) -> tuple[dict[str, Tensor], Tensor]:
        in_order = sorted(self.prepare(training.rows), key=lambda each: each.members)
        batch = stack([Placed(0, each) for each in in_order])
        target_N = to_device([training.labels[row] for _, row in batch.rows], self.device)
        leaves = {name: each.detach().requires_grad_() for name, each in training.weights.items()}
        with KeyedDropout(training.seed, "dropout", training.step), torch.enable_grad():
            self.classifier.train(training.dropout)
            try:
                loss = cross_entropy(self.forward(batch, leaves), target_N)
            finally:
                self.classifier.eval()
            # A pooler that no head reads, and XLNet's `mask_emb`, have no gradient.
            scaled = loss * training.loss_scale
            parts = torch.autograd.grad(scaled, list(leaves.values()), allow_unused=True)
        gradient = {
            name: part for name, part in zip(leaves, parts, strict=True) if part is not None
        }
        return unscaled(gradient, training.loss_scale), loss.detach()


def unscaled(gradient: Weights, loss_scale: float) -> dict[str, Tensor]:
    """Divide the gradient of a scaled loss by its scale, which as a power of two changes no bit."""
    if loss_scale == 1:
        return dict(gradient)
    return {name: part / loss_scale for name, part in gradient.items()}


class Stacked(dict[str, Tensor]):
    """The tensors of all runs by name, [S, ...] each.

    shapes: each run's own, by name, if they differ; zeros then pad smaller tensors to the largest.
    """

    shapes: Sequence[Mapping[str, torch.Size]] = ()


def stack_weights(weights: Sequence[Weights]) -> Stacked:
    """Stack the tensors of all runs, padded where their shapes differ."""
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in weights]
    if all(each == shapes[0] for each in shapes):
        return Stacked({
            name: torch.stack([each[name].detach() for each in weights]) for name in weights[0]
        })  # fmt: skip
    stacked = Stacked()
    stacked.shapes = shapes
    for name, first in {n: tensor for each in weights for n, tensor in each.items()}.items():
        sizes = zip(*(own[name] for own in shapes if name in own), strict=True)
        stacked[name] = first.new_zeros(len(weights), *map(max, sizes))
        for s, each in enumerate(weights):
            if name in each:
                own_part(stacked, s, {name: each[name]})[name].copy_(each[name].detach())
    return stacked


def own_part(stacked: Mapping[str, Tensor], s: int, weights: Weights) -> dict[str, Tensor]:
    """Return run `s`'s part of stacked tensors, in the shapes of its weights."""
    found = {name: stacked[name][s] for name in weights}
    return {
        name: own if own.shape == weight.shape else own[tuple(slice(n) for n in weight.shape)]
        for (name, own), weight in zip(found.items(), weights.values(), strict=True)
    }
