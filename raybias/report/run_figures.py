"""Draw tuning: accuracy by seed, evaluation loss by step, and which device held what when.

A filled marker or solid line is a kept run. Runs may have thousands of evaluations;
what is drawn has a few hundred points, and says that they are means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from raybias.config import MethodFields
from raybias.methods import Tuned, tuned_methods
from raybias.planning.schedule import Schedule, Span, duration
from raybias.report import figure_parts as parts
from raybias.report.figure_style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    WIDTH,
    drawing,
    quiet_axes,
    to_svg,
)
from raybias.schema import SCHEDULE_FILE
from raybias.storage import Store

#: Most points of one line; a longer one is drawn as means of equal stretches.
_POINTS: Final = 200


def run_figures(
    runs: pl.DataFrame, methods: Sequence[MethodFields]
) -> dict[tuple[str, ...], parts.Drawn]:
    """Draw one figure per tuned (model, method, dataset).

    Parameters
    ----------
    runs: schema.RUNS; sweep runs and runs of prompted methods are left out.
    methods: of the study; they say how many steps lie between evaluations.
    """
    untuned = [method.name for method in methods if not method.trains]
    final = runs.filter(pl.col("stage") == "final", ~pl.col("method").is_in(untuned))
    tuned = {method.name: method for method in tuned_methods(methods)}
    figures = {}
    for key in final.select("model", "method", "dataset").unique(maintain_order=True).iter_rows():
        model, method, dataset = key
        part = final.filter(model=model, method=method, dataset=dataset).sort("seed")
        title = f"Runs of {model}, {method} on {dataset}"
        svg = _run_figure(part, tuned.get(method), title)
        figures[key] = parts.Drawn(parts.slug("runs", model, method, dataset), title, svg)
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


def _run_figure(part: pl.DataFrame, options: Tuned | None, title: str) -> str:
    with drawing(2 * WIDTH, 3.3) as figure:
        left, right = figure.subplots(1, 2)
        _accuracy_by_seed(left, part, options)
        may_stop = _loss_by_step(right, part, options)
        kept = ", ".join(str(seed) for seed in part.filter(pl.col("selected"))["seed"])
        described = f"kept seeds: {kept or 'none'}{may_stop}"
        return to_svg(figure, title=title, description=described)


def _accuracy_by_seed(axes: Axes, part: pl.DataFrame, options: Tuned | None) -> None:
    quiet_axes(axes, grid="y")
    by = "test" if options is not None and options.select == "test" else "validation"
    for place, row in enumerate(part.iter_rows(named=True)):
        value, kept = row[f"{by}_accuracy"], bool(row["selected"])
        if value is None or row["stop_reason"] == "diverged":
            axes.text(place, 0.04, "diverged", rotation=90, ha="center", va="bottom",
                      transform=axes.get_xaxis_transform(), fontsize=8)  # fmt: skip
            continue
        axes.plot([place], [value], "o", color=COLOURS[0], markersize=7, markeredgewidth=1.5,
                  markerfacecolor=COLOURS[0] if kept else PAPER)  # fmt: skip
    seeds = [str(seed) for seed in part["seed"]]
    axes.set_xticks(range(len(seeds)), seeds, rotation=90 if len(seeds) > 8 else 0)
    axes.set_xlim(-0.6, len(seeds) - 0.4)
    axes.margins(y=0.2)
    axes.set_xlabel("seed")
    axes.set_title(f"{by.capitalize()} accuracy (filled: kept)")


def _loss_by_step(axes: Axes, part: pl.DataFrame, options: Tuned | None) -> str:
    """Draw the losses; return what the description says of the first step that may stop a run."""
    quiet_axes(axes, grid="both")
    every = options.eval_every if options else 1
    last, most = 0, 1
    for row in part.sort("selected").iter_rows(named=True):
        losses = [np.nan if loss is None else loss for loss in row["eval_losses"] or []]
        steps = [place * every for place in range(len(losses))]
        last = max([last, *steps])
        x, y, size = thinned(losses, steps)
        most = max(most, size)
        if row["selected"]:
            axes.plot(x, y, color=COLOURS[0], linewidth=1.6)
        else:
            axes.plot(x, y, color=FAINT, linewidth=0.9, linestyle="--")
    after = options.recipe.first_stop if options else 0
    shown = last / 20 < after < last
    if shown:
        axes.axvline(after, color=INK, linewidth=0.9, linestyle=":")
        axes.text(after, 0.97, "may stop from here ", ha="right", va="top", fontsize=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlabel("step" if options else "evaluation")
    means = f"; means of {most}" if most > 1 else ""
    axes.set_title(f"Evaluation loss (solid: kept{means})")
    return f"; may stop from step {after:,}" if shown else ""


#: Inches of one device's row, and the least and most of all.
_ROW, _LEAST, _MOST = 0.22, 1.6, 9.0
_LOADING: Final = 0.45


def read_schedule(store: Store) -> Schedule | None:
    """Read which task held which device in OUT; None where nothing was noted."""
    if not store.exists(SCHEDULE_FILE):
        return None
    rows = store.read_table(SCHEDULE_FILE).to_pylist()
    if not rows:
        return None
    devices, places = rows[0]["devices"], rows[0].get("per_device", 1)
    names = {each.name for each in fields(Span)}
    spans = (Span(**{n: v for n, v in row.items() if n in names}) for row in rows)
    return Schedule(tuple(spans), devices, places)


def schedule_figure(schedule: Schedule, title: str) -> str:
    """Draw one row for each device, in SVG; loading is pale, reading is hatched."""
    seconds = schedule.wall
    unit, per = ("hours", 3600.0) if seconds >= 3600 else ("seconds", 1.0)
    names = list(dict.fromkeys(span.backbone for span in schedule.spans))
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    height = min(_MOST, max(_LEAST, _ROW * schedule.devices)) + 1.0
    with drawing(2 * WIDTH, height) as figure:
        axes = figure.subplots()
        quiet_axes(axes, grid="x")
        for span in schedule.spans:
            for start, end, alpha in (
                (span.start, span.loaded, _LOADING),
                (span.loaded, span.end, 1.0),
            ):
                axes.barh(
                    span.worker, (end - start) / per, left=start / per, height=0.8, alpha=alpha,
                    color=colours[span.backbone], hatch="" if span.kind == "tune" else "////",
                    edgecolor="white", linewidth=0.3,
                )  # fmt: skip
        if block := schedule.idle_block():
            axes.axvspan(block.start / per, block.end / per, color=FAINT, alpha=0.15, zorder=0)
        axes.set_ylim(schedule.devices - 0.5, -0.5)
        axes.set_ylabel("device" if schedule.per_device == 1 else "place of a GPU")
        axes.set_xlabel(f"{unit} from the begin")
        keys = [Line2D([], [], color=colours[name], linewidth=6, label=name) for name in names]
        axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)
        return to_svg(figure, title=title, description=described(schedule))


def described(schedule: Schedule) -> str:
    """Say what a schedule comes to, and name its largest idle block."""
    said = (
        f"{duration(schedule.wall)}, devices busy {schedule.busy:.0%} of it,"
        f" {schedule.idle_hours:,.1f} device-hours idle"
    )
    block = schedule.idle_block()
    return f"{said}; largest idle block: {block}" if block else said
