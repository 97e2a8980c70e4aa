"""Lay a table out as text, in a terminal within its width.

A table that is wider than the terminal says once what all its rows share, and breaks long cells
and headers between words.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate


def terminal_width() -> int | None:
    """Return the columns of the terminal that is printed to; None where it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def laid_out(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    kinds: Sequence[str],
    width: int | None = None,
) -> str:
    """Lay out a table.

    Parameters
    ----------
    kinds: `number` or `text` for each column; numbers stand on the right.
    width: the most characters of a line; None for any number.
    """
    align = ["right" if kind == "number" else "left" for kind in kinds]
    plain = tabulate(rows, headers, colalign=align, disable_numparse=True)
    if width is None or max(map(len, plain.splitlines()), default=0) <= width:
        return plain
    shared = [len(rows) > 1 and len({row[i] for row in rows}) == 1 for i in range(len(headers))]
    if all(shared):
        shared = [False] * len(headers)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, side, same in zip(headers, align, shared, strict=True):
        if not same:
            justify: Literal["left", "right"] = "right" if side == "right" else "left"
            table.add_column(Text(header), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell, same in zip(row, shared, strict=True) if not same))
    written = StringIO()
    console = Console(file=written, width=width, color_system=None)
    said = [f"{headers[i]} {rows[0][i]}" for i, same in enumerate(shared) if same and rows[0][i]]
    if said:
        console.print(Text("; ".join(said)), end="\n\n")
    console.print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())
