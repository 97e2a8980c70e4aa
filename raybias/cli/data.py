"""`raybias data`: list, check and download the public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List, check and download the public data sets.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the data sets that raybias reads, with licence, pinned revision and source."""
    import polars as pl
    from tabulate import tabulate

    from raybias.probes import sources

    sets = sources.data_sets().with_columns(
        pl.col("part") + pl.when("optional").then(pl.lit(" (optional)")).otherwise(pl.lit(""))
    )
    rows = sets.drop("optional").rows()
    headers = ("name", "part", "files", "rows", "revision", "licence", "source")
    print(tabulate(rows, headers=headers, disable_numparse=True))


@app.command()
def check(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder or URI of one data set.")],
    name: Annotated[
        str | None, typer.Option(help="Which data set it is; recognised by its files by default.")
    ] = None,
) -> None:
    """Compare a folder with the published files: sha256 and row counts.

    Exits with 2 if anything differs.
    """
    from tabulate import tabulate

    from raybias.errors import DataError
    from raybias.probes import sources

    found = sources.check_data(folder, name)
    rows = found.select("file", "rows", "finding").rows()
    headers = (f"{found['name'][0]} file", "rows", "finding")
    print(tabulate(rows, headers=headers, disable_numparse=True))
    wrong = found.filter(~found["ok"])["file"].to_list()
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(found)} files are not as published ({wrong[0]} first)",
            where=folder,
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

    count = int(sources.data_sets().filter(name=name)["files"].sum())
    with Reporter().stage(f"fetching {name}", count) as advance:
        sources.download_data(name, out, mirror=mirror, on_file=lambda path: advance(note=path))
    print(f"{name}: {count} files in {out}")
