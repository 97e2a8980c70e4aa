"""How often verdicts err, where simulation knows the truth.

Variances are as on the published Regard predictions (`calibrate.py`, which has the coverage of
intervals). It needs no model, and measures no time.

    python benchmarks/coverage.py again --studies 300
    python benchmarks/coverage.py compare --studies 400
    python benchmarks/coverage.py judges --studies 2000
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from calibrate import Design, WordTables, simulate
from numpy.random import Generator
from scipy.special import ndtri
from scipy.stats import false_discovery_control
from tabulate import tabulate

from raybias.config import Statistics
from raybias.measures.compare_gaps import Blend, Family, changes
from raybias.seeding import generator
from raybias.stats.components import Doubles
from raybias.stats.judged import JudgeSample
from raybias.stats.scopes import SCOPES, GapTable, Scope

app = typer.Typer(help=__doc__.partition("\n")[0])
RATES, SIZE = 2, 0.03
Arrays = dict[str, np.ndarray]


def effects(random: np.random.Generator, d: Design, tables: int, scope: Scope | None) -> Arrays:
    """Draw what a scope draws anew, all of it where there is none."""
    words, groups = len(d.group_W), len(d.words)

    def drawn(variance: float, *shape: int) -> np.ndarray:
        return random.normal(0, np.sqrt(variance), (tables, *shape)).astype(np.float32)

    found = {"run": drawn(d.run, 1, d.runs) + drawn(d.run_group, groups, d.runs)[:, d.group_W]}
    if scope != "runs":
        of_group = drawn(d.template_group, groups, d.templates)[:, d.group_W]
        common = drawn(d.template, 1, d.templates)
        found["template"] = common + of_group + drawn(d.word_template, words, d.templates)
    if scope in ("wording", None):
        found["word"] = drawn(d.word, words)
    return found


def verdicts(
    random: np.random.Generator, d: Design, parts: Arrays, gap_NG: np.ndarray, scope: Scope
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gaps [N, G], their p and their `mde` under a scope."""
    level_NW = ndtri(d.rate + gap_NG)[:, d.group_W] + parts["word"]
    fixed_NWRT = (level_NW[..., None] + parts["template"])[:, :, None] + parts["run"][..., None]
    noise = random.standard_normal(fixed_NWRT.shape, np.float32) * np.float32(np.sqrt(d.noise))
    hits_NWRT = (fixed_NWRT + noise > 0).astype(np.int64)
    items = np.ones((*hits_NWRT.shape[:2], d.templates), np.int64)
    group_NW = np.broadcast_to(d.group_W, hits_NWRT.shape[:2])
    rows = []
    for table, words in WordTables(hits_NWRT, items, group_NW).tables():
        found = table.estimates(words)[scope]
        rows.append((found.mean, found.p_value(), found.detectable(0.95)))
    mean, p, shows = np.swapaxes(np.array(rows), 0, 1)
    return mean, p, shows


def survives(p_NG: np.ndarray) -> np.ndarray:
    """Correct by Benjamini-Hochberg over the gaps of each study."""
    of_study = np.nan_to_num(p_NG, nan=1.0).reshape(-1, RATES * p_NG.shape[1])
    return (false_discovery_control(of_study, axis=1) <= 0.05).reshape(p_NG.shape)


