"""`raybias schema`: write the JSON Schema of the study file."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    out: Annotated[
        str | None,
        typer.Option(help="File or URI to write.", show_default="standard output"),
    ] = None,
) -> None:
    """Write the JSON Schema of the study file, by which editors complete and check it."""
    from raybias.config import study_schema
    from raybias.storage import split_uri

    text = json.dumps(study_schema(), indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    store, name = split_uri(out)
    store.write_text(name, text)
