"""Compute label logits after rows, and log-probabilities of their tokens, with a causal model.

Rows are packed as prefix trees, so one token after one prefix has one value. Labels take their rows
of the LM head alone, in float32, and tokens a few places at a time, so no [batch, tokens,
vocabulary] tensor exists. A model whose own forward pass disagrees with one of these short cuts on
a sample is called the plain way instead.
Shapes: R sequences, T tokens, S prompts of P vectors, W input width, N places, A requested tokens,
H hidden, L labels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias.engine.attention import attention_window, states_at
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.devices import to_device
from raybias.engine.packing import (
    MAX_TOKENS,
    Batch,
    PackedSequence,
    Placed,
    Row,
    common_length,
    pack,
)
from raybias.engine.self_check import fastest, read_samples, sample_tokens

Values = NDArray[np.float32]
Numbers = NDArray[np.int64]

#: Places whose logits over the vocabulary exist at one time.
CHUNK: Final = 256


@dataclass(frozen=True)
class LabelRows:
    """The labels' tokens, and their rows of the LM head, in float32."""

    ids: tuple[int, ...]
    weight_LH: Tensor
    bias_L: Tensor | None

    @classmethod
    def of(cls, backbone: LoadedBackbone, label_ids: Sequence[int]) -> LabelRows:
        """Copy the rows of a backbone's head."""
        head = backbone.model.get_output_embeddings()
        ids, bias = list(label_ids), getattr(head, "bias", None)
        with gathered(head.weight):
            weight_LH = head.weight.detach()[ids].float()
        with gathered(bias):
            bias_L = None if bias is None else bias.detach()[ids].float()
        return cls(tuple(ids), weight_LH, bias_L)


def gathered(parameter: Tensor | None) -> Any:
    """Return a context in which every rank holds a parameter that ZeRO-3 has sharded."""
    status = getattr(parameter, "ds_status", None)
    if status is None or status.name == "AVAILABLE":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


@dataclass(frozen=True)
class CausalReader:
    """Compute a causal model at some places of a batch.

    `packs`: whether rows share sequences (see `packing`); `part`: whether the head is applied to
    the wanted places only.
    """

    backbone: LoadedBackbone
    packs: bool
    part: bool

    @property
    def max_tokens(self) -> int:
        """The longest packed sequence; 0 keeps every row by itself."""
        return MAX_TOKENS if self.packs else 0

    def labels(self, batch: Batch, prompts_SPW: Tensor, labels: LabelRows) -> Tensor:
        """Compute label logits [N, L] float32 after the prompts that `batch.adapters` numbers."""
        device = self.backbone.device
        prompts_RPW = prompts_SPW[to_device(batch.adapters, device)]
        found_NX = self._places(batch, (batch.at_R, batch.at_T), prompts_RPW)
        if not self.part:
            return found_NX[:, to_device(labels.ids, device)].float()
        # Not as a matrix product, whose bits depend on how many rows it has.
        logits_NL: Tensor = (found_NX.float()[:, None] * labels.weight_LH).sum(-1)
        return logits_NL if labels.bias_L is None else logits_NL + labels.bias_L

    def log_probs(
        self, batch: Batch, at: tuple[Tensor, Tensor], of_A: Tensor, tokens_A: Tensor
    ) -> Tensor:
        """Compute natural log-probabilities [A] float32 of tokens after places of a batch.

        `at`: each place's sequence [N] and its place there [N]; `of_A`: the place before each
        token, ascending.
        """
        device = self.backbone.device
        found_NX = self._places(batch, at)
        after_A, wanted_A = to_device(of_A, device), to_device(tokens_A, device)
        if not self.part:
            return log_probs_of(found_NX, after_A, wanted_A)
        head = self.backbone.model.get_output_embeddings()
        chunks = []
        for first in range(0, len(found_NX), CHUNK):
            begin, end = np.searchsorted(of_A.numpy(), [first, first + CHUNK])
            logits_nV = head(found_NX[first : first + CHUNK])
            chunks.append(log_probs_of(logits_nV, after_A[begin:end] - first, wanted_A[begin:end]))
        return torch.cat(chunks)

    def _places(
        self, batch: Batch, at: tuple[Tensor, Tensor], prompts_RPW: Tensor | None = None
    ) -> Tensor:
        """Compute the hidden states [N, H] at places, or the logits [N, V] of the whole model."""
        tokens_RT = to_device(batch.tokens_RT, self.backbone.device)
        given = {"input_ids": tokens_RT}
        if prompts_RPW is not None:
            text_RTW = self.backbone.embed(tokens_RT)
            inputs_RTW = torch.cat([prompts_RPW.to(text_RTW.dtype), text_RTW], dim=1)
            given = {"inputs_embeds": inputs_RTW}
        model = self.backbone.model
        return states_at(model, batch, at, packs=self.packs, part=self.part, **given)


