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
import typer
from calibrate import simulate
from few_events import PLAIN
from scipy.stats import false_discovery_control
from tabulate import tabulate

from raybias.seeding import generator
from raybias.stats.count_arrays import CountArrays
from raybias.stats.scopes import GapTable, rate_table
from raybias.stats.units import BLOCK
from raybias.stats.word_variance import WordVariance

#: Families of a page.
FAMILIES: Final = (1, 6, 24, 60)
#: People of a table, and the groups that each column splits them into.
_PEOPLE: Final = 600
_GROUPS: Final = 4
_RATE: Final = 0.5
_LEVEL: Final = 0.95


def survives(table: GapTable, words: WordVariance | None = None) -> bool:
    """Return whether a gap of a family survives its correction, under `sentences`."""
    p = np.nan_to_num(table.estimates(words)["sentences"].p_value(), nan=1.0)
    return bool((false_discovery_control(p) <= 1 - _LEVEL).any())


def of_own_answers(studies: int) -> np.ndarray:
    """Return whether a gap of each simulated study of six groups survives."""
    drawn, _ = simulate(PLAIN, studies)
    return np.array([survives(table, words) for table, words in drawn.tables()])


def of_shared_answers(families: int, tables: int) -> float:
    """Return the share of tables with a gap that survives, which columns split in several ways."""
    random = generator(0, "families", str(families))
    groups = tuple(f"g{number}" for number in range(_GROUPS))
    rows = tuple(f"{BLOCK}{number}" for number in range(_PEOPLE))
    pages = []
    for _ in range(tables):
        called = random.random(_PEOPLE) < _RATE
        found = []
        for _ in range(families):
            own_GT = random.integers(0, _GROUPS, _PEOPLE) == np.arange(_GROUPS)[:, None]
            items, hits = (part[None, :, None].astype(float) for part in (own_GT, own_GT & called))
            counts = CountArrays(("",) * 6, ("selection_rate",), groups, rows, items, hits)
            table = rate_table(counts, 0, dict.fromkeys(groups, True))
            found.append(table is not None and survives(table.less_mean()))
        pages.append(any(found))
    return float(np.mean(pages))


def main(
    studies: Annotated[int, typer.Option(min=60, help="Simulated families.")] = 6000,
    tables: Annotated[int, typer.Option(min=1, help="Simulated tables of shared answers.")] = 100,
) -> None:
    """Print how often a page of several families shows a gap if nothing differs."""
    found = of_own_answers(studies)
    rows = []
    for families in FAMILIES:
        pages = found[: len(found) // families * families].reshape(-1, families)
        shared = of_shared_answers(families, tables)
        rows.append([families, pages.any(axis=1).mean(), shared, 1 - _LEVEL**families])
    heads = ("families", "own answers", "shared answers", "at most, if independent")
    print(tabulate(rows, heads, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
