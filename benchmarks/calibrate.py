"""How often the rules of gaps are right: in simulated studies, and on meaningless labels.

A rule is a scope and an interval. Without files, predictions are simulated whose true gap is known
under every scope: told are the coverage of each rule, its false alarms and its power. With files,
words change places so that no group effect is left: told is how often a rule still finds one. A
study is two metrics of one classifier on one attribute, which Benjamini-Hochberg corrects together.

    python benchmarks/calibrate.py --studies 1600 --out designs
    python benchmarks/calibrate.py regard_published/*.tsv.gz --studies 40 --out shuffled

The simulation is a probit model: a sentence is labelled wrong in a run where the sum of normal
effects of its run, template and word, of their combinations, and of noise is above a threshold. The
expectation over any of the effects, given the others, is one value of the normal distribution
function. So the true gap is exact under every scope: over other runs on these sentences, over other
sentences with these words, over other words. Other scripts and tests simulate with it too.

Shapes: N tables, S shuffles, K metrics, G groups, W words of all groups, R runs, T templates, B
draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from scipy import stats
from scipy.special import ndtr, ndtri

from raybias import schema
from raybias.errors import DataError, RaybiasError
from raybias.report.rendering import markdown
from raybias.seeding import generator
from raybias.stats.bootstrap import Weights, drawn_gaps, gap_intervals, span_interval
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.counts import count_cells, read_counts, without_extras
from raybias.stats.metric import DEFAULT, CountArrays, count_arrays
from raybias.stats.predictions import join_pieces, sources
from raybias.stats.scopes import GapTable, Scope, WordVariance, rate_table, word_variances
from raybias.storage import Store
from raybias.table_files import csv_text

#: The metric that simulated sentences count for: neutral ones, labelled negative or not.
RATE: Final = "negative_fpr"
#: True gaps whose power is computed.
POWER_OF: Final = (0.05, 0.08)
#: Tables of a design or a classifier that the bootstrap judges, and its draws of each.
DRAWN_TABLES: Final = 400
DRAWS: Final = 600
_METRICS: Final = len(DEFAULT)
_KEYS: Final = ("", "", "", "", "simulated")
#: Explanations of the table's columns.
_COLUMNS: Final = {
    "coverage": "share of intervals that hold the true gap",
    "flagged": "share of gaps called significant where no group differs: at best 1 - level",
    "with_survivor": "share of such studies in which one is left after correction for many tests",
    "half_width": "what an interval typically reaches to either side",
    "power_05": "share of studies that find a true gap of 0.05; power_08: one of 0.08",
}


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
    group_NW: npt.NDArray[np.int64]

    def arrays(self) -> Iterator[CountArrays]:
        """Add up the words of each group, a table at a time; its first key is its number."""
        groups = int(self.group_NW.max()) + 1
        of_group_NGW = (self.group_NW[:, None] == np.arange(groups)[:, None]).astype(float)
        hits_NGRT = np.einsum("ngw,nwrt->ngrt", of_group_NGW, self.hits_NWRT, optimize=True)
        items_NGT = np.einsum("ngw,nwt->ngt", of_group_NGW, self.items_NWT, optimize=True)
        names = tuple(f"g{g}" for g in range(groups))
        templates = tuple(map(str, range(items_NGT.shape[2])))
        for n, hits_GRT in enumerate(hits_NGRT):
            items_GRT = np.broadcast_to(items_NGT[n, :, None], hits_GRT.shape)
            keys = (str(n), *_KEYS)
            yield CountArrays(keys, (RATE,), names, templates, items_GRT[None], hits_GRT[None])

    def tables(self) -> Iterator[tuple[GapTable, WordVariance | None]]:
        """Yield the tables with the pooled variance of their words, if it can be estimated."""
        for _, table, words in self.judged():
            yield table, words

    def judged(self) -> Iterator[tuple[CountArrays, GapTable, WordVariance | None]]:
        """Yield what `tables` does behind each table's counts."""
        spread = self._word_variances()
        for counts in self.arrays():
            rates = rate_table(counts, 0, dict.fromkeys(counts.groups, True))
            if rates is not None:
                yield counts, rates.less_mean(), spread.get((*counts.keys, RATE))

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
        word_cells = pl.concat(both).select(pl.col(name).cast(kind) for name, kind in types.items())
        return word_variances(word_cells, [RATE])


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
    group_NW = np.broadcast_to(group_W, (tables, words))
    return WordTables(hits_NWRT * items_NWT[:, :, None], items_NWT, group_NW), truth


def _expected(fixed: npt.NDArray[np.floating], variance: float) -> Doubles:
    """Probability of a hit given some effects, the others normal with this variance."""
    with np.errstate(divide="ignore"):
        return np.asarray(ndtr(np.float64(fixed) / np.sqrt(variance)))


def _gaps(hits_NW: Doubles, items_NW: Doubles, design: Design) -> Doubles:
    """Compute the gaps [N, G] of expected hits of words among their items."""
    starts = np.flatnonzero(np.diff(design.group_W, prepend=-1))
    rates_NG = np.add.reduceat(hits_NW, starts, 1) / np.add.reduceat(items_NW, starts, 1)
    return np.asarray(rates_NG - rates_NG.mean(axis=1, keepdims=True))


