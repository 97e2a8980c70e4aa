"""How often the drawn intervals of `raybias measure` hold the truth, where it is known.

Examples of three groups have a latent score: effects of groups, templates, runs, runs on templates
and groups on templates, and logistic noise. The truth is the metric of 40 runs on 400 templates.

    python benchmarks/metric_coverage.py [--studies 120] [--templates 30] [--runs 5]
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.report.table import markdown
from raybias.stats.metric_table import MetricRules, measure

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
         "label": label_T[template], "score": score.ravel(), "pred": score.ravel() >= 0.5}
    ).with_columns(
        pl.col("run_id", "unit").cast(pl.String), pl.col("pred").cast(pl.Int8),
        attribute=pl.lit("x"), n=pl.lit(1), **names,
    )  # fmt: skip


def found(table: pl.DataFrame, draws: int) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
    """Compute value, low and high of every metric and group."""
    rules = MetricRules(positive=1, draws=draws)
    return {
        (row["score"], row["group"]): np.array([row["value"], row["low"], row["high"]])
        for each in measure(table, METRICS, INSIDE, rules)
        for row in each.rows
    }


def main() -> None:
    """Print the share of studies whose interval holds the truth."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name, default in (("studies", 120), ("templates", 30), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rows = []
    for design, effects in EFFECTS.items():
        random = np.random.default_rng(1)
        wide = [found(examples(random, 40, 400, effects), 2) for _ in range(4)]
        truth = {key: float(np.mean([each[key][0] for each in wide])) for key in wide[0]}
        held: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for _ in range(options.studies):
            study = examples(random, options.runs, options.templates, effects)
            for key, (_, low, high) in found(study, 400).items():
                if not np.isnan(low):
                    held[key].append(bool(low - 1e-12 <= truth[key] <= high + 1e-12))
        for (metric, group), hits in held.items():
            row = {"design": design, "metric": metric, "group": group}
            share = float(np.mean(hits))
            rows.append({**row, "truth": truth[metric, group], "held": share, "n": len(hits)})
    print(markdown(pl.DataFrame(rows)), end="")


if __name__ == "__main__":
    main()
