"""How often intervals of scores of options and triples hold the truth, by simulation.

Question templates differ in how often the unknown option is chosen and in how often other answers
follow the stereotype (normal on the logit scale), and so do target terms. The truth is what very
many templates or terms would show.

    python benchmarks/unit_coverage.py --studies 1000

It needs no model, and measures no time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np
import typer
from tabulate import tabulate

from raybias.measures import Sums
from raybias.measures.entries import options
from raybias.measures.entries import triples as of_triples
from raybias.seeding import generator
from raybias.stats.bootstrap import draw_counts, gap_intervals
from raybias.stats.components import Doubles
from raybias.stats.jackknife import unit_intervals, without_each

#: Logits of an unknown answer and of following, and their standard deviations over templates.
MODELS = {"undecided": (0.3, 0.8, 1.0), "often right": (2.5, 0.0, 1.5)}
#: Of the sizes of templates, on the logarithmic scale.
SPREADS = {"equal": 0.0, "unequal": 0.8}
LOGITS = (0.0, 0.1, 0.4)
MANY = 400_000

#: Makes counts [U, K] of so many units.
Draw = Callable[[np.random.Generator, int], Doubles]


def chances(random: np.random.Generator, logit: float, sd: float, units: int) -> Doubles:
    """Draw a chance for each unit."""
    return np.asarray(1 / (1 + np.exp(-random.normal(logit, sd, units))))


def answers(model: str, spread: float, random: np.random.Generator, units: int) -> Doubles:
    """Count answers in ambiguous contexts by template."""
    unknown, follow, sd = MODELS[model]
    items = 4 * np.maximum(1, np.exp(random.normal(2.2, spread, units)).astype(int))
    right = random.binomial(items, chances(random, unknown, sd, units))
    following = random.binomial(items - right, chances(random, follow, sd, units))
    counts = [items, items, right, following, items - right - following]
    return np.stack(counts, axis=1).astype(float)


def bias(sums: Doubles) -> list[Doubles]:
    """Compute accuracy, and bias as in ambiguous and as in disambiguated contexts."""
    names = ("items", "answered", "right", "following", "countering")
    counts = Sums(dict(zip(names, np.moveaxis(sums, -1, 0), strict=True)))
    accuracy, bbq = options.accuracy(counts, counts), options.bbq(counts, counts)
    # On one range with the others.
    return [2 * accuracy[0] - 1, *bbq]


def triples(logit: float, random: np.random.Generator, units: int) -> Doubles:
    """Draw the shares of each term's 27 triples, and 1."""
    means = (logit, 2.2, 2.2)
    shares = [random.binomial(27, chances(random, mean, 0.6, units)) / 27 for mean in means]
    return np.stack([*shares, np.ones(units)], axis=1)


def icat(sums: Doubles) -> list[Doubles]:
    """Compute the branches of icat."""
    names = ("over_anti", "over_unrelated", "anti_over_unrelated", "terms")
    return [*of_triples.icat(Sums(dict(zip(names, np.moveaxis(sums, -1, 0), strict=True))))]


def held(
    draw: Draw,
    scores: Callable[[Doubles], list[Doubles]],
    bounds: tuple[float, float],
    units: int,
    studies: int,
) -> tuple[Doubles, Doubles]:
    """Return the shares of studies whose intervals hold each score, and the least of them.

    First those of `unit_intervals`, then percentiles of the bootstrap over units.
    """
    random = generator("unit_coverage", units)
    truth = np.array(scores(draw(random, MANY).sum(axis=0)))
    jackknife, bootstrap = np.zeros((2, len(truth) + 1))
    for _ in range(studies):
        counts = draw(random, units)
        found = np.array(scores(counts.sum(axis=0)))
        without = np.array(scores(without_each(counts)))
        # Terms count alike.
        sizes = np.maximum(counts[:, 0], 1)
        low, high, _reason = unit_intervals(found, without, sizes, bounds, 0.95)
        jackknife += inside(np.append(low, low.min()), truth, np.append(high, high.min()))
        weights = draw_counts(random, 1000, units, units - 1)
        drawn = np.array(scores(weights @ counts))
        freedom = np.full(len(truth) + 1, max(sizes.sum() ** 2 / (sizes**2).sum() - 1, 1))
        low, high, _p = gap_intervals(np.vstack([drawn, drawn.min(axis=0)]), freedom, 0.95)
        bootstrap += inside(low, truth, high)
    return jackknife / studies, bootstrap / studies


def inside(low: Doubles, truth: Doubles, high: Doubles) -> Doubles:
    """Tell which intervals hold the scores, and the least of these."""
    wanted = np.append(truth, truth.min())
    return np.asarray((low <= wanted) & (wanted <= high), dtype=float)


def beside(found: tuple[Doubles, Doubles], first: int, last: int | None) -> list[str]:
    """Write the shares of both intervals in one cell."""
    return [f"{one:.3f}, {other:.3f}" for one, other in zip(*found, strict=True)][first:last]


def main(studies: Annotated[int, typer.Option(help="Studies a row.")] = 1000) -> None:
    """Simulate studies of several designs; a cell has jackknife and bootstrap."""
    rows: list[tuple[object, ...]] = []
    for model in MODELS:
        for name, spread in SPREADS.items():
            for units in (6, 12, 25, 50):
                draw = partial(answers, model, spread)
                found = held(draw, bias, (-1, 1), units, studies)
                rows.append((model, name, units, *beside(found, 0, 3)))
    headers = ("model", "templates", "number", "accuracy", "bias, ambig", "bias, disambig")
    print(tabulate(rows, headers=headers), end="\n\n")
    rows = []
    for logit in LOGITS:
        for terms in (8, 36, 80):
            found = held(partial(triples, logit), icat, (0, 200), terms, studies)
            rows.append((logit, terms, *beside(found, -1, None)))
    print(tabulate(rows, headers=("mean logit of ss", "terms", "icat")))


if __name__ == "__main__":
    typer.run(main)
