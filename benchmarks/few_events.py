"""How often gaps are found where groups are alike and few sentences are labelled so.

    python benchmarks/few_events.py --studies 400

Rates of a group without, or nearly without, a labelled sentence have too little variance between
templates. Told are, with the least variance of `stats.few_events` and without it: the share of 95%
intervals that hold the true gap, of studies in which a gap survives the correction, and half the
width of an interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from calibrate import Design, simulate
from scipy.stats import false_discovery_control
from tabulate import tabulate

import raybias
from raybias.measures.prediction_rows import gap_rows
from raybias.seeding import generator
from raybias.stats.components import MeanEstimate
from raybias.stats.scopes import GapTable, Scope

#: One word for each of six groups, whose answers depend on it and on the template.
PLAIN: Final = Design("", words=(1,) * 6, word=0.0)
#: Of one run, what other seeds would change is in no interval.
ALONE: Final = replace(PLAIN, name="one run", runs=1, run=0.0, run_group=0.0)
DESIGNS: Final = (
    *(replace(ALONE, templates=templates, rate=rate)
      for templates, rate in ((24, 0.1), (40, 0.05), (40, 0.1), (100, 0.05), (100, 0.3))),
    *(replace(PLAIN, name="five runs", templates=templates, rate=rate)
      for templates, rate in ((27, 0.02), (57, 0.02), (101, 0.005), (57, 0.1), (57, 0.3))),
    replace(PLAIN, name="words, five runs", words=(3, 2, 1, 2, 2, 1), word=0.003, rate=0.02),
    replace(PLAIN, name="words, five runs", words=(3, 2, 1, 2, 2, 1), word=0.003, rate=0.3),
)  # fmt: skip
#: Tables of people: rows of each group, and the rate.
PEOPLE: Final = (
    ((20,) * 6, 0.3), ((50,) * 6, 0.3), ((50,) * 6, 0.9), ((200,) * 6, 0.05), ((200,) * 6, 0.9),
    ((2000, 400, 100, 30, 10), 0.2), ((2000, 400, 100, 30, 10), 0.02), ((20, 20), 0.1),
)  # fmt: skip
HEADS: Final = ("design", "units", "rate", "covers", "survivor", "half width", "covers without",
                "survivor without", "half width without")  # fmt: skip


def judged(tables: Iterator[tuple[GapTable, MeanEstimate]], truth: np.ndarray) -> list[float]:
    """Return coverage, the share of tables with a survivor, and the median half width."""
    covered, survivors, widths = [], [], []
    for n, (_, found) in enumerate(tables):
        low, high = found.interval(0.95)
        known = ~np.isnan(low)
        covered += ((low <= truth[n]) & (truth[n] <= high))[known].tolist()
        widths += (high - low)[known].tolist()
        p = np.nan_to_num(found.p_value(), nan=1.0)
        survivors.append(bool((false_discovery_control(p) <= 0.05).any()))
    return [float(np.mean(covered)), float(np.mean(survivors)), float(np.median(widths)) / 2]


def of_design(design: Design, studies: int) -> list[object]:
    """Judge the gaps of templates under the widest scope, with the least variance and without."""
    drawn, truth = simulate(design, studies)
    scope: Scope = "wording" if max(design.words) > 1 else "sentences"
    tables = [*drawn.tables()]

    def estimates(floored: bool) -> Iterator[tuple[GapTable, MeanEstimate]]:
        for table, words in tables:
            each = table if floored else replace(table, events=None)
            yield each, each.estimates(words)[scope]

    return [
        design.name, design.templates, design.rate, *judged(estimates(True), truth[scope]),
        *judged(estimates(False), truth[scope]),
    ]  # fmt: skip


def of_people(sizes: tuple[int, ...], rate: float, studies: int) -> list[object]:
    """Judge the gaps of tables without templates; each study is a model of one frame."""
    random = generator(0, "few events", *sizes, str(rate))
    group = np.repeat([f"g{n}" for n in range(len(sizes))], sizes)
    frames = [
        pl.DataFrame({"model": f"m{study:04}", "group": group, "label": np.tile([0, 1], len(group))[
            : len(group)], "pred": (random.random(len(group)) < rate).astype(int)})
        for study in range(studies)
    ]  # fmt: skip
    found = gap_rows(raybias.measure(pl.concat(frames), metric="selection_rate"), "widest")
    low, high = (found[end].to_numpy() for end in ("low", "high"))
    half = float(np.nanmedian(high - low)) / 2
    survivors = found.group_by("model").agg(pl.col("survives").fill_null(False).any())
    return [
        "people", "-".join(map(str, sizes)), rate, ((low <= 0) & (high >= 0)).mean(),
        survivors["survives"].mean(), half, None, None, None,
    ]  # fmt: skip


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies of a design.")] = 400,
) -> None:
    """Print how often gaps of rare outcomes are found where there is none."""
    rows = [of_design(design, studies) for design in DESIGNS]
    rows += [of_people(sizes, rate, studies) for sizes, rate in PEOPLE]
    print(tabulate(rows, HEADS, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
