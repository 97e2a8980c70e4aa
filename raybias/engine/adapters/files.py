"""Write and read the folder of an adapter or a tuned model, as PEFT and transformers have it.

Weights are safetensors; `raybias.json` records how they came about and is written last, so that
it marks the folder as whole.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from raybias.errors import ModelError
from raybias.storage import Store

#: Where PEFT keeps an adapter's weights, and transformers a model's.
ADAPTER: Final = "adapter_model.safetensors"
MODEL: Final = "model.safetensors"


def write_folder(
    store: Store,
    folder: str,
    tensors: Mapping[str, Tensor],
    *,
    file: str,
    parts: Sequence[Any],
    record: Mapping[str, object],
) -> None:
    """Write the folder of an adapter or a model.

    Parameters
    ----------
    file: ADAPTER or MODEL.
    parts: configurations and tokenizers, which write themselves with `save_pretrained`.
    record: the content of `raybias.json`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    store.write_bytes(f"{folder}/{file}", save(plain, metadata={"format": "pt"}))
    with tempfile.TemporaryDirectory() as place:
        for part in parts:
            part.save_pretrained(place)
        for path in sorted(Path(place).iterdir()):
            store.write_bytes(f"{folder}/{path.name}", path.read_bytes())
    store.write_text(f"{folder}/raybias.json", json.dumps(dict(record), indent=2))


def read_tensors(
    store: Store, folder: str, shapes: Mapping[str, Sequence[int] | None], *, file: str
) -> dict[str, Tensor]:
    """Read the tensors that `shapes` names, float32; None allows any shape.

    Raises
    ------
    ModelError: no such file, no safetensors, or a tensor that it lacks or holds in another shape.
    """
    where = store.uri_of(f"{folder}/{file}")
    if not store.exists(f"{folder}/{file}"):
        raise ModelError("no such adapter", where=where, cure="tune it first")
    try:
        tensors = load(store.read_bytes(f"{folder}/{file}"))
    except SafetensorError as error:
        raise ModelError("does not hold an adapter", where=where) from error
    for name, shape in shapes.items():
        if name not in tensors:
            problem = f"lacks {name}"
        elif shape is not None and tensors[name].shape != tuple(shape):
            problem = f"holds {name} as {list(tensors[name].shape)}, but {list(shape)} is needed"
        else:
            continue
        raise ModelError(
            problem, where=where, cure="use the backbone and options that it was tuned with"
        )
    return {name: tensors[name].float() for name in shapes}
