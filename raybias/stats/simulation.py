"""Simulate predictions whose gaps are known, to see whether the rules keep what they promise.

A probit model: a sentence is called wrong in a run when the sum of normal effects of its run,
template and word, of their combinations, and of noise is below a threshold. The expectation over
any of the effects, the others given, is one value of the normal distribution function, so that the
true gap under every scope is exact: over other runs on these sentences, over other sentences with
these words, over other words.

Shapes: N simulated tables, G groups, W words of all groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import ndtr, ndtri

from raybias import schema
from raybias.seeding import generator
from raybias.stats.arrays import linearised
from raybias.stats.components import Doubles
from raybias.stats.scopes import GapTable, Scope, WordVariance, word_variances

#: The metric that simulated sentences count for: neutral ones, called negative or not.
RATE: Final = "negative_fpr"
_KEYS: Final = ("", "", "", "", "simulated")


@dataclass(frozen=True)
class Design:
    """How many runs, templates and words there are, and how much of the variance is theirs."""

    name: str
    rate: float = 0.3
    """Expected rate of every group."""
    runs: int = 5
    templates: int = 57
    words: tuple[int, ...] = (3, 2, 1, 2, 2, 1)
    """Words of each group."""
    run: float = 0.01
    run_group: float = 0.004
    template: float = 0.1
    template_group: float = 0.05
    word: float = 0.003
    word_template: float = 0.4
    missing: float = 0.0
    """Share of sentences, a template with one word, that are not there."""

    @property
    def noise(self) -> float:
        """What the named sources leave of a variance of 1."""
        return 1 - (self.run + self.run_group + self.template + self.template_group
                    + self.word + self.word_template)  # fmt: skip

    @property
    def group_W(self) -> npt.NDArray[np.int64]:
        """The group of each word."""
        return np.repeat(np.arange(len(self.words)), self.words)


@dataclass(frozen=True)
class Simulated:
    """Tables of one design: counts, and the true gaps [N, G] under each scope."""

    design: Design
    hits_NWRT: npt.NDArray[np.bool_]
    there_NWT: npt.NDArray[np.bool_]
    truth: dict[Scope, Doubles]

    def tables(self) -> Iterator[tuple[GapTable, WordVariance | None]]:
        """Yield the tables with the pooled variance of their words, if it can be estimated."""
        group_W = self.design.group_W
        starts = np.flatnonzero(np.diff(group_W, prepend=-1))
        counted_NWRT = self.hits_NWRT & self.there_NWT[:, :, None]
        hits_NGRT = np.add.reduceat(counted_NWRT, starts, axis=1, dtype=float)
        items_NGT = np.add.reduceat(self.there_NWT, starts, axis=1, dtype=float)
        groups = tuple(f"g{g}" for g in range(len(starts)))
        for n, (hits_GRT, items_GT) in enumerate(zip(hits_NGRT, items_NGT, strict=True)):
            items_GRT = np.repeat(items_GT[:, None], self.design.runs, axis=1)
            parts_GRT = linearised(items_GRT, hits_GRT)
            gaps_GRT = parts_GRT - parts_GRT.mean(axis=0)
            keys = (str(n), *_KEYS)
            table = GapTable(keys, RATE, groups, np.ones(len(groups), bool), gaps_GRT)
            yield table, self._word_variances.get((*keys, RATE))

    @cached_property
    def _word_variances(self) -> dict[tuple[str, ...], WordVariance]:
        hits_NWT = (self.hits_NWRT & self.there_NWT[:, :, None]).sum(axis=2)
        place = np.argwhere(self.there_NWT)
        n, w, t = place.T
        hits = hits_NWT[n, w, t]
        names = dict(zip((*schema.KEYS, "attribute"), (None, *_KEYS), strict=True))
        frame = pl.DataFrame(
            {
                **names, "model": n, "group": self.design.group_W[w], "template_id": t, "term": w,
                "hits": hits,
            }
        )  # fmt: skip
        group = pl.format("g{}", "group")
        both = [
            frame.with_columns(group=group, label=pl.lit(1), pred=pl.lit(pred), n=many)
            for pred, many in ((0, pl.col("hits")), (1, self.design.runs - pl.col("hits")))
        ]
        types = pl.Schema(schema.WORD_CELLS)
        cells = pl.concat(both).select(pl.col(name).cast(kind) for name, kind in types.items())
        return word_variances(cells, [RATE])


def simulate(
    design: Design, tables: int, *, seed: int = 0, gaps: tuple[float, ...] | None = None
) -> Simulated:
    """Draw tables of predictions.

    Parameters
    ----------
    gaps: what is added to the rate of each group; nothing by default.
    """
    random = generator(seed, "simulation", design.name)
    d, group_W = design, design.group_W
    groups, words = len(d.words), len(group_W)
    rate_G = d.rate + (np.zeros(groups) if gaps is None else np.array(gaps))
    level_W = ndtri(rate_G)[group_W]

    def effect(variance: float, *shape: int) -> npt.NDArray[np.float32]:
        if not variance:
            return np.zeros((tables, *(1 for _ in shape)), np.float32)
        drawn = random.standard_normal((tables, *shape), np.float32)
        return drawn * np.float32(np.sqrt(variance))

    run_NWR = effect(d.run, 1, d.runs) + effect(d.run_group, groups, d.runs)[:, _of(d, d.run_group)]
    template_NWT = (
        effect(d.template, 1, d.templates)
        + effect(d.template_group, groups, d.templates)[:, _of(d, d.template_group)]
        + effect(d.word_template, words, d.templates)
    )
    word_NW = effect(d.word, words)
    fixed_NWT = level_W[:, None] + word_NW[:, :, None] + template_NWT
    noise_NWRT = effect(d.noise, words, d.runs, d.templates)
    hits_NWRT = fixed_NWT[:, :, None] + run_NWR[..., None] + noise_NWRT > 0
    there_NWT = np.ones((tables, words, d.templates), bool)
    if d.missing:
        there_NWT = random.random(there_NWT.shape) >= d.missing
    kept_NWT = there_NWT.astype(float)
    seen_NWT = _expected(fixed_NWT, d.run + d.run_group + d.noise) * kept_NWT
    truth: dict[Scope, Doubles] = {
        "runs": _gaps(seen_NWT.sum(axis=2), kept_NWT.sum(axis=2), d),
        "sentences": _gaps(_expected(level_W + word_NW, 1 - d.word), np.ones((tables, words)), d),
        "wording": np.tile(rate_G - rate_G.mean(), (tables, 1)),
    }
    return Simulated(d, hits_NWRT, there_NWT, truth)


def _of(design: Design, variance: float) -> npt.NDArray[np.int64]:
    """Find the effect of each word's group; there is one for all where nothing varies."""
    return design.group_W if variance else np.zeros(1, np.int64)


def _expected(fixed: npt.NDArray[np.floating], variance: float) -> Doubles:
    """Probability of a hit given some effects, the others normal with this variance."""
    with np.errstate(divide="ignore"):
        return np.asarray(ndtr(np.float64(fixed) / np.sqrt(variance)))


def _gaps(hits_NW: Doubles, items_NW: Doubles, design: Design) -> Doubles:
    """Compute the gaps [N, G] of expected hits of words among their items."""
    starts = np.flatnonzero(np.diff(design.group_W, prepend=-1))
    rates_NG = np.add.reduceat(hits_NW, starts, 1) / np.add.reduceat(items_NW, starts, 1)
    return np.asarray(rates_NG - rates_NG.mean(axis=1, keepdims=True))
