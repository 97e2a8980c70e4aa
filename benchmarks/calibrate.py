"""How often the rules of gaps are right, in simulated studies whose true gaps are known.

A rule is a scope and an interval: told are its coverage, its false alarms and its power, by design.
A study is two metrics of one classifier on one attribute, which Benjamini-Hochberg corrects
together.

    python benchmarks/calibrate.py --studies 1600

The simulation is a probit model: a sentence is labelled wrong in a run where the sum of normal
effects of its run, template and word, of their combinations, and of noise is above a threshold. The
expectation over any of the effects is one value of the normal distribution function, so the true
gap is exact under every scope: over other runs, sentences or words.

Shapes: N tables, G groups, W words of all groups, R runs, T templates, B draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from scipy import stats
from scipy.special import ndtr, ndtri

from raybias.report.rendering import markdown
from raybias.schema import TABLE
from raybias.seeding import generator
from raybias.stats.bootstrap import Weights, drawn_gaps, gap_intervals, span_interval
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.count_arrays import CountArrays
from raybias.stats.metric import DEFAULT
from raybias.stats.scopes import GapTable, Scope, rate_table
from raybias.stats.word_variance import WordVariance, pooled_words

#: The metric that simulated sentences count for: neutral ones, labelled negative or not.
RATE: Final = "negative_fpr"
#: Of the intervals.
LEVEL: Final = 0.95
#: True gaps whose power is computed.
POWER_OF: Final = (0.05, 0.08)
#: Tables of a design that the bootstrap judges, and its draws of each.
DRAWN_TABLES: Final = 400
DRAWS: Final = 600
METRICS: Final = len(DEFAULT)
#: Values of schema.TABLE behind a table's number.
_KEYS: Final = ("", "", "", "", "simulated")


@dataclass(frozen=True)
class Design:
    """Numbers of runs, templates and words, and their shares of the variance."""

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
    """Share of sentences (a template with one word) that are missing."""

    @property
    def noise(self) -> float:
        """The rest of a total variance of 1."""
        return 1 - (self.run + self.run_group + self.template + self.template_group
                    + self.word + self.word_template)  # fmt: skip

    @property
    def group_W(self) -> npt.NDArray[np.int64]:
        """The group of each word."""
        return np.repeat(np.arange(len(self.words)), self.words)


#: The Regard probe's shape, and what makes an interval hard.
DESIGNS: Final = (
    Design("as Regard"),
    Design("no variance of words", word=0.0),
    Design("words matter", word=0.03),
    Design("one word a group", words=(1, 1, 1, 1, 1, 1), word=0.0),
    Design("few templates", templates=10),
    Design("sentences missing", missing=0.25),
    Design("runs do not matter", run=0.0, run_group=0.0),
    Design("templates do not matter", template=0.0, template_group=0.0, word_template=0.0),
    Design("rates near 0", rate=0.03),
    Design("rates near 1", rate=0.97),
    Design("two runs", runs=2),
    Design("twenty runs", runs=20),
    Design("many groups", words=(2,) * 13),
)


@dataclass(frozen=True)
class WordTables:
    """Counts of the groups' words in many tables; every run has the same items."""

    hits_NWRT: npt.NDArray[np.integer]
    items_NWT: npt.NDArray[np.integer]
    group_W: npt.NDArray[np.int64]

    def arrays(self) -> Iterator[CountArrays]:
        """Add up the words of each group, a table at a time; its first key is its number."""
        groups = int(self.group_W.max()) + 1
        of_group_GW = (self.group_W == np.arange(groups)[:, None]).astype(float)
        hits_NGRT = np.einsum("gw,nwrt->ngrt", of_group_GW, self.hits_NWRT, optimize=True)
        items_NGT = np.einsum("gw,nwt->ngt", of_group_GW, self.items_NWT, optimize=True)
        names = tuple(map(str, range(groups)))
        templates = tuple(map(str, range(items_NGT.shape[2])))
        for n, hits_GRT in enumerate(hits_NGRT):
            items_GRT = np.broadcast_to(items_NGT[n, :, None], hits_GRT.shape)
            keys = (str(n), *_KEYS)
            yield CountArrays(keys, (RATE,), names, templates, items_GRT[None], hits_GRT[None])

    def tables(self) -> Iterator[tuple[GapTable, WordVariance | None]]:
        """Yield the tables with the pooled variance of their words, if it can be estimated."""
        variances = self._word_variances()
        for counts in self.arrays():
            rates = rate_table(counts, 0, dict.fromkeys(counts.groups, True))
            if rates is not None:
                yield rates.less_mean(), variances.get(counts.keys)

    def _word_variances(self) -> dict[tuple[str, ...], WordVariance]:
        n, w, t = np.nonzero(self.items_NWT)
        share = self.hits_NWRT.mean(axis=2)[n, w, t] / self.items_NWT[n, w, t]
        levels = {TABLE[0]: n, "group": self.group_W[w], "template": t, "word": w}
        names = {name: pl.lit(value) for name, value in zip(TABLE[1:], _KEYS, strict=True)}
        values = pl.DataFrame(levels).cast(pl.String).with_columns(value=pl.Series(share), **names)
        return pooled_words(values)


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

    def of_groups(variance: float, levels: int) -> npt.NDArray[np.float32]:
        """Draw an effect of each group, for each of its words; one for all where it is 0."""
        return effect(variance, groups, levels)[:, group_W if variance else [0]]

    run_NWR = effect(d.run, 1, d.runs) + of_groups(d.run_group, d.runs)
    template_NWT = (
        effect(d.template, 1, d.templates)
        + of_groups(d.template_group, d.templates)
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
    return WordTables(hits_NWRT * items_NWT[:, :, None], items_NWT, group_W), truth


def _expected(fixed: npt.NDArray[np.floating], variance: float) -> Doubles:
    """Probability of a hit given some effects, the others normal with this variance."""
    with np.errstate(divide="ignore"):
        return np.asarray(ndtr(np.float64(fixed) / np.sqrt(variance)))


def _gaps(hits_NW: Doubles, items_NW: Doubles, design: Design) -> Doubles:
    """Compute the gaps [N, G] of expected hits of words among their items."""
    starts = np.flatnonzero(np.diff(design.group_W, prepend=-1))
    rates_NG = np.add.reduceat(hits_NW, starts, 1) / np.add.reduceat(items_NW, starts, 1)
    return np.asarray(rates_NG - rates_NG.mean(axis=1, keepdims=True))


def judged(
    tables: WordTables, truth: Mapping[Scope, Doubles], draws: int = 0
) -> dict[tuple[str, str], Doubles]:
    """Judge tables by every rule.

    Returns
    -------
    By scope and interval [N, 4, G]: low, high, p value and true gap. The scope `widest` is the
    default of `strict`: the widest that a table allows. The interval `span` has that of spans alone
    (G is 1); like `bootstrap` it needs draws, and has the first `DRAWN_TABLES`.
    """
    found: dict[tuple[str, str], list[Doubles]] = defaultdict(list)
    for n, (counts, judging) in enumerate(zip(tables.arrays(), tables.tables(), strict=True)):
        estimates = judging[0].estimates(judging[1])
        widest = [*estimates][-1]
        rules: list[tuple[str, str, Scope, MeanEstimate]] = [
            (scope, "t", scope, estimate) for scope, estimate in estimates.items()
        ]
        rules.append(("widest", "t", widest, estimates[widest]))
        if "runs" in estimates:
            freedom = np.full_like(estimates["runs"].freedom, np.inf)
            rules.append(("runs", "normal", "runs", replace(estimates["runs"], freedom=freedom)))
        for name, interval, scope, estimate in rules:
            bounds = *estimate.interval(LEVEL), estimate.p_value(), truth[scope][n]
            found[name, interval].append(np.array(bounds))
        if draws and n < DRAWN_TABLES and "sentences" in estimates:
            estimate, true_G = estimates["sentences"], truth["sentences"][n]
            weights = Weights(counts.items_KGRT.shape[2:], draws, (0, n), "sentences")
            drawn_GB = drawn_gaps([counts], np.ones(len(counts.groups), bool), weights)[0, 0]
            low, high, _ = span_interval(drawn_GB, estimate.mean, LEVEL)
            span = np.array([low, high, np.nan, np.ptp(true_G)])
            found["sentences", "span"].append(span[:, None])
            bounds = *gap_intervals(drawn_GB, estimate.freedom, LEVEL), true_G
            found["sentences", "bootstrap"].append(np.array(bounds))
    return {rule: np.array(each) for rule, each in found.items()}


def simulated_rules(design: Design, *, studies: int) -> pl.DataFrame:
    """Simulate studies of a design without a group effect, and with one.

    Gives a row per scope and interval of `judged`; power is that of a group with the fewest words.
    """
    alike = judged(*simulate(design, METRICS * studies), DRAWS)
    groups, few = len(design.words), int(np.argmin(design.words))
    rows = {}
    for rule, values in alike.items():
        low, high, p, true = values.swapaxes(0, 1)
        flagged = survivor = None
        if not np.isnan(p).all():
            p = np.nan_to_num(p, nan=1.0)
            q = stats.false_discovery_control(p.reshape(-1, METRICS * groups), axis=1)
            flagged = float((p < 1 - LEVEL).mean())
            survivor = float((q <= 1 - LEVEL).any(axis=1).mean())
        rows[rule] = {
            "design": design.name, "scope": rule[0], "interval": rule[1],
            "coverage": float(((low <= true) & (true <= high)).mean()), "flagged": flagged,
            "with_survivor": survivor, "half_width": float(np.nanmedian(high - low) / 2),
        }  # fmt: skip
    for gap in POWER_OF:
        effect = gap * groups / (groups - 1) * (1 if design.rate < 0.5 else -1)
        added = tuple(effect if g == few else 0.0 for g in range(groups))
        differ = judged(*simulate(design, METRICS * studies, seed=1, gaps=added))
        for rule, row in rows.items():
            p = differ[rule][:, 2, few] if rule in differ else None
            row[f"power_{100 * gap:02.0f}"] = None if p is None else float((p < 1 - LEVEL).mean())
    return pl.DataFrame([*rows.values()])


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies of a design.")] = 200,
) -> None:
    """Find out how often each scope and interval is right, where the truth is known."""
    print(markdown(pl.concat(simulated_rules(each, studies=studies) for each in DESIGNS)))


if __name__ == "__main__":
    typer.run(main)
