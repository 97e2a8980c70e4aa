"""Compare the weights of a checkpoint with those of its model, and refuse a checkpoint of another.

transformers fills in weights that a checkpoint lacks, casts integers to floats, and drops what the
model has no place for: each changes answers without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import torch

from raybias.config import Backbone
from raybias.engine.checkpoint import adapter_of, quantisation, reading_model
from raybias.engine.headers import Headers
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

#: What each auto class loads, in words.
KINDS: Final = {
    "AutoModel": "an encoder",
    "AutoModelForCausalLM": "a causal language model",
    "AutoModelForMaskedLM": "a masked language model",
    "AutoModelForSeq2SeqLM": "a sequence-to-sequence model",
    "AutoModelForSequenceClassification": "a classifier",
}
#: A cure for a checkpoint that lacks weights.
WHOLE: Final = "give a whole checkpoint, saved as such a model with its config.json"
MASKED: Final = "use a checkpoint that was saved with its masked-language-model head"
#: Weights that an error names; the others are counted.
_NAMED: Final = 2
#: Buffers that older versions of transformers saved, and that every model computes by itself.
_COMPUTED: Final = re.compile(
    r"(^|\.)(position_ids|token_type_ids|\w*inv_freq|masked_bias|causal_mask|version"
    r"|relative_position_index|num_batches_tracked|embed_positions\.weights|sin_cached|cos_cached)$"
)
#: The causal mask of an attention layer, as older versions saved it: [1, 1, length, length].
_MASK: Final = re.compile(r"attn\.(\w+\.)?bias$|attention\.bias$")
_MASK_AXES: Final = 4

#: Whether a checkpoint may lack a weight of a model, by its name.
IsNew = Callable[["PreTrainedModel", str], bool]
#: What transformers reports of a load: sets of keys by kind (missing, unexpected, mismatched).
Loading = Mapping[str, Any]


@dataclass(frozen=True)
class Fit:
    """A checkpoint and the model that it was loaded into.

    kind: the auto class.
    loading: what transformers reported.
    headers: of the checkpoint's weights.
    is_new: whether the checkpoint may lack a weight, by its name.
    cure: for a checkpoint that lacks others.
    """

    spec: Backbone
    kind: Any
    loading: Loading
    headers: Headers
    is_new: IsNew
    cure: str

    def refuse_misfit(self, model: PreTrainedModel) -> list[str]:
        """Return the names of missing weights that are new.

        Raises ModelError: weights that are missing, of another shape or dtype, or not used.
        """
        adapter = adapter_of(self.spec)
        own = {} if adapter is None else adapter.shapes
        missing = sorted(name for name in self.loading["missing_keys"] if name not in own)
        other = sorted(each for each in self.loading["mismatched_keys"] if each[0] not in own)
        lacking = [name for name in missing if not self.is_new(model, name)]
        if lacking:
            raise self._refused(f"lacks {self._lacking(model, lacking, missing)}")
        for name, shape, needed in other:
            asked = f"and its config.json asks for {[*needed]}"
            raise self._refused(f"holds {name} as {[*shape]}, {asked}")
        if quantisation(self.spec) is None:
            self._refuse_unused(model)
            self._refuse_integers(model)
        return missing

    def heads(self, model: PreTrainedModel) -> list[str]:
        """List the parts of the checkpoint that this kind of model has not, such as other heads."""
        names = set(self.loading["unexpected_keys"]) - {*self._unused(model)}
        return sorted(
            {name.rpartition(".")[0] or name for name in names if not self._is_made(name)}
        )

    def _lacking(self, model: PreTrainedModel, lacking: list[str], missing: list[str]) -> str:
        total = len({*missing, *(name for name, _ in model.named_parameters())})
        what = f"{len(lacking)} of the {total} weights that {KINDS[self.kind.__name__]} needs"
        # The weight may be there by another name.
        similar = get_close_matches(lacking[0], sorted(self.loading["unexpected_keys"]), n=1)
        renamed = f", and holds {similar[0]}, which is not read" if similar else ""
        return f"{_first(lacking)} ({what}){renamed}"

    def _unused(self, model: PreTrainedModel) -> list[str]:
        """List the weights that lie in the model's body and that it does not use."""
        prefix = f"{model.base_model_prefix}."
        parts = {name for name, _ in model.base_model.named_children()}
        return [
            name
            for name in sorted(self.loading["unexpected_keys"])
            if name.removeprefix(prefix).partition(".")[0] in parts and not self._is_made(name)
        ]

    def _is_made(self, name: str) -> bool:
        """Return whether a tensor is no weight, but a buffer that the model makes by itself."""
        tensor = self.headers.get(name)
        is_mask = tensor is not None and len(tensor.shape) == _MASK_AXES
        return bool(_COMPUTED.search(name) or (is_mask and _MASK.search(name)))

    def _refuse_unused(self, model: PreTrainedModel) -> None:
        if unused := self._unused(model):
            raise ModelError(
                f"its checkpoint holds {_first(unused)} ({len(unused)} weights), which the model of"
                " its config.json does not use",
                where=self.spec.id,
                cure="give the config.json that belongs to these weights",
            )

    def _refuse_integers(self, model: PreTrainedModel) -> None:
        """Refuse integers and 8-bit floats in the place of a weight, which would be cast."""
        narrow = [name for name, each in self.headers.items() if not each.is_float]
        if not narrow:
            return
        floats = {name: each for name, each in self.headers.items() if each.is_float}
        _, without = meta_load(self.spec, type(model), model.config, floats)
        weights = {name for name, each in model.named_parameters() if each.is_floating_point()}
        lost = weights & {*without["missing_keys"]} - {*self.loading["missing_keys"]}
        if lost:
            dtypes = sorted({self.headers[name].dtype for name in narrow})
            raise ModelError(
                f"its checkpoint holds {_first(sorted(lost))} ({len(lost)} weights) as"
                f" {' and '.join(dtypes)}, and its config.json has no quantization_config",
                where=self.spec.id,
                cure="give the config.json that the quantised model was saved with, or its weights"
                " in full precision",
            )

    def _refused(self, problem: str) -> ModelError:
        return ModelError(f"its checkpoint {problem}", where=self.spec.id, cure=self.cure)


def meta_load(
    spec: Backbone, model_type: type[PreTrainedModel], config: PretrainedConfig, headers: Headers
) -> tuple[PreTrainedModel, Loading]:
    """Load a model on torch's meta device from headers alone, as transformers would load it.

    Names are renamed, fused and tied by transformers itself. Returns the model and its report.
    Raises ModelError: headers that transformers cannot load.
    """
    from transformers.utils import logging

    state = {name: each.empty() for name, each in headers.items()}
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with reading_model(spec, "weights"):
            loaded: tuple[PreTrainedModel, Loading] = model_type.from_pretrained(
                None,
                config=deepcopy(config),
                state_dict=state,
                device_map={"": torch.device("meta")},
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    finally:
        if shown:
            logging.enable_progress_bar()
    return loaded


def _first(names: list[str]) -> str:
    return ", ".join([*names[:_NAMED], *["..."] * (len(names) > _NAMED)])
