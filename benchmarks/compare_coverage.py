"""How often `raybias compare` errs, in simulated arms that are alike but for their seeds.

Both arms answer the same sentences about six groups, with two rates, 57 templates and variances as
on the published Regard predictions (`calibrate.py`), and every group has a gap of a tenth,
which is the same in both arms but for the seeds of their runs. Told are the shares of comparisons
in which some gap is called worse or better, and in which the bands of all twelve changes hold.

    python benchmarks/compare_coverage.py --studies 400

It needs no model, and measures no time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import typer
from calibrate import Design, simulate
from tabulate import tabulate

from raybias.measures.compare_gaps import Blend, Family, changes
from raybias.stats.scopes import GapTable

#: Runs of the base and of the candidate; how much runs vary.
ARMS = ((5, 5, 1.0), (2, 3, 1.0), (2, 3, 2.0))
RATES = 2
GAPS = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1)


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
    tables = [table for table, _ in simulate(design, RATES * studies, gaps=GAPS)[0].tables()]
    false = held = 0
    for first in range(0, len(tables), RATES):
        found = [family(table, base, k) for k, table in enumerate(tables[first : first + RATES])]
        rows = changes(found, scope="sentences", level=0.95, margin=0.0)
        false += any(row["verdict"] in ("worse", "better") for row in rows)
        held += all(float(str(row["low"])) <= 0 <= float(str(row["high"])) for row in rows)
    return false / studies, held / studies


def main(studies: Annotated[int, typer.Option(help="Comparisons a row.")] = 400) -> None:
    """Simulate comparisons of equal arms."""
    rows = []
    for base, candidate, more in ARMS:
        plain = Design(f"{base} and {candidate}, {more}", runs=base + candidate)
        design = replace(plain, run=plain.run * more, run_group=plain.run_group * more)
        rows.append((f"{base} and {candidate}", more, *errors(design, base, studies)))
    headers = ("runs of each arm", "variance of runs", "a false verdict", "all bands hold")
    print(tabulate(rows, headers=headers, floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
