"""Call a model: fast attention, hidden states at places, and whether short cuts keep its values.

On a CPU with gradients the plain product takes a half (264 tokens) to a sixth (72 tokens) of the
time of torch's fused kernel in bfloat16. On a GPU transformers repeats the keys and values of
grouped heads under any mask, as packed rows have, though a fused kernel may take them as they are.
Short cuts (packed rows under a tree mask, the LM head on a few places only) are tried on a few
tokens of each model and compared with its own forward pass, not listed by architecture.
Shapes: R sequences, N places, H heads, T tokens, E width of a head, P prompt vectors, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import dropout, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raybias.engine.devices import to_device
from raybias.engine.packing import Batch, Placed, pack, stack, tree_mask

_NAME: Final = "raybias"
_GROUPED: Final = "raybias_grouped"
#: How far a short cut may be from the model's own values, relative to their size.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
Way = TypeVar("Way")


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

    `at`: each place's sequence [N] and its place there [N]; `packs`: whether rows share sequences;
    `part`: False computes the whole model's logits [N, V] instead; `given`: `input_ids` [R, T], or
    `inputs_embeds` [R, P + T, width].
    """
    (inputs,) = given.values()
    device, (count, total) = inputs.device, inputs.shape[:2]
    length = total - batch.tokens_RT.shape[1]
    place_T = torch.arange(total, device=device)
    if packs:
        ends_RT = torch.nn.functional.pad(
            to_device(batch.ends_RT, device) + length, (length, 0), value=total
        )
        depths_RT = place_T.expand(count, total).clone()
        depths_RT[:, length:] = to_device(batch.depths_RT, device) + length
        given |= {"attention_mask": tree_mask(ends_RT)[:, None], "position_ids": depths_RT}
    else:
        lengths_R = to_device(batch.at_T, device) + 1 + length
        given["attention_mask"] = (place_T < lengths_R[:, None]).long()
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


def sample_tokens(model: Any, count: int) -> list[int]:
    """Return token ids from all over a model's vocabulary."""
    return [(7919 * n) % model.config.vocab_size for n in range(1, count + 1)]


def read_samples(
    read: Callable[[Batch], Tensor], model: Any, *, packs: bool, alone: bool
) -> Tensor:
    """Compute the values [N, ...] of a few rows, two of which share tokens, in their order.

    `packs`: whether rows share sequences; `alone`: otherwise, whether they are computed one by one.
    """
    token = sample_tokens(model, 11)
    rows = [token[:5], token[:3] + token[6:9], token[9:11]]
    placed = [Placed(0, each) for each in pack(rows, max_tokens=sum(map(len, rows)) * packs)]
    batches = [stack([each]) for each in placed] if alone and not packs else [stack(placed)]
    values = torch.cat([read(batch) for batch in batches])
    numbers = torch.tensor([row for batch in batches for _, row in batch.rows])
    return values[to_device(numbers.argsort(), values.device)]


def distance(values: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference, relative to the expected values' size or to 1."""
    gap = float((values.float() - expected.float()).abs().max())
    return gap / max(1.0, float(expected.abs().max()))


def fastest(
    ways: Iterable[Way], plain: Way, sample: Callable[[Way], Tensor], *, dtype: torch.dtype
) -> Way:
    """Return the first of `ways` whose `sample` agrees with the plain way's, or the plain way."""
    tolerance = TOLERANCE[dtype]
    with torch.no_grad():
        expected = sample(plain)
        for way in ways:
            # An architecture may take other inputs, or keep its hidden states elsewhere.
            with suppress(RuntimeError, ValueError, TypeError, AttributeError, LookupError):
                values = sample(way)
                if values.shape == expected.shape and distance(values, expected) <= tolerance:
                    return way
    return plain
