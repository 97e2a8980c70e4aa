"""Compute log-probabilities of the tokens of sentences with a causal model.

Sentences are packed as prefix trees, so what some of them begin with is computed once, and
one token after one prefix has one value wherever it stands. The head is applied to a few
places at a time, so no [batch, tokens, vocabulary] tensor exists.

Shapes: R sequences, T tokens, N places, A requested tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias.engine.attention import attention_window
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.batching import Batcher
from raybias.engine.context import Way
from raybias.engine.devices import to_device
from raybias.engine.generation.sampling import common_length
from raybias.engine.packing import MAX_TOKENS, Batch, PackedSequence, Placed, Row, pack
from raybias.engine.scoring.label_scorer import attention_inputs
from raybias.engine.self_check import fastest, in_words, sample_tokens

Values = NDArray[np.float32]
Numbers = NDArray[np.int64]

#: Places whose logits over the vocabulary exist at one time.
CHUNK: Final = 256


@dataclass(frozen=True)
class TokenRequest:
    """Tokens to score after places of a batch, ascending by place.

    Attributes
    ----------
    at_R, at_T: each place's sequence, and its place there.
    of_A: which place each token follows.
    """

    at_R: Tensor
    at_T: Tensor
    of_A: Tensor
    tokens_A: Tensor


@dataclass(frozen=True)
class Tree:
    """A packed prefix tree with the tokens that its rows go on with.

    Attributes
    ----------
    places_A, tokens_A: distinct, ascending by place.
    rows: for each member, which of the requested tokens are in it, in its order.
    """

    sequence: PackedSequence
    places_A: Numbers
    tokens_A: Numbers
    rows: tuple[Numbers, ...]

    @classmethod
    def of(cls, sequence: PackedSequence, rows: Sequence[Row], since: Sequence[int]) -> Tree:
        """List the tokens to score in a sequence of all but the last token of its `rows`.

        `since` is the place in each row of the first of them.
        """
        paths = [
            np.flatnonzero(sequence.ends[: last + 1] > last)[since[n] - 1 :]
            for n, last in zip(sequence.members, sequence.lasts, strict=True)
        ]
        following = [rows[n][since[n] :] for n in sequence.members]
        places = np.concatenate(paths)
        pairs = (places << 32) + np.concatenate(following)
        distinct_A, index = np.unique(pairs, return_inverse=True)
        each = np.split(index, np.cumsum([len(path) for path in paths])[:-1])
        return cls(sequence, distinct_A >> 32, distinct_A & 0xFFFFFFFF, tuple(each))


@dataclass(frozen=True)
class RowTrees:
    """Rows in the trees that they are read in.

    Attributes
    ----------
    count: rows; those of one token are in no tree.
    numbers: which row each member of a tree is.
    """

    count: int
    numbers: Sequence[int]
    trees: Sequence[Tree]


@dataclass(frozen=True)
class TokenReader:
    """Compute log-probabilities of a batch.

    Attributes
    ----------
    packs: whether rows share sequences; otherwise each is one by itself.
    head: from hidden states to logits; None runs the model's whole forward pass.
    """

    backbone: LoadedBackbone
    packs: bool
    head: Any

    def log_probs(self, batch: Batch, request: TokenRequest) -> Tensor:
        """Compute the natural log-probabilities [A], float32."""
        device = self.backbone.device
        model = self.backbone.model
        inputs = attention_inputs(batch, packs=self.packs, prompt_length=0, device=device)
        inputs |= {"input_ids": to_device(batch.tokens_RT, device)}
        at_R, at_T, of_A, tokens_A = (
            to_device(each, device)
            for each in (request.at_R, request.at_T, request.of_A, request.tokens_A)
        )
        at = at_R, at_T
        if self.head is None:
            logits_NV = model(**inputs, use_cache=False).logits[at]
            return log_probs_of(logits_NV, of_A, tokens_A)
        hidden_NH = model.base_model(**inputs, use_cache=False).last_hidden_state[at]
        chunks = []
        for first in range(0, len(hidden_NH), CHUNK):
            begin, end = np.searchsorted(request.of_A.numpy(), [first, first + CHUNK])
            logits_nV = self.head(hidden_NH[first : first + CHUNK])
            chunks.append(log_probs_of(logits_nV, of_A[begin:end] - first, tokens_A[begin:end]))
        return torch.cat(chunks)


class TokenScorer:
    """Score the tokens of rows with one causal model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.reader = make_token_reader(backbone)
        most = None if self.reader.head is not None else CHUNK
        self.batcher = backbone.batcher(most=most, side_by_side=True)

    def log_probs(self, rows: Sequence[Row], since: Sequence[int] | None = None) -> list[Values]:
        """Compute the natural log-probabilities of each row's tokens after its first.

        Parameters
        ----------
        since: the place, at least 1, of the first token of each row that is wanted; 1 by default.

        Returns
        -------
        For each row its values [length - since].

        Raises
        ------
        WorkFailed: a single row does not fit the device's memory.
        """
        return self.prepare(rows, since)()

    def prepare(
        self, rows: Sequence[Row], since: Sequence[int] | None = None
    ) -> Callable[[], list[Values]]:
        """Pack rows, which needs no device; return what computes `log_probs` of them."""
        wanted = since or [1] * len(rows)
        begins: dict[tuple[int, ...], int] = {}
        for row, first in zip(rows, wanted, strict=True):
            begins[tuple(row)] = min(first, begins.get(tuple(row), first))
        distinct = sorted(begins)
        starts = [begins[row] for row in distinct]
        packed = _pack(self.reader, distinct, starts)
        place = {row: n for n, row in enumerate(distinct)}
        parts = [
            (place[tuple(row)], first - begins[tuple(row)])
            for row, first in zip(rows, wanted, strict=True)
        ]

        def read() -> list[Values]:
            values = _read(self.reader, self.batcher, packed)
            _share(distinct, values, starts)
            return [values[n][left_out:] for n, left_out in parts]

        return read


