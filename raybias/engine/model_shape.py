"""Find a backbone's sizes from its config alone: no weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Backbone
from raybias.engine.backbone import blocks, empty_model, is_encoder
from raybias.engine.checkpoint import reading_model
from raybias.engine.model_files import quantisation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

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
        """Return the largest part of one of `devices` that split the layers."""
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
    widths = [sorted(layer.weight.shape) for block in inside for layer in _linear(block)]
    how = quantisation(spec)
    # Without the files, the bytes of unquantised weights.
    stored = how.stored if how is not None else None
    names = ("activation_function", "hidden_act", "hidden_activation")
    given = (getattr(config, name, None) for name in names)
    activation = next((each for each in given if isinstance(each, str)), "")
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return ModelShape(
        parameters=sum(p.numel() for p in tensors),
        weight_bytes=stored or sum(p.numel() * p.element_size() for p in tensors),
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        width=int(model.get_input_embeddings().embedding_dim),
        vocabulary=int(model.get_input_embeddings().num_embeddings),
        feed_forward=max((width[-1] for width in widths), default=hidden),
        kept=_KEPT.get(activation, _KEPT_BY_OTHERS),
        keys=key_heads * int(getattr(config, "head_dim", None) or hidden // heads),
        heads=heads,
        linear_widths=sum(map(sum, widths)),
        block_parameters=sum(p.numel() for block in inside for p in block.parameters()),
        context=getattr(config, "max_position_embeddings", None),
        encoder=is_encoder(spec),
        quantised=how.method if how is not None else "",
    )


def _linear(block: torch.nn.Module) -> list[Any]:
    return [
        each
        for each in block.modules()
        if not list(each.children()) and getattr(getattr(each, "weight", None), "ndim", 0) == 2
    ]
