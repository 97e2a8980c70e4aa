"""Compute label logits of many token rows, with or without soft prompts.

Rows are packed, batched under a token budget and read in order.

Shapes: S prompts, P prompt vectors, D input width, N rows, L labels.

A forward pass over a packed batch goes down to the few logits that are needed: the hidden state is
read at each row's last token only and multiplied by the label rows
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
from typing import Any

import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.context import Way
from raybias.engine.devices import to_device
from raybias.engine.packing import (
    MAX_TOKENS,
    Batch,
    PackedSequence,
    Placed,
    Row,
    pack,
    stack,
    tree_mask,
)
from raybias.engine.self_check import fastest, in_words, sample_tokens


@dataclass(frozen=True)
class LabelRows:
    """The rows of the LM head that belong to the labels, in float32."""

    weight_LH: Tensor
    bias_L: Tensor | None


@dataclass(frozen=True)
class LabelReader:
    """Compute label logits with a backbone.

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
        """Compute the label logits [N, L] float32 of a batch's rows, in the order of `batch.rows`.

        `prompts_SPW` are the prompts that `batch.adapters` numbers; P may be 0. The result
        is differentiable with respect to them.
        """
        device = self.backbone.device
        text_RTW = self.backbone.embed(to_device(batch.tokens_RT, device))
        prompts_RPW = prompts_SPW[to_device(batch.adapters, device)]
        inputs_RTW = torch.cat([prompts_RPW.to(text_RTW.dtype), text_RTW], dim=1)
        masks = attention_inputs(
            batch, packs=self.packs, prompt_length=prompts_SPW.shape[1], device=device
        )
        at_R, at_T = to_device(batch.at_R, device), to_device(batch.at_T, device)
        at = at_R, at_T + prompts_SPW.shape[1]
        model = self.backbone.model
        if self.label_rows is None:
            whole_RTV: Tensor = model(inputs_embeds=inputs_RTW, use_cache=False, **masks).logits
            return whole_RTV[at][:, to_device(self.label_ids, device)].float()
        output = model.base_model(inputs_embeds=inputs_RTW, use_cache=False, **masks)
        hidden_NH = output.last_hidden_state[at].float()
        # Not as a matrix product, whose bits depend on how many rows it has.
        logits_NL: Tensor = (hidden_NH[:, None] * self.label_rows.weight_LH).sum(-1)
        bias_L = self.label_rows.bias_L
        return logits_NL if bias_L is None else logits_NL + bias_L


def attention_inputs(
    batch: Batch, *, packs: bool, prompt_length: int, device: torch.device
) -> dict[str, Tensor]:
    """Build the attention mask of a batch, and the positions of packed rows.

    `packs` says whether rows share sequences behind the prompt.
    """
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


def make_reader(backbone: LoadedBackbone, label_ids: Sequence[int]) -> LabelReader:
    """Make the fastest reader whose logits are those of the model's own forward pass."""
    ids = tuple(label_ids)
    label_rows = _label_rows(backbone, ids)
    ways = [
        LabelReader(backbone, ids, packs=packs, label_rows=rows)
        for packs in (True, False)
        for rows in (label_rows, None)
    ]
    chosen = fastest(ways[:3], ways[3], _sample_logits, dtype=backbone.model.dtype)
    how = in_words(packs=chosen.packs, part=chosen.label_rows is not None)
    backbone.execution.ways["labels"] = Way(how, chosen is ways[0])
    return chosen


def _sample_logits(reader: LabelReader) -> Tensor:
    """Read a few rows that share tokens, behind two prompt vectors."""
    backbone = reader.backbone
    token = sample_tokens(backbone.model, 11)
    rows = [token[:5], token[:3] + token[6:9], token[:1] + token[9:11]]
    prompt_1PW = backbone.embed(torch.tensor([token[4:6]], device=backbone.device)).float()
    placed = [Placed(0, 0, each) for each in pack(rows, max_tokens=reader.max_tokens)]
    # The plain way reads each row alone, without any padding.
    plain = not reader.packs and reader.label_rows is None
    logits: dict[int, Tensor] = {}
    for batch in [stack([each]) for each in placed] if plain else [stack(placed)]:
        for (_, row), logits_L in zip(batch.rows, reader.logits(batch, prompt_1PW), strict=True):
            logits[row] = logits_L
    return torch.stack([logits[n] for n in range(len(rows))])


def _label_rows(backbone: LoadedBackbone, label_ids: tuple[int, ...]) -> LabelRows:
    head = backbone.model.get_output_embeddings()
    with gathered(head.weight):
        weight_LH = head.weight.detach()[list(label_ids)].float()
    bias = getattr(head, "bias", None)
    with gathered(bias):
        bias_L = None if bias is None else bias.detach()[list(label_ids)].float()
    return LabelRows(weight_LH, bias_L)


def gathered(parameter: Tensor | None) -> Any:
    """Return a context in which a parameter that ZeRO-3 has sharded is whole on every rank."""
    status = getattr(parameter, "ds_status", None)
    if status is None or status.name == "AVAILABLE":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


class LabelScorer:
    """Compute label logits of token rows with one backbone.

    Parameters
    ----------
    label_ids: the verbalizer's token ids, in label order.
    """

    def __init__(self, backbone: LoadedBackbone, label_ids: Sequence[int]) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.batcher = backbone.batcher(side_by_side=True)
        self.reader = make_reader(backbone, label_ids)

    def pack(self, rows: Sequence[Row]) -> list[PackedSequence]:
        """Pack rows into the sequences that this backbone reads."""
        return pack(rows, max_tokens=self.reader.max_tokens)

    def score(
        self,
        rows: Sequence[Row],
        *,
        prompts_SPD: Tensor | None = None,
        prompt_of_row: Sequence[int] | None = None,
    ) -> Tensor:
        """Compute the label logits [N, L], float32 on the CPU, in the order of `rows`.

        Parameters
        ----------
        rows: token ids.
        prompts_SPD: soft prompts, or None for none.
        prompt_of_row: which prompt precedes each row; the first by default.

        Raises
        ------
        WorkFailed: a single sequence does not fit the device's memory.
        """
        if prompts_SPD is None:
            prompts_SPD = torch.empty(1, 0, self.backbone.width)
        adapters = prompt_of_row or [0] * len(rows)
        members = [[n for n, s in enumerate(adapters) if s == p] for p in range(len(prompts_SPD))]
        prompts_SPD = to_device(prompts_SPD, self.backbone.device)
        each = self.batcher.logits(
            lambda batch: self.reader.logits(batch, prompts_SPD),
            [self.pack([rows[n] for n in numbers]) for numbers in members],
            labels=len(self.label_ids),
            prompt_length=prompts_SPD.shape[1],
        )
        logits_NL = torch.zeros(len(rows), len(self.label_ids))
        for numbers, found_NL in zip(members, each, strict=True):
            logits_NL[numbers] = found_NL
        return logits_NL
