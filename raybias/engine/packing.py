"""Pack rows of tokens into sequences that share what the rows have in common.

A sequence is the prefix tree of its rows, depth first, under tree attention: a token sees exactly
its ancestors, its position is its depth, so every row gets the hidden state that it has alone, and
a common beginning is computed once. Token j is an ancestor of i (or i itself) when j <= i <
ends[j], where ends[j] is the place after j's last descendant.
Shapes: R sequences of a batch, T tokens, N rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Row = Sequence[int]

#: Longer sequences share more, but attention grows with their square.
MAX_TOKENS: Final = 192
#: Sequences shorter than this share of the longest wait: padding costs more than a pass.
FULL: Final = 0.85
#: CPU matrix products of at least 16 rows, in blocks of 8, give a row the same bits beside any
#: others (MKL's kernels for fewer rows add up in another order).
BLOCK: Final = 8


@dataclass(frozen=True)
class PackedSequence:
    """Rows as one token sequence; `tokens`, `depths` and `ends` have one entry per token.

    members: index of each row among those packed.
    lasts: position of each row's last token; -1 for an empty row.
    is_tree: whether it is computed under the tree mask; otherwise it is a single row, under the
        model's own mask.
    """

    tokens: NDArray[np.int64]
    depths: NDArray[np.int64]
    ends: NDArray[np.int64]
    members: tuple[int, ...]
    lasts: tuple[int, ...]
    is_tree: bool

    def renumber(self, members: Sequence[int]) -> PackedSequence:
        """Return the sequence with other indices of its rows, in the same order."""
        return replace(self, members=tuple(members))


@dataclass(frozen=True)
class Batch:
    """Sequences of one forward pass, all of them trees or all of them single rows.

    tokens_RT, depths_RT, ends_RT: the sequences, padded at the right; a pad token sees itself and
        the prompt only, and nothing sees it.
    adapters: whose adapter each sequence is computed with.
    rows: the adapter and the row of each read-out.
    at_R, at_T: sequence and position of each read-out's last token.
    is_tree: whether the sequences are computed under the tree mask.
    """

    tokens_RT: torch.Tensor
    depths_RT: torch.Tensor
    ends_RT: torch.Tensor
    adapters: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    at_R: torch.Tensor
    at_T: torch.Tensor
    is_tree: bool


def single_rows(rows: Sequence[Row]) -> list[PackedSequence]:
    """Make every row a sequence of its own, under the model's own mask; in sorted order."""
    order = sorted(range(len(rows)), key=lambda n: tuple(rows[n]))
    return [single_row(n, rows[n]) for n in order]


def single_row(n: int, row: Row, *, read_at: int | None = None) -> PackedSequence:
    """Make row number `n` a sequence of its own.

    read_at: position of its read-out; the last token if None.
    """
    length = len(row)
    last = length - 1 if read_at is None else read_at
    tokens = np.array(row, np.int64)
    ends = np.full(length, length)
    return PackedSequence(tokens, np.arange(length), ends, (n,), (last,), is_tree=False)


def pack(
    rows: Sequence[Row],
    *,
    max_tokens: int = MAX_TOKENS,
    longest: int = MAX_TOKENS,
    share: bool = True,
) -> list[PackedSequence]:
    """Pack rows into trees of at most `max_tokens` tokens; each longer row is a sequence.

    Rows are sorted, so that neighbours share the most, and cut into about equally long sequences.

    longest: length in tokens up to which a row may be in a tree; 0 makes every row a sequence.
    share: whether rows share the tokens that they begin with.
    """
    short = [n for n, row in enumerate(rows) if len(row) <= longest]
    if len(short) == len(rows):
        return _pack_trees(rows, max_tokens, share=share)
    trees = [
        tree.renumber([short[member] for member in tree.members])
        for tree in _pack_trees([rows[n] for n in short], max_tokens, share=share)
    ]
    long = (n for n, row in enumerate(rows) if len(row) > longest)
    return [*trees, *(single_row(n, rows[n]) for n in long)]