@dataclass
class _Tally:
    """The intervals, p values and true gaps of one rule: a row [G] for each table."""

    low: list[Doubles] = field(default_factory=list)
    high: list[Doubles] = field(default_factory=list)
    p_value: list[Doubles] = field(default_factory=list)
    truth: list[Doubles] = field(default_factory=list)

    def shares(self, level: float, *, together: int = _METRICS) -> dict[str, float | None]:
        """Compute the columns of `simulated_rules` that need no group effect."""
        low, high, truth = (np.array(rows) for rows in (self.low, self.high, self.truth))
        found: dict[str, float | None] = dict.fromkeys(("coverage", "flagged", "with_survivor"))
        if truth.size:
            found["coverage"] = float(((low <= truth) & (truth <= high)).mean())
        p_value = np.array(self.p_value)
        if not np.isnan(p_value).all():
            p_value = np.nan_to_num(p_value, nan=1.0)
            studies = p_value[: len(p_value) // together * together]
            studies = studies.reshape(-1, together * p_value.shape[1])
            survives = stats.false_discovery_control(studies, axis=1) <= 1 - level
            found["flagged"] = float((p_value < 1 - level).mean())
            found["with_survivor"] = float(survives.any(axis=1).mean())
        widths = (high - low)[~np.isnan(high - low)]
        found["half_width"] = float(np.median(widths) / 2) if widths.size else None
        return found


_Tallies = dict[tuple[str, str], _Tally]


def simulated_rules(design: Design, *, studies: int, level: float, seed: int = 0) -> pl.DataFrame:
    """Simulate studies of a design without a group effect, and with one.

    Returns
    -------
    A row per scope and interval: `coverage` of the scope's own true gaps, `flagged` (share of gaps
    called significant although no group differs), `with_survivor` (share of studies in which one
    survives Benjamini-Hochberg), `half_width` (the median), and the power at a true gap of .05 and
    of .08 of a group with the fewest words. The scope `widest` is the default of `strict`: the
    widest that a table allows; rows of the interval `span` are of spans.
    """
    found = _tallies(*simulate(design, _METRICS * studies, seed=seed), level, seed)
    groups, few = len(design.words), int(np.argmin(design.words))
    rows = {
        rule: {"design": design.name, "scope": rule[0], "interval": rule[1], **tally.shares(level)}
        for rule, tally in found.items()
    }
    for gap in POWER_OF:
        effect = gap * groups / (groups - 1) * (1 if design.rate < 0.5 else -1)
        added = tuple(effect if g == few else 0.0 for g in range(groups))
        with_effect = simulate(design, _METRICS * studies, seed=seed + 1, gaps=added)
        tallies = _tallies(*with_effect, level, seed, draws=0)
        for rule, row in rows.items():
            power = None
            if rule in tallies:
                power = float((np.array(tallies[rule].p_value)[:, few] < 1 - level).mean())
            row[f"power_{100 * gap:02.0f}"] = power
    return pl.DataFrame([*rows.values()])


def _tallies(
    tables: WordTables,
    truth: Mapping[Scope, Doubles],
    level: float,
    seed: int,
    *,
    draws: int = DRAWS,
) -> _Tallies:
    """Judge tables by every rule; without draws by none of the bootstrap."""
    found: _Tallies = {}

    def add(scope: str, interval: str, bounds: Sequence[Doubles], true: Doubles | None) -> None:
        tally = found.setdefault((scope, interval), _Tally())
        for values, column in zip(bounds, (tally.low, tally.high, tally.p_value), strict=True):
            column.append(np.asarray(values))
        if true is not None:
            tally.truth.append(true)

    for counts, table, words in tables.judged():
        n = int(table.keys[0])
        known: dict[str, Doubles] = {scope: gaps_NG[n] for scope, gaps_NG in truth.items()}
        estimates = table.estimates(words)
        if not estimates:
            continue
        rules: list[tuple[str, str, str, MeanEstimate]] = [
            (scope, "t", scope, estimate) for scope, estimate in estimates.items()
        ]
        widest = [*estimates][-1]
        rules.append(("widest", "t", widest, estimates[widest]))
        if "runs" in estimates:
            freedom = np.full_like(estimates["runs"].freedom, np.inf)
            rules.append(("runs", "normal", "runs", replace(estimates["runs"], freedom=freedom)))
        for name, interval, scope, estimate in rules:
            add(name, interval, (*estimate.interval(level), estimate.p_value()), known.get(scope))
        if draws and n < DRAWN_TABLES and "sentences" in estimates:
            estimate, true = estimates["sentences"], known.get("sentences")
            weights = Weights(counts.items_KGRT.shape[2:], draws, (seed, n), "sentences")
            drawn_GB = drawn_gaps([counts], np.ones(len(counts.groups), bool), weights)[0, 0]
            low, high, _ = span_interval(drawn_GB, estimate.mean, level)
            span = None if true is None else np.ptp(true, keepdims=True)
            add("sentences", "span", (low[None], high[None], np.array([np.nan])), span)
            bounds = gap_intervals(drawn_GB, estimate.freedom, level)
            add("sentences", "bootstrap", bounds, true)
    return found


def shuffled_rules(
    predictions: pl.DataFrame,
    *,
    studies: int,
    level: float,
    seed: int = 0,
    metrics: Sequence[str] = DEFAULT,
) -> pl.DataFrame:
    """Judge predictions whose words have changed places, so that no group effect is left.

    Parameters
    ----------
    predictions: schema.PREDICTIONS; those without a template or a term are left out.
    studies: shuffles of each classifier.

    Returns
    -------
    A row per `null`, scope and interval: `flagged`, `with_survivor` and `half_width` as in
    `simulated_rules`, averaged over classifiers and attributes. Of the null `templates` the words'
    predictions (the groups', where words are not known) change places within every template, alike
    in all runs: no word has an effect. Of the null `words` whole words are dealt to the groups
    anew: words differ, but not by group.

    Raises
    ------
    DataError: no prediction has a template id, or there are too few for any rule.
    """
    known = predictions.drop_nulls("template_id")
    if known.is_empty():
        raise DataError(
            "no prediction has a template_id, within which groups could change places",
            cure="add the column, or calibrate without files",
        )
    term = pl.col("term").fill_null("")
    named = without_extras(known).with_columns(group=pl.format("{}\n{}", "group", term))
    rows = []
    for counts in count_arrays(count_cells(named), metrics):
        groups = [name.split("\n")[0] for name in counts.groups]
        _, group_W = np.unique(groups, return_inverse=True)
        for null in ("templates", "words") if len(set(groups)) < len(groups) else ("templates",):
            random = generator(seed, "shuffled", null, *counts.keys)
            tables = _shuffled(counts, group_W, random, studies, whole=null == "words")
            for (scope, interval), tally in _tallies(tables, {}, level, seed).items():
                shares = tally.shares(level, together=len(counts.scores))
                rows.append({"null": null, "scope": scope, "interval": interval, **shares})
    if not rows:
        raise DataError(
            "no classifier has two runs, groups and templates to calibrate with",
            cure="give more predictions, or calibrate without files",
        )
    by = ["null", "scope", "interval"]
    means = pl.DataFrame(rows).group_by(by, maintain_order=True)
    found = means.agg(pl.col("flagged", "with_survivor", "half_width").mean())
    return found.filter(pl.col("interval") != "span")


def _shuffled(
    counts: CountArrays,
    group_W: npt.NDArray[np.int64],
    random: np.random.Generator,
    studies: int,
    *,
    whole: bool,
) -> WordTables:
    """Shuffle words, whole or apart on each template: tables of all metrics of a study in turn."""
    items_KWT = counts.items_KGRT[:, :, 0]
    metrics, words, templates = items_KWT.shape
    order_STW = random.random((studies, 1 if whole else templates, words)).argsort(axis=2)
    order_SWT = np.broadcast_to(order_STW.swapaxes(1, 2), (studies, words, templates))
    template_T = np.arange(templates)
    hits_SKWRT = np.stack(
        [
            counts.hits_KGRT[:, order_WT, :, template_T].transpose(2, 0, 3, 1)
            for order_WT in order_SWT
        ]
    )
    items_SKWT = np.stack([items_KWT[:, order_WT, template_T] for order_WT in order_SWT])
    return WordTables(
        hits_SKWRT.reshape(-1, *hits_SKWRT.shape[2:]).astype(np.int64),
        items_SKWT.reshape(-1, words, templates).astype(np.int64),
        np.broadcast_to(group_W, (studies * metrics, words)),
    )


def main(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Predictions as `raybias measure` takes them, whose words are shuffled; without "
            "files, studies are simulated."
        ),
    ] = None,
    *,
    studies: Annotated[
        int, typer.Option(min=1, help="Simulated studies of a design, or shuffles of a classifier.")
    ] = 200,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the simulation or the shuffles.")] = 0,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for calibration.csv and calibration.md.")
    ] = None,
) -> None:
    """Find out how often each scope and interval is right, where the truth is known."""
    if not 0 < level < 1:
        raise typer.BadParameter("is not between 0 and 1", param_hint="--level")
    how: dict[str, Any] = {"studies": studies, "level": level, "seed": seed}
    if files:
        read_counts(files)  # refuses runs that contradict one another
        found = shuffled_rules(
            join_pieces(sources(files), where="").cast({pl.Categorical: pl.String}), **how
        )
    else:
        found = pl.concat(simulated_rules(design, **how) for design in DESIGNS)
    if out is not None:
        store = Store(out)
        store.write_text("calibration.csv", csv_text(found))
        store.write_text("calibration.md", markdown(found))
    print(markdown(found))
    print("\n".join(f"{name}: {said}" for name, said in _COLUMNS.items() if name in found.columns))


if __name__ == "__main__":
    try:
        typer.run(main)
    except RaybiasError as error:
        sys.exit(f"calibrate: {error}")
