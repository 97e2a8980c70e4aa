"""Adapt layers of a frozen classifier for many runs in shared passes.

Each adapted layer looks up the tensors of a sequence's run, so rows of all runs share each pass
over the frozen weights. A classification head is tuned whole, per run. Adapters are saved in PEFT's
format. Each kind of adapter defines its layers: LoRA (Kohankhaki2024; Hu et al. 2022) adds scaling
* B A x to a layer's output, with the factors of its row's run.
Shapes: S runs, R sequences, N rows, T tokens, H hidden, I and O layer widths, K rank, L labels.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from raybias.config import Backbone
from raybias.engine.adapters import base as files
from raybias.engine.adapters.base import (
    ClassifierTrainer,
    Stacked,
    Training,
    TrainingBatch,
    Weights,
    stack_weights,
)
from raybias.engine.adapters.options import LayerOptions, LoraOptions
from raybias.engine.backbone import is_encoder
from raybias.engine.classifier import Classifier, initial_head
from raybias.engine.devices import to_device
from raybias.engine.keyed_draws import counter, joined, kept, keys
from raybias.engine.packing import (
    MAX_TOKENS,
    Batch,
    PackedSequence,
    Placed,
    pack,
    single_rows,
    stack,
    token_rows,
)
from raybias.engine.self_check import attention_window, first_matching, sample_tokens
from raybias.errors import ModelError
from raybias.seeding import generator, key
from raybias.storage import Store

_PREFIX: Final = "base_model.model."
_LINEAR_FORWARDS: Final = (torch.nn.Linear.forward, Conv1D.forward)


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


class _PackedHead(torch.nn.Module):
    def __init__(self, path: str, adapters: RowAdapters) -> None:
        super().__init__()
        self.path, self.adapters = path, adapters

    def forward(self, inputs: Tensor) -> Tensor:
        rows_RTI = self.adapters.by_row(inputs).float()
        names = (f"{self.path}.weight", f"{self.path}.bias")
        own = [name for name in names if name in self.adapters.stacked]
        parts = []
        for mine_UNI, weight_UOI, *bias in self.adapters.by_run(rows_RTI, *own):
            product_UNO = mine_UNI @ weight_UOI.mT
            parts.append(product_UNO + bias[0][:, None] if bias else product_UNO)
        return together(parts).view(*inputs.shape[:-1], -1)


class _PackedNorm(torch.nn.Module):
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
        rows_RTI = self.adapters.by_row(self.base(inputs.float()))
        names = [f"{self.path}.{name}" for name in self.names]
        parts = []
        for mine_UNI, weight_UI, *bias in self.adapters.by_run(rows_RTI, *names):
            scaled_UNI = mine_UNI * weight_UI[:, None]
            parts.append(scaled_UNI + bias[0][:, None] if bias else scaled_UNI)
        return together(parts).view(inputs.shape)


class PackedLayerTrainer(ClassifierTrainer):
    """Tune adapters of layers, and heads; a weight's name is its layer's path and its own.

    Replaces the target layers of `classifier`.
    Raises ModelError: a target that matches no layer, or a model whose rows are padded at the left
    where the adapters cannot be.

    targets: paths of the adapted layers, by the name of what a run may adapt.
    widths: input and output width of each adapted layer, by path.
    heads: paths of the layers of a classification head.
    longest_packed: length in tokens up to which rows may share sequences (see `packing`); 0 if
        none may, and every row is padded by itself.
    suffix: PEFT's ending of an adapter's weights.
    pads_left: whether rows may be padded at the left.
    drops_out: whether the layers' inputs have dropout.
    """

    side_by_side = True
    suffix: ClassVar[str] = ""
    pads_left: ClassVar[bool] = True
    drops_out: bool = False

    def __init__(self, classifier: Classifier, options: LayerOptions) -> None:
        super().__init__(classifier, options)
        if classifier.pads_left and not self.pads_left:
            raise ModelError(
                f"{options.kind} needs rows padded at the right",
                where=self.encoder.spec.id,
                cure="use full",
            )
        self.adapters, model = RowAdapters(), classifier.model
        self.heads = sorted({name.rpartition(".")[0] for name in classifier.head})
        self.targets = {
            name: target_layers(model, own, self.encoder.spec, self.heads)
            for name, own in options.each_target.items()
        }
        layers: dict[str, Any] = {
            path: model.get_submodule(path) for paths in self.targets.values() for path in paths
        }
        # Conv1D holds its weight the other way round.
        self.widths = {
            path: (layer.in_features, layer.out_features)
            if isinstance(layer, torch.nn.Linear)
            else tuple(getattr(layer.weight, "ds_shape", layer.weight.shape))
            for path, layer in layers.items()
        }
        for path, layer in layers.items():
            model.set_submodule(path, self.packed_layer(layer, path))
        for path in self.heads:
            if len(classifier.head[f"{path}.weight"]) == 1:
                norm = _PackedNorm(model.get_submodule(path), path, self.adapters)
                model.set_submodule(path, norm)
            else:
                model.set_submodule(path, _PackedHead(path, self.adapters))
        self.longest_packed = self._find_longest_packed()

    @abstractmethod
    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        """Wrap a layer of the frozen model."""

    @abstractmethod
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight of a run by name, heads aside."""

    @abstractmethod
    def peft_config(self, weights: Weights, **options: Any) -> Any:
        """Build PEFT's configuration of an adapter; `options` are those of all kinds."""

    def masks(self, training: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        """Return the dropout of the layers' inputs, or None without one."""
        return None

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        self.adapters.begin(batch, stacked, self.device)
        self.adapters.masks = None if training is None else self.masks(training, batch)
        if not self.longest_packed:
            logits_RL: Tensor = self.classifier(*self.classifier.read(batch))
            return logits_RL
        hidden_NH = self.classifier.hidden(batch)
        if self.classifier.label_ids:
            return self.classifier.label_logits(hidden_NH)
        (path,) = self.heads
        run_N = self.adapters.run_R[to_device(batch.at_R, self.device)]
        # Not as a matrix product, whose bits depend on how many rows it has.
        logits_NL = (hidden_NH.float()[:, None] * stacked[f"{path}.weight"][run_N]).sum(-1)
        bias_SL = stacked.get(f"{path}.bias")
        return logits_NL if bias_SL is None else logits_NL + bias_SL[run_N]

    def prepare(
        self, rows: Sequence[Sequence[int]], *, dropout: bool = False
    ) -> list[PackedSequence]:
        """Pack rows if the model takes packed rows, as prefix trees unless they have dropout."""
        if not self.longest_packed:
            return super().prepare(rows)
        share = not (dropout and self.drops_out)
        return pack(rows, longest=self.longest_packed, share=share)

    def _find_longest_packed(self) -> int:
        """Compare packed rows, one as long as packed rows get, with padded ones.

        Encoders read both ways, and ranks that share a model have rows of their own: 0.
        """
        classifier, spec = self.classifier, self.encoder.spec
        if classifier.label_ids:
            reads_last_token = classifier.output_head is not None
        else:
            reads_last_token = len(self.heads) == 1
        if not reads_last_token or is_encoder(spec) or classifier.execution.sharding:
            return 0

        model = classifier.model
        context = self.encoder.context or MAX_TOKENS
        longest = int(min(attention_window(model), MAX_TOKENS, context))
        token = sample_tokens(model, longest)
        rows = [token[:5], token[:3] + token[6:9], token[9:11], token]
        stacked = stack_weights([self.init_weights(0)])

        def read(longest_packed: int) -> Tensor:
            self.longest_packed = longest_packed
            if longest_packed:
                sequences = pack(rows, max_tokens=sum(map(len, rows)), longest=longest_packed)
            else:
                sequences = single_rows(rows)
            batches = [stack([Placed(0, sequence)]) for sequence in sequences]
            logits_NL = torch.cat([self.forward(batch, stacked) for batch in batches])
            numbers = torch.tensor([row for batch in batches for _, row in batch.rows])
            return logits_NL[to_device(numbers.argsort(), logits_NL.device)]

        chosen = first_matching([longest], 0, read, model)
        part = chosen > 0 or classifier.output_head is not None
        classifier.execution.note("classifier", packs=chosen > 0, part=part, fastest=chosen > 0)
        return chosen

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        spec, head = self.encoder.spec, head_modules(self.classifier)
        config = self.peft_config(
            weights,
            task_type="SEQ_CLS" if head else "CAUSAL_LM",
            base_model_name_or_path=spec.id,
            revision=spec.revision,
            target_modules=[
                path for path in self.widths if any(name.startswith(f"{path}.") for name in weights)
            ],
            modules_to_save=head or None,
            inference_mode=True,
        )
        tensors = {self._peft_name(name): tensor.float() for name, tensor in weights.items()}
        files.write_folder(
            store, folder, tensors, file=files.ADAPTER, parts=[config], record=record
        )

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        shapes = self.shapes_in(store, folder) | self.classifier.head
        names = {name: self._peft_name(name) for name in shapes}
        wanted = {names[name]: shape for name, shape in shapes.items()}
        tensors = files.read_tensors(store, folder, wanted, file=files.ADAPTER)
        return {name: tensors[stored].to(self.device) for name, stored in names.items()}

    def shapes_in(self, store: Store, folder: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes that an adapter that was saved should have, heads aside."""
        return self.adapter_shapes()

    def _peft_name(self, name: str) -> str:
        return f"{_PREFIX}{name}" + (self.suffix if name not in self.classifier.head else "")


class _LoraLayer(PackedLayer):
    def __init__(
        self, base: torch.nn.Module, path: str, adapters: RowAdapters, options: LoraOptions
    ) -> None:
        super().__init__(base, path, adapters)
        self.alpha, self.kept = options.alpha, 1 - options.dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer's output plus the adapters', which is summed in float32."""
        output: Tensor = self.base(inputs)
        adapters, kept = self.adapters, 1.0
        if f"{self.path}.lora_A" not in adapters.stacked:
            return output  # No run of the pack adapts this layer.
        rows_RTI, base_RTO = adapters.by_row(inputs), adapters.by_row(output)
        if adapters.masks is not None:
            rows_RTI = rows_RTI * adapters.masks(self.path, rows_RTI)
            kept = self.kept
        parts = []
        pairs = zip(
            adapters.by_run(rows_RTI, f"{self.path}.lora_A"),
            adapters.by_run(base_RTO, f"{self.path}.lora_B"),
            strict=True,
        )
        for (mine_UNI, factor_UKI), (base_UNO, factor_UOK) in pairs:
            rank = factor_UKI.shape[1]
            if not rank:
                parts.append(base_UNO)
                continue
            inner_UNK = mine_UNI @ factor_UKI.to(output.dtype).mT
            factor_UKO = factor_UOK.to(output.dtype).mT
            scaling = self.alpha / rank / kept
            parts.append(torch.baddbmm(base_UNO, inner_UNK, factor_UKO, alpha=scaling))
        return together(parts).view_as(output)


class LoraTrainer(PackedLayerTrainer):
    """Tune LoRA factors and heads: `PATH.lora_A`, `PATH.lora_B`, `PATH.weight`.

    The frozen backbone runs without dropout; LoRA's own, before the factors, is keyed by (seed,
    step, row, place, layer), so it does not depend on the rest of a pass.
    Raises ModelError: as `PackedLayerTrainer`.
    """

    suffix = ".weight"
    pads_left = False  # Dropout is drawn from each row's first place on.

    def __init__(self, classifier: Classifier, options: LoraOptions) -> None:
        self.lora, self.drops_out = options, options.dropout > 0
        super().__init__(classifier, options)

    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        return _LoraLayer(base, path, self.adapters, self.lora)

    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes(*self.lora.adapter_sizes[0])

    def _shapes(self, rank: int | None, target: str | None) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for path in self.targets[target or ""]:
            inner, outer = self.widths[path]
            shapes[f"{path}.lora_A"] = (rank or 0, inner)
            shapes[f"{path}.lora_B"] = (outer, rank or 0)
        return shapes

    def shapes_in(self, store: Store, folder: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the rank and targets of a sweep that an adapter names."""
        if not store.exists(name := f"{folder}/adapter_config.json"):
            return self.adapter_shapes()
        with store.reading(name, "as PEFT's configuration of an adapter"):
            saved = json.loads(store.read_text(name))
            own = saved["r"], {*saved["target_modules"]}
        for rank, target in self.lora.adapter_sizes:
            if own == (rank, {*self.targets[target or ""]}):
                return self._shapes(rank, target)
        return self.adapter_shapes()

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        return self.sized_weights(seed, *self.lora.adapter_sizes[0])

    def sized_weights(self, seed: int, rank: int | None, target: str | None) -> dict[str, Tensor]:
        """Draw uniform A as PEFT does, zero B, and a head, all keyed by the seed."""
        weights: dict[str, Tensor] = {}
        for name, shape in self._shapes(rank, target).items():
            path, _, factor = name.rpartition(".")
            if factor == "lora_B":
                weights[name] = torch.zeros(shape, device=self.device)
                continue
            drawn = generator(seed, "lora", path).uniform(-1, 1, shape) / math.sqrt(shape[1])
            weights[name] = torch.from_numpy(drawn.astype(np.float32)).to(self.device)
        return weights | initial_head(self.classifier, seed)

    def peft_config(self, weights: Weights, **options: Any) -> Any:
        from peft import LoraConfig

        own, rank = self.lora, next(len(w) for n, w in weights.items() if n.endswith("lora_A"))
        return LoraConfig(r=rank, lora_alpha=own.alpha, lora_dropout=own.dropout, **options)

    def masks(self, training: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        lost = self.lora.dropout
        if not lost:
            return None
        steps_S2 = keys(
            [key(each.seed, "lora dropout", each.step) for each in training], self.device
        )
        runs_R12 = steps_S2[self.adapters.run_R][:, None]
        rows_RT2 = joined(runs_R12, to_device(token_rows(batch).int()[..., None], self.device))
        places_RT1 = to_device(batch.depths_RT.int()[..., None], self.device)
        tokens_N2 = joined(rows_RT2, places_RT1).flatten(0, 1)
        # All layers at once: on a GPU these small products are many launches.
        paths_P12 = keys([key(path) for path in self.widths], self.device)[:, None]
        layers = dict(zip(self.widths, joined(tokens_N2, paths_P12), strict=True))
        counters: dict[tuple[int, torch.device], Tensor] = {}

        def mask(path: str, rows_RTI: Tensor) -> Tensor:
            # A layer may be on another device than the first, and a pooler reads the first places.
            device, (_, places, width) = rows_RTI.device, rows_RTI.shape
            if (width, device) not in counters:
                counters[width, device] = counter((width + 1) // 2, device)
            keys_RT2 = layers[path].view(*batch.depths_RT.shape, 2)[:, :places].to(device)
            drawn = kept(keys_RT2.flatten(0, 1), (width,), lost, counters[width, device])
            return drawn.view(rows_RTI.shape)

        return mask


def head_modules(classifier: Classifier) -> list[str]:
    """List PEFT's `modules_to_save`: whole heads, and new layers in the base model."""
    base = f"{classifier.model.base_model_prefix}."
    return sorted(
        {
            name.rpartition(".")[0] if name.startswith(base) else name.partition(".")[0]
            for name in classifier.head
        }
    )


def target_layers(
    model: PreTrainedModel, options: LayerOptions, spec: Backbone, heads: Sequence[str] = ()
) -> list[str]:
    """List paths of the linear layers to adapt, heads aside; ModelError: a name matches none."""
    base, architecture = model.base_model, model.config.model_type
    prefix = model.base_model_prefix if base is not model else ""
    paths = [path for path in linear_layers(base, prefix) if path not in heads]
    unusable = {
        path: reason
        for path in paths
        if (reason := options.misread_by_peft(model, path) or bypass_reason(model, path))
    }
    layers = [path for path in paths if path not in unusable]
    if options.target == "all_linear":
        if not layers:
            raise ModelError(
                f"has no linear layer that {options.kind} can adapt",
                where=spec.id,
                cure="use soft_prompt, full or a prompted method on it",
            )
        return layers
    peft = options.target == "peft_default"
    names = options.peft_names(architecture) if peft else options.target
    known = sorted({path.rpartition(".")[2] for path in layers})
    for name in names or ("",):
        refused = [path for path in unusable if name and names_layer(path, name)]
        if refused and not peft:
            raise ModelError(
                f"{options.kind} target {name!r} names {refused[0]}, which {unusable[refused[0]]}",
                where=spec.id,
                cure=f"choose among {', '.join(known)} as the method's target",
            )
        if not any(names_layer(path, name) for path in layers):
            raise ModelError(
                f"{options.kind} target {name!r} matches no linear layer"
                if name
                else f"PEFT names no {options.kind} target for {architecture} models",
                where=spec.id,
                cure=f"choose among {', '.join(known)} as the method's target",
            )
    return [path for path in layers if any(names_layer(path, name) for name in names)]


def linear_layers(base: torch.nn.Module, prefix: str) -> list[str]:
    """List the paths of linear layers, classes of their own included."""
    return [
        path
        for path, module in base.named_modules(prefix=prefix)
        if isinstance(module, torch.nn.Linear | Conv1D)
    ]


def bypass_reason(model: PreTrainedModel, path: str) -> str:
    """Say why an adapter of a linear layer would have no effect; nothing if it would.

    Routers of experts compute otherwise under the same class, and Mamba's mixers read the weight of
    a layer past its forward pass.
    """
    parent_path, _, name = path.rpartition(".")
    if not maps_like_linear(model.get_submodule(path)):
        return "computes something else than a linear layer"
    source = _source_of(type(model.get_submodule(parent_path)))
    if re.search(rf"self\.{re.escape(name)}\.(weight|bias)\b", source):
        return "the model reads without calling it, so that an adapter would have no effect"
    return ""


def maps_like_linear(layer: torch.nn.Module) -> bool:
    """Check whether a layer of a linear class maps one tensor to one of its output width.

    Falcon's linear layers do in a forward pass of their own; routers return more.
    """
    if type(layer).forward in _LINEAR_FORWARDS:
        return True
    weight = layer.get_parameter("weight")
    outer, inner = weight.shape
    inputs = torch.empty(2, inner, device=weight.device, dtype=weight.dtype)
    with suppress(RuntimeError, ValueError, TypeError, LookupError), torch.no_grad():
        output = layer(inputs)
        return isinstance(output, Tensor) and output.shape == (2, outer)
    return False


@cache
def _source_of(module_class: Any) -> str:
    try:
        return inspect.getsource(module_class)
    except (OSError, TypeError):
        return ""


def names_layer(path: str, name: str) -> bool:
    """Check whether a layer's path ends with a name, as PEFT matches them."""
    return path == name or path.endswith(f".{name}")
