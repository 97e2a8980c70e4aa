"""Load a model's configuration, its generation settings and its quantisation.

Quantised checkpoints, loaded with their package (torchao and its like), compute in the dtype that
they were saved for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Backbone
from raybias.engine.checkpoint import (
    CONFIG,
    MODEL_CURE,
    folder_of,
    reading_model,
    revision_of,
    source_of,
)
from raybias.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PretrainedConfig

_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Names of sizes in the configurations of transformers.
_SIZES: Final = (
    *("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "head_dim", "vocab_size"),
    *("intermediate_size", "ffn_dim", "d_ff", "n_inner", "max_position_embeddings", "n_positions"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"),
)
_MOST: Final = {**dict.fromkeys(_SIZES, 1 << 31), **dict.fromkeys(_LAYERS, 10_000)}


def read_config(spec: Backbone) -> PretrainedConfig:
    """Load a model's config.json; ModelError: missing, an unknown type, or a wrong value."""
    from transformers import AutoConfig, PretrainedConfig

    place: Any = {"revision": revision_of(spec)}
    folder = folder_of(spec.id)
    with reading_model(spec, CONFIG):
        if folder is not None and not (folder / CONFIG).is_file():
            raise ModelError(f"the folder has no {CONFIG}", where=spec.id, cure=MODEL_CURE)
        # Before transformers makes a million layers.
        _check_sizes(PretrainedConfig.get_config_dict(source_of(spec), **place)[0])
        config: PretrainedConfig = AutoConfig.from_pretrained(
            source_of(spec), trust_remote_code=False, **place
        )
    return config


def read_generation(spec: Backbone) -> GenerationConfig | None:
    """Load a model's generation_config.json, None without one; ModelError for a wrong value."""
    from transformers import GenerationConfig

    with reading_model(spec, "generation_config.json"), suppress(OSError):
        own: GenerationConfig = GenerationConfig.from_pretrained(
            source_of(spec), revision=revision_of(spec)
        )
        return own
    return None


def _check_sizes(content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        # Quantisation has sizes of its own, such as the axis -1.
        if isinstance(value, dict) and name != "quantization_config":
            _check_sizes(value)
        most = _MOST.get(name)
        if most is None or value is None:
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {most}")


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised.

    `method`: transformers' name, with the kinds of its weights; `dtype`: of other weights and of
    activations; `stored`: bytes of all weights; None where they are not on this machine.
    """

    method: str
    dtype: str
    stored: int | None


def quantisation(spec: Backbone) -> Quantisation | None:
    """Find how a checkpoint is quantised, if at all; ModelError for a dtype that it cannot have."""
    config = read_config(spec)
    found: dict[str, Any] | None = getattr(config, "quantization_config", None)
    if not found:
        return None
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    kinds = found.get("quant_type") or {}
    named = [each["_type"] for each in kinds.values()] if isinstance(kinds, dict) else [kinds]
    method = " ".join([str(found.get("quant_method", "unknown")), *map(str, named)])
    if spec.dtype not in ("auto", dtype):
        raise ModelError(
            f"is quantised ({method}) and computes in {dtype}, not in {spec.dtype}",
            where=spec.id,
            cure="leave its dtype to auto",
        )
    files = [*Path(source_of(spec)).glob("*.safetensors")]
    return Quantisation(method, dtype, sum(file.stat().st_size for file in files) or None)


def dtype_of(spec: Backbone, name: str | None = None) -> torch.dtype:
    """Return torch's dtype of a name or of the backbone; `auto` is float32 outside a study."""
    import torch

    how = quantisation(spec)
    chosen = how.dtype if how is not None else name or spec.dtype
    dtype: torch.dtype = torch.float32 if chosen == "auto" else getattr(torch, chosen)
    return dtype


def check_trainable(spec: Backbone, method: str) -> None:
    """Refuse to tune quantised weights, by a ModelError that names the method."""
    if (how := quantisation(spec)) is not None:
        raise ModelError(
            f"is quantised ({how.method}), and {method} tunes all of its weights",
            where=spec.id,
            cure="use lora or soft_prompt on it, or its checkpoint in full precision",
        )
