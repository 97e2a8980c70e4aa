"""Write pickled weights as safetensors, for `raybias.engine.conversion`.

`raybias.engine.unpickle` reads the pickle, in a process without network and secrets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
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
from raybias.errors import ModelError

#: What the process needs of the environment; tokens are not among it.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "TMPDIR")


def write_pickled(model: str, revision: str | None, out: Path) -> dict[str, Any]:
    """Write a checkpoint with pickled weights into a folder; return the record of it.

    Parameters
    ----------
    model: a hub id or a folder, with pytorch_model.bin, whole or in parts.
    revision: branch, tag or commit on the hub.

    Raises
    ------
    ModelError: not found, safetensors already, no such file, or one that holds more than weights.
    """
    where = f"{model}@{revision}" if revision else model
    folder, commit = _found(model, revision)
    if has_safetensors(folder):
        raise ModelError("has safetensors", where=where, cure="name it in the study as it is")
    files = pickled_files(folder)
    if not files:
        raise ModelError(f"has no {PICKLED}, whole or in parts", where=where)
    digests = {file.name: file_digest(file) for file in files}
    done = _read_apart(where, out, files)
    for name in (p.name for p in folder.iterdir() if p.is_file()):
        if any(fnmatch(name, each) for each in DECIDING):
            shutil.copyfile(folder / name, out / name)
    return {"model": model, "commit": commit, "sha256": digests, **done}


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
