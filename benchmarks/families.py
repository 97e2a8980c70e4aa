"""How often a page shows a gap if nothing differs, by its number of families of gaps.

    python benchmarks/families.py --studies 6000

Gaps of one attribute and rate of one classifier are corrected together (Benjamini-Hochberg), and no
others, so that a verdict does not depend on what else was asked. Over a page, chance then has as
many occasions as there are families. Told is the share of pages with a gap that survives: of
families that have their own answers; of families that share a classifier's answers, as several
attributes by which the same rows are split do; and what independent families allow at most.
"""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from calibrate import simulate
from few_events import PLAIN
from scipy.stats import false_discovery_control
from tabulate import tabulate

import raybias
from raybias.measures.prediction_rows import gap_rows
from raybias.seeding import generator

#: Families of a page.
FAMILIES: Final = (1, 6, 24, 60)
#: People of a table, and the groups that each column splits them into.
_PEOPLE: Final = 600
_GROUPS: Final = 4
_LEVEL: Final = 0.95


def of_own_answers(studies: int) -> np.ndarray:
    """Return whether a gap of each study of six groups survives, under `sentences`."""
    drawn, _ = simulate(PLAIN, studies)
    found = []
    for table, words in drawn.tables():
        p = np.nan_to_num(table.estimates(words)["sentences"].p_value(), nan=1.0)
        found.append(bool((false_discovery_control(p) <= 1 - _LEVEL).any()))
    return np.array(found)


def of_shared_answers(families: int, tables: int) -> float:
    """Return the share of tables with a gap that survives, which columns split in several ways."""
    random = generator(0, "families", str(families))
    pages = []
    for page in range(tables):
        pred = random.integers(0, 2, _PEOPLE)
        for column in range(families):
            groups = random.integers(0, _GROUPS, _PEOPLE)
            pages.append(pl.DataFrame({
                "probe": f"p{page:04}", "attribute": f"c{column:02}", "group": groups.astype(str),
                "label": np.arange(_PEOPLE) % 2, "pred": pred,
            }))  # fmt: skip
    found = gap_rows(raybias.measure(pl.concat(pages), metric="selection_rate"), "widest")
    shown = found.group_by("probe").agg(pl.col("survives").fill_null(False).any())
    return float(np.mean(shown["survives"].to_numpy()))


def main(
    studies: Annotated[int, typer.Option(min=60, help="Simulated families.")] = 6000,
    tables: Annotated[int, typer.Option(min=1, help="Simulated tables of shared answers.")] = 100,
) -> None:
    """Print how often a page of several families shows a gap if nothing differs."""
    survives = of_own_answers(studies)
    rows = []
    for families in FAMILIES:
        pages = survives[: len(survives) // families * families].reshape(-1, families)
        shared = of_shared_answers(families, tables)
        rows.append([families, pages.any(axis=1).mean(), shared, 1 - _LEVEL**families])
    heads = ("families", "own answers", "shared answers", "at most, if independent")
    print(tabulate(rows, heads, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