def make_token_reader(backbone: LoadedBackbone) -> TokenReader:
    """Make the fastest reader that gives what the model's own forward pass gives."""
    head = backbone.model.get_output_embeddings()
    ways = [
        TokenReader(backbone, packs=packs, head=each)
        for packs, each in ((True, head), (True, None), (False, head), (False, None))
    ]
    chosen = fastest(ways[:3], ways[3], _sample, dtype=backbone.model.dtype)
    how = in_words(packs=chosen.packs, part=chosen.head is not None)
    backbone.execution.ways["log-probabilities"] = Way(how, chosen is ways[0])
    return chosen


def log_probs_of(logits_NV: Tensor, of_A: Tensor, tokens_A: Tensor) -> Tensor:
    """Compute log-probabilities [A] float32 of tokens, each under the logits that `of_A` names."""
    # On a CPU the fused kernel is faster than a sum of exponentials, though it writes them all.
    return logits_NV.float().log_softmax(-1)[of_A, tokens_A]


def _sample(reader: TokenReader) -> Tensor:
    """Read the log-probabilities of a few rows that share tokens."""
    token = sample_tokens(reader.backbone.model, 11)
    rows = [(*token[:6],), (*token[:3], *token[6:9]), (token[0], *token[8:])]
    batcher = reader.backbone.batcher(most=MAX_TOKENS)
    packed = _pack(reader, rows, [1] * len(rows))
    return torch.from_numpy(np.concatenate(_read(reader, batcher, packed)))


def _pack(reader: TokenReader, rows: Sequence[Row], since: Sequence[int]) -> RowTrees:
    # The last token is scored, never read.
    stems = {n: row[:-1] for n, row in enumerate(rows) if len(row) > 1}
    numbers = list(stems)
    longest = max(map(len, stems.values()), default=0)
    whole = longest <= attention_window(reader.backbone.model.config)
    sequences = pack(list(stems.values()), max_tokens=MAX_TOKENS if reader.packs and whole else 0)
    sources = [rows[n] for n in numbers]
    starts = [since[n] for n in numbers]
    return RowTrees(len(rows), numbers, [Tree.of(each, sources, starts) for each in sequences])


def _read(reader: TokenReader, batcher: Batcher, packed: RowTrees) -> list[Values]:
    trees = packed.trees
    placed = [Placed(i, i, tree.sequence) for i, tree in enumerate(trees)]
    values: list[Values] = [np.empty(0, np.float32)] * packed.count

    def work(batch: Batch) -> Tensor:
        with torch.no_grad():
            return reader.log_probs(batch, _together([trees[i] for i in batch.adapters]))

    # A device is asked for values once it has been given all batches, since that is to wait for it.
    for batch, scored_A in [*batcher.each(work, placed)]:
        values_A, start = scored_A.cpu().numpy(), 0
        for i in batch.adapters:
            tree = trees[i]
            tree_A = values_A[start : start + len(tree.tokens_A)]
            start += len(tree_A)
            for member, places in zip(tree.sequence.members, tree.rows, strict=True):
                values[packed.numbers[member]] = tree_A[places]
    return values


def _together(trees: Sequence[Tree]) -> TokenRequest:
    """Join the requested tokens of a batch of trees."""
    at_R, at_T, of_A = [], [], []
    count = 0
    for r, tree in enumerate(trees):
        places, index = np.unique(tree.places_A, return_inverse=True)
        at_R.append(np.full(len(places), r))
        at_T.append(places)
        of_A.append(index + count)
        count += len(places)
    tokens_A = np.concatenate([tree.tokens_A for tree in trees])
    parts = np.concatenate(at_R), np.concatenate(at_T), np.concatenate(of_A), tokens_A
    return TokenRequest(*map(torch.from_numpy, parts))


def _share(rows: Sequence[Row], values: Sequence[Values], since: Sequence[int]) -> None:
    """Give one token after one prefix one value, whichever sequences its rows were cut into.

    Rounding differs a little from sequence to sequence, and would decide true ties.
    """
    for n in range(1, len(rows)):
        known, first = common_length([rows[n], rows[n - 1]]), max(since[n], since[n - 1])
        if known > first:
            before = values[n - 1][first - since[n - 1] : known - since[n - 1]]
            values[n][first - since[n] : known - since[n]] = before
