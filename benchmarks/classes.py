"""How often what is found over many classes errs, where simulation knows the recalls.

Tables are as those of De-Arteaga and others (2019): classes of unequal size, in which the share of
the first group goes from .09 to .93, and wrong answers that spread evenly over the other classes.

    python benchmarks/classes.py --tables 300
"""

from __future__ import annotations

import math
import warnings
from itertools import product
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from tabulate import tabulate

import raybias
from raybias.stats.checks import StatisticsWarning

app = typer.Typer(help=__doc__.partition("\n")[0])
SUMMARIES: Final = ("rms_tpr_gap", "range_tpr_gap")
#: Classes and rows.
SIZES: Final = ((28, 4_000), (28, 40_000), (5, 1_000))
#: Standard deviations of the differences of recalls over classes.
SPREADS: Final = (0.0, 0.05, 0.15)


def planted(
    random: np.random.Generator, classes: int, rows: int, spread: float
) -> tuple[pl.DataFrame, np.ndarray]:
    """Draw a table, and the difference [classes] of its groups' true recalls."""
    size = random.dirichlet(np.full(classes, 2.0))
    base = random.uniform(0.55, 0.9, classes)
    half = np.clip(random.normal(0, spread / 2, classes), base - 1, 1 - base)
    half = np.clip(half, -base, base)
    label = random.choice(classes, rows, p=size)
    first = random.random(rows) < np.linspace(0.09, 0.93, classes)[label]
    right = random.random(rows) < base[label] + np.where(first, half[label], -half[label])
    other = (label + random.integers(1, classes, rows)) % classes
    names = np.array([f"class {code:02d}" for code in range(classes)])
    table = pl.DataFrame(
        {
            "group": np.where(first, "women", "men"),
            "label": names[label],
            "pred": names[np.where(right, label, other)],
        }
    )
    return table, 2 * half


@app.command()
def main(
    tables: Annotated[int, typer.Option(help="Simulated tables a row.")] = 300, seed: int = 1
) -> None:
    """Print how often intervals hold the truth, and how many tables have a surviving gap."""
    warnings.simplefilter("ignore", StatisticsWarning)
    rows = []
    for (classes, size), spread in product(SIZES, SPREADS):
        random = np.random.default_rng(seed)
        held: dict[str, list[bool]] = {name: [] for name in SUMMARIES}
        true: list[float] = []
        values: list[float] = []
        less: list[float] = []
        survivors: list[bool] = []
        for _ in range(tables):
            table, apart = planted(random, classes, size, spread)
            found = raybias.measure(table, metric=["tpr", *SUMMARIES])
            whole = {row["score"]: row for row in found.filter(group="all").iter_rows(named=True)}
            truth = {"rms_tpr_gap": math.sqrt((apart**2).mean()), "range_tpr_gap": np.ptp(apart)}
            true.append(truth["rms_tpr_gap"])
            for name in SUMMARIES:
                held[name].append(whole[name]["low"] <= truth[name] <= whole[name]["high"])
            values.append(whole["rms_tpr_gap"]["value"])
            less.append(whole["rms_tpr_gap_less_noise"]["value"])
            survivors.append(bool(found.filter(score="tpr", statistic="gap")["survives"].any()))
        means = [np.mean(each) for each in held.values()]
        means += [np.mean(true), np.mean(values), np.mean(less), np.mean(survivors)]
        rows.append((classes, size, spread, *means))
    heads = (
        *("classes", "rows", "sd of gaps", "rms held", "range held", "true rms"),
        *("mean rms", "less noise", "tables with a surviving gap"),
    )
    print(tabulate(rows, headers=heads, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    app()
