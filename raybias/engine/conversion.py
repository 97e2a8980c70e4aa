"""Convert a checkpoint in another format into a folder with safetensors: `raybias convert`.

A study reads safetensors only, and refuses the other formats by a line that names this command.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from raybias.config.data import CONVERTED
from raybias.engine.gguf_file import write_gguf
from raybias.engine.pickled import write_pickled
from raybias.errors import ModelError, OutputError


@dataclass(frozen=True)
class Converted:
    """A checkpoint that was converted.

    Attributes
    ----------
    folder: where it is.
    tensors: how many it has.
    offline: whether no network was in reach of the process that read a pickle; a GGUF file holds
        no code, and is read in this process.
    quantisation: of a GGUF file, such as Q4_1; the default name of the backbone ends with it.
    """

    folder: str
    tensors: int
    offline: bool = True
    quantisation: str = ""


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Convert a GGUF file, or a checkpoint with pickled weights, into a folder with safetensors.

    Parameters
    ----------
    model: a GGUF file, or a hub id or a folder with pytorch_model.bin, whole or in parts.
    out: a folder that does not exist yet; it is written whole or not at all.
    revision: branch, tag or commit on the hub.

    Raises
    ------
    ModelError: not found, damaged, of an architecture that transformers cannot load, safetensors
        already, or a pickle that holds more than weights.
    OutputError: `out` exists, or cannot be written.
    """
    place = Path(out)
    if place.exists():
        raise OutputError("is there already", where=str(out), cure="name a new folder")
    is_gguf = Path(model).is_file() or model.lower().endswith(".gguf")
    if is_gguf and revision is not None:
        raise ModelError("a file has no revision", where=model, cure="leave --revision out")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise OutputError(f"cannot be written ({error})", where=str(out)) from error
    try:
        record = write_gguf(model, staged) if is_gguf else write_pickled(model, revision, staged)
        (staged / CONVERTED).write_text(json.dumps(record, indent=1))
        staged.chmod(0o755)
        staged.rename(place)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot be written ({error})", where=str(out)) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Converted(
        str(place),
        record["tensors"],
        offline=record.get("offline", True),
        quantisation=record.get("quantisation", ""),
    )
