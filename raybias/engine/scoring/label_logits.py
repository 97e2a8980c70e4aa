"""One forward pass over a packed batch, down to the few logits that are needed.

The hidden state is read at each row's last token only and multiplied by the label rows
of the LM head in float32; no [batch, tokens, vocabulary] tensor exists. Both short cuts
(packed rows, label rows) are compared with the model's own forward pass when a backbone
is taken into use; a model that reads masks otherwise, or does more after its LM head,
is read the plain way instead.

Shapes: R sequences, P prompt vectors, T tokens, W input width, H hidden, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.packing import MAX_TOKENS, Batch, Placed, pack, stack, tree_mask

#: How far a short cut may be from the model's own logits, relative to their size.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class LabelRows:
    """The rows of the LM head that belong to the labels, in float32."""

    weight_LH: Tensor
    bias_L: Tensor | None


@dataclass(frozen=True)
class LabelReader:
    """Reads label logits from a backbone.

    Attributes
    ----------
    packs: whether rows share sequences (see `packing`); otherwise each row is a sequence
        of its own under an ordinary padding mask.
    label_rows: what hidden states are multiplied by; None runs the model's whole head.
    """

    backbone: LoadedBackbone
    label_ids: tuple[int, ...]
    packs: bool
    label_rows: LabelRows | None

    @property
    def max_tokens(self) -> int:
        """The longest packed sequence; 0 keeps every row by itself."""
        return MAX_TOKENS if self.packs else 0

    def logits(self, batch: Batch, prompts_SPW: Tensor) -> Tensor:
        """Label logits [N, L] float32 of a batch's rows, in the order of `batch.rows`.

        `prompts_SPW` are the prompts that `batch.prompts` counts; P may be 0. The result
        is differentiable with respect to them.
        """
        device = self.backbone.device
        text_RTW = self.backbone.embed(batch.tokens_RT.to(device))
        prompts_RPW = prompts_SPW[torch.tensor(batch.prompts, device=device)]
        inputs_RTW = torch.cat([prompts_RPW.to(text_RTW.dtype), text_RTW], dim=1)
        masks = attention_inputs(
            batch, packs=self.packs, prompt_length=prompts_SPW.shape[1], device=device
        )
        at = batch.at_R.to(device), batch.at_T.to(device) + prompts_SPW.shape[1]
        model = self.backbone.model
        if self.label_rows is None:
            whole_RTV: Tensor = model(inputs_embeds=inputs_RTW, use_cache=False, **masks).logits
            return whole_RTV[at][:, list(self.label_ids)].float()
        output = model.base_model(inputs_embeds=inputs_RTW, use_cache=False, **masks)
        hidden_NH = output.last_hidden_state[at].float()
        rows = self.label_rows
        return torch.nn.functional.linear(hidden_NH, rows.weight_LH, rows.bias_L)


def attention_inputs(
    batch: Batch, *, packs: bool, prompt_length: int, device: torch.device
) -> dict[str, Tensor]:
    """The mask, and the positions of packed rows, that a model reads a batch with.

    `packs` says whether rows share sequences behind the prompt.
    """
    count, width = batch.tokens_RT.shape
    total = prompt_length + width
    place_T = torch.arange(total, device=device)
    if not packs:
        lengths_R = batch.at_T.to(device) + 1 + prompt_length
        return {"attention_mask": (place_T < lengths_R[:, None]).long()}
    ends_RT = torch.nn.functional.pad(
        batch.ends_RT.to(device) + prompt_length, (prompt_length, 0), value=total
    )
    depths_RT = place_T.expand(count, total).clone()
    depths_RT[:, prompt_length:] = batch.depths_RT.to(device) + prompt_length
    return {"attention_mask": tree_mask(ends_RT)[:, None], "position_ids": depths_RT}


def make_reader(backbone: LoadedBackbone, label_ids: Sequence[int]) -> LabelReader:
    """The fastest reader whose logits are those of the model's own forward pass."""
    ids = tuple(label_ids)
    label_rows = _label_rows(backbone, ids)
    own = LabelReader(backbone, ids, packs=False, label_rows=None)
    expected_NL = _sample_logits(own, together=False)
    for packs in (True, False):
        for rows in (label_rows, None):
            candidate = LabelReader(backbone, ids, packs=packs, label_rows=rows)
            try:
                found_NL = _sample_logits(candidate, together=True)
            except (RuntimeError, ValueError, TypeError, IndexError):
                # The architecture does not take a mask or positions of this shape.
                continue
            scale = max(1.0, float(expected_NL.abs().max()))
            tolerance = TOLERANCE[backbone.model.dtype] * scale
            if float((found_NL - expected_NL).abs().max()) <= tolerance:
                return candidate
    return own


def _sample_logits(reader: LabelReader, *, together: bool) -> Tensor:
    """Logits of a few rows that share openings, behind two prompt vectors."""
    backbone = reader.backbone
    vocabulary = backbone.model.config.vocab_size
    token = [(7919 * n) % vocabulary for n in range(1, 12)]
    rows = [token[:5], token[:3] + token[6:9], token[:1] + token[9:11]]
    with torch.no_grad():
        prompt_1PW = backbone.embed(torch.tensor([token[4:6]], device=backbone.device)).float()
        keyed = [Placed(0, 0, each) for each in pack(rows, max_tokens=reader.max_tokens)]
        stacks = [stack(keyed)] if together else [stack([each]) for each in keyed]
        found = {
            row: logits_L
            for batch in stacks
            for (_, row), logits_L in zip(batch.rows, reader.logits(batch, prompt_1PW), strict=True)
        }
    return torch.stack([found[n] for n in range(len(rows))])


def _label_rows(backbone: LoadedBackbone, label_ids: tuple[int, ...]) -> LabelRows:
    head = backbone.model.get_output_embeddings()
    with gathered(head.weight):
        weight_LH = head.weight.detach()[list(label_ids)].float()
    bias = getattr(head, "bias", None)
    with gathered(bias):
        bias_L = None if bias is None else bias.detach()[list(label_ids)].float()
    return LabelRows(weight_LH, bias_L)


def gathered(parameter: Tensor | None) -> Any:
    """A context in which a parameter that ZeRO-3 has sharded is whole on every rank."""
    status = getattr(parameter, "ds_status", None)
    if status is None or status.name == "AVAILABLE":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])