def _pack_trees(rows: Sequence[Row], max_tokens: int, *, share: bool) -> list[PackedSequence]:
    order = sorted(range(len(rows)), key=lambda n: tuple(rows[n]))
    whole = _Tree(share=share)
    starts = [len(whole.tokens)]
    for n in order:
        whole.add(n, rows[n])
        starts.append(len(whole.tokens))
    pieces = max(1, math.ceil(starts[-1] / max(1, max_tokens)))
    sequences: list[PackedSequence] = []
    tree, piece = _Tree(share=share), 0
    for n, start, end in zip(order, starts, starts[1:], strict=False):
        target = min(pieces - 1, (start + end) * pieces // max(1, 2 * starts[-1]))
        size = len(tree.tokens) + len(rows[n]) - tree.shared(rows[n])
        if tree.members and (target != piece or size > max_tokens):
            sequences.append(tree.sequence())
            tree = _Tree(share=share)
        tree.add(n, rows[n])
        piece = target
    if tree.members:
        sequences.append(tree.sequence())
    return sequences


def common_length(rows: Sequence[Row]) -> int:
    """Count the tokens that all rows begin with."""
    pairs = zip(min(map(tuple, rows)), max(map(tuple, rows)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Tree:
    """A sequence under construction; `path` has the places of the newest row's tokens, by depth."""

    def __init__(self, *, share: bool) -> None:
        self.share = share
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.ends: list[int] = []
        self.members: list[int] = []
        self.lasts: list[int] = []
        self.path: list[int] = []

    def add(self, n: int, row: Row) -> None:
        shared = self.shared(row)
        for place in self.path[shared:]:
            self.ends[place] = len(self.tokens)
        del self.path[shared:]
        for depth in range(shared, len(row)):
            self.path.append(len(self.tokens))
            self.tokens.append(row[depth])
            self.depths.append(depth)
            self.ends.append(-1)
        self.members.append(n)
        self.lasts.append(self.path[-1] if self.path else -1)

    def sequence(self) -> PackedSequence:
        for place in self.path:
            self.ends[place] = len(self.tokens)
        return PackedSequence(
            np.array(self.tokens),
            np.array(self.depths),
            np.array(self.ends),
            tuple(self.members),
            tuple(self.lasts),
            is_tree=True,
        )

    def shared(self, row: Row) -> int:
        """Count the tokens that a row has in common with the newest one."""
        pairs = zip(self.path if self.share else (), row, strict=False)
        return sum(1 for _ in takewhile(lambda pair: self.tokens[pair[0]] == pair[1], pairs))


def tree_mask(ends_RT: torch.Tensor) -> torch.Tensor:
    """Build the tree-attention mask [R, T, T]."""
    place_T = torch.arange(ends_RT.shape[1], device=ends_RT.device)
    before_TT = place_T <= place_T[:, None]
    return before_TT & (place_T[:, None] < ends_RT[:, None, :])


def token_rows(batch: Batch) -> torch.Tensor:
    """Return the row of each token [R, T] of a batch whose rows share none; 0 for a pad token."""
    last_RT = torch.zeros_like(batch.ends_RT)
    last_RT[batch.at_R, batch.at_T] = torch.tensor([row for _, row in batch.rows])
    return last_RT.gather(1, batch.ends_RT - 1)


def padded(batch: Batch, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [R, T] of a batch of single rows, padded with `pad`, and their mask."""
    mask_RT = torch.arange(batch.tokens_RT.shape[1]) < batch.ends_RT[:, :1]
    return batch.tokens_RT.masked_fill(~mask_RT, pad), mask_RT


class Placed(NamedTuple):
    """A sequence to compute, and the number of the adapter, such as a soft prompt, to use."""

    adapter: int
    sequence: PackedSequence


def longest_first(placed: Iterable[Placed]) -> list[Placed]:
    """Sort sequences by their kind of mask, then by length: a batch has one mask."""
    return sorted(placed, key=lambda each: (each.sequence.is_tree, -len(each.sequence.tokens)))


def fitting(
    waiting: Sequence[Placed], budget: int, prompt_length: int = 0, *, full: float = FULL
) -> int:
    """Count the sequences of the next batch, at least one: of the first one's kind of mask.

    `waiting`: longest first within a kind; `budget`: tokens of the batch, padding and prompt
    counted; `full`: sequences shorter than this share of the longest wait.
    """

    def width(each: Placed) -> int:
        return len(each.sequence.tokens) + prompt_length

    widest = width(waiting[0])
    room = waiting[: max(1, budget // widest)]
    is_tree = waiting[0].sequence.is_tree
    fits = (
        placed.sequence.is_tree == is_tree and width(placed) >= full * widest for placed in room
    )
    return sum(1 for _ in takewhile(bool, fits))


def shared_width(length: int) -> int:
    """Round a length up to a width that sequences of similar length share.

    Widths are multiples of an eighth of a power of two: few, with a tenth of padding on average.
    """
    block = max(BLOCK, 1 << (length - 1).bit_length() >> 3)
    return max(2 * BLOCK, -(-length // block) * block)


def stack(placed: Sequence[Placed], width: int | None = None) -> Batch:
    """Pad sequences to one batch, sorted by adapter: those with fewest sequences come first."""
    counts = Counter(each.adapter for each in placed)
    placed = sorted(placed, key=lambda each: (counts[each.adapter], each.adapter))
    width = width or max(len(each.sequence.tokens) for each in placed)
    tokens = np.zeros((len(placed), width), np.int64)
    depths = np.zeros((len(placed), width), np.int64)
    ends = np.tile(np.arange(1, width + 1), (len(placed), 1))
    rows: list[tuple[int, int]] = []
    at: list[tuple[int, int]] = []
    for r, each in enumerate(placed):
        sequence = each.sequence
        length = len(sequence.tokens)
        tokens[r, :length] = sequence.tokens
        depths[r, :length] = sequence.depths
        ends[r, :length] = sequence.ends
        rows.extend((each.adapter, n) for n in sequence.members)
        at.extend((r, place) for place in sequence.lasts)
    at_N2 = torch.tensor(at)
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(depths),
        torch.from_numpy(ends),
        tuple(each.adapter for each in placed),
        tuple(rows),
        at_N2[:, 0],
        at_N2[:, 1],
        is_tree=placed[0].sequence.is_tree,
    )
