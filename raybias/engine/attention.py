"""Call a model: fast attention, and hidden states at some positions of a batch.

On a CPU with gradients the plain product takes a half (264 tokens) to a sixth (72 tokens) of the
time of torch's fused kernel in bfloat16. On a GPU transformers repeats the keys and values of
grouped heads under any mask, as packed rows have, though a fused kernel may take them as they are.
Shapes: R sequences, N positions, H heads, T tokens, E width of a head, P prompt vectors, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import dropout, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raybias.engine.devices import to_device
from raybias.engine.packing import Batch, tree_mask

_NAME: Final = "raybias"
_GROUPED: Final = "raybias_grouped"


def use_fast_attention(model: PreTrainedModel) -> None:
    """Replace a model's fused attention; leave a model without it alone."""
    if model.config._attn_implementation != "sdpa":
        return
    if model.device.type == "cpu":
        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, _mask)
        model.set_attn_implementation(_NAME)
    else:
        AttentionInterface.register(_GROUPED, partial(_attend, grouped=True))
        AttentionMaskInterface.register(_GROUPED, sdpa_mask)
        model.set_attn_implementation(_GROUPED)


def states_at(
    model: PreTrainedModel,
    batch: Batch,
    at: tuple[Tensor, Tensor],
    inputs: Mapping[str, Tensor],
    *,
    whole: bool = False,
    past: Cache | None = None,
) -> Tensor:
    """Compute the last hidden states [N, width] of a batch at some positions.

    at: sequence [N] of each position, and the position in it [N].
    inputs: `input_ids` [R, T], or `inputs_embeds` [R, P + T, width].
    whole: compute the logits [N, V] of the whole model instead.
    past: keys and values before each sequence, none of which is a tree; the model changes them.
    """
    (values,) = inputs.values()
    device = values.device
    count, total = values.shape[:2]
    prompt_length = total - batch.tokens_RT.shape[1]
    position_T = torch.arange(total, device=device)
    options: dict[str, Any] = dict(inputs)

    if batch.is_tree:
        ends_RT = torch.nn.functional.pad(
            to_device(batch.ends_RT, device) + prompt_length, (prompt_length, 0), value=total
        )
        depths_RT = position_T.expand(count, total).clone()
        depths_RT[:, prompt_length:] = to_device(batch.depths_RT, device) + prompt_length
        options["attention_mask"] = tree_mask(ends_RT)[:, None]
        options["position_ids"] = depths_RT
    else:
        lengths_R = to_device(batch.at_T, device) + 1 + prompt_length
        options["attention_mask"] = (position_T < lengths_R[:, None]).long()
    options["use_cache"] = past is not None
    if past is not None:
        options["past_key_values"] = past
        mask_RT = options["attention_mask"]
        options["attention_mask"] = torch.nn.functional.pad(
            mask_RT, (past.get_seq_length(), 0), value=1
        )

    index = to_device(at[0], device), to_device(at[1], device) + prompt_length
    if whole:
        logits_RTV: Tensor = model(**options).logits
        return logits_RTV[index]
    hidden_RTH: Tensor = model.base_model(**options).last_hidden_state
    return hidden_RTH[index]


def _mask(**options: Any) -> Tensor | None:
    """Make a mask even without padding, so that a row has the same bits beside any other."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(**options | skips)
    return mask


def _attend(
    module: torch.nn.Module,
    query_RHTE: Tensor,
    key_RHTE: Tensor,
    value_RHTE: Tensor,
    attention_mask: Tensor | None,
    *,
    grouped: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention by the plain product, or `grouped` by a kernel, or as transformers does."""
    tensors = query_RHTE, key_RHTE, value_RHTE, attention_mask
    usual = attention_mask is None or options.get("position_bias") is not None
    if grouped:
        # transformers repeats nothing for a single token.
        usual = usual or query_RHTE.shape[2] == 1 or not takes_groups(*tensors)
    if usual or not (grouped or query_RHTE.requires_grad):
        fused: tuple[Tensor, None] = sdpa_attention_forward(module, *tensors, **options)
        return fused
    lost, scale = options.get("dropout") or 0.0, options.get("scaling")
    if grouped:
        mixed_RHTE = scaled_dot_product_attention(
            *tensors, dropout_p=lost, scale=scale, enable_gqa=True
        )
    else:
        groups = getattr(module, "num_key_value_groups", 1)
        mixed_RHTE = product_attention(
            *tensors, scale=scale, enable_gqa=groups > 1, dropout=partial(dropout, p=lost)
        )
    return mixed_RHTE.transpose(1, 2).contiguous(), None


def takes_groups(
    query_RHTE: Tensor, key_RHTE: Tensor, value_RHTE: Tensor, attention_mask: Tensor | None
) -> bool:
    """Ask torch whether a fused kernel takes fewer heads of keys and values than of queries."""
    if query_RHTE.shape[1] == key_RHTE.shape[1]:
        return False
    chosen = torch._fused_sdp_choice(
        query_RHTE, key_RHTE, value_RHTE, attention_mask, enable_gqa=True
    )
    return bool(chosen != SDPBackend.MATH.value)


def product_attention(
    query_RHTE: Tensor,
    key_RHTE: Tensor,
    value_RHTE: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout: Callable[[Tensor], Tensor],
) -> Tensor:
    """Compute torch's `scaled_dot_product_attention` plainly, with `dropout` of its weights."""
    if enable_gqa:
        groups = query_RHTE.shape[1] // key_RHTE.shape[1]
        key_RHTE, value_RHTE = repeat_kv(key_RHTE, groups), repeat_kv(value_RHTE, groups)
    scale = query_RHTE.shape[-1] ** -0.5 if scale is None else scale
    # Contiguous, in the gradient too: a product's bits depend on its factors' strides.
    query_RHTE = (query_RHTE * scale).contiguous()
    scores_RHTT = query_RHTE @ key_RHTE.contiguous().transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones_like(scores_RHTT[0, 0], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            unseen = torch.zeros_like(attn_mask, dtype=query_RHTE.dtype)
            attn_mask = unseen.masked_fill(~attn_mask, float("-inf"))
        scores_RHTT = scores_RHTT + attn_mask
    mixed_RHTE = dropout(scores_RHTT.softmax(-1)) @ value_RHTE.contiguous()
    if mixed_RHTE.requires_grad:
        mixed_RHTE.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return mixed_RHTE
