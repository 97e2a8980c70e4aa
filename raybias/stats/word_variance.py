"""Estimate how much words for one group differ, pooled over the groups that have several.

Shapes: G groups, X means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from raybias.schema import TABLE
from raybias.stats.components import Doubles, MeanEstimate, with_words, word_shares
from raybias.stats.metric import DEFAULT, Share, counted, shares

if TYPE_CHECKING:
    from raybias.stats.scopes import GapTable

_GROUP: Final = (*TABLE, "group")


@dataclass(frozen=True)
class WordVariance:
    """How much words for one group differ, pooled over the groups with two words or more."""

    variance: float
    """Unbiased, so it can be negative."""
    noise: float
    """What the noise between templates adds to the variance of words' means."""
    freedom: int
    """Words less groups that have several."""
    noise_freedom: float
    words: Mapping[str, int]
    """Words of each group."""

    def added_to(self, estimate: MeanEstimate, table: GapTable) -> MeanEstimate:
        """Add the variance from the choice of words, of the group and of the groups in the mean."""
        return self.added(estimate, word_shares(self.by_word(table.groups), table.in_mean_G))

    def by_word(self, groups: Sequence[str]) -> Doubles:
        """Return what of a word's variance is left in the mean over each group's words [G]."""
        return 1 / np.array([max(1, self.words.get(group, 1)) for group in groups])

    def added(self, estimate: MeanEstimate, share_X: Doubles) -> MeanEstimate:
        """Add shares [X] of the variance from the choice of words to means [X]."""
        words_X = share_X * (self.variance + self.noise)
        noise_X = share_X * self.noise
        return with_words(estimate, words_X, noise_X, self.freedom, self.noise_freedom)


def word_variances(
    words: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> dict[tuple[str, ...], WordVariance]:
    """Estimate how much words for one group differ (schema.WORD_CELLS), where one has several."""
    return {
        (*keys, score): found
        for score, share in shares(metrics).items()
        for keys, found in pooled_words(word_values(words, share)).items()
    }


def word_values(words: pl.DataFrame, share: Share) -> pl.DataFrame:
    """Compute a share for each word on each template: the keys, group, template, word, value."""
    texts = words.cast(dict.fromkeys((*_GROUP, "template_id", "term"), pl.String))
    return (
        texts.group_by(*_GROUP, template=pl.col("template_id"), word=pl.col("term"))
        .agg(*counted(share))
        .filter(pl.col("n_items") > 0)
        .with_columns(value=pl.col("hits") / pl.col("n_items"))
    )


def pooled_words(values: pl.DataFrame) -> dict[tuple[str, ...], WordVariance]:
    """Pool the variance of `word_values` over the groups of each classifier and attribute."""
    words, templates = (
        pl.col(facet).n_unique().over(_GROUP).cast(pl.Int64) for facet in ("word", "template")
    )
    # Sorted rows make the float sums the same for any order of the values.
    sized = values.sort("template", "word").with_columns(words=words, templates=templates)
    apart = _words_apart(sized.filter(pl.col("words") > 1, pl.col("templates") > 1)).sort(_GROUP)
    freedom = pl.col("words") - 1
    squares = apart.group_by(TABLE, maintain_order=True).agg(
        (pl.col("between", "noise") * freedom).sum() / freedom.sum(),
        freedom=freedom.sum(),
        noise_freedom=(freedom * (pl.col("templates") - 1)).sum().cast(pl.Float64),
    )
    counts = sized.group_by(TABLE).agg(pl.struct("group", "words").unique().alias("counts"))
    found = {}
    for row in squares.join(counts, on=TABLE, nulls_equal=True).rows():
        *keys, between, noise, freedom, noise_freedom, several = row
        sizes = {each["group"]: each["words"] for each in several}
        place = tuple(map(str, keys))
        found[place] = WordVariance(between - noise, noise, freedom, noise_freedom, sizes)
    return found


def _words_apart(several: pl.DataFrame) -> pl.DataFrame:
    """Compute the variance `between` the means of each group's words, and the `noise` in it.

    In a balanced table these are the mean squares of words, and of words x templates, over the
    number of templates. A word's mean is linearised by template as rates are.
    """
    word = [*_GROUP, "word"]
    mean, seen = pl.col("value").mean().over(word), pl.len().over(word)
    n, t = pl.col("words").first(), pl.col("templates").first()
    parts = several.with_columns(
        mean=mean, part=(pl.col("value") - mean) * pl.col("templates") / seen
    )
    means = parts.unique(word, maintain_order=True).group_by(_GROUP)
    # Words that lack a template have a part of 0 there. Squares of differences, and not a
    # difference of squares, so that parts that are equal leave nothing.
    mean_part = pl.col("part").sum() / n
    lacking = (n - pl.len()) * mean_part**2
    cells = parts.group_by(*_GROUP, "template", maintain_order=True).agg(
        n, t, spread=((pl.col("part") - mean_part) ** 2).sum() + lacking
    )
    noise = cells.group_by(_GROUP, maintain_order=True).agg(
        n, t, noise=pl.col("spread").sum() / ((n - 1) * t * (t - 1))
    )
    between = means.agg(between=pl.col("mean").var(ddof=1))
    return noise.join(between, on=_GROUP, nulls_equal=True, maintain_order="left")
