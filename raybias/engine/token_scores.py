"""Compute label logits after rows, and log-probabilities of their tokens, with causal models.

Rows are packed as prefix trees, so one token after one prefix has one value. Labels take their rows
of the LM head alone, in float32, and tokens a few positions at a time, so no [batch, tokens,
vocabulary] tensor exists. A model whose own forward pass disagrees with one of these fast ways is
called without it. Rows that are longer than the compared ones get the model's own mask.
Shapes: R sequences, T tokens, S prompts of P vectors, W input width, N positions, A requested
tokens, H hidden, L labels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.causal_logits import CHUNK, make_causal_logits
from raybias.engine.packing import Batch, PackedSequence, Placed, Row, common_length

Values = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ScoringTree:
    """A packed sequence, with the tokens of its rows that are scored.

    positions_N: distinct positions that scored tokens follow, ascending.
    position_index_A, tokens_A: distinct scored tokens, and the index in `positions_N` of the
        position before each, ascending.
    scored: for each member in order, the index in `tokens_A` of each of its scored tokens.
    """

    sequence: PackedSequence
    positions_N: Numbers
    position_index_A: Numbers
    tokens_A: Numbers
    scored: tuple[Numbers, ...]

    @classmethod
    def of(
        cls, sequence: PackedSequence, rows: Sequence[Row], first_scored: Sequence[int]
    ) -> ScoringTree:
        """List the scored tokens of a sequence.

        rows: whole rows, of which the sequence has all tokens but the last.
        first_scored: position, at least 1, of each row's first scored token.
        """
        paths = [
            np.flatnonzero(sequence.ends[: last + 1] > last)[first_scored[n] - 1 :]
            for n, last in zip(sequence.members, sequence.lasts, strict=True)
        ]
        following = [np.asarray(rows[n][first_scored[n] :]) for n in sequence.members]
        pairs_A2 = np.stack([np.concatenate(paths), np.concatenate(following)], axis=1)
        distinct_A2, index = unique_pairs(pairs_A2)
        positions_N, position_index_A = np.unique(distinct_A2[:, 0], return_inverse=True)
        ends = np.cumsum([len(path) for path in paths])
        scored = tuple(np.split(index, ends[:-1]))
        return cls(sequence, positions_N, position_index_A, distinct_A2[:, 1], scored)


def unique_pairs(pairs_A2: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct pairs of 32-bit non-negative numbers, ascending, and each one's index."""
    keys, index = np.unique((pairs_A2[:, 0] << 32) + pairs_A2[:, 1], return_inverse=True)
    return np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1), index


class TokenScorer:
    """Score the tokens of rows with one causal model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.logits = make_causal_logits(backbone, "log-probabilities")
        self.batcher = backbone.batcher()
        if self.logits.head is None:
            self.batcher.tokens_per_batch = min(CHUNK, self.batcher.tokens_per_batch)

    def prepare(self, requests: Sequence[tuple[Row, int]]) -> Callable[[], list[Values]]:
        """Pack rows on the host; return the call that scores their tokens.

        requests: rows, each with the position, at least 1, of its first scored token.

        The call returns the natural log-probabilities [length - position] of each row's tokens. It
        raises WorkFailed if a single row does not fit the device's memory.
        """
        first_by_row: dict[tuple[int, ...], int] = {}
        for row, first in requests:
            first_by_row[tuple(row)] = min(first, first_by_row.get(tuple(row), first))
        rows = sorted(first_by_row)
        first_scored = [first_by_row[row] for row in rows]

        number = {row: n for n, row in enumerate(rows)}
        parts = [(number[tuple(row)], first - first_by_row[tuple(row)]) for row, first in requests]
        trees = self._trees(rows, first_scored)

        def score() -> list[Values]:
            values = self._score(trees, len(rows))
            _copy_shared_prefix_scores(rows, values, first_scored)
            return [values[n][skipped:] for n, skipped in parts]

        return score

    def _trees(self, rows: Sequence[Row], first_scored: Sequence[int]) -> list[ScoringTree]:
        """Pack the rows of two tokens or more; the last token is scored, never read."""
        numbers = [n for n, row in enumerate(rows) if len(row) > 1]
        packed = self.logits.pack([rows[n][:-1] for n in numbers])
        renumbered = [
            sequence.renumber([numbers[member] for member in sequence.members])
            for sequence in packed
        ]
        return [ScoringTree.of(sequence, rows, first_scored) for sequence in renumbered]

    def _score(self, trees: Sequence[ScoringTree], count: int) -> list[Values]:
        """Compute the values of `count` rows; those in no tree have none."""
        placed = [Placed(i, tree.sequence) for i, tree in enumerate(trees)]
        values: list[Values] = [np.empty(0, np.float32)] * count

        def work(batch: Batch) -> Tensor:
            mine = [trees[i] for i in batch.adapters]
            counts = [len(tree.positions_N) for tree in mine]
            starts = np.cumsum([0, *counts[:-1]])
            sequence_N = np.repeat(np.arange(len(mine)), counts)
            positions_N = np.concatenate([tree.positions_N for tree in mine])
            index_A = np.concatenate(
                [tree.position_index_A + start for tree, start in zip(mine, starts, strict=True)]
            )
            tokens_A = np.concatenate([tree.tokens_A for tree in mine])
            with torch.no_grad():
                return self.logits.log_probs(
                    batch,
                    (torch.from_numpy(sequence_N), torch.from_numpy(positions_N)),
                    torch.from_numpy(index_A),
                    torch.from_numpy(tokens_A),
                )

        # Copying waits for the device, so it comes after all batches.
        for batch, scored_A in [*self.batcher.each(work, placed)]:
            mine = [trees[i] for i in batch.adapters]
            ends = np.cumsum([len(tree.tokens_A) for tree in mine])
            by_tree = np.split(scored_A.cpu().numpy(), ends[:-1])
            for tree, tree_A in zip(mine, by_tree, strict=True):
                for n, scored in zip(tree.sequence.members, tree.scored, strict=True):
                    values[n] = tree_A[scored]
        return values


def _copy_shared_prefix_scores(
    rows: Sequence[Row], values: Sequence[Values], first_scored: Sequence[int]
) -> None:
    """Give one token after one prefix one value in all sequences; rounding would decide ties."""
    for before, n in pairwise(range(len(rows))):
        shared = common_length([rows[n], rows[before]])
        first = max(first_scored[n], first_scored[before])
        if shared > first:
            known = values[before][first - first_scored[before] : shared - first_scored[before]]
            values[n][first - first_scored[n] : shared - first_scored[n]] = known
