"""`raybias data`: public data sets, and weights that studies can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from tabulate import tabulate

from raybias.api import studies
from raybias.cli.options import documented_by
from raybias.config import Backbone
from raybias.errors import DataError
from raybias.probes import sources as catalogue

app = typer.Typer(
    name="data",
    help="List, check and download the public data sets; convert weights.",
    no_args_is_help=True,
)


@app.command("list")
def list_() -> None:
    """List the data sets that raybias reads, with licence, pinned revision and source."""
    sets = catalogue.data_sets().with_columns(
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
    found = catalogue.check_data(folder, name)
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
    from raybias.runtime.progress import Reporter

    count = int(catalogue.data_sets().filter(name=name)["files"].sum())
    with Reporter().stage(f"fetching {name}", count) as advance:
        catalogue.download_data(name, out, mirror=mirror, on_file=lambda path: advance(note=path))
    print(f"{name}: {count} files in {out}")


@app.command()
@documented_by(studies.convert)
def convert(
    model: Annotated[str, typer.Argument()], *, out: str, revision: str | None = None
) -> None:
    """Convert a GGUF file or pickled weights into a folder with safetensors, for studies to name.

    A study reads safetensors only. transformers reads a GGUF file (extra `gguf`); its weights
    become float32, and the name of the backbone says its quantisation. torch's unpickler of
    weights alone reads a pickle; a file that holds anything else is refused.
    """
    done = studies.convert(model, out, revision=revision)
    print(f"{done.folder}: {done.tensors} tensors as safetensors; give it as the backbone's id")
    if done.quantisation:
        print(f"from GGUF {done.quantisation}: tables call it {Backbone(id=done.folder).name}")
