"""How often intervals hold the true gap where a judge that errs labels the texts.

Six groups, texts written after the same prompts in several runs, with variances as on the published
Regard predictions (`stats/simulation.py`). A judge calls a text negative rightly with a group's
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
import typer
from tabulate import tabulate

from raybias.seeding import generator
from raybias.stats.arrays import CountArrays
from raybias.stats.components import Doubles
from raybias.stats.judged import JudgeSample
from raybias.stats.scopes import gap_table
from raybias.stats.simulation import RATE, Design, simulate

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

CASES = (
    *((PROMPTS, BY_GROUP, labels) for labels in (20, 30, 50, 100)),
    (PROMPTS, ALIKE, 30),
    (PROMPTS, GOOD, 20),
    (PROMPTS, GOOD, 50),
    (replace(PROMPTS, name="rare", rate=0.12), BY_GROUP, 30),
    (replace(PROMPTS, name="many prompts", templates=400), BY_GROUP, 30),
    (replace(PROMPTS, name="few prompts", templates=12, runs=10), BY_GROUP, 30),
)


def covered(design: Design, judge: Judge, labels: int, studies: int) -> tuple[Doubles, ...]:
    """Return how often each group's intervals hold [2, G], and their mean widths [2]."""
    drawn, truth = simulate(design, studies, gaps=GAPS)
    random = generator(0, "judge", design.name, judge.name, labels)
    groups, prompts = len(GAPS), design.templates
    names, templates = tuple(map(str, range(groups))), tuple(map(str, range(prompts)))
    hits_G11, false_G11 = (np.array(each)[:, None, None] for each in (judge.hits, judge.false_alarms))
    held, widths = np.zeros((2, groups)), np.zeros(2)
    for human_GRT, true_G in zip(drawn.hits_NWRT, truth["sentences"], strict=True):
        judged_GRT = random.random(human_GRT.shape) < np.where(human_GRT, hits_G11, false_G11)
        counts = CountArrays(
            ("", "", "", "", "", ""), (RATE,), names, templates,
            np.ones((1, *human_GRT.shape)), judged_GRT[None].astype(float),
        )  # fmt: skip
        table = gap_table(counts, 0, dict.fromkeys(names, True))
        assert table is not None
        of_judge = table.estimates(None)["sentences"]
        places = np.stack(
            [random.choice(human_GRT[0].size, labels, replace=False) for _ in names]
        )
        group_N = np.repeat(np.arange(groups), labels)
        sample = JudgeSample(
            judged_GRT.reshape(groups, -1)[group_N, places.ravel()].astype(float),
            human_GRT.reshape(groups, -1)[group_N, places.ravel()].astype(float),
            group_N,
            places.ravel() % prompts,
        )
        for n, found in enumerate((of_judge, sample.corrected(of_judge, table.in_mean_G))):
            low, high = found.interval(0.95)
            held[n] += (low <= true_G) & (true_G <= high)
            widths[n] += (high - low).mean()
    return held / studies, widths / studies


def main(studies: Annotated[int, typer.Option(help="Simulated studies a row.")] = 2000) -> None:
    """Simulate judges with known errors."""
    rows = []
    for design, judge, labels in CASES:
        held, widths = covered(design, judge, labels, studies)
        texts = f"{design.templates} prompts x {design.runs}, rate {design.rate:g}"
        shown = [f"{each.mean():.1%} ({each.min():.1%})" for each in held]
        rows.append((texts, judge.name, labels, *shown, *(f"{width / 2:.3f}" for width in widths)))
    headers = ("texts of a group", "judge", "labelled", "verdicts alone", "corrected",
               "half width", "corrected half width")  # fmt: skip
    print(tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    typer.run(main)