@app.command()
def again(studies: Annotated[int, typer.Option(help="Studies a row.")] = 300) -> None:
    """How often significant gaps are significant again: what significance by scope does not say.

    Studies of six groups and two rates, five runs, 57 templates and words, and true gaps of a
    standard deviation of .03. Each study is repeated with what its scope draws anew: other seeds on
    the same sentences, other seeds and sentences, or other words too. Told are, of the gaps that
    survive the correction for many tests, how many are significant (p < .05) in the repetition with
    the same sign, and how many survive there; and of gaps as large as `mde`, the size that a single
    test finds four times in five, how many are significant, and how many survive.
    """
    d, rows = Design("again"), []
    for scope in SCOPES:
        random = np.random.default_rng(7)
        tables = RATES * studies
        gap_NG = random.normal(0, SIZE, (tables, len(d.words)))
        gap_NG -= gap_NG.mean(axis=1, keepdims=True)
        first = effects(random, d, tables, None)
        one, p_one, shows = verdicts(random, d, first, gap_NG, scope)
        second = first | effects(random, d, tables, scope)
        other, p_other, _ = verdicts(random, d, second, gap_NG, scope)
        same = np.sign(one) == np.sign(other)
        kept, twice = survives(p_one), survives(p_other)
        # One group of every table as far out as `mde` says, the others as they are.
        planted = gap_NG.copy()
        planted[:, 0] = float(np.nanmedian(shows))
        _, p_planted, _ = verdicts(random, d, effects(random, d, tables, None), planted, scope)
        rows.append(
            (scope, int(kept.sum()) / studies, ((p_other < 0.05) & same)[kept].mean(),
             (twice & same)[kept].mean(), float(np.nanmedian(shows)),
             (p_planted[:, 0] < 0.05).mean(), survives(p_planted)[:, 0].mean())
        )  # fmt: skip
    headers = ("scope", "survivors a study", "of them significant again", "survive again",
               "mde", "of gaps so large significant", "survive")  # fmt: skip
    print(tabulate(rows, headers=headers, floatfmt=".3f"))


#: Runs of the base and of the candidate; how much runs vary.
ARMS = ((5, 5, 1.0), (2, 3, 1.0), (2, 3, 2.0))
EQUAL_GAPS = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1)


def family(table: GapTable, base: int, rate: int) -> Family:
    """Deal the runs of one table to two arms with seeds of their own."""
    one, other = (
        replace(table, values_GRT=part, score=f"rate{rate}")
        for part in np.split(table.values_GRT, [base], axis=1)
    )

    def blend(weights: tuple[float, float]) -> Blend:
        parts = zip(weights, (one, other), strict=True)
        # Words are the same in both arms and cancel in a change.
        return Blend(tuple(replace(t, values_GRT=w * t.values_GRT) for w, t in parts), None)

    return Family(one, other, blend((-1.0, 1.0)), blend((0.5, 0.5)))


def errors(design: Design, base: int, studies: int) -> tuple[float, float]:
    """Return the shares of comparisons with a false verdict, and whose bands all hold 0."""
    tables = [table for table, _ in simulate(design, RATES * studies, gaps=EQUAL_GAPS)[0].tables()]
    false = held = 0
    for first in range(0, len(tables), RATES):
        found = [family(table, base, k) for k, table in enumerate(tables[first : first + RATES])]
        rows = changes(found, Statistics.under("strict", scope="sentences"), margin=0.0)
        false += any(row["verdict"] in ("worse", "better") for row in rows)
        held += all(float(str(row["low"])) <= 0 <= float(str(row["high"])) for row in rows)
    return false / studies, held / studies


@app.command()
def compare(studies: Annotated[int, typer.Option(help="Comparisons a row.")] = 400) -> None:
    """How often `raybias compare` errs, in simulated arms that are alike but for their seeds.

    Both arms answer the same sentences about six groups, with two rates and 57 templates, and every
    group has a gap of a tenth, which is the same in both arms but for the seeds of their runs. Told
    are the shares of comparisons in which some gap is called worse or better, and in which the
    bands of all twelve changes hold.
    """
    rows = []
    for base, candidate, more in ARMS:
        plain = Design(f"{base} and {candidate}, {more}", runs=base + candidate)
        design = replace(plain, run=plain.run * more, run_group=plain.run_group * more)
        rows.append((f"{base} and {candidate}", more, *errors(design, base, studies)))
    headers = ("runs of each arm", "variance of runs", "a false verdict", "all bands hold")
    print(tabulate(rows, headers=headers, floatfmt=".3f"))


Integers = npt.NDArray[np.integer]

GAPS = (0.05, -0.05, 0.1, -0.1, 0.0, 0.0)
PROMPTS = Design(
    "prompts", rate=0.25, runs=3, words=(1,) * 6, word=0.0, word_template=0.0, templates=57
)


@dataclass(frozen=True)
class Judge:
    """Shares of the texts of each group that a judge calls negative."""

    name: str
    hits: tuple[float, ...]
    false_alarms: tuple[float, ...]


