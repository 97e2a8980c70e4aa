"""Compute log-probabilities of masked tokens with a masked language model.

Every masked copy of every sentence is one row; equal copies are computed once, and all of
them are walked in one order of length. The model's own head sees the masked places only. It
knows nothing of pairs or of which tokens a score masks.

Shapes: R copies, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias.config import Backbone
from raybias.engine.backbone import (
    LoadedBackbone,
    is_encoder,
    load_backbone,
    load_pretrained,
)
from raybias.engine.context import ON_CPU, Execution, Way
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.packing import Batch, PackedSequence, Placed, Row, padded
from raybias.engine.scoring.causal import log_probs_of
from raybias.engine.self_check import fastest, in_words, read_samples
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: From a model's inputs and places to the logits [N, V] there.
MaskedReader = Callable[[dict[str, Tensor], tuple[Tensor, Tensor]], Tensor]


def load_masked(spec: Backbone, execution: Execution = ON_CPU) -> LoadedBackbone:
    """Load, freeze and place a masked language model.

    Its context is what its positions hold: RoBERTa's begin behind the padding token's id.

    Raises
    ------
    ModelError: not found, no safetensors weights, no mask token, or a checkpoint that lacks
        weights of a masked language model, such as its head.
    """
    from transformers import AutoModelForMaskedLM

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
    """Refuse a tokenizer that cannot mask, or that puts nothing around a sentence.

    Raises
    ------
    ModelError: says which.
    """
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
        self.batcher = backbone.batcher(side_by_side=True)

    def prepare(self, requests: Sequence[tuple[Row, int]]) -> Callable[[], list[float]]:
        """Mask rows, which needs no device; return what scores a token of each.

        Parameters
        ----------
        requests: token ids with the specials around them, and the place of the masked token.

        Returns
        -------
        When called, the natural log-probability of each row's token at its place, with the mask
        there. It raises WorkFailed where a single row does not fit the device's memory.
        """
        asked: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for a, (row, place) in enumerate(requests):
            copy = (place, (*row[:place], self.mask, *row[place + 1 :]))
            asked.setdefault(copy, []).append(a)
        numbers = list(asked.values())
        placed = [Placed(n, 0, _sequence(row, place)) for n, (place, row) in enumerate(asked)]

        def work(batch: Batch) -> tuple[list[int], Tensor]:
            by_row = [numbers[n] for n, _ in batch.rows]
            mine = [a for each in by_row for a in each]
            of_A = [r for r, each in enumerate(by_row) for _ in each]
            tokens_A = [requests[a][0][requests[a][1]] for a in mine]
            return mine, self._read(batch, torch.tensor(of_A), torch.tensor(tokens_A))

        def read() -> list[float]:
            log_probs_A = np.empty(len(requests), np.float32)
            # A device is asked once it has all batches, since that is to wait for it.
            for _, (mine, values_A) in [*self.batcher.each(work, placed)]:
                log_probs_A[mine] = values_A.cpu().numpy()
            return list(map(float, log_probs_A))

        return read

    def _read(self, batch: Batch, of_A: Tensor, tokens_A: Tensor) -> Tensor:
        device = self.backbone.device
        with torch.no_grad():
            logits_RV = self.read(*self._inputs(batch))
            return log_probs_of(logits_RV, to_device(of_A, device), to_device(tokens_A, device))

    def _inputs(self, batch: Batch) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        """Return what the model is given of a batch of single rows, and the places to read."""
        device = self.backbone.device
        tokens_RT, mask_RT = padded(batch, self.pad)
        inputs = {
            "input_ids": to_device(tokens_RT, device),
            "attention_mask": to_device(mask_RT, device).long(),
        }
        return inputs, (to_device(batch.at_R, device), to_device(batch.at_T, device))

    def _fastest(self) -> MaskedReader:
        """Choose the fastest reader that gives what the model's head gives on all places."""
        model, execution = self.backbone.model, self.backbone.execution

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
            places.remove()
        how = in_words(packs=False, part=chosen is places)
        execution.ways["masked tokens"] = Way(how, chosen is places)
        return chosen


class PlacesReader:
    """Compute a model's logits at some places, its head applied to nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._wanted = threading.local()
        self._hook = model.base_model.register_forward_hook(self._keep)

    def __call__(self, inputs: dict[str, Tensor], at: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the logits [N, V] at the places `at`."""
        self._wanted.at = at
        try:
            logits_NV: Tensor = self.model(**inputs).logits[0]
        finally:
            del self._wanted.at
        return logits_NV

    def remove(self) -> None:
        """Leave the model as it was."""
        self._hook.remove()

    def _keep(self, _module: torch.nn.Module, _given: Any, output: Any) -> Any:
        if hasattr(self._wanted, "at"):
            output.last_hidden_state = output.last_hidden_state[self._wanted.at][None]
        return output


def _sequence(row: Row, place: int) -> PackedSequence:
    """Make a sequence of one masked copy, read at its masked place."""
    depths, ends = _flat(len(row))
    return PackedSequence(np.array(row, np.int64), depths, ends, (0,), (place,))


@cache
def _flat(length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(length), np.full(length, length)


def _context(encoder: TextEncoder, model: PreTrainedModel) -> int | None:
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = (encoder.context, positions and positions - max(offsets, default=0))
    return min((limit for limit in limits if limit), default=None)
