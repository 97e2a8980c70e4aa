"""How often intervals hold the true gap where a judge that errs labels the texts.

Six groups, texts written after the same prompts in several runs, with variances as on the published
Regard predictions (`calibrate.py`). A judge calls a text negative rightly with a group's
`hits` and wrongly with its `false alarms`; it is harder on the first group, and misses more of the
second. Told are, over groups, the mean and lowest share of 95% intervals that hold the true gap:
of the judge's verdicts alone, and corrected by so many texts of each group that people labelled.

    python benchmarks/judge_coverage.py --studies 2000

It needs no model, and measures no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from calibrate import Design, simulate
from numpy.random import Generator
from tabulate import tabulate

from raybias.seeding import generator
from raybias.stats.components import Doubles
from raybias.stats.judged import JudgeSample
from raybias.stats.scopes import Scope

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


def main(studies: Annotated[int, typer.Option(help="Simulated studies a row.")] = 2000) -> None:
    """Simulate judges with known errors."""
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
    typer.run(main)
