"""The look of every figure, and its SVG: the same bytes for the same data.

Figures are drawn without pyplot or a display. On a page they take its ink and paper colours, so
that one file serves light and dark.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal
from xml.sax.saxutils import escape, quoteattr

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

#: Inches of a figure that shares its row with another.
WIDTH: Final = 5.4

INK: Final = "#16202b"
FAINT: Final = "#7a8594"
PAPER: Final = "#fefefe"

#: After Okabe and Ito; each has a contrast of 3 to 1 and more to a page's light and dark colours.
COLOURS: Final = (
    "#0077bb", "#d55e00", "#009e73", "#c45a91", "#a87b00", "#2a8fa8", "#8c6bb1", "#7d6f55",
)  # fmt: skip

_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "raybias",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
_BOX: Final = re.compile(r'viewBox="0 0 ([0-9.]+) ')
#: Fewest pixels of a point on a page, so that its text stays legible; a narrow page scrolls.
_LEGIBLE: Final = 1.1
_ID: Final = re.compile(r'(\bid="|href="#|url\(#)')
_SIZE: Final = re.compile(r'<svg ([^>]*?)(?:width="[^"]*"|height="[^"]*") ([^>]*)>')


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Make a figure of `width` x `height` inches in the house style; rcParams stay as they were.

    Draw it and turn it into SVG inside the block.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        # A group name in a script that the measuring font lacks is still written as text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def to_svg(figure: Figure, *, title: str, description: str) -> str:
    """Return the figure as SVG with a title and description for those who cannot see it."""
    stream = io.BytesIO()
    empty = {"Date": None, "Creator": None, "Format": None, "Type": None}
    # Laid out, then drawn once: `savefig` draws a figure that has a layout engine twice.
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    figure.set_layout_engine("none")
    FigureCanvasSVG(figure).print_svg(stream, metadata=empty)  # type: ignore[no-untyped-call]
    drawn = stream.getvalue().decode("utf-8")
    opening = drawn.index("<svg ")
    inside = drawn.index(">", opening)
    named = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    root = drawn[opening:inside] + f' role="img" aria-label={quoteattr(title)}>'
    return f"{drawn[:opening]}{root}\n {named}{drawn[inside + 1 :]}"


def inline(svg: str, prefix: str) -> str:
    """Return an SVG to put into a page: unique ids, no fixed width, the page's ink and paper."""
    body = _ID.sub(rf"\g<1>{prefix}-", svg[svg.index("<svg ") :])
    if not _BOX.search(body):
        return body
    for _ in range(2):
        body = _SIZE.sub(r"<svg \1\2>", body, count=1)
    width = float(_BOX.search(body)[1])  # type: ignore[index]
    body = body.replace("<svg ", f'<svg style="min-width: {_LEGIBLE * width:.0f}px" ', 1)
    body = body.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    return body.replace(PAPER, "var(--paper)")


def quiet_axes(axes: Axes, *, grid: Literal["x", "y", "both"]) -> None:
    """Draw light grid lines across an axis or both, behind the data, and no tick marks."""
    axes.grid(axis=grid, color=FAINT, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
