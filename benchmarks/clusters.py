"""How often intervals hold the truth if several rows are about one person, with --cluster and not.

    python benchmarks/clusters.py --studies 400

Each person has a coin of their own, which a row copies with a chance `like`, and tosses anew
otherwise. All groups have the same rate, so that every true gap is 0. Each study is a model of one
table. Told are the share of 95% intervals that hold 0, of studies with a gap that survives, and the
median half width.
"""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from tabulate import tabulate

import raybias
from raybias.measures.prediction_rows import gap_rows
from raybias.seeding import generator

#: People of each group, rows of each person, the rate, and how alike a person's rows are.
DESIGNS: Final = (
    ((40, 40), 5, 0.3, 0.67), ((40, 40), 5, 0.3, 1.0), ((200, 200), 5, 0.3, 0.67),
    ((100, 30, 12), 5, 0.3, 0.67), ((40,) * 6, 5, 0.1, 0.67), ((12, 12), 5, 0.3, 0.67),
    ((900, 900), 3, 0.3, 0.67), ((40, 40), 5, 0.3, 0.0),
)  # fmt: skip


def table(people: tuple[int, ...], rows: int, rate: float, like: float, study: int) -> pl.DataFrame:
    """Draw a table of people with several rows each."""
    random = generator(0, "clusters", *map(str, (*people, rows, rate, like, study)))
    n = sum(people)
    coins = np.repeat(random.random(n) < rate, rows)
    copies = random.random(n * rows) < like
    return pl.DataFrame({
        "model": f"m{study:04}",
        "group": np.repeat([f"g{k}" for k, size in enumerate(people) for _ in range(size)], rows),
        "person": np.repeat(np.arange(n), rows),
        "label": np.arange(n * rows) % 2,
        "pred": np.where(copies, coins, random.random(n * rows) < rate).astype(int),
    })  # fmt: skip


def judged(tables: pl.DataFrame, cluster: str) -> list[float]:
    """Return coverage, the share of studies with a survivor, and the median half width."""
    found = gap_rows(raybias.measure(tables, metric="selection_rate", cluster=cluster), "widest")
    low, high = (found[end].to_numpy() for end in ("low", "high"))
    survivors = found.group_by("model").agg(pl.col("survives").fill_null(False).any())
    holds = (low <= 0) & (high >= 0)
    return [
        float(np.mean(holds)),
        float(np.mean(survivors["survives"].to_numpy())),
        float(np.nanmedian(high - low)) / 2,
    ]


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated tables of a design.")] = 400,
) -> None:
    """Print how often intervals hold the truth with the persons known, and not."""
    lines = []
    for people, rows, rate, like in DESIGNS:
        tables = pl.concat(table(people, rows, rate, like, study) for study in range(studies))
        without, known = judged(tables, ""), judged(tables, "person")
        lines.append(["-".join(map(str, people)), rows, rate, like, *without, *known])
    heads = ("people", "rows of each", "rate", "alike", "covers", "survivor", "half width",
             "covers with", "survivor with", "half width with")  # fmt: skip
    print(tabulate(lines, heads, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