def make_reader(backbone: LoadedBackbone, purpose: str) -> CausalReader:
    """Choose the fastest reader that gives the values of the model's own forward pass."""
    ways = [
        CausalReader(backbone, packs=packs, part=part)
        for packs in (True, False)
        for part in (True, False)
    ]
    chosen = fastest(ways[:3], ways[3], _sample, dtype=backbone.model.dtype)
    best = chosen is ways[0]
    backbone.execution.note(purpose, packs=chosen.packs, part=chosen.part, fastest=best)
    return chosen


def _sample(reader: CausalReader) -> Tensor:
    """Compute label logits of a few rows after two prompt vectors, and log-probabilities too."""
    backbone = reader.backbone
    token = sample_tokens(backbone.model, 6)
    prompt_1PW = backbone.embed(torch.tensor([token[4:6]], device=backbone.device)).float()
    label_rows = LabelRows.of(backbone, token[:3])

    def read(batch: Batch) -> Tensor:
        labels_NL = reader.labels(batch, prompt_1PW, label_rows)
        count = len(batch.rows)
        of_A = torch.arange(count).repeat_interleave(len(token))
        tokens_A = torch.tensor(token).repeat(count)
        log_probs_A = reader.log_probs(batch, (batch.at_R, batch.at_T), of_A, tokens_A)
        return torch.cat([labels_NL, log_probs_A.view(count, -1)], dim=1)

    return read_samples(read, backbone.model, packs=reader.packs, alone=not reader.part)


def log_probs_of(logits_NV: Tensor, of_A: Tensor, tokens_A: Tensor) -> Tensor:
    """Compute log-probabilities [A] float32 of tokens, each under the logits numbered by `of_A`."""
    # On a CPU the fused kernel is faster than a sum of exponentials, though it writes them all.
    return logits_NV.float().log_softmax(-1)[of_A, tokens_A]


class LabelScorer:
    """Compute label logits of token rows with one backbone, with or without soft prompts."""

    def __init__(self, backbone: LoadedBackbone, label_ids: Sequence[int]) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.label_rows = LabelRows.of(backbone, self.label_ids)
        self.batcher = backbone.batcher()
        self.reader = make_reader(backbone, "labels")

    def pack(self, rows: Sequence[Row]) -> list[PackedSequence]:
        """Pack rows into sequences for this backbone."""
        return pack(rows, max_tokens=self.reader.max_tokens)

    def logits(self, batch: Batch, prompts_SPW: Tensor) -> Tensor:
        """Compute the label logits [N, L] of a batch's rows; see `CausalReader.labels`."""
        return self.reader.labels(batch, prompts_SPW, self.label_rows)

    def score(self, rows: Sequence[Row], prompt_PW: Tensor | None = None) -> Tensor:
        """Compute the label logits [N, L] of rows after a prompt, float32 on the CPU."""
        if prompt_PW is None:
            prompt_PW = torch.empty(0, self.backbone.width)
        prompts_SPW = to_device(prompt_PW[None], self.backbone.device)
        (logits_NL,) = self.batcher.logits(
            lambda batch: self.logits(batch, prompts_SPW),
            [self.pack(rows)],
            labels=len(self.label_ids),
            prompt_length=len(prompt_PW),
        )
        return logits_NL


@dataclass(frozen=True)
class Tree:
    """A packed prefix tree, with the tokens that its rows go on with.

    `places_N`: distinct places that tokens follow; `of_A`, `tokens_A`: distinct tokens, each with
    the number of its place, all ascending; `rows`: the tokens of each member, in its order.
    """

    sequence: PackedSequence
    places_N: Numbers
    of_A: Numbers
    tokens_A: Numbers
    rows: tuple[Numbers, ...]

    @classmethod
    def of(cls, sequence: PackedSequence, rows: Sequence[Row], since: Sequence[int]) -> Tree:
        """List the tokens to score of a sequence, which has all but the last token of its `rows`.

        `since`: the place in each row of the first of them.
        """
        paths = [
            np.flatnonzero(sequence.ends[: last + 1] > last)[since[n] - 1 :]
            for n, last in zip(sequence.members, sequence.lasts, strict=True)
        ]
        following = np.concatenate([rows[n][since[n] :] for n in sequence.members])
        pairs = (np.concatenate(paths) << 32) + following
        distinct_A, index = np.unique(pairs, return_inverse=True)
        places_N, of_A = np.unique(distinct_A >> 32, return_inverse=True)
        by_row = np.split(index, np.cumsum([len(path) for path in paths])[:-1])
        return cls(sequence, places_N, of_A, distinct_A & 0xFFFFFFFF, tuple(by_row))


