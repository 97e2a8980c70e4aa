"""The figures of a report: gaps with intervals (001, figures 2-7) and how the runs went.

A filled marker is a significant gap or a kept run, a hollow one is not, so that the
figures do not rest on colour. They show derived tables and compute nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybias.config import SoftPrompt
from raybias.report import canvas, words

_ROOM: Final = 1.12
_WIDTH: Final = 5.4


@dataclass(frozen=True)
class Drawn:
    """One finished figure."""

    name: str
    """Its file name in OUT/figures, without suffix."""
    title: str
    svg: str


def gap_figures(gaps: pl.DataFrame, *, level: float) -> dict[tuple[str, str, str], Drawn]:
    """One figure per probe, attribute and rate: a dot and interval per group and classifier.

    Parameters
    ----------
    gaps: schema.GAPS.
    level: confidence level of its intervals, for the axis label.

    Returns
    -------
    Figures by (probe, attribute, rate). The rates of an attribute share order and scale.
    """
    figures = {}
    for probe, attribute in words.probe_order(gaps):
        part = gaps.filter(probe=probe, attribute=attribute)
        reach = _reach(part)
        for rate in part["rate"].unique(maintain_order=True):
            known = words.RATES.get(rate)
            title = f"{attribute}: {f'wrongly called {known.called}' if known else rate}"
            figures[probe, attribute, rate] = Drawn(
                slug("gaps", probe, attribute, rate),
                title,
                _gap_figure(part, rate, reach=reach, title=title, level=level),
            )
    return figures


def group_order(part: pl.DataFrame) -> list[str]:
    """The groups of one attribute: the most often wrongly called negative first."""
    ordered = (
        part.group_by("group")
        .agg(
            worst=pl.col("gap").filter(pl.col("rate") == "negative_fpr").mean(),
            other=pl.col("gap").mean(),
        )
        .sort("worst", "other", "group", descending=[True, True, False], nulls_last=True)
    )
    return [str(group) for group in ordered["group"]]


def run_figures(runs: pl.DataFrame, methods: Sequence[SoftPrompt]) -> dict[tuple[str, ...], Drawn]:
    """One figure per (model, method, dataset): accuracy by seed, and evaluation loss by step.

    Parameters
    ----------
    runs: schema.RUNS; sweep runs are left out.
    methods: of the study; they say how many steps lie between evaluations.
    """
    final = runs.filter(pl.col("stage") == "final")
    figures = {}
    for key in final.select("model", "method", "dataset").unique(maintain_order=True).iter_rows():
        model, method, dataset = key
        part = final.filter(model=model, method=method, dataset=dataset).sort("seed")
        options = next((m for m in methods if m.kind == method), None)
        title = f"Runs of {model} tuned on {dataset}"
        svg = _run_figure(part, options, title)
        figures[key] = Drawn(slug("runs", model, method, dataset), title, svg)
    return figures


def slug(*parts: str) -> str:
    """A file name of the parts; parts that are no file names keep apart by a hash."""
    text = ".".join(parts)
    safe = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).strip(".-")[:120]
    if safe == text:
        return safe
    return f"{safe}.{hashlib.blake2b(text.encode('utf-8'), digest_size=4).hexdigest()}"


def _reach(part: pl.DataFrame) -> float:
    ends = part.select(pl.max_horizontal(pl.col("gap", "low", "high").abs().max()))
    largest = ends.item()
    return _ROOM * float(largest) if largest else 0.05


def _gap_figure(part: pl.DataFrame, rate: str, *, reach: float, title: str, level: float) -> str:
    keys = words.naming_keys(part)
    series = part.select(keys).unique(maintain_order=True).to_dicts()
    groups = group_order(part)
    step = min(0.8 / len(series), 0.24)
    row_inches = max(0.36, 0.17 * len(series) + 0.12)
    legend_inches = 0.22 * (len(series) + 1) // 2 if len(series) > 1 else 0.25
    with canvas.drawing(_WIDTH, 1.45 + row_inches * len(groups) + legend_inches) as figure:
        axes = figure.subplots()
        canvas.quiet_axes(axes, grid="x")
        axes.axvline(0, color=canvas.INK, linewidth=1.0)
        for index, names in enumerate(series):
            offset = (index - (len(series) - 1) / 2) * step
            rows = part.filter(rate=rate, **names).iter_rows(named=True)
            for row in rows:
                if row["gap"] is not None:
                    _dot(axes, row, groups.index(row["group"]) + offset, index)
        labels = [_group_label(part, group) for group in groups]
        axes.set_yticks(range(len(groups)), labels, parse_math=False)
        axes.set_ylim(len(groups) - 0.45, -0.55)
        axes.set_xlim(-reach, reach)
        axes.xaxis.set_major_locator(MaxNLocator(6, symmetric=True))
        axes.xaxis.set_major_formatter(FuncFormatter(_signed_tick))
        axes.set_xlabel(f"← less often · more often →\ngap with {100 * level:g}% interval")
        axes.set_title(title, parse_math=False)
        _gap_legend(figure, [words.classifier_name(names, keys) for names in series])
        return canvas.to_svg(figure, title=title, description=_described(part, rate, groups))


def _dot(axes: Axes, row: Mapping[str, Any], y: float, index: int) -> None:
    colour = canvas.COLOURS[index % len(canvas.COLOURS)]
    strong = bool(row["survives"])
    if row["low"] is not None and row["high"] is not None:
        ends = [row["low"], row["high"]]
        axes.plot(ends, [y, y], color=colour, linewidth=2.4 if strong else 1.3,
                  solid_capstyle="butt", zorder=2)  # fmt: skip
    axes.plot(
        [row["gap"]], [y], canvas.MARKERS[index % len(canvas.MARKERS)], color=colour,
        markerfacecolor=colour if strong else canvas.PAPER, markersize=7, markeredgewidth=1.5,
        zorder=3,
    )  # fmt: skip


def _gap_legend(figure: Figure, names: Sequence[str]) -> None:
    several = len(names) > 1
    handles = [
        _key(canvas.COLOURS[i % len(canvas.COLOURS)], canvas.MARKERS[i % len(canvas.MARKERS)], name)
        for i, name in enumerate(names)
        if several
    ]
    colour = canvas.INK if several else canvas.COLOURS[0]
    handles += [
        _key(colour, "o", "significant"),
        _key(colour, "o", "not significant", hollow=True),
    ]
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=2)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _key(colour: str, marker: str, label: str, *, hollow: bool = False) -> Line2D:
    return Line2D(
        [], [], color=colour, marker=marker, label=label, markersize=7, markeredgewidth=1.5,
        linewidth=1.3 if hollow else 2.4, markerfacecolor=canvas.PAPER if hollow else colour,
    )  # fmt: skip


def _group_label(part: pl.DataFrame, group: str) -> str:
    inside = part.filter(pl.col("group") == group)["in_mean"].all()
    short = group if len(group) <= 28 else f"{group[:27]}…"
    return short if inside else f"{short} (not in mean)"


def _signed_tick(value: float, _: int | None) -> str:
    text = f"{value:+.3f}".rstrip("0").rstrip(".")
    return "0" if text in ("+0", "-0") else text.replace("-", "\N{MINUS SIGN}")


def _described(part: pl.DataFrame, rate: str, groups: Sequence[str]) -> str:
    rows = sorted(
        part.filter(rate=rate).iter_rows(named=True), key=lambda row: groups.index(row["group"])
    )
    return "; ".join(
        f"{row['model']} {row['group']} {words.signed(row['gap'])} "
        f"{words.span(row['low'], row['high'])} {words.verdict(row)}"
        for row in rows
    )


def _run_figure(part: pl.DataFrame, options: SoftPrompt | None, title: str) -> str:
    with canvas.drawing(2 * _WIDTH, 3.3) as figure:
        left, right = figure.subplots(1, 2)
        _accuracy_by_seed(left, part)
        _loss_by_step(right, part, options)
        kept = ", ".join(str(seed) for seed in part.filter(pl.col("selected"))["seed"])
        return canvas.to_svg(figure, title=title, description=f"kept seeds: {kept or 'none'}")


def _accuracy_by_seed(axes: Axes, part: pl.DataFrame) -> None:
    canvas.quiet_axes(axes, grid="y")
    blue = canvas.COLOURS[0]
    for place, row in enumerate(part.iter_rows(named=True)):
        value, kept = row["validation_accuracy"], bool(row["selected"])
        if value is None or row["stop_reason"] == "diverged":
            axes.text(place, 0.04, "diverged", rotation=90, ha="center", va="bottom",
                      transform=axes.get_xaxis_transform(), fontsize=8)  # fmt: skip
            continue
        axes.plot([place], [value], "o", color=blue, markersize=7, markeredgewidth=1.5,
                  markerfacecolor=blue if kept else canvas.PAPER)  # fmt: skip
    seeds = [str(seed) for seed in part["seed"]]
    axes.set_xticks(range(len(seeds)), seeds, rotation=90 if len(seeds) > 8 else 0)
    axes.set_xlim(-0.6, len(seeds) - 0.4)
    axes.margins(y=0.2)
    axes.set_xlabel("seed")
    axes.set_title("Validation accuracy (filled: kept)")


def _loss_by_step(axes: Axes, part: pl.DataFrame, options: SoftPrompt | None) -> None:
    canvas.quiet_axes(axes, grid="both")
    every = options.eval_every if options else 1
    last = 0
    for row in part.sort("selected").iter_rows(named=True):
        losses = row["eval_losses"] or []
        steps = [(place + 1) * every for place in range(len(losses))]
        last = max([last, *steps])
        if row["selected"]:
            axes.plot(steps, losses, color=canvas.COLOURS[0], linewidth=1.6)
        else:
            axes.plot(steps, losses, color=canvas.FAINT, linewidth=0.9, linestyle="--")
    after = options.early_stop.after_step if options else 0
    if 0 < after < last:
        axes.axvline(after, color=canvas.INK, linewidth=0.9, linestyle=":")
        axes.text(after, 0.97, "may stop from here ", ha="right", va="top", fontsize=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlabel("step" if options else "evaluation")
    axes.set_title("Evaluation loss (solid: kept)")
