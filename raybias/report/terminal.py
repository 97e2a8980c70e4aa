"""Lay a table out as text, in a terminal within its width.

A table that is wider than the terminal says once what all its rows share, and breaks long cells and
headers between words; where that is not enough, each row becomes a few lines of its own.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from tabulate import tabulate

#: Between two columns.
_GAP: Final = 2
#: Stands for a blank at which no line is broken.
_HELD: Final = "\N{NO-BREAK SPACE}"
_WORDS: Final = re.compile(r"[A-Za-z]{2}.* | .*[A-Za-z]{2}")

Rows = Sequence[Sequence[str]]


def terminal_width() -> int | None:
    """Return the columns of the terminal that is printed to; None where it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def laid_out(
    headers: Sequence[str], rows: Rows, kinds: Sequence[str], width: int | None = None
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
    said, places = _shared(headers, rows, width)
    names = [headers[i] for i in places]
    cells = [[row[i] for i in places] for row in rows]
    widths = _narrowed(names, cells, width)
    if widths is None:
        return said + _records(names, cells, width)
    return said + _columns([names, *cells], [kinds[i] for i in places], widths)


def _columns(rows: Rows, kinds: Sequence[str], widths: Sequence[int]) -> str:
    """Write a header and rows in columns of so many characters."""
    lines: list[str] = []
    for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
        cells = [_broken(text, width) for text, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            placed = [
                text.rjust(width) if kind == "number" else text.ljust(width)
                for text, width, kind in zip(line, widths, kinds, strict=True)
            ]
            lines.append((" " * _GAP).join(placed).rstrip())
    return "\n".join(lines)


def _shared(headers: Sequence[str], rows: Rows, width: int) -> tuple[str, list[int]]:
    """Say what is the same in all rows; returns that and the places of the other columns."""
    columns = range(len(headers))
    same = [i for i in columns if len(rows) > 1 and len({row[i] for row in rows}) == 1]
    if len(same) == len(headers):
        return "", list(columns)
    said = "; ".join(f"{headers[i]} {rows[0][i]}" for i in same if rows[0][i])
    text = "\n".join(_broken(said, width)) + "\n\n" if said else ""
    return text, [i for i in columns if i not in same]


def _narrowed(headers: Sequence[str], rows: Rows, width: int) -> list[int] | None:
    """Choose the widths of columns so that a line fits; None where words are too long for that."""
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    pairs = list(zip(headers, columns, strict=True))
    widths = [max(map(len, (*_unbroken([h]), *cells)), default=1) for h, cells in pairs]
    least = [max(map(len, (*_unbroken([h]), *_unbroken(cells)))) for h, cells in pairs]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - width):
        free = [i for i, each in enumerate(widths) if each > least[i]]
        if not free:
            return None
        widths[max(free, key=lambda i: widths[i])] -= 1
    return widths


def _unbroken(texts: Sequence[str]) -> list[str]:
    """List what cannot be broken: words, and whole cells that hold none, such as an interval."""
    return [part for text in texts for part in (text.split() if _WORDS.search(text) else [text])]


def _records(headers: Sequence[str], rows: Rows, width: int) -> str:
    """Write each row as lines of `header cell; header cell`."""
    lines = []
    for row in rows:
        parts = [_part(name, cell) for name, cell in zip(headers, row, strict=True) if cell]
        lines += _broken("; ".join(parts), width, later="  ")
    return "\n".join(lines).replace(_HELD, " ")


def _part(name: str, cell: str) -> str:
    """Write a cell behind its header; one that is no text, such as an interval, on one line."""
    part = f"{name} {cell}"
    return part if _WORDS.search(cell) else part.replace(" ", _HELD)


def _broken(text: str, width: int, later: str = "") -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
