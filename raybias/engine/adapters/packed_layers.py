"""Adapt layers of a frozen classifier for many runs in shared passes.

Each adapted layer looks up the tensors of the run that a row belongs to, so rows of all runs
share each pass over the frozen weights. A classification head is tuned whole, and each run has
its own. Adapters are written as PEFT writes them. What an adapted layer computes is its
kind's affair (see `lora`).

Shapes: S runs, R rows, T tokens, I and O layer widths, L labels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import Tensor

from raybias.config import Backbone
from raybias.engine.adapters import files
from raybias.engine.adapters.base import ClassifierTrainer, Training, TrainingBatch, Weights
from raybias.engine.backbone import empty_model
from raybias.engine.classifier import Classifier
from raybias.engine.packing import Batch
from raybias.errors import ModelError
from raybias.storage import Store

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raybias.methods.layer_adapter import LayerAdapter

_PREFIX: Final = "base_model.model."
#: Called with a layer's path and its input's rows [R, T, I]; 1 where dropout keeps, else 0.
Masks = Callable[[str, Tensor], Tensor]


@dataclass
class RowAdapters:
    """Look up each row's adapter in the forward pass at hand.

    Attributes
    ----------
    run_R: which run each row belongs to; those of one run stand together, and so do runs with
        equally many.
    groups: slices of rows with equally many of each run, and which runs these are.
    stacked: all runs' tensors by name, [S, ...] each.
    masks: dropout of the layers' inputs.
    """

    run_R: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    masks: Masks | None = None
    groups: list[tuple[slice, slice | Tensor]] = field(default_factory=list)

    def begin(self, batch: Batch, stacked: Weights, device: torch.device) -> None:
        """Take the tensors of all runs, and a batch of which each sequence is one row."""
        self.stacked = stacked
        self.run_R = torch.tensor(batch.adapters, device=device)
        self.groups, start = [], 0
        for count, alike in groupby(Counter(batch.adapters).items(), lambda run: run[1]):
            runs = [run for run, _ in alike]
            every = runs == list(range(len(next(iter(stacked.values())))))
            end = start + count * len(runs)
            which = slice(None) if every else torch.tensor(runs, device=device)
            self.groups.append((slice(start, end), which))
            start = end

    def of_rows(self, name: str) -> Tensor:
        """Return the tensor `name` of each row's run, [R, ...]."""
        return self.stacked[name][self.run_R]

    def by_run(self, rows_RTI: Tensor) -> Iterator[tuple[Tensor, slice | Tensor]]:
        """Yield what runs with equally many rows have of a layer's input [U, N, I], and the runs.

        U runs of N rows' tokens each, so that a product with a run's tensors is one of a batch.
        """
        for rows, runs in self.groups:
            count = len(next(iter(self.stacked.values()))) if isinstance(runs, slice) else len(runs)
            yield rows_RTI[rows].reshape(count, -1, rows_RTI.shape[-1]), runs

    def by_row(self, inputs: Tensor) -> Tensor:
        """View as [R, T, I] what some models hand on as [R * T, I], and heads as [R, I]."""
        return inputs.reshape(len(self.run_R), -1, inputs.shape[-1])


