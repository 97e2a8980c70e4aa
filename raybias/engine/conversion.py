"""Convert a checkpoint in another format into a folder with safetensors: `raybias data convert`.

torch's unpickler of weights reads a pickle: it makes tensors and containers, and runs nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save, save_file

from raybias.config import Backbone
from raybias.config.parts import CONVERTED
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
from raybias.errors import ModelError, OutputError, said_by

#: What a pickle asks for that no weights need, in torch's message.
_FOREIGN: Final = re.compile(r"GLOBAL (\S+)")


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint: its number of tensors, and a GGUF file's quantisation (Q4_1)."""

    folder: str
    tensors: int
    quantisation: str = ""


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Convert a checkpoint to safetensors, whole or not at all; see `raybias.convert`."""
    if "://" in str(out):
        raise OutputError(
            "is a URI, and a model is converted into a folder of this machine",
            where=str(out),
            cure="give a folder, and copy it there afterwards",
        )
    place = Path(out)
    if place.exists():
        raise OutputError("is there already", where=str(out), cure="name a new folder")
    is_gguf = Path(model).is_file() or model.lower().endswith(".gguf")
    if is_gguf and revision is not None:
        raise ModelError("a file has no revision", where=model, cure="leave --revision out")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as folder:
            staged = Path(folder, "model")
            staged.mkdir()
            write = write_gguf if is_gguf else partial(write_pickled, revision=revision)
            record = write(model, staged)
            (staged / CONVERTED).write_text(json.dumps(record, indent=1))
            staged.rename(place)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot be written ({said_by(error)})", where=str(out)) from error
    return Converted(str(place), record["tensors"], record.get("quantisation", ""))


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
            f"a GGUF file needs a package that is not installed here ({said_by(error)})",
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


def write_pickled(model: str, out: Path, revision: str | None) -> dict[str, Any]:
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
    done = {"torch": torch.__version__, "tensors": _write_tensors(pickles, out, where)}
    for name in (p.name for p in folder.iterdir() if p.is_file()):
        if any(fnmatch(name, each) for each in DECIDING):
            shutil.copyfile(folder / name, out / name)
    return {"model": model, "commit": commit, "sha256": digests, **done}


def _write_tensors(files: list[Path], out: Path, where: str) -> int:
    """Write each pickled file's tensors into `out`, with an index of several; count them."""
    file_by_tensor: dict[str, str] = {}
    total = 0
    for number, file in enumerate(files, 1):
        part = f"model-{number:05}-of-{len(files):05}.safetensors"
        name = part if len(files) > 1 else "model.safetensors"
        tensors = _unpickle_tensors(file, where)
        for key, tensor in tensors.items():
            file_by_tensor[key] = name
            total += tensor.nbytes
        save_file(tensors, out / name, metadata={"format": "pt"})
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": file_by_tensor}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return len(file_by_tensor)


def _unpickle_tensors(file: Path, where: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a pickled file, each with storage of its own, as safetensors needs it.

    Raises ModelError: anything else than tensors in it, or a damaged file.
    """
    cure = "do not use this file; ask its authors for safetensors"
    try:
        loaded = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except Exception as error:
        # torch's own message ends by advising to load the file without this check.
        if type(error).__name__ == "UnpicklingError":
            name = _FOREIGN.search(str(error))
            what = f" ({name[1]})" if name else ""
            problem = f"holds more than weights{what}, or is damaged; nothing in it was run"
        else:
            problem = f"cannot be read as weights ({said_by(error)})"
        raise ModelError(f"{file.name} {problem}", where=where, cure=cure) from error
    if not isinstance(loaded, Mapping):
        problem = f"{file.name} holds {type(loaded).__name__}, not tensors by name"
        raise ModelError(problem, where=where, cure=cure)

    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for key, tensor in loaded.items():
        if problem := _unwritable(key, tensor):
            raise ModelError(f"{file.name} {problem}", where=where, cure=cure)
        storage = tensor.untyped_storage()
        alone = storage.data_ptr() not in storages and storage.nbytes() == tensor.nbytes
        storages.add(storage.data_ptr())
        tensors[key] = tensor.contiguous() if alone else tensor.contiguous().clone()
    return tensors


def _unwritable(key: object, tensor: object) -> str:
    """Say why safetensors cannot hold an entry of a pickled file; empty if it can."""
    if not isinstance(tensor, torch.Tensor):
        return f"holds {type(tensor).__name__} as {key!r}, not a tensor"
    if not isinstance(key, str):
        return f"holds a tensor as {key!r}, which is no name"
    if tensor.is_meta:
        return f"holds {key!r} without its values (a tensor of torch's meta device)"
    if tensor.is_quantized or tensor.layout is not torch.strided:
        kind = "quantised" if tensor.is_quantized else "sparse"
        return f"holds {key!r} as a {kind} tensor, which safetensors cannot"
    try:
        save({key: torch.empty(0, dtype=tensor.dtype)})
    except (KeyError, TypeError, ValueError, NotImplementedError, SafetensorError):
        return f"holds {key!r} as {tensor.dtype}, which safetensors cannot"
    return ""
