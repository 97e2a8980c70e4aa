"""Merge a PEFT adapter into the weights of its base."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from safetensors import safe_open

from raybias.config import Backbone
from raybias.engine.adapter_folder import ADAPTER_WEIGHTS, PREFIX, PeftAdapter
from raybias.engine.adapters.target_layers import bypass_reasons
from raybias.engine.checkpoint import as_model_error
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Adapter names are PEFT's default.
_NAME: Final = "default"
#: Before the second factor of a layer, which is zero until it is tuned.
_LORA_B: Final = ".lora_B."


def merge_adapter(model: PreTrainedModel, adapter: PeftAdapter, spec: Backbone) -> PreTrainedModel:
    """Return a base model with an adapter's weights added, and its own head in place of the base's.

    Raises ModelError: PEFT cannot load or merge it, or it lacks weights that its config names.
    """
    from peft import PeftConfig, PeftModel

    with (
        warnings.catch_warnings(),
        as_model_error(
            "is a PEFT adapter that cannot be added to its base ({})",
            where=spec.id,
            cure=f"check that {adapter.base} is its base, and that PEFT loads it"
            " (`PeftModel.from_pretrained`)",
        ),
    ):
        # Missing weights are refused below.
        warnings.simplefilter("ignore")
        _refuse_bypassed(model, adapter, spec)
        config = PeftConfig.from_pretrained(str(adapter.folder))
        config.inference_mode = True
        adapted: Any = PeftModel(model, config, adapter_name=_NAME)
        result = adapted.load_adapter(str(adapter.folder), _NAME, use_safetensors=True)
        problems = [*result.missing_keys, *result.unexpected_keys]
        if problems:
            what = "lacks" if result.missing_keys else "holds, and its config does not name,"
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            raise ModelError(
                f"its adapter {what} {problems[0]}{more}",
                where=spec.id,
                cure="save the adapter again, whole",
            )
        if not hasattr(adapted.base_model, "merge_and_unload"):
            raise ModelError(
                f"is a PEFT adapter of the kind {adapter.kind}, which PEFT cannot merge",
                where=spec.id,
                cure="serve the model, and name it as a backbone with an `endpoint`",
            )
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    return merged


def _refuse_bypassed(model: PreTrainedModel, adapter: PeftAdapter, spec: Backbone) -> None:
    """Refuse factors that PEFT leaves without effect, and merging would give one."""
    modules = {name for name, _ in model.named_modules()}
    reasons = bypass_reasons(model, [path for path in _changed_layers(adapter) if path in modules])
    for path, reason in reasons.items():
        raise ModelError(
            f"its adapter changes {path}, which {reason} under PEFT, unlike in a merged model",
            where=spec.id,
            cure="merge it (`merge_and_unload`, then `save_pretrained`) if that is meant, and name"
            " that folder",
        )


def _changed_layers(adapter: PeftAdapter) -> list[str]:
    """List the paths of the layers that LoRA's factors change: those that are not all zero."""
    paths = []
    with safe_open(adapter.folder / ADAPTER_WEIGHTS, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            path, found, _ = name.removeprefix(PREFIX).partition(_LORA_B)
            if found and tensors.get_tensor(name).any():
                paths.append(path)
    return paths
