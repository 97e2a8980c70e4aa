"""Deal the words of an attribute, with all their sentences, to its groups at random.

If groups are alike, their words are exchangeable: any deal of as many words to each group is as
likely as the one that was studied. A group with one word has that word to deal.

Shapes: D deals, G groups, W words of all groups, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.schema import TABLE
from raybias.stats.components import Doubles, MeanEstimate, Places, places, with_words, word_shares
from raybias.stats.count_arrays import linearised
from raybias.stats.metric import shares
from raybias.stats.scopes import GapTable
from raybias.stats.word_variance import word_values

_WORD: Final = ("group", "word")
#: Values of draws that are held at once; 32 MiB.
_ENTRIES: Final = 1 << 22


def steps(draws: int, size: int) -> Iterator[int]:
    """Yield how many of all draws, each of `size` values, to hold at a time."""
    step = max(1, _ENTRIES // size)
    for start in range(0, draws, step):
        yield min(step, draws - start)


@dataclass(frozen=True)
class WordCounts:
    """Counts of one rate for every word of the groups in a mean, over all runs."""

    names: tuple[tuple[str, str], ...]
    """The group and the word of each of the W."""
    group_W: Places
    """The group of each word; every group has a word, and one has two or more."""
    items_WT: Doubles
    """Items that count for the rate."""
    hits_WT: Doubles
    """Items in the rate's share."""

    @cached_property
    def words_G(self) -> npt.NDArray[np.int64]:
        """How many words each group has."""
        return np.bincount(self.group_W)

    def deal(self, random: np.random.Generator, deals: int) -> Doubles:
        """Deal as many words to each group as it has: 1 where a group gets a word [D, G, W]."""
        order_DW = random.random((deals, len(self.group_W))).argsort(axis=1)
        groups_G1 = np.arange(len(self.words_G))[:, None]
        return np.asarray(self.group_W[order_DW][:, None] == groups_G1, np.float64)

    def rates(self, dealt_DGW: Doubles) -> Doubles:
        """Compute what each template adds to the rates of dealt groups [D, G, T], linearised."""
        return linearised(dealt_DGW @ self.items_WT, dealt_DGW @ self.hits_WT)

    def added_to(self, estimate: MeanEstimate, dealt_DGW: Doubles) -> MeanEstimate:
        """Add the variance of words to gaps [D, G] of dealt groups that are all in the mean.

        It is that of `word_variance.pooled_words`, estimated anew from each deal.
        """
        words_G = self.words_G
        several_G = words_G > 1
        between_DG, noise_DG, templates_DG = self._apart(dealt_DGW[:, several_G])
        # Words that are all on one template say nothing of their noise.
        freedom_DG = np.where(templates_DG > 1, words_G[several_G] - 1, 0)
        freedom_D1 = freedom_DG.sum(axis=1, keepdims=True)
        noise_freedom_D1 = (freedom_DG * (templates_DG - 1)).sum(axis=1, keepdims=True)
        share_G = word_shares(1 / words_G, np.ones(len(words_G), bool))
        with np.errstate(divide="ignore", invalid="ignore"):
            between_D1, noise_D1 = (
                (each_DG * freedom_DG).sum(axis=1, keepdims=True) / freedom_D1
                for each_DG in (between_DG, noise_DG)
            )
            return with_words(
                estimate, share_G * between_D1, share_G * noise_D1, freedom_D1, noise_freedom_D1
            )

    def _apart(self, dealt_DGW: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Compute the variance between words' means, its noise, and the templates [D, G]."""
        there_WT = self.items_WT > 0
        seen_W1 = there_WT.sum(axis=1, keepdims=True)
        share_WT = self.hits_WT / np.maximum(self.items_WT, 1)
        mean_W1 = share_WT.sum(axis=1, keepdims=True) / seen_W1
        part_WT = np.where(there_WT, share_WT - mean_W1, 0.0) / seen_W1
        words_G = dealt_DGW[0].sum(axis=1)

        templates_DG = ((dealt_DGW @ there_WT) > 0).sum(axis=2).astype(np.float64)
        mean_DG = dealt_DGW @ mean_W1[:, 0] / words_G
        far_DGW = dealt_DGW * (mean_W1[:, 0] - mean_DG[..., None])
        between_DG = (far_DGW**2).sum(axis=2) / (words_G - 1)
        squares_DG = dealt_DGW @ (part_WT**2).sum(axis=1)
        common_DG = ((dealt_DGW @ part_WT) ** 2).sum(axis=2) / words_G
        few_DG = (words_G - 1) * np.maximum(templates_DG - 1, 1)
        noise_DG = templates_DG * (squares_DG - common_DG) / few_DG
        return between_DG, noise_DG, templates_DG


def word_counts(
    words: pl.DataFrame, tables: Sequence[GapTable]
) -> Mapping[tuple[str, ...], WordCounts]:
    """Count the words of the groups in the mean of each table, by its `place`.

    `words` are schema.WORD_CELLS. A table is left out if it has one template, if a group's words
    are not known, or if no group has two: to deal is then to exchange the names of groups, which
    leaves every gap.
    """
    by_place: dict[tuple[str, ...], pl.DataFrame] = {}
    for score, share in shares([*dict.fromkeys(table.score for table in tables)]).items():
        parts = word_values(words, share).sort(*_WORD, "template")
        for keys, part in parts.partition_by(TABLE, as_dict=True, maintain_order=True).items():
            by_place[*map(str, keys), score] = part
    counts: dict[tuple[str, ...], WordCounts] = {}
    for table in tables:
        known = by_place.get(table.place) if len(table.templates) > 1 else None
        found = None if known is None else _counts(known, table)
        if found is not None:
            counts[table.place] = found
    return counts


def _counts(values: pl.DataFrame, table: GapTable) -> WordCounts | None:
    groups = [table.groups[g] for g in np.flatnonzero(table.in_mean_G)]
    known = values.filter(
        pl.col("group").is_in(groups), pl.col("template").is_in(list(table.templates))
    )
    words = known.select(_WORD).unique(maintain_order=True)
    if words["group"].n_unique() < len(groups) or words.height == len(groups):
        return None
    word_N = known.select(pl.struct(_WORD).rank("dense").cast(pl.Int64) - 1).to_series()
    template_N = places(known["template"], [*table.templates])
    counts = np.zeros((2, words.height, len(table.templates)))
    counts[:, word_N.to_numpy(), template_N] = known.select("n_items", "hits").to_numpy().T
    return WordCounts((*words.rows(),), places(words["group"], groups), *counts)
