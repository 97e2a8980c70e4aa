"""Draw tuning: accuracy by seed and loss by step; filled is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.config import MethodFields
from raybias.methods import Tuned, tuned_methods
from raybias.planning.inventory import duration
from raybias.report.rendering import Drawn, rendered, round_values, slug
from raybias.schema import SCHEDULE, SCHEDULE_FILE
from raybias.storage import Store
from raybias.table_rules import read_checked

#: Most points of one line; a longer one is drawn as means of equal stretches.
_POINTS: Final = 200
#: Pixels of a plot; where it begins and how wide it is, in percent.
_HEIGHT: Final = 130
_LEFT: Final = 6.0
_WIDE: Final = 90.0
_MARKS: Final = 5
_NAMED: Final = 16
#: One frame of a chart for chart.svg.j2: places across in percent, down in pixels.
_Panel = Mapping[str, Any]


def run_figures(runs: pl.DataFrame, methods: Sequence[MethodFields]) -> list[Drawn]:
    """Draw one figure per tuned (model, method, dataset) of schema.RUNS, without the sweep."""
    untuned = [method.name for method in methods if not method.trains]
    final = runs.filter(pl.col("stage") == "final", ~pl.col("method").is_in(untuned))
    tuned = {method.name: method for method in tuned_methods(methods)}
    figures = []
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        model, method, dataset = map(str, key)
        losses, may_stop = _losses(part, tuned.get(method))
        kept = ", ".join(str(seed) for seed in part.filter("selected")["seed"].sort())
        chart = {
            "title": f"Runs of {model}, {method} on {dataset}",
            "described": f"kept seeds: {kept or 'none'}{may_stop}",
            "panels": [_accuracies(part.sort("seed"), tuned.get(method)), losses],
            "height": _HEIGHT,
        }
        name = slug("runs", model, method, dataset)
        figures.append(Drawn(name, rendered("chart.svg.j2", {"chart": chart})))
    return figures


def thinned(losses: Sequence[float], steps: Sequence[int]) -> tuple[list[float], list[float], int]:
    """Average a line down to some hundred points: steps, losses, and how many each averages."""
    size = -(-len(losses) // _POINTS)
    if size <= 1:
        return list(map(float, steps)), list(losses), 1
    starts = np.arange(0, len(losses), size)
    counts = np.diff(starts, append=len(losses))
    x, y = (np.add.reduceat(np.asarray(v, float), starts) / counts for v in (steps, losses))
    return x.tolist(), y.tolist(), size


def _scale(values: Sequence[float]) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Place values from the top of a plot, with room on both sides; and lines across it."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.05
    low, high = low - room, high + room

    def down(value: float) -> float:
        return round(_HEIGHT * (high - value) / (high - low), 1)

    return down, [(down(value), f"{value:.4g}") for value in round_values(low, high, _MARKS)]


def _accuracies(part: pl.DataFrame, options: Tuned | None) -> _Panel:
    by = "test" if options is not None and options.select == "test" else "validation"
    rows = list(enumerate(part.iter_rows(named=True)))
    failed = [str(row["seed"]) for _, row in rows
              if row[f"{by}_accuracy"] is None or row["stop_reason"] == "diverged"]  # fmt: skip
    there = {n: row for n, row in rows if str(row["seed"]) not in failed}
    down, across = _scale([row[f"{by}_accuracy"] for row in there.values()])
    every = -(-part.height // _NAMED)
    place = [round(_LEFT + _WIDE * (n + 0.5) / part.height, 2) for n, _ in rows]
    diverged = f"; diverged: {', '.join(failed)}" if failed else ""
    return {
        "title": f"{by.capitalize()} accuracy (filled: kept{diverged})",
        "axis": "seed",
        "across": across,
        "marks": [(place[n], str(row["seed"])) for n, row in rows if n % every == 0],
        "dots": [
            (place[n], down(row[f"{by}_accuracy"]), bool(row["selected"]),
             f"seed {row['seed']}: {row[f'{by}_accuracy']:.3f}")
            for n, row in there.items()
        ],
    }  # fmt: skip


def _losses(part: pl.DataFrame, options: Tuned | None) -> tuple[_Panel, str]:
    every, most = options.eval_every if options else 1, 1
    lines: list[tuple[list[float], list[float], bool]] = []
    for row in part.sort("selected").iter_rows(named=True):
        losses = [np.nan if loss is None else loss for loss in row["eval_losses"] or []]
        x, y, size = thinned(losses, [place * every for place in range(len(losses))])
        lines.append((x, y, bool(row["selected"])))
        most = max(most, size)
    last = max((x[-1] for x, _, _ in lines if x), default=0.0) or 1.0
    down, across = _scale([loss for _, y, _ in lines for loss in y if np.isfinite(loss)])
    after = options.recipe.first_stop if options else 0
    shown = last / 20 < after < last
    means = f"; means of {most}" if most > 1 else ""
    panel = {
        "title": f"Evaluation loss (solid: kept{means})",
        "axis": "step" if options else "evaluation",
        "across": across,
        "marks": [(_LEFT + _WIDE * v / last, f"{v:g}") for v in round_values(0, last, _MARKS)],
        "lines": [
            (" ".join(f"{1000 * a / last:.1f},{down(b)}"
                      for a, b in zip(x, y, strict=True) if np.isfinite(b)), kept)
            for x, y, kept in lines
        ],
        "rule": (_LEFT + _WIDE * after / last, "may stop from here") if shown else None,
    }  # fmt: skip
    return panel, f"; may stop from step {after:,}" if shown else ""


def devices_used(store: Store) -> str:
    """Say how long the tasks of schema.SCHEDULE took, and how busy its devices were.

    Empty of one device, of which there is nothing to say, or where nothing was noted.
    """
    if not store.exists(SCHEDULE_FILE):
        return ""
    held = read_checked(store, SCHEDULE_FILE, SCHEDULE, may_be_empty=True)
    if not held.height or held["devices"][0] < 2:
        return ""
    seconds = float(held["end"].to_numpy().max())
    whole = held["devices"][0] * seconds
    busy = min(whole, float((held["held"] * (held["end"] - held["start"])).sum()))
    return (
        f"{duration(seconds)}, devices busy {busy / whole if whole else 1:.0%} of it,"
        f" {(whole - busy) / 3600:,.1f} device-hours idle"
    )
