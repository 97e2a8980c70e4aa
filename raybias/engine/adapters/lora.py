"""Low-rank adapters of many runs on one frozen classifier (Kohankhaki2024; Hu et al. 2022).

Every target layer adds scaling * B A x to its output, with the factors of the run that a
row belongs to, so rows of all runs share each pass over the frozen weights. A head is
tuned whole and is every run's own as well. Adapters are written as PEFT writes them.

Shapes: S runs, R rows, T tokens, I and O layer widths, K rank, N rows, L labels.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.config import Backbone
from raybias.engine.adapters.base import TrainingBatch, Weights
from raybias.engine.backbone import empty_model
from raybias.engine.batching import Batcher, Collective
from raybias.engine.classifier import Classifier, initial_head
from raybias.engine.packing import Batch, PackedSequence, Placed, pack
from raybias.errors import ModelError
from raybias.schema import LABELS
from raybias.seeding import generator, key
from raybias.storage import Store

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raybias.methods import Lora

_FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
#: Called with a layer's path and its input's rows [R, T, I]; 1 where dropout keeps, else 0.
Masks = Callable[[str, Tensor], Tensor]


@dataclass
class _Pass:
    """What the layers of a forward pass look up: whose row is whose, and all runs' weights."""

    run_R: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Masks | None = None
    kept: float = 1.0
    """Share of inputs that the masks keep."""

    def of_rows(self, name: str) -> Tensor:
        """The tensor `name` of each row's run, [R, ...]."""
        held = self.stacked[name]
        return held.expand(len(self.run_R), *held.shape[1:]) if len(held) == 1 else held[self.run_R]

    def by_row(self, inputs: Tensor) -> Tensor:
        """[R, T, I] of what some models hand on as [R * T, I], and heads as [R, I]."""
        return inputs.reshape(len(self.run_R), -1, inputs.shape[-1])


class _PackedLora(torch.nn.Module):
    """A frozen linear layer with the factors of many runs."""

    def __init__(self, base: torch.nn.Module, path: str, now: _Pass, scaling: float) -> None:
        super().__init__()
        self.base, self.path, self.now, self.scaling = base, path, now, scaling

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output, each row's own product of factors added."""
        output: Tensor = self.base(inputs)
        rows_RTI = self.now.by_row(inputs).float()
        if self.now.masks is not None:
            rows_RTI = rows_RTI * self.now.masks(self.path, rows_RTI)
        inner_RTK = rows_RTI @ self.now.of_rows(f"{self.path}.lora_A").transpose(1, 2)
        summed_RTO = torch.baddbmm(
            self.now.by_row(output).float(),
            inner_RTK,
            self.now.of_rows(f"{self.path}.lora_B").transpose(1, 2),
            alpha=self.scaling / self.now.kept,
        )
        return summed_RTO.view_as(output).to(output.dtype)


class _PackedHead(torch.nn.Module):
    """A layer of a head, of which each run has its own."""

    def __init__(self, path: str, now: _Pass) -> None:
        super().__init__()
        self.path, self.now = path, now

    def forward(self, inputs: Tensor) -> Tensor:
        """Each row's output under its run's weights, float32."""
        rows_RTI = self.now.by_row(inputs).float()
        output_RTO = rows_RTI @ self.now.of_rows(f"{self.path}.weight").transpose(1, 2)
        if f"{self.path}.bias" in self.now.stacked:
            output_RTO = output_RTO + self.now.of_rows(f"{self.path}.bias")[:, None]
        return output_RTO.view(*inputs.shape[:-1], -1)


