"""Checkpoints whose weights are quantised, as their config.json says: torchao and its like.

transformers loads them with the package that they need. They compute in the dtype that they were
saved for, and their weights stay as they are, whatever is tuned beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raybias.config import Backbone
from raybias.engine.model_files import read_config, source_of
from raybias.errors import ModelError


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised.

    Attributes
    ----------
    method: as transformers names it, with the kinds of its weights where it says.
    dtype: of what is not quantised, and of activations.
    stored: bytes of all weights; None where they are not on this machine.
    """

    method: str
    dtype: str
    stored: int | None


def quantisation(spec: Backbone) -> Quantisation | None:
    """Read how a checkpoint is quantised; None where it is not.

    Raises
    ------
    ModelError: no readable config, or a dtype that the checkpoint was not saved for.
    """
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
    """Return torch's dtype of a backbone, or of a name; a quantised one has its own.

    `auto` is float32 outside a study, which decides it.

    Raises
    ------
    ModelError: as `quantisation` says.
    """
    how = quantisation(spec)
    chosen = how.dtype if how is not None else name or spec.dtype
    dtype: torch.dtype = torch.float32 if chosen == "auto" else getattr(torch, chosen)
    return dtype


def check_trainable(spec: Backbone, method: str) -> None:
    """Refuse to tune weights that are quantised.

    Raises
    ------
    ModelError: names the method.
    """
    if (how := quantisation(spec)) is not None:
        raise ModelError(
            f"is quantised ({how.method}), and {method} tunes all of its weights",
            where=spec.id,
            cure="use lora or soft_prompt on it, or its checkpoint in full precision",
        )
