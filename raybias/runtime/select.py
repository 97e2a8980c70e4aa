"""Which learning rate a sweep chooses and which seeds are kept (001, section 3).

Works on rows of `schema.RUNS`; knows nothing of torch or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from raybias.config import SoftPrompt
from raybias.errors import WorkFailed

Row = Mapping[str, Any]


def finished(row: Row) -> bool:
    """Whether a run has a usable adapter."""
    return bool(row["stop_reason"] != "diverged")


def best_rate(rows: Sequence[Row], rates: Sequence[float]) -> float:
    """The learning rate with the best mean validation accuracy over its sweep runs.

    A rate whose runs all diverged is out; of equal rates the first listed wins.

    Raises
    ------
    WorkFailed: every run of every rate diverged.
    """
    means = {}
    for rate in rates:
        accuracies = [
            row["validation_accuracy"]
            for row in rows
            if row["learning_rate"] == rate and finished(row)
        ]
        if accuracies:
            means[rate] = fmean(accuracies)
    if not means:
        raise WorkFailed(
            f"every run of the sweep over {', '.join(f'{rate:g}' for rate in rates)} diverged",
            cure="try smaller learning_rates",
        )
    return max(means, key=lambda rate: means[rate])  # max keeps the first of equals


def select(rows: Sequence[Row], method: SoftPrompt) -> list[dict[str, Any]]:
    """The final runs with `rank`, `tied` and `selected` filled in, in the order given.

    Best validation accuracy first, the lower seed first among equals, which are
    marked `tied`. A diverged run has no rank.

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
    order = sorted(good, key=lambda row: (-row["validation_accuracy"], row["seed"]))
    ranks = {row["seed"]: place for place, row in enumerate(order, start=1)}
    accuracies = [row["validation_accuracy"] for row in good]
    return [
        {
            **row,
            "rank": ranks.get(row["seed"]),
            "tied": finished(row) and accuracies.count(row["validation_accuracy"]) > 1,
            "selected": ranks.get(row["seed"], method.keep + 1) <= method.keep,
        }
        for row in rows
    ]
