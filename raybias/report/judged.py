"""Gaps under every scope, with what sentences about them need: words, seeds, families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import WIDTH, WIDTHS, gap_rows, no_wider, under
from raybias.report import wording
from raybias.report.sentences import once, own_readings, two_groups
from raybias.stats.breakdown import WORD
from raybias.stats.few_events import FEWEST
from raybias.stats.intervals import FAMILY, REFERENCE
from raybias.stats.redrawn import redrawn_by, seeds_drawn

#: What names a gap, whatever is resampled.
GAP: Final = (*schema.KEYS, "attribute", "group", "score")
_PLACE: Final = ("probe", "attribute", "group")
_SCOPED: Final = (*GAP, "scope")


@dataclass(frozen=True)
class Judged:
    """Gaps under every scope that their designs allow, judged under one of them.

    Attributes
    ----------
    rows: of `gap_rows`, one for each gap and scope.
    words: how many words each group has: probe, attribute, group and `words`. Without a row if
        the words of a group are not known.
    scope: that decides (`Statistics.scope`).
    has_seeds: whether classifiers have seeds (`stats.redrawn.have_seeds`).
    few: the gaps and scopes whose groups have few events (`stats.few_events`).
    """

    rows: pl.DataFrame
    words: pl.DataFrame
    scope: str = "widest"
    has_seeds: bool = True
    few: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=dict.fromkeys(_SCOPED, pl.String))
    )

    @classmethod
    def of(
        cls, estimates: pl.DataFrame, scope: str = "widest", *, has_seeds: bool = True
    ) -> Judged:
        """Select the gaps of schema.ESTIMATES, and count the words of groups.

        Readings of likelihoods that cannot do the task are left out (`own_readings`).
        """
        estimates = own_readings(estimates)
        by_word = estimates.filter(pl.col("condition").str.starts_with(WORD))
        words = by_word.group_by(_PLACE).agg(words=pl.col("condition").n_unique())
        return cls(
            gap_rows(estimates), words.sort(_PLACE), scope, has_seeds, _few_events(estimates)
        )

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """The gaps under the scope that decides, or the widest narrower one: one row each."""
        return under(self.rows, [*WIDTHS], self.scope)

    @cached_property
    def found(self) -> pl.DataFrame:
        """The gaps that are found, each under the widest scope in which it is, with its `width`.

        `few` tells whether a gap rests on few events. Wider scopes than the one that decides are
        left out. Of two groups (`two`) the first is kept, and `other` names the other.
        """
        by = [name for name in (*FAMILY, "condition", "scope") if name in self.rows.columns]
        other = pl.col("group").max().over(by)
        few = self.few.with_columns(few=pl.lit(value=True))
        rows = self.rows.join(
            few, on=_SCOPED, how="left", nulls_equal=True, maintain_order="left"
        ).with_columns(pl.col("few").fill_null(value=False))
        sized = rows.with_columns(width=WIDTH, two=two_groups(rows), other=other)
        found = no_wider(once(sized), self.scope).filter(pl.col("survives").fill_null(value=False))
        return found.filter(pl.col("width") == pl.col("width").max().over(GAP))

    def wider(self, part: pl.DataFrame) -> pl.DataFrame:
        """Select the rows of the gaps of a part of `found` under wider scopes than theirs."""
        sized = self.rows.with_columns(width=WIDTH).filter(pl.col("width") > part["width"][0])
        return sized.join(part, on=GAP, how="semi", nulls_equal=True)

    def words_of(self, probe: str, attribute: str, group: str) -> int | None:
        """Count the words of a group; None if they are not known."""
        counts = self.words.filter(probe=probe, attribute=attribute, group=group)["words"]
        return int(counts[0]) if len(counts) else None

    @cached_property
    def single(self) -> list[str]:
        """The groups of one word that are judged under `wording`, whose words thus vary."""
        judged = self.rows.filter(pl.col("significant").is_not_null(), scope="wording")
        one = judged.join(self.words.filter(words=1), on=_PLACE, how="semi")
        return [wording.spaced(str(group)) for group in one["group"].unique().sort()]

    @cached_property
    def redrawn(self) -> Mapping[str, str]:
        """What intervals of each scope resample, in words."""
        return redrawn_by(seeds_drawn(self.rows, has_seeds=self.has_seeds))

    @cached_property
    def family_sizes(self) -> list[int]:
        """How many gaps each family of the correction has, under the scope that decides."""
        tested = once(self.gaps).filter(pl.col("survives").is_not_null())
        return [int(n) for n in tested.group_by(FAMILY).len()["len"].sort()]

    def reference_of(self, row: Mapping[str, object]) -> str | None:
        """Return the one group that a gap is taken from; None if that is a mean of several."""
        alone = self._beside(row).filter(reason=REFERENCE)["group"]
        return str(alone[0]) if len(alone) else None

    def count_groups(self, row: Mapping[str, object]) -> tuple[int, int]:
        """Count the groups in the mean that a gap is taken from, and all groups that have a gap."""
        gaps = self._beside(row)
        return gaps.filter(condition="")["group"].n_unique(), gaps["group"].n_unique()

    def _beside(self, row: Mapping[str, object]) -> pl.DataFrame:
        """Select the gaps of the same probe, attribute and rate as `row`."""
        return self.rows.filter(**{name: row[name] for name in ("probe", "attribute", "score")})


def _few_events(estimates: pl.DataFrame) -> pl.DataFrame:
    """Select the gaps and scopes whose group has fewer events than its variance needs."""
    rates = estimates.filter(pl.col("condition") == "", statistic="rate")
    hits = pl.col("value") * pl.col("units")
    few = pl.min_horizontal(hits, pl.col("units") - hits) < FEWEST
    return rates.filter(few, pl.col("scope") != "runs").select(_SCOPED).unique(maintain_order=True)
