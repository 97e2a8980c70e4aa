"""Correct gaps of texts that a classifier judged for its errors, which people's labels show.

A group's rate is the judge's verdict on all texts, times a weight, plus the mean of people's labels
less the weighted verdict on the labelled texts: prediction-powered inference (Angelopoulos et al.
2023, *Science*). The weight of least variance (PPI++, Angelopoulos, Duchi and Zrnic 2023) is here
the slope of labels on verdicts within groups: the regression estimator of double sampling (Cochran
1977, section 12.6). It is right for any error of the judge, if the labelled texts of a group are a
random sample of its texts.

Shapes: G groups, N labelled texts, U prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import config
from raybias.schema import TABLE
from raybias.stats.components import Doubles, MeanEstimate, Places, places
from raybias.stats.gaps import GapAnalysis
from raybias.stats.intervals import columns_of, verdicts
from raybias.stats.metric import shares
from raybias.stats.scopes import GapTable, Scope, by_group, chosen_scope

_TYPES: Final = pl.Schema(
    {
        **dict.fromkeys((*TABLE, "group", "score", "scope"), pl.String()),
        **dict.fromkeys(("value", "low", "high", "p"), pl.Float64()),
        **dict.fromkeys(("judged_value", "judged_low", "judged_high"), pl.Float64()),
        **dict.fromkeys(("labelled", "held", "wrongly_held", "missed"), pl.Int64()),
        **{"weight": pl.Float64(), "reason": pl.String()},
    }
)
#: Labelled texts of a group below which intervals of a judge that errs hold the truth too rarely.
FEWEST: Final = 20
#: Texts on which a judge and people differ that a sample without one is taken to have missed.
_UNSEEN: Final = 0.1
#: Why a gap is not corrected (column `reason`).
UNLABELLED: Final = "too few labelled texts"
ONE_PROMPT: Final = "the labelled texts of a group are of one prompt"
_FOLLOWS: Final = "which texts count depends on the judge's verdict"


@dataclass(frozen=True)
class JudgeSample:
    """Texts of one classifier that people labelled, and its judge's verdicts on them."""

    judged_N: Doubles
    human_N: Doubles
    group_N: Places
    """The place of a text's group, and below of its prompt."""
    unit_N: Places

    @cached_property
    def weight(self) -> float:
        """The slope of people's labels on verdicts within groups, from 0 to 1; 1 if unknown."""
        n_G = np.maximum(np.bincount(self.group_N), 1)
        mean_G = np.bincount(self.group_N, self.judged_N) / n_G
        judged_N = self.judged_N - mean_G[self.group_N]
        spread = float(judged_N @ judged_N)
        return float(np.clip(judged_N @ self.human_N / spread, 0, 1)) if spread else 1.0

    def corrected(
        self,
        judged: Mapping[Scope, MeanEstimate],
        scope: Scope,
        in_mean_G: npt.NDArray[np.bool_],
    ) -> MeanEstimate:
        """Correct gaps [G] of the judge's verdicts; their variance takes in that of its errors.

        Words for a group are taken to differ as much to people as to the judge. A group varies no
        less than if they differed in a tenth of a text more: few labels without error prove little.
        """
        groups = len(in_mean_G)
        n_G = np.bincount(self.group_N, minlength=groups)
        error_N = self.human_N - self.weight * self.judged_N
        mean_G = np.bincount(self.group_N, error_N, groups) / n_G
        sums_GU = np.zeros((groups, int(self.unit_N.max()) + 1))
        np.add.at(sums_GU, (self.group_N, self.unit_N), error_N - mean_G[self.group_N])
        pairs = np.unique(np.stack([self.group_N, self.unit_N]), axis=1)
        units_G = np.bincount(pairs[0], minlength=groups)
        parts_GU = sums_GU * (np.sqrt(units_G / (units_G - 1)) / n_G)[:, None]
        contrast_GG = np.eye(groups) - in_mean_G / in_mean_G.sum()
        share = _UNSEEN / (n_G + 1)
        least_G = share * (1 - share) / n_G
        own_G = np.maximum((parts_GU**2).sum(axis=1), least_G)
        each_GG = contrast_GG**2 * own_G
        freedom_G = each_GG.sum(axis=1) ** 2 / (each_GG**2 / (units_G - 1)).sum(axis=1)
        # Groups share prompts, and what is alike in them cancels.
        variance_G = np.maximum(
            ((contrast_GG @ parts_GU) ** 2).sum(axis=1), contrast_GG**2 @ least_G
        )
        verdicts_G = judged["sentences" if scope == "wording" else scope]
        scaled = MeanEstimate(
            self.weight * verdicts_G.mean + contrast_GG @ mean_G,
            self.weight**2 * verdicts_G.variance,
            verdicts_G.freedom,
        )
        found = scaled.plus(variance_G, freedom_G)
        if scope != "wording":
            return found
        wide = judged["wording"]
        return found.plus(np.maximum(wide.variance - verdicts_G.variance, 0), wide.freedom)


