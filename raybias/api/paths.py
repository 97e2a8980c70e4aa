"""Take what a function of the API is given: files and tables, several, or one by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

#: One file, folder or URI, or several.
Paths = str | Path | Iterable[str | Path]
#: Paths; or a frame of Polars, pandas or Arrow, or arrays by name; or several of these.
Given = Any


def listed(given: Paths) -> list[str | Path]:
    """Return the paths as a list; a text is one path, and not a sequence of letters."""
    return [given] if isinstance(given, str | Path) else list(given)


def given_tables(given: Given) -> list[str | Path | pl.DataFrame]:
    """Return paths as they are, and tables as frames of Polars."""
    import polars as pl

    if isinstance(given, str | Path | pl.DataFrame):
        return [given]
    if isinstance(given, Mapping) or hasattr(given, "__arrow_c_stream__"):
        return [pl.DataFrame(given)]
    return [one for each in given for one in given_tables(each)]
