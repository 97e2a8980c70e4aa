"""`raybias data`: list, check and download the public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List, check and download the public data sets.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the data sets that raybias reads, with licence, pinned revision and source."""
    from tabulate import tabulate

    from raybias.probes.sources import registry

    rows = [
        (
            name,
            part.name + (" (optional)" if part.optional else ""),
            len(part.files),
            sum(file.rows for file in part.files.values()),
            part.revision if part.base else "by hand",
            part.licence,
            part.page,
        )
        for name, entry in registry().items()
        for part in entry.parts
    ]
    headers = ("name", "part", "files", "rows", "revision", "licence", "source")
    print(tabulate(rows, headers=headers, disable_numparse=True))


@app.command()
def check(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder or URI of one data set.")],
    name: Annotated[
        str | None, typer.Option(help="Which data set it is; told by its files otherwise.")
    ] = None,
) -> None:
    """Compare a folder with the published files: sha256 and row counts.

    Exits with 2 if anything differs.
    """
    from tabulate import tabulate

    from raybias.errors import DataError
    from raybias.probes import sources
    from raybias.storage import Store

    store = Store(folder)
    name = name or sources.recognise(store)
    findings = sources.check(store, sources.data_set(name))
    rows = [(each.path, each.rows, each.finding) for each in findings]
    print(tabulate(rows, headers=(f"{name} file", "rows", "finding"), disable_numparse=True))
    wrong = [each.path for each in findings if not each.ok]
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(findings)} files are not as published ({wrong[0]} first)",
            where=store.uri,
            cure="see `raybias data list` for their source",
        )


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="A data set of `raybias data list`.")],
    out: Annotated[Path, typer.Option(help="Local folder; give it as --data or `data` later.")],
    mirror: Annotated[
        str | None, typer.Option(help="Address that holds the files, instead of the published one.")
    ] = None,
) -> None:
    """Fetch a data set from its published source at the pinned revision.

    Files that are already there and right are not fetched again; a file whose
    sha256 is not the published one is refused.
    """
    from raybias.probes import sources
    from raybias.runtime.progress import Reporter

    entry = sources.data_set(name)
    count = sum(1 for _ in entry.files())
    with Reporter().stage(f"fetching {name}", count) as advance:
        sources.download(entry, out, mirror=mirror, on_file=lambda path: advance(note=path))
    print(f"{name}: {count} files in {out}")
