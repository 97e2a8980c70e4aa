"""Read the headers of a checkpoint's safetensors: names, dtypes and shapes, and no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from raybias.config import Backbone
from raybias.engine.checkpoint import folder_of, has_safetensors, is_pickled, source_of
from raybias.errors import ModelError, said_by

#: Files that transformers loads: all weights, or the index of their parts.
_WHOLE: Final = "model.safetensors"
_INDEX: Final = f"{_WHOLE}.index.json"
#: Dtypes of weights, by their names in a header; a model casts them to its own.
_FLOATS: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class HeaderTensor(NamedTuple):
    """A tensor as a header describes it; `dtype` by its name there, such as F32 or I8."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """Whether it has the dtype of weights that are not quantised."""
        return self.dtype in _FLOATS

    def empty(self) -> torch.Tensor:
        """Return a tensor of its shape on torch's meta device."""
        dtype = _FLOATS.get(self.dtype, torch.uint8)
        return torch.empty(self.shape, dtype=dtype, device="meta")


Headers = Mapping[str, HeaderTensor]


def read_headers(spec: Backbone) -> Headers:
    """Read the headers of a model's weights; none if they are not on this machine, or pickled.

    Of an adapter, these are the weights of its base. Raises ModelError: as `check_files`.
    """
    source = Path(source_of(spec))
    return check_files(source, spec.id) if has_safetensors(source) else {}


def check_folder(spec: Backbone) -> None:
    """Refuse a folder without weights, and one that `check_files` refuses, by a ModelError."""
    folder = folder_of(spec.id)
    if folder is None or is_pickled(spec):
        return
    if not has_safetensors(folder):
        raise ModelError(
            "holds no weights (*.safetensors)",
            where=spec.id,
            cure="copy or download them into the folder, then run this again",
        )
    check_files(folder, spec.id)


def check_files(folder: Path, where: str) -> Headers:
    """Return the headers of all weights that transformers would load from a folder.

    where: the model's name in messages.

    Raises ModelError: a file that is damaged, or an index that is no mapping or names a file that
    is missing or outside the folder. Files that are not loaded are checked too.
    """
    named = {each.name: _parts_of(each, where) for each in folder.glob("*.safetensors.index.json")}
    found = {path.name: _header_of(path, where) for path in sorted(folder.glob("*.safetensors"))}
    loaded = {_WHOLE} if _WHOLE in found else named.get(_INDEX, set())
    return {name: each for file in sorted(loaded) for name, each in found[file].items()}


def _parts_of(index: Path, where: str) -> set[str]:
    """Return the files that an index of weights names."""
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        parts = {name for name in names if Path(name).name == name}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index.name} is no index of weights (a mapping with weight_map)",
            where=where,
            cure="fetch it again",
        ) from error
    if outside := sorted(names - parts):
        raise ModelError(
            f"{index.name} names {outside[0]!r}, which is no file of this folder",
            where=where,
            cure="fetch the index again, or copy that file here and correct the index",
        )
    if not parts:
        raise ModelError(f"{index.name} names no files", where=where, cure="fetch it again")
    if missing := sorted(name for name in parts if not (index.parent / name).is_file()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"lacks {missing[0]}{more}, which {index.name} names",
            where=where,
            cure="fetch what is missing",
        )
    if other := sorted(name for name in parts if not name.endswith(".safetensors")):
        raise ModelError(
            f"{index.name} names {other[0]!r}, which is no safetensors",
            where=where,
            cure="fetch the index again",
        )
    return parts


def _header_of(path: Path, where: str) -> Headers:
    """Return the header of one file of safetensors."""
    try:
        # By numpy, a header can name dtypes that numpy lacks, as long as no tensor is read.
        with safe_open(path, framework="numpy") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: HeaderTensor(str(each.get_dtype()), tuple(each.get_shape()))
                for name, each in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path.name} is no whole file of safetensors ({said_by(error)})",
            where=where,
            cure="fetch it again",
        ) from error
