"""Soft prompts on disk, in the format that `PeftModel.from_pretrained` opens.

The stored prompt is what stands before the text (BOS embedding + delta), in float32.
`raybias.json` beside it records how it came about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from raybias.config import Backbone
from raybias.errors import ModelError
from raybias.storage import Store

#: Where PEFT keeps the vectors of a prompt.
_KEY: Final = "prompt_embeddings"
_WEIGHTS: Final = "adapter_model.safetensors"


def save_soft_prompt(
    store: Store, folder: str, prompt_PD: Tensor, *, spec: Backbone, record: Mapping[str, object]
) -> None:
    """Write a soft prompt; `raybias.json` comes last and marks the folder as whole."""
    length, width = prompt_PD.shape
    config = {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.id,
        "revision": spec.revision,
        "inference_mode": True,
        "num_virtual_tokens": length,
        "token_dim": width,
        "num_transformer_submodules": 1,
        "prompt_tuning_init": "RANDOM",
    }
    tensors = {_KEY: prompt_PD.detach().float().cpu().contiguous()}
    store.write_bytes(f"{folder}/{_WEIGHTS}", save(tensors))
    store.write_text(f"{folder}/adapter_config.json", json.dumps(config, indent=2))
    store.write_text(f"{folder}/raybias.json", json.dumps(dict(record), indent=2))


def load_soft_prompt(store: Store, folder: str, *, width: int, length: int | None = None) -> Tensor:
    """Read a soft prompt [P, D] float32.

    Raises
    ------
    ModelError: not there, not a prompt, or of another width or length.
    """
    where = store.uri_of(f"{folder}/{_WEIGHTS}")
    if not store.exists(f"{folder}/{_WEIGHTS}"):
        raise ModelError("no such adapter", where=where, cure="tune it first")
    try:
        prompt: Tensor = load(store.read_bytes(f"{folder}/{_WEIGHTS}"))[_KEY].float()
    except (SafetensorError, KeyError) as error:
        raise ModelError("does not hold a soft prompt", where=where) from error
    found = tuple(prompt.shape)
    wanted = (found[0] if length is None else length, width)
    if found != wanted:
        raise ModelError(
            f"the prompt is {found[0]} vectors of width {found[-1]}, "
            f"but the backbone takes {wanted[0]} of width {width}",
            where=where,
            cure="use the backbone and prompt length that it was tuned with",
        )
    return prompt
