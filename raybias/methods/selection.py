"""Choose a sweep's options and the seeds to keep (Tian2023 section 3, Kohankhaki2024).

Works on rows of `schema.RUNS`; knows nothing of torch or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from raybias.errors import WorkFailed
from raybias.methods import Tuned

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HyperParameters:
    """One combination of what a sweep varies."""

    learning_rate: float
    weight_decay: float
    stop_window: int

    def __str__(self) -> str:
        return (
            f"learning rate {self.learning_rate:g}, weight decay {self.weight_decay:g},"
            f" stop window {self.stop_window}"
        )


def hyper_parameter_grid(method: Tuned) -> list[HyperParameters]:
    """List every combination that a method sweeps over, or its one."""
    return [
        HyperParameters(*each)
        for each in product(
            method.learning_rates,
            method.weight_decays or (method.weight_decay,),
            method.stop_windows or (method.early_stop.window,),
        )
    ]


def hyper_parameters_of(row: Row) -> HyperParameters:
    """Return the combination that a run was tuned with."""
    return HyperParameters(row["learning_rate"], row["weight_decay"], row["stop_window"])


def finished(row: Row) -> bool:
    """Check whether a run has a usable adapter."""
    return bool(row["stop_reason"] != "diverged")


def best_hyper_parameters(
    rows: Sequence[Row], choices: Sequence[HyperParameters]
) -> HyperParameters:
    """Choose the combination with the best mean validation accuracy over its sweep runs.

    One whose runs all diverged is out; of equal ones the first listed wins.

    Raises
    ------
    WorkFailed: every run of every combination diverged.
    """
    means = {}
    for choice in choices:
        accuracies = [
            row["validation_accuracy"]
            for row in rows
            if hyper_parameters_of(row) == choice and finished(row)
        ]
        if accuracies:
            means[choice] = fmean(accuracies)
    if not means:
        raise WorkFailed(
            f"every run of the sweep over {len(choices)} combinations diverged",
            cure="try smaller learning_rates",
        )
    return max(means, key=lambda choice: means[choice])  # max keeps the first of equals


def select(rows: Sequence[Row], method: Tuned) -> list[dict[str, Any]]:
    """Fill in `rank`, `tied` and `selected` of the final runs, in the order given.

    Best accuracy first, on the validation or test split as the method's `select` says; the
    lower seed first among equals, which are marked `tied`. A diverged run has no rank.

    Raises
    ------
    WorkFailed: fewer finished than there are seeds, unless the method allows it and
        at least `keep` did.
    """
    good = [row for row in rows if finished(row)]
    failed = sorted(row["seed"] for row in rows if not finished(row))
    if failed and (not method.allow_failed or len(good) < method.keep):
        raise WorkFailed(
            f"{len(good)} of {len(rows)} runs finished, {method.keep} are kept; diverged:"
            f" seeds {', '.join(map(str, failed))}",
            where=f"{rows[0]['model']} on {rows[0]['dataset']}",
            cure="lower the learning rate, or set the method's allow_failed to go on without them"
            if len(good) >= method.keep
            else "lower the learning rate",
        )
    by = f"{method.select}_accuracy"
    order = sorted(good, key=lambda row: (-row[by], row["seed"]))
    ranks = {row["seed"]: place for place, row in enumerate(order, start=1)}
    accuracies = [row[by] for row in good]
    return [
        {
            **row,
            "rank": ranks.get(row["seed"]),
            "tied": finished(row) and accuracies.count(row[by]) > 1,
            "selected": ranks.get(row["seed"], method.keep + 1) <= method.keep,
        }
        for row in rows
    ]
