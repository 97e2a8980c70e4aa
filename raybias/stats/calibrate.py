"""Find out how often the rules of gaps are right: simulated designs, and shuffled predictions.

A rule is a scope and an interval. In simulations the true gap is known under every scope, so that
its coverage is too; of predictions whose labels are made meaningless is seen how often a rule finds
something in them. A study is two metrics of one classifier on one attribute, which
Benjamini-Hochberg corrects together.

Shapes: N tables, G groups, W words, R runs, T templates, B draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.bootstrap import Weights, drawn_gaps, gap_intervals, span_interval
from raybias.stats.cells import cells, without_extras
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.metric import DEFAULT
from raybias.stats.scopes import Scope
from raybias.stats.simulation import Design, WordTables, simulate

#: What is simulated: the Regard probe's shape, and what makes an interval hard.
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
#: True gaps of which the power is told.
POWER_OF: Final = (0.05, 0.08)
#: Of a bootstrap of one of the many tables.
_DRAWS: Final = 600
_METRICS: Final = len(DEFAULT)
#: Tables that the bootstrap judges, of a design or a classifier.
_DRAWN_TABLES: Final = 400


@dataclass
class _Tally:
    """What one rule says of gaps: a row [G] for each table."""

    low: list[Doubles] = field(default_factory=list)
    high: list[Doubles] = field(default_factory=list)
    p_value: list[Doubles] = field(default_factory=list)
    truth: list[Doubles] = field(default_factory=list)

    def shares(self, level: float, *, together: int = _METRICS) -> dict[str, float | None]:
        """Compute the columns of `simulated_rules` that follow from gaps without an effect."""
        low, high, truth = (np.array(each) for each in (self.low, self.high, self.truth))
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
    power: list[dict[tuple[str, str], float]] = []
    for gap in POWER_OF:
        effect = gap * groups / (groups - 1) * (1 if design.rate < 0.5 else -1)
        added = tuple(effect if g == few else 0.0 for g in range(groups))
        tables, truth = simulate(design, _METRICS * studies, seed=seed + 1, gaps=added)
        tallies = _tallies(tables, truth, level, seed, draws=0)
        power.append(
            {
                rule: float((np.array(tally.p_value)[:, few] < 1 - level).mean())
                for rule, tally in tallies.items()
            }
        )
    rows = [
        {
            "design": design.name, "scope": rule[0], "interval": rule[1], **tally.shares(level),
            **{f"power_{100 * gap:02.0f}": power[place].get(rule)
               for place, gap in enumerate(POWER_OF)},
        }
        for rule, tally in found.items()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def _tallies(
    tables: WordTables,
    truth: Mapping[Scope, Doubles],
    level: float,
    seed: int,
    *,
    draws: int = _DRAWS,
) -> dict[tuple[str, str], _Tally]:
    """Judge tables by every rule; without draws by none of the bootstrap."""
    found: dict[tuple[str, str], _Tally] = {}
    counts = tables.counts() if draws else None
    for table, words in tables.tables():
        n = int(table.keys[0])
        known: dict[str, Doubles | None] = {scope: gaps[n] for scope, gaps in truth.items()}
        estimates = table.estimates(words)
        if not estimates:
            continue
        rules: dict[tuple[str, str], MeanEstimate] = {
            (scope, "t"): estimate for scope, estimate in estimates.items()
        }
        widest = [*estimates][-1]
        known["widest"], rules["widest", "t"] = known.get(widest), estimates[widest]
        if "runs" in estimates:
            freedom = np.full_like(estimates["runs"].freedom, np.inf)
            rules["runs", "normal"] = replace(estimates["runs"], freedom=freedom)
        for rule, estimate in rules.items():
            bounds = (*estimate.interval(level), estimate.p_value())
            _add(found, rule, bounds, known.get(rule[0]))
        if counts is not None and n < _DRAWN_TABLES and "sentences" in estimates:
            arrays = CountArrays(
                table.keys,
                (table.rate,),
                table.groups,
                table.templates,
                counts[1][n][None],
                counts[0][n][None],
            )
            _add_drawn(
                found, arrays, estimates["sentences"], known.get("sentences"),
                key=(seed, n), level=level,
            )  # fmt: skip
    return found


def _add_drawn(
    found: dict[tuple[str, str], _Tally],
    counts: CountArrays,
    estimate: MeanEstimate,
    truth: Doubles | None,
    *,
    key: tuple[int, int],
    level: float,
) -> None:
    """Judge a table and its span by draws of runs and templates."""
    weights = Weights(counts.items_KGRT.shape[2:], _DRAWS, key, "sentences")
    drawn_GB = drawn_gaps([counts], np.ones(len(counts.groups), bool), weights)[0, 0]
    low, high, _ = span_interval(drawn_GB, estimate.mean, level)
    span = None if truth is None else np.ptp(truth, keepdims=True)
    _add(found, ("sentences", "span"), (low[None], high[None], np.array([np.nan])), span)
    bounds = gap_intervals(drawn_GB, estimate.freedom, level)
    _add(found, ("sentences", "bootstrap"), bounds, truth)


def _add(
    found: dict[tuple[str, str], _Tally],
    rule: tuple[str, str],
    bounds: tuple[Doubles, Doubles, Doubles],
    truth: Doubles | None,
) -> None:
    tally = found.setdefault(rule, _Tally())
    for values, column in zip(bounds, (tally.low, tally.high, tally.p_value), strict=True):
        column.append(np.asarray(values))
    if truth is not None:
        tally.truth.append(truth)


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
    for counts in count_arrays(cells(named), metrics):
        groups = [name.split("\n")[0] for name in counts.groups]
        _, group_W = np.unique(groups, return_inverse=True)
        for null in ("templates", "words") if len(set(groups)) < len(groups) else ("templates",):
            random = generator(seed, "shuffled", null, *counts.keys)
            tables = _shuffled(counts, group_W, random, studies, whole=null == "words")
            for (scope, interval), tally in _tallies(tables, {}, level, seed).items():
                shares = tally.shares(level, together=len(counts.rates))
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
