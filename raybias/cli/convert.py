"""`raybias convert`: a GGUF file or pickled weights as safetensors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def convert(
    model: Annotated[
        str,
        typer.Argument(help="A GGUF file; or a hub id or folder with pytorch_model.bin."),
    ],
    *,
    out: Annotated[str, typer.Option(help="Folder to write, which does not exist yet.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
) -> None:
    """Convert a GGUF file or pickled weights into a folder with safetensors, for studies to name.

    A study reads safetensors only. transformers reads a GGUF file (extra `gguf`); its weights
    become float32, and the name of the backbone says its quantisation. A pickle is read in a
    process of its own, without secrets and network, by torch's unpickler of weights alone; a file
    that holds anything else is refused.
    """
    from raybias.api import studies
    from raybias.config import Backbone

    done = studies.convert(model, out, revision=revision)
    if not done.offline:
        print("raybias: this system did not let the process give up its network", file=sys.stderr)
    print(f"{done.folder}: {done.tensors} tensors as safetensors; give it as the backbone's id")
    if done.quantisation:
        print(f"from GGUF {done.quantisation}: tables call it {Backbone(id=done.folder).name}")
