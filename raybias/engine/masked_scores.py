"""Score masked tokens: each distinct masked copy of a sentence is one row, sorted by length.

The model's own head sees the masked positions only, unless the model computes otherwise; it is then
called as a whole.
Shapes: R rows, T tokens, A requested tokens, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from raybias.config import Backbone
from raybias.engine.backbone import LoadedBackbone, is_encoder, load_backbone, load_pretrained
from raybias.engine.causal_logits import log_probs_of
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.packing import FULL, MAX_TOKENS, Batch, Placed, Row, padded, single_row, stack
from raybias.engine.self_check import first_matching, sample_tokens
from raybias.engine.token_scores import Values
from raybias.engine.weights_fit import MASKED
from raybias.errors import ModelError


def load_masked(spec: Backbone, execution: Execution = ON_CPU) -> LoadedBackbone:
    """Load, freeze and place a masked language model.

    Its context is what its positions hold: RoBERTa's begin after the padding token's id.
    Raises ModelError: as `load_pretrained` says, or a tokenizer that cannot mask.
    """
    encoder = load_tokenizer(spec)
    check_tokenizer(encoder)
    model, _ = load_pretrained(
        AutoModelForMaskedLM,
        spec,
        execution,
        cure=MASKED,
    )
    execution.begin(model)
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = (encoder.context, positions and positions - max(offsets, default=0))
    context = min((limit for limit in limits if limit), default=None)
    return LoadedBackbone(replace(encoder, context=context), model, execution)


def scored_loader(spec: Backbone) -> Callable[..., LoadedBackbone]:
    """Choose what loads a model whose tokens are scored: `load_masked` or `load_backbone`."""
    return load_masked if is_encoder(spec) else load_backbone


def check_tokenizer(encoder: TextEncoder) -> None:
    """Refuse a tokenizer that cannot mask, or puts nothing around a sentence, with a ModelError."""
    tokenizer = encoder.tokenizer
    if tokenizer.mask_token_id is None:
        raise ModelError(
            "the tokenizer has no mask token, which masked scores need",
            where=encoder.spec.id,
            cure="use a masked language model, or a causal score",
        )
    ids = tokenizer("")["input_ids"]
    if len(ids) < 2:
        raise ModelError(
            f"the tokenizer puts {len(ids)} special tokens around a sentence, and masked scores "
            "leave out the first token and the last",
            where=encoder.spec.id,
            cure="give it the post-processor that the model was trained with",
        )


class MaskedScorer:
    """Score masked tokens with one model.

    part: whether the model's head is applied to the masked positions only.
    pads: whether rows of different lengths share a batch; not if padding changes a row's values.
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.mask = int(backbone.tokenizer.mask_token_id)
        self.pad = int(backbone.tokenizer.pad_token_id or 0)
        self.batcher = backbone.batcher()

        model = backbone.model
        self._positions = threading.local()
        hook = model.base_model.register_forward_hook(self._keep_positions)
        # Whether the head sees part of the positions, and whether rows are padded.
        modes = [(True, True), (False, True), (True, False)]
        plain = (False, False)
        self.part, self.pads = first_matching(modes, plain, self._sample, model)
        if not self.part:
            hook.remove()
        fastest = self.part and self.pads
        backbone.execution.note("masked tokens", packs=False, part=self.part, fastest=fastest)

    def prepare(self, requests: Sequence[Sequence[tuple[Row, int]]]) -> Callable[[], list[Values]]:
        """Mask rows on the host; return the call that scores their tokens.

        requests: groups of token ids, with the specials around them, each with a position to mask.

        The call returns, by group, the natural log-probability of each row's token at its position.
        It raises WorkFailed if a single row does not fit the device's memory.
        """
        flat = [request for group in requests for request in group]
        requests_by_copy: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for a, (row, position) in enumerate(flat):
            masked = (*row[:position], self.mask, *row[position + 1 :])
            requests_by_copy.setdefault((position, masked), []).append(a)
        requests_by_row = list(requests_by_copy.values())
        placed = [
            Placed(0, single_row(n, row, read_at=position))
            for n, (position, row) in enumerate(requests_by_copy)
        ]
        device = self.backbone.device

        def work(batch: Batch) -> tuple[list[int], Tensor]:
            by_row = [requests_by_row[n] for _, n in batch.rows]
            mine = [a for numbers in by_row for a in numbers]
            row_A = [r for r, numbers in enumerate(by_row) for _ in numbers]
            tokens_A = [flat[a][0][flat[a][1]] for a in mine]
            with torch.no_grad():
                logits_RV = self.logits(batch, part=self.part)
                log_probs_A = log_probs_of(
                    logits_RV, to_device(row_A, device), to_device(tokens_A, device)
                )
            return mine, log_probs_A

        def score() -> list[Values]:
            log_probs_A = np.empty(len(flat), np.float32)
            full = FULL if self.pads else 1.0
            # Copying waits for the device, so it comes after all batches.
            for _, (mine, values_A) in [*self.batcher.each(work, placed, full=full)]:
                log_probs_A[mine] = values_A.cpu().numpy()
            ends = np.cumsum([len(group) for group in requests])
            return np.split(log_probs_A, ends)[:-1]

        return score

    def logits(self, batch: Batch, *, part: bool) -> Tensor:
        """Compute the logits [R, V] at the read-out of each row."""
        tokens_RT, mask_RT, at_R, at_T = (
            to_device(values, self.backbone.device)
            for values in (*padded(batch, self.pad), batch.at_R, batch.at_T)
        )
        self._positions.at = (at_R, at_T) if part else None
        try:
            output = self.backbone.model(input_ids=tokens_RT, attention_mask=mask_RT.long())
        finally:
            self._positions.at = None
        logits: Tensor = output.logits
        return logits[0] if part else logits[at_R, at_T]

    def _keep_positions(self, _module: torch.nn.Module, _args: Any, output: Any) -> Any:
        if (at := getattr(self._positions, "at", None)) is not None:
            output.last_hidden_state = output.last_hidden_state[at][None]
        return output

    def _sample(self, mode: tuple[bool, bool]) -> Tensor:
        """Compute log-probabilities [N, V] in the middle of a few rows.

        Without a part and without padding they are the model's own, row by row without a mask.
        """
        part, pads = mode
        model = self.backbone.model
        longest = min(MAX_TOKENS, self.backbone.context or MAX_TOKENS)
        tokens = sample_tokens(model, longest)
        rows = [tokens[:length] for length in (5, 9, longest)]
        if not part and not pads:
            with torch.no_grad():
                own = [model(input_ids=torch.tensor([row], device=model.device)) for row in rows]
            middles = [
                output.logits[0, len(row) // 2] for output, row in zip(own, rows, strict=True)
            ]
            return torch.stack(middles).float().log_softmax(-1)

        placed = [
            Placed(0, single_row(n, row, read_at=len(row) // 2)) for n, row in enumerate(rows)
        ]
        batches = [stack(placed)] if pads else [stack([sequence]) for sequence in placed]
        logits_NV = torch.cat([self.logits(batch, part=part) for batch in batches])
        return logits_NV.float().log_softmax(-1)
