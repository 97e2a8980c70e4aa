"""Compute log-probabilities of masked tokens with a masked language model.

Each distinct masked copy of a sentence is one row, sorted by length; the model's own head sees the
masked places only. Shapes: R copies, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

from raybias.config import Backbone
from raybias.engine.backbone import (
    LoadedBackbone,
    is_encoder,
    load_backbone,
    load_pretrained,
)
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.packing import Batch, PackedSequence, Placed, Row, padded
from raybias.engine.scoring.causal import Values, log_probs_of
from raybias.engine.self_check import fastest, read_samples
from raybias.errors import ModelError

#: From a model's inputs and places to the logits [N, V] there.
MaskedReader = Callable[[dict[str, Tensor], tuple[Tensor, Tensor]], Tensor]


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
        cure="use a checkpoint that was saved with its masked-language-model head",
    )
    execution.begin(model)
    return LoadedBackbone(replace(encoder, context=_context(encoder, model)), model, execution)


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
    """Score masked tokens with one masked language model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.mask = int(backbone.tokenizer.mask_token_id)
        self.pad = int(backbone.tokenizer.pad_token_id or 0)
        self.read = self._fastest()
        self.batcher = backbone.batcher()

    def prepare(self, requests: Sequence[Sequence[tuple[Row, int]]]) -> Callable[[], list[Values]]:
        """Mask rows, without a device; return the call that scores their tokens.

        `requests`: groups of token ids, with the specials around them, each with a place to mask.
        The call returns, by group, the natural log-probability of each row's token at its place,
        and raises WorkFailed where a single row does not fit the device's memory.
        """
        flat = [each for group in requests for each in group]
        asked: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for a, (row, place) in enumerate(flat):
            copy = (place, (*row[:place], self.mask, *row[place + 1 :]))
            asked.setdefault(copy, []).append(a)
        numbers, device = list(asked.values()), self.backbone.device
        placed = []
        for n, (place, row) in enumerate(asked):
            tokens, ends = np.array(row, np.int64), np.full(len(row), len(row))
            sequence = PackedSequence(tokens, np.arange(len(row)), ends, (n,), (place,))
            placed.append(Placed(0, sequence))

        def work(batch: Batch) -> tuple[list[int], Tensor]:
            by_row = [numbers[n] for _, n in batch.rows]
            mine = [a for each in by_row for a in each]
            with torch.no_grad():
                logits_RV = self.read(*self._inputs(batch))
                of_A = to_device([r for r, each in enumerate(by_row) for _ in each], device)
                tokens_A = to_device([flat[a][0][flat[a][1]] for a in mine], device)
                return mine, log_probs_of(logits_RV, of_A, tokens_A)

        def read() -> list[Values]:
            log_probs_A = np.empty(len(flat), np.float32)
            # Copying waits for the device, so it comes after all batches.
            for _, (mine, values_A) in [*self.batcher.each(work, placed)]:
                log_probs_A[mine] = values_A.cpu().numpy()
            return np.split(log_probs_A, np.cumsum([*map(len, requests)]))[:-1]

        return read

    def _inputs(self, batch: Batch) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        device = self.backbone.device
        tokens_RT, mask_RT = padded(batch, self.pad)
        inputs = {
            "input_ids": to_device(tokens_RT, device),
            "attention_mask": to_device(mask_RT, device).long(),
        }
        return inputs, (to_device(batch.at_R, device), to_device(batch.at_T, device))

    def _fastest(self) -> MaskedReader:
        """Choose the fastest reader that gives the logits of the model's head on all places."""
        model = self.backbone.model

        def whole(inputs: dict[str, Tensor], at: tuple[Tensor, Tensor]) -> Tensor:
            logits_NV: Tensor = model(**inputs).logits[at]
            return logits_NV

        def sample(read: MaskedReader) -> Tensor:
            return read_samples(
                lambda batch: read(*self._inputs(batch)), model, packs=False, alone=False
            )

        places = PlacesReader(model)
        ways: list[MaskedReader] = [places]
        chosen = fastest(ways, whole, sample, dtype=model.dtype)
        if chosen is not places:
            places.hook.remove()
        best, note = chosen is places, self.backbone.execution.note
        note("masked tokens", packs=False, part=best, fastest=best)
        return chosen


class PlacesReader:
    """Compute a model's logits at some places, its head applied to nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._wanted = threading.local()
        self.hook = model.base_model.register_forward_hook(self._keep)

    def __call__(self, inputs: dict[str, Tensor], at: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the logits [N, V] at the places `at`."""
        self._wanted.at = at
        try:
            logits_NV: Tensor = self.model(**inputs).logits[0]
        finally:
            del self._wanted.at
        return logits_NV

    def _keep(self, _module: torch.nn.Module, _given: Any, output: Any) -> Any:
        if hasattr(self._wanted, "at"):
            output.last_hidden_state = output.last_hidden_state[self._wanted.at][None]
        return output


def _context(encoder: TextEncoder, model: PreTrainedModel) -> int | None:
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = (encoder.context, positions and positions - max(offsets, default=0))
    return min((limit for limit in limits if limit), default=None)
