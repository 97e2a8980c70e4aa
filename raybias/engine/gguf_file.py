"""Write the model in a GGUF file as a folder that transformers loads, for `engine.conversion`."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from raybias.engine.checkpoint import file_digest
from raybias.engine.model_files import as_model_error
from raybias.errors import ModelError

_MAGIC: Final = b"GGUF"


def write_gguf(file: str, out: Path) -> dict[str, Any]:
    """Write a GGUF file's weights, config, tokenizer and chat template into a folder.

    transformers loads the file. The weights are dequantised to float32, so the folder's model
    computes the logits of transformers' own load.

    Returns the record of the conversion: the file, its sha256 and its quantisation.

    Raises
    ------
    ModelError: not there, not a GGUF file, damaged, of an architecture that transformers cannot
        load, or without some of its weights; or the package gguf is not installed.
    """
    path = Path(file)
    if not path.is_file():
        raise ModelError("is not there", where=file, cure="check the path")
    with _reading(file, "cannot be read"), path.open("rb") as stream:
        magic = stream.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ModelError(
            "is not a GGUF file", where=file, cure="give a .gguf, or a folder or id of a model"
        )
    try:
        import gguf
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(
            f"a GGUF file needs a package that is not installed here ({error})",
            where=file,
            cure="pip install 'raybias[gguf]'",
        ) from error
    with _reading(file, "cannot load this GGUF file"):
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


def _reading(file: str, problem: str) -> AbstractContextManager[None]:
    """Raise whatever a library says of the file as one `ModelError`."""
    cure = "check that it is whole and of an architecture that transformers reads from GGUF"
    return as_model_error(f"{problem} ({{}})", where=file, cure=cure)
