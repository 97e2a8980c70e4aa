"""Merge a PEFT adapter into the weights of its base."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from raybias.config import Backbone
from raybias.engine.adapter_folder import PeftAdapter
from raybias.engine.checkpoint import as_model_error
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Adapter names are PEFT's default.
_NAME = "default"


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
