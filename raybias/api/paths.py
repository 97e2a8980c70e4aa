"""Take the files that a function of the API is given: several, or one by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: One file, folder or URI, or several.
Paths = str | Path | Sequence[str | Path]


def listed(paths: Paths) -> list[str | Path]:
    """Return the paths as a list; a text is one path, and not a sequence of letters."""
    return [paths] if isinstance(paths, str | Path) else list(paths)
