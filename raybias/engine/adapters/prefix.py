"""Tune prefixes: keys and values before a text in every layer (Li and Liang 2021).

A prefix is what PEFT saves without a projection: P vectors with the keys and values of all layers,
keys as after the rotary embedding. Rows are padded by themselves, not packed as trees: each gets
the prefix of its run as a cache of transformers, and its positions follow the prefix.
Shapes: S runs, R rows, P vectors, W = layers x 2 x H x E, H heads of keys, E width of a head, N
positions, L labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from raybias.config import Backbone
from raybias.engine.adapters.base import Training, Weights
from raybias.engine.adapters.options import PromptOptions
from raybias.engine.adapters.vectors import VectorTrainer
from raybias.engine.attention import states_at
from raybias.engine.backbone import LoadedBackbone, empty_model
from raybias.engine.devices import out_of_memory, to_device
from raybias.engine.output_head import LabelRows, read_output_head
from raybias.engine.packing import Batch, Placed, Row, single_rows, stack
from raybias.engine.self_check import (
    MISFITS,
    attention_window,
    crossing_lengths,
    first_matching,
    sample_tokens,
)
from raybias.errors import ModelError
from raybias.storage import Store

#: Tokens whose keys and values are the prefix of a check, and of the longest row of a check.
_CHECK_VECTORS: Final = 3
_LONGEST_CHECK: Final = 512
#: What torch raises on its meta device for an operation that needs numbers.
_NO_WEIGHTS: Final = (RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class PrefixShape:
    """Sizes of a model's keys, which its values share; `devices`: of each layer."""

    heads: int
    width: int
    devices: tuple[torch.device, ...]

    @property
    def total(self) -> int:
        """Numbers of one vector of a prefix: the keys and values of all layers."""
        return len(self.devices) * 2 * self.heads * self.width

    def cache(self, prefixes_RPW: Tensor) -> DynamicCache:
        """Make the cache of a pass from the prefix of each row, laid out as by PEFT."""
        count, length, _ = prefixes_RPW.shape
        parts = prefixes_RPW.view(count, length, -1, 2, self.heads, self.width)
        pairs = parts.permute(2, 3, 0, 4, 1, 5)
        return DynamicCache(
            [
                (pair[0].to(device), pair[1].to(device))
                for pair, device in zip(pairs, self.devices, strict=True)
            ]
        )


def prefix_shape(model: PreTrainedModel, spec: Backbone) -> PrefixShape:
    """Find the sizes of a model's keys and values by a pass over a few tokens.

    Raises ModelError: a model that keeps anything else than keys and values, of one size, of every
    layer, as state space models, hybrids and models whose layers share keys do.
    """
    tokens_1T = torch.tensor([sample_tokens(model, 2)], device=model.device)
    layers = keys_and_values(model, tokens_1T, spec)
    shapes = {tuple(each.shape) for pair in layers for each in pair}
    if len(layers) != int(model.config.get_text_config().num_hidden_layers) or len(shapes) != 1:
        raise _no_prefixes(spec, "its layers do not all have keys and values of one size")
    _, heads, _, width = shapes.pop()
    return PrefixShape(heads, width, tuple(keys.device for keys, _ in layers))


def keys_and_values(
    model: PreTrainedModel, tokens_1T: Tensor, spec: Backbone
) -> list[tuple[Tensor, Tensor]]:
    """Compute the keys and values [1, H, T, E] of tokens in each layer; ModelError: has none."""
    try:
        with torch.no_grad():
            cache = model(
                input_ids=tokens_1T, past_key_values=DynamicCache(), use_cache=True
            ).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]
    except MISFITS as error:
        # torch cannot compute everything without weights: the loaded model will be tried.
        if out_of_memory(error) or (model.device.type == "meta" and type(error) in _NO_WEIGHTS):
            raise
        raise _no_prefixes(spec, "it has no keys and values of tokens in every layer") from error


def check_prefixes(spec: Backbone) -> None:
    """Refuse a model that takes no prefixes, as far as its config tells, with a ModelError."""
    try:
        prefix_shape(empty_model(spec), spec)
    except _NO_WEIGHTS:
        return


def _no_prefixes(spec: Backbone, why: str) -> ModelError:
    return ModelError(
        f"takes no prefixes: {why}", where=spec.id, cure="use lora or soft_prompt on it"
    )