def corrected_gaps(analysis: GapAnalysis, labelled: pl.DataFrame) -> pl.DataFrame:
    """Correct the gaps of classifiers whose labels are a judge's, for the judge's errors.

    `labelled` is schema.LABELLED, in each group a random sample of its texts. Gives columns of
    schema.ESTIMATES, `q` over the whole table. Beside them `judged_value` and its interval, of the
    verdicts alone; of the group's `labelled` texts, people find `held` in the rate's share, the
    judge `wrongly_held` ones more and `missed` ones less; `weight` is that of the verdicts.
    """
    rules = analysis.rules
    rows: list[dict[str, Any]] = []
    for table in analysis.tables:
        part = labelled.filter(
            pl.col(name) == value for name, value in zip(TABLE, table.keys, strict=True)
        )
        if part.height:
            found = table.estimates(analysis.word_variances.get(table.place))
            widest = chosen_scope(found, "widest") or "runs"
            scope = widest if rules.scope == "widest" else rules.scope
            rows += _corrected(table, part, rules, scope, found)
    return verdicts(pl.DataFrame(rows, _TYPES).fill_nan(None), rules)


def _corrected(
    table: GapTable,
    part: pl.DataFrame,
    rules: config.Statistics,
    scope: Scope,
    judged: Mapping[Scope, MeanEstimate],
) -> Iterator[dict[str, Any]]:
    share = shares([table.score])[table.score]
    among, holds = share.among.fill_null(False), share.holds.fill_null(False)
    # Whether each labelled text that counts is in the share by the judge, and by people.
    human = part.with_columns(pred=pl.col("human")).select(among=among, human=holds)
    judge = part.select("group", "template_id", among=among, judged=holds)
    texts = judge.with_columns(human["human"]).filter("among").drop("among")
    known = scope in judged
    reason: str | None
    if not judge["among"].equals(human["among"]):
        reason = _FOLLOWS
    elif not known:
        reason = f"no interval of scope {scope}"
    else:
        reason = _lacking(texts, table.groups)
    columns: dict[str, npt.NDArray[np.generic]] = {
        "judged_value": table.values_GRT.mean(axis=(1, 2))
    }
    if known:
        of_judge = columns_of(judged[scope], rules)
        columns |= {f"judged_{end}": of_judge[end] for end in ("low", "high")}
        if reason is None:
            sample = _sample(table, texts)
            numbers = columns_of(sample.corrected(judged, scope, table.in_mean_G), rules)
            columns |= {name: numbers[name] for name in ("value", "low", "high", "p")}
            columns["weight"] = np.full(len(table.groups), sample.weight)
    names = {**table.names, "scope": scope, "reason": reason}
    for row in by_group({n: names[n] for n in _TYPES if n in names}, table.groups, columns):
        said, held = texts.filter(group=row["group"]).select("judged", "human")
        yield {
            **row, "labelled": len(held), "held": int(held.sum()),
            "wrongly_held": int((said & ~held).sum()), "missed": int((held & ~said).sum()),
        }  # fmt: skip


def _lacking(texts: pl.DataFrame, groups: Sequence[str]) -> str | None:
    """Say which groups have too few labelled texts, or texts of one prompt, to correct any gap."""
    counts = texts.group_by("group").agg(n=pl.len(), prompts=pl.col("template_id").n_unique())
    every = pl.DataFrame({"group": groups}).join(
        counts, on="group", how="left", maintain_order="left"
    )
    few = every.filter(pl.col("n").fill_null(0) < FEWEST)
    if few.height:
        labels = few.select(pl.format("{} has {}", "group", pl.col("n").fill_null(0)))
        return f"{UNLABELLED}: {', '.join(labels.to_series())} of at least {FEWEST}"
    return ONE_PROMPT if (every["prompts"] == 1).any() else None


def _sample(table: GapTable, texts: pl.DataFrame) -> JudgeSample:
    # Sums round by their order, which is not to be that of somebody's sheet.
    known = texts.filter(pl.col("group").is_in(table.groups)).sort(pl.all())
    judged, human = (known[name].cast(pl.Float64).to_numpy() for name in ("judged", "human"))
    units = known["template_id"].rank("dense").cast(pl.Int64) - 1
    return JudgeSample(judged, human, places(known["group"], table.groups), units.to_numpy())
