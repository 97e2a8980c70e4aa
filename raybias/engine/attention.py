"""Attention whose gradient is fast on a CPU.

The gradient of torch's fused CPU kernel costs about as much as all linear layers together
in bfloat16, however short the sequences. The plain product does forward and gradient in a
half (264 tokens) to a sixth (72 tokens) of the time, so it is used where a gradient is
needed on a CPU, and transformers' own call elsewhere.

Shapes: R sequences, H heads, T tokens, E width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.functional import dropout
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME: Final = "raybias"


def use_fast_gradient(model: PreTrainedModel) -> None:
    """Replace a model's fused attention on a CPU; any other model is left as it is."""
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        model.set_attn_implementation(_NAME)


def _attend(
    module: torch.nn.Module,
    query_RHTE: Tensor,
    key_RHTE: Tensor,
    value_RHTE: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    bias = options.get("position_bias")
    if attention_mask is None or bias is not None or not query_RHTE.requires_grad:
        fused: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_RHTE, key_RHTE, value_RHTE, attention_mask, **options
        )
        return fused
    groups = getattr(module, "num_key_value_groups", 1)
    key_RHTE, value_RHTE = repeat_kv(key_RHTE, groups), repeat_kv(value_RHTE, groups)
    scaling = options.get("scaling")
    scale = query_RHTE.shape[-1] ** -0.5 if scaling is None else scaling
    scores_RHTT = (query_RHTE * scale) @ key_RHTE.transpose(-1, -2)
    unseen_RHTT = torch.zeros_like(attention_mask, dtype=query_RHTE.dtype)
    unseen_RHTT = unseen_RHTT.masked_fill(~attention_mask, float("-inf"))
    weights_RHTT = (scores_RHTT + unseen_RHTT).softmax(-1)
    if lost := options.get("dropout"):
        weights_RHTT = dropout(weights_RHTT, lost)
    mixed_RHTE = weights_RHTT @ value_RHTE
    return mixed_RHTE.transpose(1, 2).contiguous(), None
