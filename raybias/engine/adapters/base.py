"""Define what tuning asks of a kind of adapter, so that one loop tunes them all, and its files.

A trainer holds a backbone and the options of its method, but no run: a run's weights are a
dictionary of tensors that is handed in. So runs can share a step, stop, be saved and be taken up
again without the trainer knowing. Weights are written as PEFT and transformers have them, in
safetensors; `raybias.json` records how they came about and is written last, so that it marks the
folder as whole. Shapes: S runs, N rows, L labels.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.engine.batching import Batcher
from raybias.engine.classifier import Classifier, ClassifierOptions
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder
from raybias.engine.packing import Batch, PackedSequence, Placed, pack
from raybias.errors import ModelError
from raybias.schema import LABELS
from raybias.storage import Store

#: Where PEFT keeps an adapter's weights, and transformers a model's.
ADAPTER: Final = "adapter_model.safetensors"
MODEL: Final = "model.safetensors"
#: The first factor of a loss in float16, after how many finite steps it doubles, and how a state
#: holds its numbers.
_FIRST: Final = 2.0**16
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

    Parameters
    ----------
    file: ADAPTER or MODEL.
    parts: configurations and tokenizers, which write themselves with `save_pretrained`.
    record: the content of `raybias.json`.
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
    """Read the tensors that `shapes` names, float32; None allows any shape.

    Raises
    ------
    ModelError: no such file, no safetensors, or a tensor that it lacks or holds in another shape.
    """
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

    Attributes
    ----------
    weights: the run's tensors; left unchanged.
    rows, labels: what the loss is the mean over.
    seed, step: what its dropout is keyed by.
    dropout: whether there is any.
    loss_scale: power of two that the loss is multiplied with on its way back, and the gradient
        divided by (see `LossScale`).
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

    Attributes
    ----------
    max_packed: runs that can share a step; None for any number.
    prompt_length: vectors that stand before each row.
    template, append_eos: how it reads a text, and whether EOS stands behind it.
    encoder: the backbone's tokenizer.
    device: where the backbone is.
    batcher: cuts the rows of all runs into forward passes.
    """

    max_packed: ClassVar[int | None] = None
    prompt_length: int = 0
    template: str = "{text}"
    append_eos: bool = False
    encoder: TextEncoder
    device: torch.device
    batcher: Batcher

    @abstractmethod
    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the weights that a run begins with, keyed by its seed."""

    @abstractmethod
    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [N, L] of a batch's rows, in the order of `batch.rows`.

        Parameters
        ----------
        stacked: the weights of all runs by name, [S, ...] each.
        training: what dropout may fall on.
        """

    @abstractmethod
    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write an adapter; `raybias.json`, which holds `record`, comes last."""

    @abstractmethod
    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """Read the weights of an adapter that `save` wrote.

        Raises
        ------
        ModelError: not there, or of another backbone or other options.
        """

    @abstractmethod
    def label_metadata(self) -> dict[str, Any]:
        """Return what a run's record says of the labels: `verbalizer_ids`, `prompt_token_id`."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts as the method reads them."""
        written = [self.template.replace("{text}", text) for text in texts]
        return self.encoder.encode(written, append_eos=self.append_eos)

    def prepare(
        self, rows: Sequence[Sequence[int]], *, dropout: bool = False
    ) -> list[PackedSequence]:
        """Put rows into the sequences that `forward` reads: here each row by itself.

        Rows on which `dropout` falls share no token.
        """
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
            Placed(s, s, sequence)
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
        """Check whether runs get the same bits in a shared pass as alone, on a few tokens.

        Passes hold what linear layers and attention compute alike beside any other rows. A mixture
        of experts is the exception: an expert multiplies as many rows as were sent to it.
        """
        tokens = [(7919 * n) % (self.encoder.rows or 1) for n in range(1, 60)]
        batches = [
            TrainingBatch(
                self.init_weights(s),
                [tokens[s:][:3], tokens[9 * s :][:20]],
                (0, 1),
                s,
                0,
                False,
            )
            for s in range(3)
        ]
        together, _ = self.gradients(batches)
        alone = [self.gradients([each])[0][0] for each in batches]
        return all(
            torch.equal(shared[name], own[name])
            for shared, own in zip(together, alone, strict=True)
            for name in own
        )

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
    """Compute gradients and label logits of a classifier's adapters or weights."""

    side_by_side: ClassVar[bool] = False
    """Whether several passes may be computed at one time, each in a thread."""

    options: ClassVar[type[ClassifierOptions]] = ClassifierOptions
    """The method's options that the trainer needs."""

    def __init__(self, classifier: Classifier, options: ClassifierOptions) -> None:
        self.classifier, self.template = classifier, options.template
        self.encoder, self.device = classifier.encoder, classifier.device
        context = self.encoder.context
        self.batcher = classifier.execution.batcher(
            self.encoder.spec.id, context=context, side_by_side=self.side_by_side
        )

    def label_metadata(self) -> dict[str, Any]:
        """Return the label tokens, where labels are read from tokens."""
        return {"verbalizer_ids": list(self.classifier.label_ids), "prompt_token_id": None}


@dataclass
class LossScale:
    """The factor of one run's loss where gradients are computed in float16.

    float16 has no gradient below 6e-8, so the loss is multiplied with a power of two before the
    backward pass and the gradient divided by it behind (Micikevicius et al. 2018). What is then too
    large shows as a gradient that is not finite: that step is left out, and the factor halved. The
    rule and its numbers are those of `torch.amp.GradScaler`, which has one factor for all
    parameters that it is given; here each run of a pack has its own, so that no run's step depends
    on another's.

    Attributes
    ----------
    factor: 1 for a run whose gradients are not in float16, and stays so.
    finite: steps since it was changed.
    skipped: steps that were left out.
    """

    factor: float = 1.0
    finite: int = 0
    skipped: int = 0
    dynamic: bool = False

    @classmethod
    def of(cls, *, half: bool) -> Self:
        """Begin a run, whose gradients are in float16 or not."""
        return cls(_FIRST, dynamic=True) if half else cls()

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller factor may give a finite gradient; below 1 there is nothing to gain."""
        return self.dynamic and self.factor >= 1

    def update(self, *, finite: bool) -> bool:
        """Take a step's outcome to the next factor; return whether the step is to be taken."""
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
        """Take up what `state` returned."""
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