def together(parts: Sequence[Tensor]) -> Tensor:
    """Put what `RowAdapters.by_run` parted together again, [R * T, O]."""
    flat = [part.flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


class PackedLayer(torch.nn.Module):
    """A frozen linear layer with the adapters of many runs.

    Parameters
    ----------
    path: its name in the model.
    """

    def __init__(self, base: torch.nn.Module, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.base, self.path, self.adapters = base, path, adapters


class _PackedHead(torch.nn.Module):
    """A layer of a head, of which each run has its own."""

    def __init__(self, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.path, self.adapters = path, adapters

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute each row's output under its run's weights, float32."""
        rows_RTI = self.adapters.by_row(inputs).float()
        weight_SOI = self.adapters.stacked[f"{self.path}.weight"]
        bias_SO = self.adapters.stacked.get(f"{self.path}.bias")
        parts = []
        for mine_UNI, runs in self.adapters.by_run(rows_RTI):
            product_UNO = mine_UNI @ weight_SOI[runs].mT
            parts.append(product_UNO if bias_SO is None else product_UNO + bias_SO[runs][:, None])
        return together(parts).view(*inputs.shape[:-1], -1)


class PackedLayerTrainer(ClassifierTrainer):
    """Tune adapters of layers, and heads; a weight's name is its layer's path and its own.

    Parameters
    ----------
    classifier: its target layers are replaced.

    Attributes
    ----------
    widths: input and output width of each adapted layer, by path.

    Raises
    ------
    ModelError: a target that matches no layer, or a model whose rows are padded at the left
        where the adapters cannot be.
    """

    suffix: ClassVar[str] = ""
    """What PEFT puts behind the name of an adapter's weight."""
    pads_left: ClassVar[bool] = True
    """Whether rows may be padded at the left."""

    def __init__(self, classifier: Classifier, method: LayerAdapter) -> None:
        super().__init__(classifier, method)
        if classifier.pads_left and not self.pads_left:
            raise ModelError(
                f"{method.kind} needs rows padded at the right",
                where=self.encoder.spec.id,
                cure="use full",
            )
        self.adapters = RowAdapters()
        model = classifier.model
        layers = {path: model.get_submodule(path) for path in target_layers(classifier, method)}
        self.widths = {path: _widths(layer) for path, layer in layers.items()}
        for path, layer in layers.items():
            model.set_submodule(path, self.packed_layer(layer, path))
        for path in {name.rpartition(".")[0] for name in classifier.head}:
            model.set_submodule(path, _PackedHead(path, self.adapters))

    @abstractmethod
    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        """Wrap a layer of the frozen model."""

    @abstractmethod
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight of a run by name, heads aside."""

    @abstractmethod
    def peft_config(self, **options: Any) -> Any:
        """Build PEFT's configuration of the adapter; `options` are what all kinds have."""

    def masks(self, training: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        """Return the dropout of the layers' inputs, or None without one."""
        return None

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [R, L] of a batch's rows."""
        self.adapters.begin(batch, stacked, self.device)
        self.adapters.masks = None if training is None else self.masks(training, batch)
        logits_RL: Tensor = self.classifier(*self.classifier.read(batch))
        return logits_RL

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the adapter as `PeftModel.from_pretrained` opens it."""
        spec, head = self.encoder.spec, head_modules(self.classifier)
        config = self.peft_config(
            task_type="SEQ_CLS" if head else "CAUSAL_LM",
            base_model_name_or_path=spec.id,
            revision=spec.revision,
            target_modules=list(self.widths),
            modules_to_save=head or None,
            inference_mode=True,
        )
        tensors = {self._peft_name(name): tensor.float() for name, tensor in weights.items()}
        files.write_folder(
            store, folder, tensors, file=files.ADAPTER, parts=[config], record=record
        )

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """Read the weights of an adapter that `save` wrote."""
        shapes = self.adapter_shapes() | self.classifier.head
        names = {name: self._peft_name(name) for name in shapes}
        wanted = {names[name]: shape for name, shape in shapes.items()}
        tensors = files.read_tensors(store, folder, wanted, file=files.ADAPTER)
        return {name: tensors[stored].to(self.device) for name, stored in names.items()}

    def _peft_name(self, name: str) -> str:
        return f"{_PREFIX}{name}" + (self.suffix if name not in self.classifier.head else "")


def head_modules(classifier: Classifier) -> list[str]:
    """Name what PEFT's `modules_to_save` needs: whole heads, and new layers in the base model."""
    base = f"{classifier.model.base_model_prefix}."
    return sorted(
        {
            name.rpartition(".")[0] if name.startswith(base) else name.partition(".")[0]
            for name in classifier.head
        }
    )


def target_layers(classifier: Classifier, method: LayerAdapter) -> list[str]:
    """Return the paths of the linear layers that a method adapts, heads aside.

    Raises
    ------
    ModelError: a target name that matches none.
    """
    head = {name.rpartition(".")[0] for name in classifier.head}
    layers = [path for path in _linear_layers(classifier.model) if path not in head]
    return _matching(layers, method, classifier.model.config.model_type, classifier.encoder.spec)


def check_targets(spec: Backbone, method: LayerAdapter) -> None:
    """Refuse target names that match no layer of a backbone; no weights are read.

    Raises
    ------
    ModelError: a target name that matches none.
    """
    model = empty_model(spec)
    _matching(_linear_layers(model), method, model.config.model_type, spec)


def names_layer(path: str, name: str) -> bool:
    """Check whether a layer's path ends with a name, as PEFT matches them."""
    return path == name or path.endswith(f".{name}")


def _linear_layers(model: PreTrainedModel) -> list[str]:
    from transformers.pytorch_utils import Conv1D

    base = model.base_model
    prefix = model.base_model_prefix if base is not model else ""
    return [
        path
        for path, module in base.named_modules(prefix=prefix)
        if isinstance(module, torch.nn.Linear | Conv1D)
    ]


def _matching(
    layers: Sequence[str], method: LayerAdapter, architecture: str, spec: Backbone
) -> list[str]:
    names = method.target_names(architecture)
    if names is None:
        return list(layers)
    known = sorted({path.rpartition(".")[2] for path in layers})
    for name in names or ("",):
        if not any(names_layer(path, name) for path in layers):
            raise ModelError(
                f"{method.kind} target {name!r} matches no linear layer"
                if name
                else f"PEFT names no {method.kind} target for {architecture} models",
                where=spec.id,
                cure=f"choose among {', '.join(known)} as the method's target",
            )
    return [path for path in layers if any(names_layer(path, name) for name in names)]


def _widths(layer: torch.nn.Module) -> tuple[int, int]:
    """Return input and output width; Conv1D holds its weight the other way round."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    weight = layer.get_parameter("weight")
    inner, outer = getattr(weight, "ds_shape", weight.shape)
    return int(inner), int(outer)