BY_GROUP = Judge("errs by group", (0.8, 0.6, *(0.8,) * 4), (0.25, 0.08, *(0.1,) * 4))
ALIKE = Judge("errs alike", (0.8,) * 6, (0.1,) * 6)
GOOD = Judge("good", (0.95, 0.9, *(0.95,) * 4), (0.06, 0.02, *(0.02,) * 4))
WORDS = Design("words", rate=0.25, runs=3, words=(3, 2, 2, 2, 2, 2))

CASES: tuple[tuple[Design, Scope, Judge, int], ...] = (
    *((PROMPTS, "sentences", BY_GROUP, labels) for labels in (20, 30, 50, 100)),
    (PROMPTS, "sentences", ALIKE, 30),
    (PROMPTS, "sentences", GOOD, 20),
    (PROMPTS, "sentences", GOOD, 50),
    (replace(PROMPTS, name="rare", rate=0.12), "sentences", BY_GROUP, 30),
    (replace(PROMPTS, name="many", templates=400), "sentences", BY_GROUP, 30),
    (replace(PROMPTS, name="few", templates=12, runs=10), "sentences", BY_GROUP, 30),
    (WORDS, "wording", BY_GROUP, 50),
)  # fmt: skip


def covered(
    design: Design, scope: Scope, judge: Judge, labels: int, studies: int
) -> tuple[Doubles, Doubles]:
    """Return how often each group's intervals hold [2, G], and their mean widths [2]."""
    human, truth = simulate(design, studies, gaps=GAPS)
    random = generator(0, "judge", design.name, judge.name, labels)
    group_W, groups = design.group_W, len(GAPS)
    hits_W11, false_W11 = (
        np.array(each)[group_W][:, None, None] for each in (judge.hits, judge.false_alarms)
    )
    chance_NWRT = np.where(human.hits_NWRT, hits_W11, false_W11)
    judged = replace(human, hits_NWRT=(random.random(chance_NWRT.shape) < chance_NWRT) * 1)
    held, widths = np.zeros((2, groups)), np.zeros(2)
    for n, (table, words) in enumerate(judged.tables()):
        of_judge = table.estimates(words)
        sample = _labelled(human.hits_NWRT[n], judged.hits_NWRT[n], group_W, labels, random)
        corrected = sample.corrected(of_judge, scope, table.in_mean_G)
        for place, found in enumerate((of_judge[scope], corrected)):
            low, high = found.interval(0.95)
            held[place] += (low <= truth[scope][n]) & (truth[scope][n] <= high)
            widths[place] += (high - low).mean()
    return held / studies, widths / studies


def _labelled(
    human_WRT: Integers, judged_WRT: Integers, group_W: Integers, labels: int, random: Generator
) -> JudgeSample:
    """Draw the texts of each group that people label."""
    shape = human_WRT.shape
    places = [
        random.choice(np.flatnonzero(np.repeat(group_W == g, shape[1] * shape[2])), labels, False)
        for g in range(int(group_W.max()) + 1)
    ]
    place_N = np.concatenate(places)
    return JudgeSample(
        judged_WRT.ravel()[place_N].astype(float),
        human_WRT.ravel()[place_N].astype(float),
        np.repeat(np.arange(len(places)), labels),
        place_N % shape[2],
    )


@app.command()
def judges(studies: Annotated[int, typer.Option(help="Simulated studies a row.")] = 2000) -> None:
    """How often intervals hold the true gap where a judge that errs labels the texts.

    Six groups, texts written after the same prompts in several runs. A judge calls a text negative
    rightly with a group's `hits` and wrongly with its `false alarms`; it is harder on the first
    group, and misses more of the second. Told are, over groups, the mean and lowest share of 95%
    intervals that hold the true gap: of the judge's verdicts alone, and corrected by so many texts
    of each group that people labelled.
    """
    rows = []
    for design, scope, judge, labels in CASES:
        held, widths = covered(design, scope, judge, labels, studies)
        texts = f"{design.templates} prompts x {design.runs}, rate {design.rate:g}, {scope}"
        shown = [f"{each.mean():.1%} ({each.min():.1%})" for each in held]
        rows.append((texts, judge.name, labels, *shown, *(f"{width / 2:.3f}" for width in widths)))
    headers = ("texts of a group; covers", "judge", "labelled", "verdicts alone", "corrected",
               "half width", "corrected half width")  # fmt: skip
    print(tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    app()
