"""Draw a schedule: which device held which backbone when."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from matplotlib.lines import Line2D

from raybias.planning.schedule import Schedule, Span, duration
from raybias.report.figure_style import COLOURS, FAINT, WIDTH, drawing, quiet_axes, to_svg
from raybias.schema import SCHEDULE_FILE
from raybias.storage import Store

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
