"""Make safetensors of a checkpoint whose weights are pickled, once, where a user asks for it.

A study never does this: it refuses such a checkpoint, and the refusal names `raybias convert`. What
reads the pickle is `raybias.engine.unpickle`, in a process without network and secrets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from raybias.config import Backbone
from raybias.engine import unpickle
from raybias.engine.checkpoint import (
    DECIDING,
    PICKLED,
    file_digest,
    folder_of,
    has_safetensors,
    locate,
    pickled_files,
)
from raybias.engine.model_files import reading_model
from raybias.errors import ModelError, OutputError

#: File that says what was converted.
RECORD: Final = "converted.json"
#: What the process needs of the environment; tokens are not among it.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "TMPDIR")


@dataclass(frozen=True)
class Converted:
    """A checkpoint whose weights were converted.

    Attributes
    ----------
    folder: where it is.
    tensors: how many it has.
    offline: whether the process that read the pickle had no network.
    """

    folder: str
    tensors: int
    offline: bool


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Write a checkpoint with pickled weights as one with safetensors.

    Parameters
    ----------
    model: a hub id or a folder, with pytorch_model.bin, whole or in parts.
    out: a folder that is not there yet; it is there whole or not at all.
    revision: branch, tag or commit on the hub.

    Raises
    ------
    ModelError: not found, safetensors already, no such file, or one that holds more than weights.
    OutputError: `out` is there, or cannot be written.
    """
    where, place = (f"{model}@{revision}" if revision else model), Path(out)
    if place.exists():
        raise OutputError("is there already", where=str(out), cure="name a new folder")
    folder, commit = _found(model, revision)
    if has_safetensors(folder):
        raise ModelError("has safetensors", where=where, cure="name it in the study as it is")
    files = pickled_files(folder)
    if not files:
        raise ModelError(f"has no {PICKLED}, whole or in parts", where=where)
    digests = {file.name: file_digest(file) for file in files}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise OutputError(f"cannot be written ({error})", where=str(out)) from error
    try:
        done = _read_apart(where, staged, files)
        record = {"model": model, "commit": commit, "sha256": digests, "torch": done["torch"]}
        (staged / RECORD).write_text(json.dumps(record, indent=1))
        for name in (p.name for p in folder.iterdir() if p.is_file()):
            if any(fnmatch(name, each) for each in DECIDING):
                shutil.copyfile(folder / name, staged / name)
        staged.chmod(0o755)
        staged.rename(place)
    except OSError as error:
        raise OutputError(f"cannot be written ({error})", where=str(out)) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Converted(str(place), done["tensors"], done["offline"])


def _found(model: str, revision: str | None) -> tuple[Path, str | None]:
    """Return the folder of a checkpoint, fetched where it is the hub's, and its commit there."""
    if (folder := folder_of(model)) is not None:
        return folder, None
    located = locate(model, revision)
    from huggingface_hub import snapshot_download

    with reading_model(Backbone(id=model, revision=located.commit), "weights"):
        fetched = snapshot_download(
            model,
            revision=located.commit,
            allow_patterns=[*DECIDING, f"{PICKLED}*", "pytorch_model-*.bin"],
            ignore_patterns=["*/*"],
        )
    return Path(fetched), located.commit


def _read_apart(where: str, out: Path, files: list[Path]) -> dict[str, Any]:
    """Have a process of its own write the tensors of pickled files into `out`."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    given = [str(path.resolve()) for path in (out, *files)]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, str(unpickle.__file__), *given],
            env={**kept, "HOME": empty, "OMP_NUM_THREADS": "1"},
            cwd=empty, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    with suppress(ValueError, IndexError):
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    raise ModelError(
        f"{files[0].name} holds no weights alone, or is damaged ({said[:200]})",
        where=where,
        cure="do not use this file; ask its authors for safetensors",
    )
