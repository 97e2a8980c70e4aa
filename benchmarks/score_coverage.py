"""How often intervals of metrics and scores hold the truth, by simulation.

It needs no model, and measures no time.

    python benchmarks/score_coverage.py metrics --studies 120
    python benchmarks/score_coverage.py units --studies 1000
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from tabulate import tabulate

from raybias import schema
from raybias.config import Statistics
from raybias.measures.entries import options
from raybias.measures.entries import triples as of_triples
from raybias.measures.kind import Sums
from raybias.report.rendering import markdown
from raybias.seeding import generator
from raybias.stats.bootstrap import draw_counts, gap_intervals
from raybias.stats.components import Doubles
from raybias.stats.intervals import unit_intervals, without_each
from raybias.stats.metric_table import measure

app = typer.Typer(help=__doc__.partition("\n")[0])
Studies = Annotated[int, typer.Option(help="Studies a row.")]
METRICS = (
    *("fped", "fpr_ratio", "fpr_range", "equalized_odds_difference", "equalized_odds_ratio"),
    *("tpr_gap", "disparity_score", "subgroup_auc", "positive_aeg", "average_group_fairness"),
    *("ece", "ece_range"),
)
GROUPS = ("a", "b", "c")
EFFECTS = {"groups differ": (0.0, 0.3, 0.8), "groups alike": (0.0, 0.0, 0.0)}
INSIDE = pl.DataFrame({"probe": "", "attribute": "x", "group": GROUPS, "in_mean": True})


def examples(
    random: np.random.Generator, runs: int, templates: int, effects: tuple[float, ...]
) -> pl.DataFrame:
    """Draw two examples of each group on each template and run."""
    label_T = np.arange(templates) % 2
    latent = (
        np.array(effects)[:, None]
        + random.normal(0, 0.8, templates)[:, None, None]
        + random.normal(0, 0.3, runs)[:, None, None, None]
        + random.normal(0, 0.4, (runs, templates))[..., None, None]
        + random.normal(0, 0.3, (templates, len(GROUPS)))[..., None]
        + random.logistic(0, 0.7, (runs, templates, len(GROUPS), 2))
        + (1.6 * label_T - 0.8)[:, None, None]
    )
    score = 1 / (1 + np.exp(-latent))
    run, template, group, _ = (axis.ravel() for axis in np.indices(score.shape))
    names = {key: pl.lit("") for key in schema.KEYS}
    return pl.DataFrame(
        {"run_id": run, "unit": template, "group": np.array(GROUPS)[group],
         "label": 2 * label_T[template], "score": score.ravel(), "pred": 2 * (score.ravel() >= 0.5)}
    ).with_columns(
        pl.col("run_id", "unit").cast(pl.String), pl.col("pred").cast(pl.Int8),
        attribute=pl.lit("x"), n=pl.lit(1), **names,
    )  # fmt: skip


def found(table: pl.DataFrame, draws: int) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
    """Compute value, low and high of every metric and group."""
    rules = Statistics.under("strict").model_copy(update={"bootstrap_draws": draws})
    return {
        (row["score"], row["group"]): np.array(
            [row["value"], row.get("low", np.nan), row.get("high", np.nan)]
        )
        for each in measure(table, METRICS, INSIDE, rules)
        for row in each.rows
    }


@app.command()
def metrics(studies: Studies = 120, templates: int = 30, runs: int = 5) -> None:
    """How often the drawn intervals of `raybias measure` hold the truth.

    Examples of three groups have a latent score: effects of groups, templates, runs, runs on
    templates and groups on templates, and logistic noise. The truth is the metric of 40 runs on 400
    templates.
    """
    rows = []
    for design, effects in EFFECTS.items():
        random = np.random.default_rng(1)
        wide = [found(examples(random, 40, 400, effects), 2) for _ in range(4)]
        truth = {key: float(np.mean([one[key][0] for one in wide])) for key in wide[0]}
        held: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for _ in range(studies):
            each = examples(random, runs, templates, effects)
            for key, (_, low, high) in found(each, 400).items():
                if not np.isnan(low):
                    held[key].append(bool(low - 1e-12 <= truth[key] <= high + 1e-12))
        for (metric, group), hits in held.items():
            row = {"design": design, "metric": metric, "group": group}
            share = float(np.mean(hits))
            rows.append({**row, "truth": truth[metric, group], "held": share, "n": len(hits)})
    print(markdown(pl.DataFrame(rows)), end="")


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
    counts = Sums(**dict(zip(names, np.moveaxis(sums, -1, 0), strict=True)))
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
    return [*of_triples.icat(Sums(**dict(zip(names, np.moveaxis(sums, -1, 0), strict=True))))]


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
        low, high, *_ = unit_intervals(found, [(without, sizes)], bounds, 0.95)
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


@app.command()
def units(studies: Studies = 1000) -> None:
    """How often intervals of scores of options and triples hold the truth.

    Question templates differ in how often the unknown option is chosen and in how often other
    answers follow the stereotype (normal on the logit scale), and so do target terms. The truth is
    what very many templates or terms would show. A cell has jackknife and bootstrap.
    """
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
    app()
