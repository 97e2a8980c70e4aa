"""Adapt layers of a frozen classifier for many runs in shared passes.

Each adapted layer looks up the tensors of a sequence's run, so rows of all runs share each pass
over the frozen weights. A classification head is tuned whole, per run. Adapters are saved in PEFT's
format. Each kind of adapter defines its layers: LoRA (Kohankhaki2024; Hu et al. 2022) adds scaling
* B A x to a layer's output, with the factors of its row's run.
Shapes: S runs, R sequences, N rows, T tokens, H hidden, I and O layer widths, K rank, L labels.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from raybias.engine.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from raybias.engine.adapters import base as files
from raybias.engine.adapters.base import (
    ClassifierTrainer,
    Training,
    TrainingBatch,
    Weights,
    stack_weights,
)
from raybias.engine.adapters.options import AdapterSize, LayerOptions, LoraOptions
from raybias.engine.adapters.row_adapters import (
    Masks,
    PackedHead,
    PackedLayer,
    PackedNorm,
    RowAdapters,
    together,
)
from raybias.engine.adapters.target_layers import head_modules, target_layers
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
from raybias.errors import ModelError, said_by
from raybias.seeding import generator, key
from raybias.storage import Store

_PREFIX: Final = "base_model.model."


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
        self.kind = options.kind
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
        self._check_head()
        for path in self.heads:
            if len(classifier.head[f"{path}.weight"]) == 1:
                norm = PackedNorm(model.get_submodule(path), path, self.adapters)
                model.set_submodule(path, norm)
            else:
                model.set_submodule(path, PackedHead(path, self.adapters))
        self.longest_packed = 0
        self._check_layers()
        self.longest_packed = self._find_longest_packed()

    def _check_head(self) -> None:
        """Refuse a classification head that is not adapted, or that PEFT would not open.

        Its parts must be linear and norm layers, under names that no other module ends with.
        """
        saved = head_modules(self.classifier)
        for path, _ in self.classifier.model.named_modules():
            if any(path.endswith(f".{name}") for name in saved):
                raise ModelError(
                    f"{path} has the name of a part of its classification head, so that PEFT could"
                    " not open the adapter",
                    where=self.encoder.spec.id,
                    cure="use full on it",
                )
        for name in self.classifier.head:
            if name.rpartition(".")[2] not in ("weight", "bias"):
                raise ModelError(
                    f"its classification head has {name}, which is no linear or norm layer",
                    where=self.encoder.spec.id,
                    cure="use full on it",
                )

    def _check_layers(self) -> None:
        """Refuse a model that does not call its layers as linear layers, by one short pass."""
        row = sample_tokens(self.classifier.model, 8)
        batch = stack([Placed(0, sequence) for sequence in single_rows([row])])
        try:
            with torch.no_grad():
                self.forward(batch, stack_weights([self.init_weights(0)]))
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            raise ModelError(
                f"{self.kind} cannot adapt its layers ({said_by(error)})",
                where=self.encoder.spec.id,
                cure="use full or soft_prompt on it, or name other layers as the method's target",
            ) from error

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
            store, folder, tensors, file=ADAPTER_WEIGHTS, parts=[config], record=record
        )

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        shapes = self.shapes_in(store, folder) | self.classifier.head
        names = {name: self._peft_name(name) for name in shapes}
        wanted = {names[name]: shape for name, shape in shapes.items()}
        tensors = files.read_tensors(store, folder, wanted, file=ADAPTER_WEIGHTS)
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
        return self._shapes(self.lora.adapter_sizes[0])

    def _shapes(self, size: AdapterSize) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        rank = size.adapter_rank or 0
        for path in self.targets[size.target or ""]:
            inner, outer = self.widths[path]
            shapes[f"{path}.lora_A"] = (rank, inner)
            shapes[f"{path}.lora_B"] = (outer, rank)
        return shapes

    def shapes_in(self, store: Store, folder: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the rank and targets of a sweep that an adapter names."""
        if not store.exists(name := f"{folder}/{ADAPTER_CONFIG}"):
            return self.adapter_shapes()
        with store.reading(name, "as PEFT's configuration of an adapter"):
            saved = json.loads(store.read_text(name))
            own = saved["r"], {*saved["target_modules"]}
        for size in self.lora.adapter_sizes:
            if own == (size.adapter_rank, {*self.targets[size.target or ""]}):
                return self._shapes(size)
        return self.adapter_shapes()

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        return self.sized_weights(seed, self.lora.adapter_sizes[0])

    def sized_weights(self, seed: int, size: AdapterSize) -> dict[str, Tensor]:
        """Draw uniform A as PEFT does, zero B, and a head, all keyed by the seed."""
        weights: dict[str, Tensor] = {}
        for name, shape in self._shapes(size).items():
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