class TokenScorer:
    """Score the tokens of rows with one causal model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.reader = make_reader(backbone, "log-probabilities")
        self.batcher = backbone.batcher()
        if not self.reader.part:
            self.batcher.tokens_per_batch = min(CHUNK, self.batcher.tokens_per_batch)

    def prepare(self, requests: Sequence[tuple[Row, int]]) -> Callable[[], list[Values]]:
        """Pack rows, without a device; return the call that scores their tokens from a place on.

        `requests`: rows, each with the place, at least 1, of the first wanted token. The call
        returns the natural log-probabilities [length - place] of each row's tokens, and raises
        WorkFailed where a single row does not fit the device's memory.
        """
        begins: dict[tuple[int, ...], int] = {}
        for row, first in requests:
            begins[tuple(row)] = min(first, begins.get(tuple(row), first))
        distinct = sorted(begins)
        starts = [begins[row] for row in distinct]
        number = {row: n for n, row in enumerate(distinct)}
        parts = [(number[tuple(row)], first - begins[tuple(row)]) for row, first in requests]
        trees = self._trees(distinct, starts)

        def read() -> list[Values]:
            values = self._read(trees, len(distinct))
            _share(distinct, values, starts)
            return [values[n][left_out:] for n, left_out in parts]

        return read

    def _trees(self, rows: Sequence[Row], since: Sequence[int]) -> list[Tree]:
        """Pack the rows; a row of one token, which nothing precedes, is in no tree."""
        # The last token is scored, never read.
        stems = [row[:-1] for row in rows]
        whole = max(map(len, stems), default=0) <= attention_window(
            self.reader.backbone.model.config
        )
        scored = [n for n, stem in enumerate(stems) if stem]
        packed = pack([stems[n] for n in scored], max_tokens=self.reader.max_tokens * whole)
        return [
            Tree.of(replace(each, members=tuple(scored[n] for n in each.members)), rows, since)
            for each in packed
        ]

    def _read(self, trees: Sequence[Tree], count: int) -> list[Values]:
        """Compute the values of `count` rows; those in no tree have none."""
        placed = [Placed(i, tree.sequence) for i, tree in enumerate(trees)]
        values: list[Values] = [np.empty(0, np.float32)] * count

        def work(batch: Batch) -> Tensor:
            mine = [trees[i] for i in batch.adapters]
            counts = [len(tree.places_N) for tree in mine]
            starts = np.cumsum([0, *counts[:-1]])
            at_R, at_T, of_A, tokens_A = map(torch.from_numpy, (
                np.repeat(np.arange(len(mine)), counts),
                np.concatenate([tree.places_N for tree in mine]),
                np.concatenate([tree.of_A + n for tree, n in zip(mine, starts, strict=True)]),
                np.concatenate([tree.tokens_A for tree in mine]),
            ))  # fmt: skip
            with torch.no_grad():
                return self.reader.log_probs(batch, (at_R, at_T), of_A, tokens_A)

        # Copying waits for the device, so it comes after all batches.
        for batch, scored_A in [*self.batcher.each(work, placed)]:
            mine = [trees[i] for i in batch.adapters]
            ends = np.cumsum([len(tree.tokens_A) for tree in mine])
            by_tree = np.split(scored_A.cpu().numpy(), ends[:-1])
            for tree, tree_A in zip(mine, by_tree, strict=True):
                for n, places in zip(tree.sequence.members, tree.rows, strict=True):
                    values[n] = tree_A[places]
        return values


def _share(rows: Sequence[Row], values: Sequence[Values], since: Sequence[int]) -> None:
    """Give one token after one prefix one value in all sequences; rounding would decide ties."""
    for n in range(1, len(rows)):
        known, first = common_length([rows[n], rows[n - 1]]), max(since[n], since[n - 1])
        if known > first:
            before = values[n - 1][first - since[n - 1] : known - since[n - 1]]
            values[n][first - since[n] : known - since[n]] = before
