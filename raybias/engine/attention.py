"""Replace attention: a fast gradient on CPUs, and no repeated keys on GPUs; build masks of batches.

On a CPU with gradients the plain product takes a half (264 tokens) to a sixth (72 tokens) of the
time of torch's fused kernel in bfloat16. On a GPU transformers repeats the keys and values of
grouped heads under any mask, as packed rows have, though a fused kernel may take them as they are.
Shapes: R sequences, N places, H heads, T tokens, E width of a head, P prompt vectors, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import dropout, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
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


def attention_window(config: Any) -> float:
    """Return the longest row that every layer sees whole: our masks replace sliding windows."""
    text = config.get_text_config()
    sizes = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((size for size in sizes if size is not None), default=math.inf)


def attention_inputs(
    batch: Batch, *, packs: bool, prompt_length: int, device: torch.device
) -> dict[str, Tensor]:
    """Build a batch's mask, and positions where rows share sequences (`packs`) after a prompt."""
    count, width = batch.tokens_RT.shape
    total = prompt_length + width
    place_T = torch.arange(total, device=device)
    if not packs:
        lengths_R = to_device(batch.at_T, device) + 1 + prompt_length
        return {"attention_mask": (place_T < lengths_R[:, None]).long()}
    ends_RT = torch.nn.functional.pad(
        to_device(batch.ends_RT, device) + prompt_length, (prompt_length, 0), value=total
    )
    depths_RT = place_T.expand(count, total).clone()
    depths_RT[:, prompt_length:] = to_device(batch.depths_RT, device) + prompt_length
    return {"attention_mask": tree_mask(ends_RT)[:, None], "position_ids": depths_RT}


def states_at(
    model: PreTrainedModel,
    batch: Batch,
    at: tuple[Tensor, Tensor],
    *,
    packs: bool,
    part: bool = True,
    **given: Tensor,
) -> Tensor:
    """Compute the last hidden states [N, width] of a batch at places.

    `at`: each place's sequence [N] and its place there [N]; `part`: False computes the whole
    model's logits [N, V] instead; `given`: `input_ids` [R, T], or `inputs_embeds` [R, P + T,
    width].
    """
    (inputs,) = given.values()
    device, length = inputs.device, inputs.shape[1] - batch.tokens_RT.shape[1]
    given |= attention_inputs(batch, packs=packs, prompt_length=length, device=device)
    where = to_device(at[0], device), to_device(at[1], device) + length
    if not part:
        logits_NV: Tensor = model(**given, use_cache=False).logits[where]
        return logits_NV
    hidden_NH: Tensor = model.base_model(**given, use_cache=False).last_hidden_state[where]
    return hidden_NH


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
