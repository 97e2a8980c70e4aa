"""Compute a causal model's logits at some positions, by the fastest way that has its own values.

Labels take their rows of the LM head alone, in float32, and tokens a few positions at a time, so no
[batch, tokens, vocabulary] tensor exists. A model whose own forward pass disagrees with one of
these fast ways is called without it. Rows that are longer than the compared ones get the model's
own mask.
Shapes: R sequences, T tokens, S prompts of P vectors, W input width, N positions, A requested
tokens, H hidden, L labels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from raybias.engine.attention import states_at
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.devices import out_of_memory, to_device
from raybias.engine.model_shape import no_soft_prompts
from raybias.engine.output_head import LabelRows, OutputHead, read_output_head
from raybias.engine.packing import (
    MAX_TOKENS,
    Batch,
    PackedSequence,
    Placed,
    Row,
    pack,
    single_rows,
    stack,
)
from raybias.engine.self_check import (
    attention_window,
    crossing_lengths,
    first_matching,
    sample_tokens,
)
from raybias.errors import ModelError

#: Positions whose logits over the vocabulary exist at one time.
CHUNK: Final = 256


#: Tokens of the longest row with which a model is compared beyond its attention window.
_LONGEST_CHECK: Final = 512


#: Prompt vectors before the rows of a check, and tokens whose log-probabilities are compared.
_CHECK_VECTORS: Final = 2


_CHECK_TOKENS: Final = 32


@dataclass(frozen=True)
class CausalLogits:
    """Compute a causal model's logits at some positions of a batch.

    head: the LM head, applied to these positions only; None if the model is called as a whole.
    longest_packed: length in tokens, prompt vectors counted, up to which rows may share sequences
        (see `packing`); 0 if none may.
    """

    backbone: LoadedBackbone
    head: OutputHead | None
    longest_packed: int

    def pack(self, rows: Sequence[Row], *, prompt_length: int = 0) -> list[PackedSequence]:
        """Pack rows, each of which follows `prompt_length` vectors, as this model takes them."""
        longest = self.longest_packed - prompt_length
        return pack(rows, longest=longest) if longest > 0 else single_rows(rows)

    def log_probs(
        self,
        batch: Batch,
        at: tuple[Tensor, Tensor],
        position_index_A: Tensor,
        tokens_A: Tensor,
    ) -> Tensor:
        """Compute natural log-probabilities [A] float32 of tokens after positions of a batch.

        at: sequence [N] of each position, and the position in it [N].
        position_index_A: index in `at` of the position before each token, ascending.
        """
        device = self.backbone.device
        index_A = to_device(position_index_A, device)
        wanted_A = to_device(tokens_A, device)
        if self.head is None:
            return log_probs_of(self.whole_logits(batch, at), index_A, wanted_A)

        hidden_NH = self.hidden(batch, at)
        chunks = []
        for first in range(0, len(hidden_NH), CHUNK):
            begin, end = np.searchsorted(position_index_A.numpy(), [first, first + CHUNK])
            logits_nV = self.head.logits(hidden_NH[first : first + CHUNK])
            chunks.append(log_probs_of(logits_nV, index_A[begin:end] - first, wanted_A[begin:end]))
        return torch.cat(chunks)

    def hidden(
        self, batch: Batch, at: tuple[Tensor, Tensor], prompts_RPW: Tensor | None = None
    ) -> Tensor:
        """Compute last hidden states [N, H] at positions of a batch, after its prompts."""
        inputs = self._inputs(batch, prompts_RPW)
        return states_at(self.backbone.model, batch, at, inputs)

    def whole_logits(
        self, batch: Batch, at: tuple[Tensor, Tensor], prompts_RPW: Tensor | None = None
    ) -> Tensor:
        """Compute the whole model's logits [N, V] at positions of a batch, after its prompts."""
        inputs = self._inputs(batch, prompts_RPW)
        return states_at(self.backbone.model, batch, at, inputs, whole=True)

    def _inputs(self, batch: Batch, prompts_RPW: Tensor | None) -> dict[str, Tensor]:
        tokens_RT = to_device(batch.tokens_RT, self.backbone.device)
        if prompts_RPW is None:
            return {"input_ids": tokens_RT}
        text_RTW = self.backbone.embed(tokens_RT)
        return {"inputs_embeds": torch.cat([prompts_RPW.to(text_RTW.dtype), text_RTW], dim=1)}


