"""List, check and download the public data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from raybias.probes import sources
from raybias.storage import Store


def data_sets() -> pl.DataFrame:
    """List the public data sets: one row for each part, with licence and pinned revision."""
    return pl.DataFrame(
        {
            "name": name,
            "part": part.name,
            "optional": part.optional,
            "files": len(part.files),
            "rows": sum(file.rows or 0 for file in part.files.values()),
            "revision": part.revision if part.base else f"{part.revision} by hand".strip(),
            "licence": part.licence,
            "source": part.page,
        }
        for name, entry in sources.registry().items()
        for part in entry.parts
    )


def check_data(folder: str | Path, name: str | None = None) -> pl.DataFrame:
    """Compare a folder with the published files: name, file, rows, finding, ok.

    Parameters
    ----------
    name: of a data set; recognised by its files by default.

    Raises
    ------
    DataError: no such data set, or none that could be recognised.
    """
    store = Store(folder)
    name = name or sources.recognise(store)
    return pl.DataFrame(
        {"name": name, "file": each.path, "rows": each.rows, "finding": each.finding, "ok": each.ok}
        for each in sources.check(store, sources.data_set(name))
    )


def download_data(
    name: str,
    out: str | Path,
    *,
    mirror: str | None = None,
    on_file: Callable[[str], None] | None = None,
) -> None:
    """Fetch a public data set at its pinned revision; files that are there and right stay.

    Parameters
    ----------
    out: local folder, which probes and training sets take as `data`.
    mirror: address that holds the files, instead of the published one.
    on_file: called with each file's path once it is there.

    Raises
    ------
    DataError: no such data set, or none that is published at a stable address.
    WorkFailed: a file cannot be fetched or is not the published one.
    """
    tell = on_file or (lambda path: None)
    sources.download(sources.data_set(name), Path(out), mirror=mirror, on_file=tell)
