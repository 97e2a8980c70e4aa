"""`raybias convert`: pickled weights as safetensors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def convert(
    model: Annotated[
        str, typer.Argument(help="Hub id or folder of a checkpoint with pytorch_model.bin.")
    ],
    out: Annotated[str, typer.Argument(help="Folder to write, which is not there yet.")],
    *,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
) -> None:
    """Write a checkpoint with pickled weights as one with safetensors, for studies to name.

    A study reads safetensors only. The pickle is read in a process of its own, without secrets and
    network, by torch's unpickler of weights alone; a file that holds anything else is refused.
    """
    from raybias.api import studies

    done = studies.convert(model, out, revision=revision)
    if not done.offline:
        print("raybias: this system did not let the process give up its network", file=sys.stderr)
    print(f"{done.folder}: {done.tensors} tensors as safetensors; give it as the backbone's id")