@dataclass(frozen=True)
class LabelLogits:
    """Compute the logits of label words after prompts and rows.

    rows: the labels' rows of the LM head; None if the model is called as a whole.
    """

    logits: CausalLogits
    label_ids: tuple[int, ...]
    rows: LabelRows | None

    @classmethod
    def of(cls, logits: CausalLogits, label_ids: Sequence[int]) -> LabelLogits:
        """Copy the labels' rows of the head, if the model has one of its own."""
        rows = None if logits.head is None else LabelRows.of(logits.head, label_ids)
        return cls(logits, tuple(label_ids), rows)

    def __call__(self, batch: Batch, prompts_SPW: Tensor) -> Tensor:
        """Compute label logits [N, L] float32; `batch.adapters` numbers the prompts."""
        prompts_RPW = prompts_SPW[to_device(batch.adapters, self.logits.backbone.device)]
        at = (batch.at_R, batch.at_T)
        if self.rows is not None:
            return self.rows.logits(self.logits.hidden(batch, at, prompts_RPW))
        logits_NV = self.logits.whole_logits(batch, at, prompts_RPW)
        return logits_NV[:, to_device(self.label_ids, logits_NV.device)].float()


def make_causal_logits(
    backbone: LoadedBackbone, purpose: str, *, prompts: bool = False
) -> CausalLogits:
    """Choose the fastest way that has the values of the model's own forward pass.

    purpose: under which the choice is recorded.
    prompts: whether rows follow soft prompts.
    Raises ModelError: a model that is not causal, that cannot take soft prompts, or whose rows
    change with padding.
    """
    model = backbone.model
    head = read_output_head(model, sample_tokens(model, 11))
    longest = int(min(attention_window(model), MAX_TOKENS, backbone.context or MAX_TOKENS))
    heads = [None] if head is None else [head, None]
    modes = [
        CausalLogits(backbone, each, longest_packed)
        for longest_packed in (longest, 0)
        for each in heads
    ]
    check = _Check(backbone, prompts=prompts)
    check.compare_prefixes()
    chosen = first_matching(modes[:-1], modes[-1], check.packed_values, model)
    check.compare_padded_rows(chosen)
    backbone.execution.note(
        purpose,
        packs=chosen.longest_packed > 0,
        part=chosen.head is not None,
        fastest=chosen.longest_packed > 0 and chosen.head is not None,
    )
    return chosen


