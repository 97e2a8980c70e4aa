"""Draw tuning: accuracy by seed, loss by step, and which device held what; filled is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.config import MethodFields
from raybias.methods import Tuned, tuned_methods
from raybias.planning.inventory import duration
from raybias.report.rendering import Drawn, rendered, round_values, slug
from raybias.schema import SCHEDULE_FILE
from raybias.storage import Store

#: After Okabe and Ito; each has a contrast of 3 to 1 and more to a page's light and dark colours.
COLOURS: Final = (
    "#0077bb", "#d55e00", "#009e73", "#c45a91", "#a87b00", "#2a8fa8", "#8c6bb1", "#7d6f55",
)  # fmt: skip
#: Most points of one line; a longer one is drawn as means of equal stretches.
_POINTS: Final = 200
#: Pixels of a plot, and of one device's row; where a plot begins and how wide it is, in percent.
_HEIGHT: Final = 130
_ROW: Final = 20
_LEFT: Final = 6.0
_WIDE: Final = 90.0
_MARKS: Final = 5
_NAMED: Final = 16
#: One frame of a chart for chart.svg.j2: places across in percent, down in pixels.
_Panel = Mapping[str, Any]


def _chart(
    name: str,
    title: str,
    described: str,
    panels: Sequence[_Panel],
    legend: Sequence[tuple[str, str]] = (),
) -> Drawn:
    """Draw panels one below another, with names and colours below them."""
    tops = [0, *accumulate(panel["height"] + 70 for panel in panels)]
    chart = {
        "title": title,
        "described": described,
        "placed": [*zip(tops, panels, strict=False)],
        "legend": legend,
        "height": tops[-1] + 18 * -(-len(legend) // 3),
    }
    return Drawn(name, rendered("chart.svg.j2", {"chart": chart}))


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
        figures.append(
            _chart(
                slug("runs", model, method, dataset),
                f"Runs of {model}, {method} on {dataset}",
                f"kept seeds: {kept or 'none'}{may_stop}",
                (_accuracies(part.sort("seed"), tuned.get(method)), losses),
            )
        )
    return figures


def thinned(losses: Sequence[float], steps: Sequence[int]) -> tuple[list[float], list[float], int]:
    """Reduce a line to some hundred points: steps, losses, and how many each is the mean of."""
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
        "height": _HEIGHT,
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
        "height": _HEIGHT,
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


def read_schedule(store: Store) -> pl.DataFrame | None:
    """Read schema.SCHEDULE of OUT; None where only one device was held, or nothing was noted."""
    if not store.exists(SCHEDULE_FILE):
        return None
    held = pl.DataFrame(store.read_table(SCHEDULE_FILE))
    return held if held.height and held["devices"][0] > 1 else None


def devices_used(held: pl.DataFrame) -> str:
    """Say how long the tasks of schema.SCHEDULE took, and how busy its devices were."""
    whole = held["devices"][0] * float(held["end"].to_numpy().max())
    busy = float((held["end"] - held["start"]).sum())
    return (
        f"{duration(whole / held['devices'][0])}, devices busy {busy / whole if whole else 1:.0%}"
        f" of it, {max(0.0, whole - busy) / 3600:,.1f} device-hours idle"
    )


def schedule_figure(held: pl.DataFrame, title: str) -> Drawn:
    """Draw schema.SCHEDULE, one row for each device; a thin line reads, a thick one tunes."""
    devices, wall = held["devices"][0], float(held["end"].to_numpy().max()) or 1.0
    unit, per = ("hours", 3600.0) if wall >= 3600 else ("seconds", 1.0)
    names = held["backbone"].unique(maintain_order=True)
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    bars = []
    for span in held.iter_rows(named=True):
        thin, seconds = span["kind"] != "tune", span["end"] - span["start"]
        y, high = _ROW * span["worker"] + (7 if thin else 2), _ROW - (14 if thin else 4)
        x, wide = round(_LEFT + _WIDE * span["start"] / wall, 2), round(_WIDE * seconds / wall, 2)
        what = f"{span['task']}: {duration(seconds)}"
        bars.append((x, wide, y, high, colours[span["backbone"]], what))
    panel = {
        "title": f"{title} (a row each device; thin: reading)",
        "axis": f"{unit} from the begin",
        "height": _ROW * devices,
        "across": [(_ROW * (n + 1), str(n)) for n in range(devices)],
        "marks": [(_LEFT + _WIDE * v * per / wall, f"{v:g}")
                  for v in round_values(0, wall / per, _MARKS)],
        "bars": bars,
    }  # fmt: skip
    return _chart("schedule", title, devices_used(held), [panel], [*colours.items()])
