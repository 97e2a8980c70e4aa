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
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import ndtr, ndtri

from raybias import schema
from raybias.seeding import generator
from raybias.stats.arrays import CountArrays
from raybias.stats.components import Doubles
from raybias.stats.scopes import GapTable, Scope, WordVariance, gap_table, word_variances

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
class WordTables:
    """Counts of the words of groups in many tables; every run has the same items."""

    hits_NWRT: npt.NDArray[np.integer]
    items_NWT: npt.NDArray[np.integer]
    group_NW: npt.NDArray[np.int64]

    def counts(self) -> tuple[Doubles, Doubles]:
        """Add up hits and items of the words of each group, [N, G, R, T]."""
        groups = int(self.group_NW.max()) + 1
        of_group_NGW = (self.group_NW[:, None] == np.arange(groups)[:, None]).astype(float)
        hits_NGRT = np.einsum("ngw,nwrt->ngrt", of_group_NGW, self.hits_NWRT, optimize=True)
        items_NGT = np.einsum("ngw,nwt->ngt", of_group_NGW, self.items_NWT, optimize=True)
        return hits_NGRT, np.broadcast_to(items_NGT[:, :, None], hits_NGRT.shape)

    def tables(self) -> Iterator[tuple[GapTable, WordVariance | None]]:
        """Yield the tables with the pooled variance of their words, if it can be estimated."""
        spread = self._word_variances()
        for n, (hits_GRT, items_GRT) in enumerate(zip(*self.counts(), strict=True)):
            keys = (str(n), *_KEYS)
            groups = tuple(f"g{g}" for g in range(len(hits_GRT)))
            templates = tuple(map(str, range(hits_GRT.shape[2])))
            counts = CountArrays(keys, (RATE,), groups, templates, items_GRT[None], hits_GRT[None])
            table = gap_table(counts, 0, dict.fromkeys(groups, True))
            if table is not None:
                yield table, spread.get((*keys, RATE))

    def _word_variances(self) -> dict[tuple[str, ...], WordVariance]:
        n, w, t = np.nonzero(self.items_NWT)
        runs = self.hits_NWRT.shape[2]
        hits = self.hits_NWRT.sum(axis=2)[n, w, t]
        words = {"model": n, "group": self.group_NW[n, w], "template_id": t, "term": w}
        names = dict(zip((*schema.KEYS, "attribute"), ("", *_KEYS), strict=True))
        label = pl.lit(int(schema.Label.NEUTRAL))
        frame = pl.DataFrame(words).with_columns(
            *(pl.lit(value).alias(name) for name, value in names.items() if name != "model"),
            group=pl.format("g{}", "group"), label=label,
        )  # fmt: skip
        both = [
            frame.with_columns(pred=pl.lit(int(pred)), n=pl.Series(many))
            for pred, many in (
                (schema.Label.NEGATIVE, hits),
                (schema.Label.NEUTRAL, runs * self.items_NWT[n, w, t] - hits),
            )
        ]
        types = pl.Schema(schema.WORD_CELLS)
        cells = pl.concat(both).select(pl.col(name).cast(kind) for name, kind in types.items())
        return word_variances(cells, [RATE])


def simulate(
    design: Design, tables: int, *, seed: int = 0, gaps: tuple[float, ...] | None = None
) -> tuple[WordTables, dict[Scope, Doubles]]:
    """Draw tables of predictions; returns them and the true gaps [N, G] under each scope.

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
    items_NWT = there_NWT.astype(np.int64)
    group_NW = np.broadcast_to(group_W, (tables, words))
    return WordTables(hits_NWRT * items_NWT[:, :, None], items_NWT, group_NW), truth


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
