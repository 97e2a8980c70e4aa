"""Choose the layers of a model that adapters change."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from raybias.config import Backbone
from raybias.engine.adapters.options import LayerOptions
from raybias.engine.classifier import Classifier
from raybias.errors import ModelError

_LINEAR_FORWARDS: Final = (torch.nn.Linear.forward, Conv1D.forward)


def head_modules(classifier: Classifier) -> list[str]:
    """List PEFT's `modules_to_save`: whole heads, and new layers in the base model."""
    base = f"{classifier.model.base_model_prefix}."
    return sorted(
        {
            name.rpartition(".")[0] if name.startswith(base) else name.partition(".")[0]
            for name in classifier.head
        }
    )


def target_layers(
    model: PreTrainedModel, options: LayerOptions, spec: Backbone, heads: Sequence[str] = ()
) -> list[str]:
    """List paths of the linear layers to adapt, heads aside; ModelError: a name matches none."""
    base, architecture = model.base_model, model.config.model_type
    prefix = model.base_model_prefix if base is not model else ""
    paths = [path for path in linear_layers(base, prefix) if path not in heads]
    unusable = bypass_reasons(model, paths) | options.misread_by_peft(model, paths)
    layers = [path for path in paths if path not in unusable]
    if options.target == "all_linear":
        if not layers:
            raise ModelError(
                f"has no linear layer that {options.kind} can adapt",
                where=spec.id,
                cure="use soft_prompt, full or a prompted method on it",
            )
        return layers
    peft = options.target == "peft_default"
    names = options.peft_names(architecture) if peft else options.target
    known = sorted({path.rpartition(".")[2] for path in layers})
    for name in names or ("",):
        refused = [path for path in unusable if name and names_layer(path, name)]
        if refused and not peft:
            raise ModelError(
                f"{options.kind} target {name!r} names {refused[0]}, which {unusable[refused[0]]}",
                where=spec.id,
                cure=f"choose among {', '.join(known)} as the method's target",
            )
        if not any(names_layer(path, name) for path in layers):
            raise ModelError(
                f"{options.kind} target {name!r} matches no linear layer"
                if name
                else f"PEFT names no {options.kind} target for {architecture} models",
                where=spec.id,
                cure=f"choose among {', '.join(known)} as the method's target",
            )
    return [path for path in layers if any(names_layer(path, name) for name in names)]


def linear_layers(base: torch.nn.Module, prefix: str) -> list[str]:
    """List the paths of linear layers, classes of their own included."""
    return [
        path
        for path, module in base.named_modules(prefix=prefix)
        if isinstance(module, torch.nn.Linear | Conv1D)
    ]


def bypass_reasons(model: PreTrainedModel, paths: Sequence[str]) -> dict[str, str]:
    """Return the linear layers whose adapters would have no effect, with the reason.

    Routers of experts compute otherwise under the same class, and Mamba's mixers read the weight of
    a layer past its forward pass.
    """
    reasons: dict[str, str] = {}
    sources: dict[str, str] = {}
    for path in paths:
        parent_path, _, name = path.rpartition(".")
        parent = type(model.get_submodule(parent_path))
        if parent.__qualname__ not in sources:
            sources[parent.__qualname__] = _source_of(parent)
        reads_weight = re.search(
            rf"self\.{re.escape(name)}\.(weight|bias)\b", sources[parent.__qualname__]
        )
        if not maps_like_linear(model.get_submodule(path)):
            reasons[path] = "computes something else than a linear layer"
        elif reads_weight:
            reasons[path] = (
                "the model reads without calling it, so that an adapter would have no effect"
            )
    return reasons


def maps_like_linear(layer: torch.nn.Module) -> bool:
    """Check whether a layer of a linear class maps one tensor to one of its output width.

    Falcon's linear layers do in a forward pass of their own; routers return more.
    """
    if type(layer).forward in _LINEAR_FORWARDS:
        return True
    weight = layer.get_parameter("weight")
    outer, inner = weight.shape
    inputs = torch.empty(2, inner, device=weight.device, dtype=weight.dtype)
    with suppress(RuntimeError, ValueError, TypeError, LookupError), torch.no_grad():
        output = layer(inputs)
        return isinstance(output, Tensor) and output.shape == (2, outer)
    return False


def _source_of(module_class: Any) -> str:
    try:
        return inspect.getsource(module_class)
    except (OSError, TypeError):
        return ""


def names_layer(path: str, name: str) -> bool:
    """Check whether a layer's path ends with a name, as PEFT matches them."""
    return path == name or path.endswith(f".{name}")
