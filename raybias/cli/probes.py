"""`raybias probes`: list the probes and write one to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from raybias.config import Probe

app = typer.Typer(help="List probes, and write one to a file.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the probes with their attributes and the data they need."""
    from tabulate import tabulate

    from raybias.probes import PROBES

    rows = [
        (name, source.about, ", ".join(source.attributes) or "as in the data", source.data)
        for name, source in PROBES.items()
    ]
    print(tabulate(rows, headers=("name", "what", "attributes", "data")))


@app.command()
def write(
    name: Annotated[str, typer.Argument(help="A probe of `raybias probes list`, or your file.")],
    out: Annotated[str, typer.Option(help="File or URI ending in .parquet or .csv.")],
    data: Annotated[
        str | None, typer.Option(help="Folder with the published files, or your file.")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Only this protected attribute; may be repeated.")
    ] = None,
) -> None:
    """Write a probe's items: item_id, label, attribute, group, text, template_id, term.

    Labels are 0 negative, 1 neutral, 2 positive; rows keep their published order.
    """
    from tabulate import tabulate

    from raybias.probes import probe_items
    from raybias.probes.export import output_suffix, write_items

    output_suffix(out)
    items = probe_items(_probe(name, data, attribute))
    write_items(items, out)
    counts = items.group_by("attribute", maintain_order=True).len().rows()
    print(tabulate([*counts, ("all", len(items))], headers=("attribute", "items")))
    print(f"written to {out}")


def _probe(name: str, data: str | None, attributes: list[str] | None) -> Probe:
    from raybias.config import Probe
    from raybias.errors import DataError
    from raybias.probes import PROBES

    source = name
    if name.endswith((".csv", ".parquet")) and data is None:
        source, data = "file", name
    if source not in PROBES:
        raise DataError(
            f"no probe {name!r}", cure=f"choose from {', '.join(PROBES)}, or give your own file"
        )
    chosen = tuple(attributes) if attributes else None
    return Probe.model_validate({"source": source, "data": data, "attributes": chosen})