class LoraTrainer:
    """A `trainer` of LoRA factors and heads: `PATH.lora_A`, `PATH.lora_B`, `PATH.weight`.

    The frozen backbone runs without dropout; LoRA's own falls before the factors, keyed by
    (seed, step, layer, row), so it does not depend on what shares a pass.

    Parameters
    ----------
    classifier: its target layers are replaced.

    Raises
    ------
    ModelError: a target that matches no layer, or a model whose rows are padded at the left.
    """

    max_packed: int | None = None

    def __init__(
        self,
        classifier: Classifier,
        method: Lora,
        *,
        tokens_per_batch: int,
        group: Collective | None = None,
    ) -> None:
        where = classifier.encoder.spec.id
        if classifier.pads_left:  # Dropout is drawn from each row's first place on.
            raise ModelError("lora needs rows padded at the right", where=where, cure="use full")
        self.classifier = classifier
        self.method = method
        self.device = classifier.device
        self.batcher = Batcher(
            where=where, device=self.device, tokens_per_batch=tokens_per_batch, group=group
        )
        self._now = _Pass()
        self._sizes = {
            path: _widths(classifier.model.get_submodule(path))
            for path in target_layers(classifier, method)
        }
        for path in self._sizes:
            base = classifier.model.get_submodule(path)
            scaling = method.alpha / method.rank
            _replace(classifier, path, _PackedLora(base, path, self._now, scaling))
        for path in {name.rpartition(".")[0] for name in classifier.head}:
            _replace(classifier, path, _PackedHead(path, self._now))

    @property
    def layers(self) -> tuple[str, ...]:
        """Paths of the adapted layers."""
        return tuple(self._sizes)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text in the method's template."""
        return self.classifier.encode(texts)

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Uniform A as PEFT draws it, zero B, and a head, all keyed by the seed."""
        weights: dict[str, Tensor] = {}
        for path, (inner, outer) in self._sizes.items():
            shape = (self.method.rank, inner)
            drawn = generator(seed, "lora", path).uniform(-1, 1, shape) / math.sqrt(inner)
            factor_KI = torch.from_numpy(drawn.astype(np.float32))
            weights[f"{path}.lora_A"] = factor_KI.to(self.device)
            weights[f"{path}.lora_B"] = torch.zeros(outer, self.method.rank, device=self.device)
        return weights | initial_head(self.classifier, seed)

    def prepare(self, rows: Sequence[Sequence[int]]) -> list[PackedSequence]:
        """Every row by itself."""
        return pack(rows, max_tokens=0)

    def gradients(self, shares: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """The gradient of each share's mean loss by name, and the losses [S]."""
        stacked = _stacked([share.weights for share in shares])
        leaves = {name: tensor.requires_grad_() for name, tensor in stacked.items()}
        sums = {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
        loss_S = torch.zeros(len(shares), device=self.device)

        def work(batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
            target_R = torch.tensor([shares[s].labels[row] for s, row in batch.rows])
            share_R = torch.tensor([1 / len(shares[s].labels) for s, _ in batch.rows])
            masks = self._masks(shares, batch)
            with torch.enable_grad():
                logits_RL = self._call(leaves, batch, masks)
                loss_R = cross_entropy(logits_RL, target_R.to(self.device), reduction="none")
                loss_R = loss_R * share_R.to(self.device)
                parts = torch.autograd.grad(loss_R.sum(), list(leaves.values()))
            run_R = torch.tensor(batch.prompts, device=self.device)
            return parts, torch.zeros_like(loss_S).index_add(0, run_R, loss_R.detach())

        keyed = [
            Placed(s, s, each)
            for s, share in enumerate(shares)
            for each in self.prepare(share.rows)
        ]
        for _, (parts, part_S) in self.batcher.each(work, keyed):
            loss_S += part_S
            for name, part in zip(leaves, parts, strict=True):
                sums[name] += part
        summed = {name: self.batcher.sum(total) for name, total in sums.items()}
        gradients = [{name: each[s] for name, each in summed.items()} for s in range(len(shares))]
        return gradients, self.batcher.sum(loss_S)

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Per run, the label logits [N, L] of its sequences' rows."""
        stacked = _stacked(weights)

        def read(batch: Batch) -> Tensor:
            with torch.no_grad():
                return self._call(stacked, batch, None).cpu()

        keyed = [Placed(s, s, each) for s, own in enumerate(sequences) for each in own]
        counts = [len(own) for own in sequences]
        starts = list(accumulate(counts, initial=0))
        logits_ML = torch.zeros(starts[-1], len(LABELS))
        for batch, found_RL in self.batcher.each(read, keyed):
            logits_ML[[starts[s] + row for s, row in batch.rows]] = found_RL
        return list(torch.split(self.batcher.sum(logits_ML), counts))

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the adapter as `PeftModel.from_pretrained` opens it."""
        tensors = {
            _PREFIX + _stored(name): tensor.detach().float().cpu().contiguous()
            for name, tensor in weights.items()
        }
        store.write_bytes(f"{folder}/{_FILE}", save(tensors))
        with tempfile.TemporaryDirectory() as place:
            self._peft_config().save_pretrained(place)
            for path in sorted(Path(place).iterdir()):
                store.write_bytes(f"{folder}/{path.name}", path.read_bytes())
        store.write_text(f"{folder}/raybias.json", json.dumps(record, indent=2))

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """The weights of an adapter that `save` wrote.

        Raises
        ------
        ModelError: not there, or of another backbone, rank or target.
        """
        where = store.uri_of(f"{folder}/{_FILE}")
        if not store.exists(f"{folder}/{_FILE}"):
            raise ModelError("no such adapter", where=where, cure="tune it first")
        try:
            held = load(store.read_bytes(f"{folder}/{_FILE}"))
        except SafetensorError as error:
            raise ModelError("does not hold an adapter", where=where) from error
        wanted = self.init_weights(0)
        found = {name: held.get(_PREFIX + _stored(name)) for name in wanted}
        if any(t is None or t.shape != wanted[name].shape for name, t in found.items()):
            raise ModelError("is an adapter of another backbone, rank or target", where=where)
        return {name: t.to(self.device) for name, t in found.items() if t is not None}

    def label_metadata(self) -> dict[str, Any]:
        """The label tokens, where labels are read from tokens."""
        return {"verbalizer_ids": list(self.classifier.label_ids), "prompt_token_id": None}

    def _call(self, stacked: Mapping[str, Tensor], batch: Batch, masks: Masks | None) -> Tensor:
        self._now.run_R = torch.tensor(batch.prompts, device=self.device)
        self._now.stacked, self._now.masks = stacked, masks
        self._now.kept = 1.0 if masks is None else 1 - self.method.dropout
        logits_RL: Tensor = self.classifier(*self.classifier.read(batch))
        return logits_RL

    def _masks(self, shares: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        kept = 1 - self.method.dropout
        if kept == 1:
            return None
        lengths = (batch.at_T + 1).tolist()

        def masks(path: str, rows_RTI: Tensor) -> Tensor:
            mask_RTI = torch.zeros_like(rows_RTI)
            for r, (s, row) in enumerate(batch.rows):
                share, own_TI = shares[s], mask_RTI[r, : lengths[r]]
                state = torch.Generator(self.device)
                state.manual_seed(key(share.seed, "lora dropout", share.step, path, row))
                own_TI.bernoulli_(kept, generator=state)
            return mask_RTI

        return masks

    def _peft_config(self) -> Any:
        from peft import LoraConfig

        method, spec = self.method, self.classifier.encoder.spec
        kept = head_modules(self.classifier)
        return LoraConfig(
            task_type="SEQ_CLS" if kept else "CAUSAL_LM",
            base_model_name_or_path=spec.id,
            revision=spec.revision,
            r=method.rank,
            lora_alpha=method.alpha,
            lora_dropout=method.dropout,
            target_modules=list(self.layers),
            modules_to_save=kept or None,
            inference_mode=True,
        )


def head_modules(classifier: Classifier) -> list[str]:
    """What PEFT's `modules_to_save` must name: whole heads, and new layers in the base model."""
    base = f"{classifier.model.base_model_prefix}."
    return sorted(
        {
            name.rpartition(".")[0] if name.startswith(base) else name.partition(".")[0]
            for name in classifier.head
        }
    )


def target_layers(classifier: Classifier, method: Lora) -> list[str]:
    """Paths of the linear layers that a method adapts.

    Raises
    ------
    ModelError: a target name that matches none.
    """
    head = {name.rpartition(".")[0] for name in classifier.head}
    layers = [path for path in _linear(classifier.model) if path not in head]
    return _chosen(layers, method, classifier.model.config.model_type, classifier.encoder.spec)


def check_targets(spec: Backbone, method: Lora) -> None:
    """Refuse target names that match no layer of a backbone; no weights are read.

    Raises
    ------
    ModelError: a target name that matches none.
    """
    if method.target != "all_linear":
        model = empty_model(spec)
        _chosen(_linear(model), method, model.config.model_type, spec)


def _linear(model: PreTrainedModel) -> list[str]:
    from transformers.pytorch_utils import Conv1D

    base = model.base_model
    prefix = model.base_model_prefix if base is not model else ""
    return [
        path
        for path, module in base.named_modules(prefix=prefix)
        if isinstance(module, torch.nn.Linear | Conv1D)
    ]


def _chosen(layers: Sequence[str], method: Lora, kind: str, spec: Backbone) -> list[str]:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    if method.target == "all_linear":
        return list(layers)
    names: Sequence[str] = method.target
    if method.target == "peft_default":
        names = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind, ())
    known = sorted({path.rpartition(".")[2] for path in layers})
    for name in names or ("",):
        if not any(_ends(path, name) for path in layers):
            raise ModelError(
                f"LoRA target {name!r} matches no linear layer"
                if name
                else f"PEFT names no LoRA target for {kind} models",
                where=spec.id,
                cure=f"choose among {', '.join(known)}, or all_linear",
            )
    return [path for path in layers if any(_ends(path, name) for name in names)]


def _ends(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _widths(layer: torch.nn.Module) -> tuple[int, int]:
    """Input and output width; Conv1D holds its weight the other way round."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    weight = layer.get_parameter("weight")
    inner, outer = getattr(weight, "ds_shape", weight.shape)
    return int(inner), int(outer)


def _replace(classifier: Classifier, path: str, layer: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(classifier.model.get_submodule(parent), name, layer)


def _stacked(weights: Sequence[Weights]) -> dict[str, Tensor]:
    return {name: torch.stack([own[name].detach() for own in weights]) for name in weights[0]}


def _stored(name: str) -> str:
    """PEFT's name of a weight."""
    return f"{name}.weight" if name.endswith((".lora_A", ".lora_B")) else name