class _Check:
    """Values of a few rows by a fast way, and by the model's own forward pass, row by row."""

    def __init__(self, backbone: LoadedBackbone, *, prompts: bool) -> None:
        self.backbone = backbone
        self.prompts = prompts
        self.window = attention_window(backbone.model)
        context = backbone.context or _LONGEST_CHECK
        self.longest = min(_LONGEST_CHECK, context - _CHECK_VECTORS)
        self.token = sample_tokens(backbone.model, max(16, self.longest))
        self.scored = self.token[:_CHECK_TOKENS]
        vectors = torch.tensor([self.token[4 : 4 + _CHECK_VECTORS]], device=backbone.device)
        with torch.no_grad():
            self.prompt_1PW = backbone.embed(vectors).float()

    def packed_values(self, way: CausalLogits) -> Tensor:
        """Compute values [N, L + A] of rows that share tokens, one as long as packed rows get.

        Without a head and without packing they are the model's own, row by row without a mask.
        """
        token = self.token
        rows = [token[:5], token[:3] + token[6:9], token[9:11]]
        longest = int(min(self.window, MAX_TOKENS, self.longest)) - _CHECK_VECTORS
        if longest > len(rows[0]):
            rows.append(token[:longest])
        if way.head is None and not way.longest_packed:
            return self.own_values(rows)
        if way.longest_packed:
            sequences = pack(rows, max_tokens=sum(map(len, rows)))
            return self.values(way, [Placed(0, sequence) for sequence in sequences])
        return self.values(way, [Placed(0, sequence) for sequence in single_rows(rows)])

    def compare_prefixes(self) -> None:
        """Refuse a model whose values after a token change with the tokens that follow it."""
        model, device = self.backbone.model, self.backbone.device
        row_1T = torch.tensor([self.token[:12]], device=device)
        length = 7

        def values(whole: bool) -> Tensor:
            input_ids = row_1T if whole else row_1T[:, :length]
            logits_1TV: Tensor = model(input_ids=input_ids, use_cache=False).logits
            return logits_1TV[:, length - 1].float().log_softmax(-1)

        if not first_matching([True], False, values, model):
            raise ModelError(
                "is not a causal language model: what it predicts after a token changes with the"
                " tokens that follow",
                where=self.backbone.spec.id,
                cure="use it as a masked language model, or set is_decoder in its config.json if it"
                " was trained as a causal one",
            )

    def compare_padded_rows(self, way: CausalLogits) -> None:
        """Refuse a model whose rows, within and beyond its window, change with padding."""
        lengths = (3, 8, *crossing_lengths(self.window, self.longest))
        rows = [self.token[-length:] for length in lengths if length <= self.longest]

        def values(padded: bool) -> Tensor:
            if not padded:
                return self.own_values(rows)
            return self.values(way, [Placed(0, sequence) for sequence in single_rows(rows)])

        if not first_matching([True], False, values, self.backbone.model):
            raise ModelError(
                "its log-probabilities of a row change with the padding beside the row",
                where=self.backbone.spec.id,
                cure="choose another model: batches of rows would not be its own values",
            )

    def values(self, way: CausalLogits, placed: Sequence[Placed]) -> Tensor:
        """Compute log-probabilities, and label logits after prompt vectors, in row order.

        Returns [N, A + L]; [N, A] without prompts.
        """
        batch = stack(placed)
        count = len(batch.rows)
        log_probs_A = way.log_probs(
            batch,
            (batch.at_R, batch.at_T),
            torch.arange(count).repeat_interleave(len(self.scored)),
            torch.tensor(self.scored).repeat(count),
        )
        values = log_probs_A.view(count, -1)
        if self.prompts:
            labels_NL = LabelLogits.of(way, self.token[:3])(batch, self.prompt_1PW)
            values = torch.cat([values, labels_NL], dim=1)
        order = torch.tensor([row for _, row in batch.rows]).argsort()
        return values[to_device(order, values.device)]

    def own_values(self, rows: Sequence[Row]) -> Tensor:
        """Compute the same values by calling the model on one row at a time, without a mask."""
        model, device = self.backbone.model, self.backbone.device
        values = []
        for row in rows:
            tokens_1T = torch.tensor([list(row)], device=device)
            logits_V = model(input_ids=tokens_1T, use_cache=False).logits[0, -1].float()
            row_values = [logits_V.log_softmax(-1)[self.scored]]
            if self.prompts:
                row_values.append(self._own_labels(tokens_1T))
            values.append(torch.cat(row_values))
        return torch.stack(values)

    def _own_labels(self, tokens_1T: Tensor) -> Tensor:
        """Compute the label logits [L] of a row after the prompt vectors."""
        embedded_1TW = self.backbone.embed(tokens_1T)
        inputs_1TW = torch.cat([self.prompt_1PW.to(embedded_1TW.dtype), embedded_1TW], dim=1)
        try:
            output = self.backbone.model(inputs_embeds=inputs_1TW, use_cache=False)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
            if out_of_memory(error):
                raise
            raise no_soft_prompts(self.backbone.spec) from error
        labels_L: Tensor = output.logits[0, -1, self.token[:3]].float()
        return labels_L


def log_probs_of(logits_NV: Tensor, index_A: Tensor, tokens_A: Tensor) -> Tensor:
    """Compute log-probabilities [A] float32 of tokens; `index_A`: the row of logits of each."""
    # On a CPU the fused kernel is faster than a sum of exponentials, though it writes them all.
    return logits_NV.float().log_softmax(-1)[index_A, tokens_A]
