"""Quantised twins of models, as torchao and transformers make and save them."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed")


def quantise(folder: Path, into: Path, bits: int, kind: Any = None) -> Path:
    """The model of a folder with weights of 8 or 4 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

        how = {
            8: Int8WeightOnlyConfig,
            4: lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        }[bits]()
        auto = kind or transformers.AutoModelForCausalLM
        model = auto.from_pretrained(
            folder, quantization_config=transformers.TorchAoConfig(how), dtype=torch.float32
        )
    model.save_pretrained(into)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(into)
    return into
