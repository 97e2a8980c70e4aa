"""How often ratios of rates seem to differ from 1 where groups are alike.

    python benchmarks/ratios.py --studies 600

A group's rate is divided by the highest one, which is found in the same data. Told are the share of
tables in which some interval excludes 1, and that of intervals which hold the true ratio to the
group whose rate is highest in truth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from calibrate import Design, simulate
from tabulate import tabulate

import raybias
from raybias.seeding import generator
from raybias.stats.intervals import Rules
from raybias.stats.ratios import ratios
from raybias.stats.scopes import rate_table

PLAIN: Final = Design("one word a group", words=(1,) * 6, word=0.0)
DESIGNS: Final = (
    PLAIN,
    Design("3-2-1-2-2-1 words"),
    Design("words matter", word=0.03),
    replace(PLAIN, name="twelve groups", words=(1,) * 12),
    replace(PLAIN, name="two groups", words=(1, 1)),
    Design("two groups, three words, matter", words=(3, 3), word=0.03),
    replace(PLAIN, name="rare", rate=0.05),
)
#: Tables of people: rows of each group, and their rates.
PEOPLE: Final = (
    ((200,) * 6, (0.3,) * 6), ((50,) * 6, (0.3,) * 6), ((20,) * 6, (0.9,) * 6),
    ((200,) * 6, (0.9,) * 6), ((200,) * 6, (0.05,) * 6), ((100,) * 14, (0.3,) * 14),
    ((2000, 400, 100, 30, 10), (0.2,) * 5), ((200, 200), (0.3, 0.3)), ((20, 20), (0.1, 0.1)),
    ((200, 200), (0.5, 0.4)), ((150,) * 4, (0.4, 0.38, 0.36, 0.32)),
)  # fmt: skip


def told(found: pl.DataFrame, highest: np.ndarray) -> tuple[float, float, float]:
    """Return how often some interval of a model excludes 1, coverage, and the median width.

    highest: the true ratio [G] of each group g0, g1 and so on to the highest rate.
    """
    number = pl.col("group").str.strip_prefix("g").cast(pl.Int64)
    known = found.drop_nulls("high").with_columns(
        truth=number.replace_strict(dict(enumerate(highest)), return_dtype=pl.Float64)
    )
    excludes = (pl.col("high") < 1) | (pl.col("low") > 1)
    tables = found["model"].n_unique()
    some = known.filter(excludes)["model"].n_unique() / tables
    held = known.select((pl.col("low") <= pl.col("truth")) & (pl.col("truth") <= pl.col("high")))
    width = np.median((known["high"] - known["low"]).to_numpy())
    return some, float(np.mean(held.to_series().to_numpy())), float(width)


def of_design(design: Design, studies: int) -> list[object]:
    """Judge ratios of templates under the widest scope, where all groups are alike."""
    drawn, _ = simulate(design, studies)
    variances = drawn._word_variances()
    tables, words = [], {}
    for counts in drawn.arrays():
        table = rate_table(counts, 0, dict.fromkeys(counts.groups, True))
        if table is not None:
            tables.append(table)
            if counts.keys in variances:
                words[table.place] = variances[counts.keys]
    found = ratios(tables, words, Rules())
    widest = found.filter(scope="wording" if words else "sentences")
    sizes = "-".join(map(str, design.words))
    return [design.name, sizes, design.rate, *told(widest, np.ones(len(design.words)))]


def of_people(sizes: tuple[int, ...], rates: tuple[float, ...], studies: int) -> list[object]:
    """Judge selection rates of tables without templates; each table is a model of one frame."""
    random = generator(0, "ratios", *sizes, *map(str, rates))
    group = np.repeat([f"g{n}" for n in range(len(sizes))], sizes)
    chance = np.repeat(rates, sizes)
    label = np.arange(len(group)) % 2
    frames = []
    for study in range(studies):
        pred = (random.random(len(group)) < chance).astype(int)
        columns = {"model": f"m{study:04}", "group": group, "label": label, "pred": pred}
        frames.append(pl.DataFrame(columns))
    found = raybias.measure(pl.concat(frames), metric="selection_rate").filter(statistic="ratio")
    truth = np.array(rates) / max(rates)
    shown = "-".join(f"{rate:g}" for rate in dict.fromkeys(rates))
    return ["people", "-".join(map(str, sizes)), shown, *told(found, truth)]


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated tables of a design.")] = 600,
) -> None:
    """Print how often intervals of ratios exclude 1, and hold the truth."""
    rows = [of_design(design, studies) for design in DESIGNS]
    rows += [of_people(sizes, rates, studies) for sizes, rates in PEOPLE]
    heads = ("design", "words or rows", "rate", "some excludes 1", "covers", "width")
    print(tabulate(rows, heads, tablefmt="pipe", floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
