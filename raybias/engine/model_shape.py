"""Sizes of a model, from its config alone, on torch's meta device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from raybias.config import Backbone
from raybias.engine.backbone import blocks, empty_model, is_encoder
from raybias.engine.checkpoint import context_of, quantisation, read_config, reading_model
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


#: Values that autograd keeps per token, layer and unit of feed-forward width when the weights
#: are frozen, by activation: relu keeps its output, others their input, written-out ones more;
#: a gated block also keeps both factors of its product.
_KEPT: Final = {"relu": 1, "gelu": 2, "silu": 3, "gelu_pytorch_tanh": 3}


_KEPT_BY_OTHERS: Final = 5


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a backbone.

    parameters, weight_bytes: of all weights, shared ones once.
    layers, hidden: blocks, and the width between them.
    width, vocabulary: of the input embeddings.
    feed_forward: the widest layer inside a block.
    kept: values per token and unit of `feed_forward` that a backward pass needs.
    keys: width of one layer's keys (as of its values).
    linear_widths: sum of the inputs and outputs of all linear layers of the blocks.
    block_parameters: weights of all blocks; the others are embeddings, norms and heads.
    context: longest input in tokens; None without a limit.
    encoder: whether it reads in both directions.
    quantised: the kind of quantisation, or nothing.
    """

    parameters: int
    weight_bytes: int
    layers: int
    hidden: int
    width: int
    vocabulary: int
    feed_forward: int
    kept: int
    keys: int
    heads: int
    linear_widths: int
    block_parameters: int
    context: int | None
    encoder: bool = False
    quantised: str = ""

    @property
    def item(self) -> int:
        """Bytes of one weight, rounded up where they differ."""
        return -(-self.weight_bytes // self.parameters)

    def part(self, devices: int) -> ModelShape:
        """Return the shape of the largest part where `devices` split the layers."""
        inside = -(-self.block_parameters // devices)
        left_out = self.block_parameters - inside
        return replace(
            self,
            parameters=self.parameters - left_out,
            weight_bytes=self.weight_bytes - left_out * self.item,
            layers=-(-self.layers // devices),
            linear_widths=-(-self.linear_widths // devices),
            block_parameters=inside,
        )


@lru_cache(maxsize=64)
def model_shape(spec: Backbone) -> ModelShape:
    """Find a backbone's sizes on torch's meta device; ModelError: no causal model or encoder."""
    model = empty_model(spec)
    with reading_model(spec, "config.json"):
        return shape_of(model, spec)


def shape_of(model: PreTrainedModel, spec: Backbone) -> ModelShape:
    """Find the sizes of a model that `empty_model` built from `spec`."""
    config = model.config.get_text_config()
    tensors = {id(p): p for p in model.parameters()}.values()
    inside = list(blocks(model))
    weights = (
        getattr(layer, "weight", None)
        for block in inside
        for layer in block.modules()
        if not list(layer.children())
    )
    widths = [sorted(each.shape) for each in weights if each is not None and each.ndim == 2]
    how = quantisation(spec)
    # Without the files, the bytes of unquantised weights.
    stored = how.stored if how is not None else None
    hidden = int(config.hidden_size)
    heads = config_size(config, "num_attention_heads")
    activations = ("activation_function", "hidden_act", "hidden_activation")
    named = (getattr(config, name, None) for name in activations)
    activation = next((name for name in named if isinstance(name, str)), "")
    return ModelShape(
        parameters=sum(p.numel() for p in tensors),
        weight_bytes=stored or sum(p.numel() * p.element_size() for p in tensors),
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        width=int(model.get_input_embeddings().embedding_dim),
        vocabulary=int(model.get_input_embeddings().num_embeddings),
        feed_forward=max((width[-1] for width in widths), default=hidden),
        kept=_KEPT.get(activation, _KEPT_BY_OTHERS),
        keys=_key_width(inside, config),
        heads=heads,
        linear_widths=sum(map(sum, widths)),
        block_parameters=sum(p.numel() for block in inside for p in block.parameters()),
        context=context_of(config),
        encoder=is_encoder(spec),
        quantised=how.method if how is not None else "",
    )


def config_size(config: PretrainedConfig, name: str) -> int:
    """Return a size of a text config; the largest if it differs by layer, 0 if it has none."""
    try:
        return int(getattr(config, name, None) or 0)
    # Raised for a size that each layer has by itself.
    except RuntimeError:
        layers = [config.per_layer_config[n] for n in range(int(config.num_hidden_layers))]
        return max(int(getattr(layer, name, None) or 0) for layer in layers)


def _key_width(inside: Sequence[torch.nn.Module], config: PretrainedConfig) -> int:
    """Return the width of the widest layer's keys, as its projection has it or from the config."""
    projections = (
        module.weight.shape[0]
        for block in inside
        for name, module in block.named_modules()
        if name.endswith("k_proj") and isinstance(module, torch.nn.Linear)
    )
    if width := max(projections, default=0):
        return width
    heads = config_size(config, "num_attention_heads")
    key_heads = config_size(config, "num_key_value_heads") or heads
    head_width = config_size(config, "head_dim") or int(config.hidden_size) // max(1, heads)
    return key_heads * head_width


def check_soft_prompts(spec: Backbone) -> None:
    """Refuse a model that computes tokens by their ids in every layer, with a ModelError.

    Gemma 3n and 4 do: a vector of a soft prompt has no id.
    """
    if config_size(read_config(spec).get_text_config(), "hidden_size_per_layer_input"):
        raise no_soft_prompts(spec)


def no_soft_prompts(spec: Backbone) -> ModelError:
    """Return the error of a model that takes no soft prompts."""
    return ModelError(
        "takes no soft prompts: it computes tokens by their ids, not by embeddings alone",
        where=spec.id,
        cure="use lora or a prompted method on it",
    )