class PrefixTrainer(VectorTrainer):
    """Tune prefixes on one frozen backbone; the weights of a run are its `prefix` [P, W].

    Raises ModelError: a model in which the keys and values of tokens before a text are not what
    the tokens themselves are, or are not what PEFT makes of them.
    """

    name = "prefix"

    def __init__(
        self, backbone: LoadedBackbone, label_ids: Sequence[int], options: PromptOptions
    ) -> None:
        super().__init__(backbone, label_ids, options)
        self.batcher.prefix_length = options.longest_prompt
        self.shape = prefix_shape(backbone.model, backbone.spec)
        self.vector_width = self.shape.total
        head = read_output_head(backbone.model, sample_tokens(backbone.model, 11))
        self.label_rows = None if head is None else LabelRows.of(head, label_ids)
        _Check(self).compare()

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [N, L] of rows behind the prefixes of their runs."""
        model = self.backbone.model
        run_R = to_device(batch.adapters, self.device)
        past = self.shape.cache(stacked[self.name][run_R].to(model.dtype))
        inputs = {"input_ids": to_device(batch.tokens_RT, self.device)}
        at = batch.at_R, batch.at_T
        if self.label_rows is not None:
            return self.label_rows.logits(states_at(model, batch, at, inputs, past=past))
        logits_NV = states_at(model, batch, at, inputs, whole=True, past=past)
        return logits_NV[:, to_device(self.label_ids, logits_NV.device)].float()

    def peft_config(self) -> Any:
        """Build PEFT's configuration of a prefix, without its number of vectors."""
        from peft import PrefixTuningConfig

        heads, width = self.shape.heads, self.shape.width
        return PrefixTuningConfig(
            num_layers=len(self.shape.devices), num_attention_heads=heads, token_dim=heads * width
        )

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the prefix for `PeftModel.from_pretrained`."""
        prefix_PW = weights[self.name].detach()
        self.write_vectors(store, folder, prefix_PW, self.peft_config(), record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """Load a prefix in PEFT's format as keys and values by layer."""
        return {self.name: self.read_vectors(store, folder)}


class _Check:
    """Label logits of a few rows after a few tokens, given as a prefix or read before the rows."""

    def __init__(self, trainer: PrefixTrainer) -> None:
        self.trainer, backbone = trainer, trainer.backbone
        self.model, self.spec = backbone.model, backbone.spec
        longest = min(_LONGEST_CHECK, (backbone.context or _LONGEST_CHECK) - _CHECK_VECTORS)
        token = sample_tokens(self.model, longest + _CHECK_VECTORS)
        self.before, token = token[:_CHECK_VECTORS], token[_CHECK_VECTORS:]
        window = attention_window(self.model)
        lengths = (3, 8, *crossing_lengths(window, longest))
        self.rows: list[Row] = [token[-length:] for length in lengths if length <= longest]
        before_1P = torch.tensor([self.before], device=backbone.device)
        pairs = keys_and_values(self.model, before_1P, self.spec)
        flat = [each[0].transpose(0, 1).flatten(1) for pair in pairs for each in pair]
        self.prefix_PW = torch.cat([each.to(backbone.device) for each in flat], dim=1).float()

    def compare(self) -> None:
        """Refuse a model that does not read a prefix as the tokens that it is made of.

        The padded rows of a pass, and PEFT's own call row by row, are held to the model's own
        forward pass over tokens and row.
        """
        if not first_matching([self._padded], None, self._values, self.model):
            why = "with keys and values of tokens before a row it does not compute what it computes"
            raise _no_prefixes(self.spec, f"{why} after the tokens themselves")
        if not first_matching([self._by_peft], None, self._values, self.model):
            raise _no_prefixes(self.spec, "PEFT would read one otherwise than it was tuned")
        self.trainer.backbone.execution.note(
            "prefix", packs=False, part=self.trainer.label_rows is not None, fastest=True
        )

    def _values(self, way: Any) -> Tensor:
        """Compute the label logits [N, L] of the rows by a way; None: by the model's own."""
        return self._own() if way is None else way()

    def _own(self) -> Tensor:
        return self._each_row(self.model, self.before)

    def _padded(self) -> Tensor:
        batch = stack([Placed(0, sequence) for sequence in single_rows(self.rows)])
        logits_NL = self.trainer.forward(batch, {self.trainer.name: self.prefix_PW[None]})
        order = torch.tensor([row for _, row in batch.rows]).argsort()
        return logits_NL[to_device(order, logits_NL.device)]

    def _by_peft(self) -> Tensor:
        from peft import PeftModelForCausalLM

        config = self.trainer.peft_config()
        config.task_type, config.num_virtual_tokens = "CAUSAL_LM", _CHECK_VECTORS
        with warnings.catch_warnings():
            # PEFT asks transformers for what is deprecated there.
            warnings.simplefilter("ignore", FutureWarning)
            adapted = PeftModelForCausalLM(self.model, config)
        adapted.prompt_encoder["default"].load_prompt_embeddings(self.prefix_PW)
        return self._each_row(adapted.eval())

    def _each_row(self, model: Any, before: Row = ()) -> Tensor:
        ids = list(self.trainer.label_ids)
        found = []
        for row in self.rows:
            tokens_1T = torch.tensor([[*before, *row]], device=self.prefix_PW.device)
            mask_1T = torch.ones_like(tokens_1T)
            found.append(model(input_ids=tokens_1T, attention_mask=mask_1T).logits[0, -1, ids])
        return torch.stack(found).float()
