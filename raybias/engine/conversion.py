"""Convert a checkpoint in another format into a folder with safetensors: `raybias data convert`.

A pickle is loaded by `engine.unpickle`, in a process without network and secrets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError

from raybias.config import Backbone
from raybias.config.parts import CONVERTED
from raybias.engine import unpickle
from raybias.engine.checkpoint import (
    DECIDING,
    PICKLED,
    as_model_error,
    downloaded,
    file_digest,
    folder_of,
    has_safetensors,
    locate,
    pickled_files,
)
from raybias.errors import ModelError, OutputError

#: Environment variables for the process that reads a pickle; tokens are not among them.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "TMPDIR")


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint; `tensors` is their number.

    `offline`: whether the process that loaded a pickle had no network; `quantisation`: of a GGUF
    file, such as Q4_1, the end of the backbone's default name.
    """

    folder: str
    tensors: int
    offline: bool = True
    quantisation: str = ""


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Convert a checkpoint to safetensors, whole or not at all; see `raybias.convert`."""
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


def write_gguf(file: str, out: Path) -> dict[str, Any]:
    """Write a GGUF file's weights, config, tokenizer and chat template; return the record of it.

    Weights are dequantised to float32, with the logits of transformers' own load.
    Raises ModelError: missing, not GGUF, damaged, incomplete, or of an architecture that
    transformers cannot load; or the package gguf is not installed.
    """
    path = Path(file)
    if not path.is_file():
        raise ModelError("is not there", where=file, cure="check the path")
    cure = "check that it is whole and of an architecture that transformers reads from GGUF"
    try:
        import gguf
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(
            f"a GGUF file needs a package that is not installed here ({error})",
            where=file,
            cure="pip install 'raybias[gguf]'",
        ) from error
    with as_model_error("cannot load this GGUF file ({})", where=file, cure=cure):
        quantisation = _quantisation(gguf.GGUFReader(path))
        where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
        model, loading = AutoModelForCausalLM.from_pretrained(
            path.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **where,
        )
        if lacking := sorted(loading["missing_keys"]):
            raise ValueError(f"{lacking[0]} is missing, one of {len(lacking)} weights")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "model": file,
        "sha256": {path.name: file_digest(path)},
        "quantisation": quantisation,
        "tensors": sum(1 for _ in model.parameters()),
        "transformers": version("transformers"),
        "gguf": version("gguf"),
    }


def _quantisation(reader: Any) -> str:
    """Return the type of a file as llama.cpp names it, or else of most of its tensors."""
    from gguf import LlamaFileType

    if (field := reader.fields.get("general.file_type")) is not None:
        name = str(LlamaFileType(field.contents()).name)
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return str(types.most_common(1)[0][0])


def write_pickled(model: str, revision: str | None, out: Path) -> dict[str, Any]:
    """Write a checkpoint with pickled weights into a folder; return the record of it.

    `model`: a hub id or a folder, with pytorch_model.bin, whole or in parts.
    Raises ModelError: not found, safetensors already, no such file, or more than weights in it.
    """
    where = f"{model}@{revision}" if revision else model
    folder, commit = folder_of(model), None
    if folder is None:
        commit = locate(model, revision).commit
        spec = Backbone(id=model, revision=commit)
        files = (*DECIDING, f"{PICKLED}*", "pytorch_model-*.bin")
        folder = downloaded(spec, files, ("*/*",))
    if has_safetensors(folder):
        raise ModelError("has safetensors", where=where, cure="name it in the study as it is")
    pickles = pickled_files(folder)
    if not pickles:
        raise ModelError(f"has no {PICKLED}, whole or in parts", where=where)
    digests = {file.name: file_digest(file) for file in pickles}
    done = _read_apart(where, out, pickles)
    for name in (p.name for p in folder.iterdir() if p.is_file()):
        if any(fnmatch(name, each) for each in DECIDING):
            shutil.copyfile(folder / name, out / name)
    return {"model": model, "commit": commit, "sha256": digests, **done}


def _read_apart(where: str, out: Path, files: list[Path]) -> dict[str, Any]:
    """Write the tensors of pickled files into `out`, in a process of their own."""
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
