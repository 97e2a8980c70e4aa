"""Load frozen models with their tokenizers by hub id or path: only safetensors, no remote code.

The sizes of a model are found from its config alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from raybias.config import Backbone
from raybias.engine.checkpoint import (
    CONFIG,
    adapter_of,
    dtype_of,
    quantisation,
    read_config,
    read_generation,
    reading_model,
    revision_of,
    source_of,
)
from raybias.engine.context import ON_CPU, Batcher, Execution
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.headers import check_files, read_headers
from raybias.engine.weights_fit import KINDS, MASKED, WHOLE, Fit, IsNew, meta_load
from raybias.errors import ModelError
from raybias.schema import LABELS

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Loaded = TypeVar("Loaded")
Device = str | torch.device


class LoadedBackbone:
    """A frozen model in eval mode with its tokenizer.

    `width`: of the input embeddings, which soft prompts share (OPT-350M projects its 512 to 1,024);
    `context`: longest input in tokens, prompt vectors counted; None without a limit.
    """

    def __init__(
        self, encoder: TextEncoder, model: PreTrainedModel, execution: Execution = ON_CPU
    ) -> None:
        self.encoder = encoder
        self.model = model
        self.execution = execution
        self.device = torch.device(execution.device)
        self.spec = encoder.spec
        self.tokenizer = encoder.tokenizer
        self.context = encoder.context
        self.width = int(model.get_input_embeddings().embedding_dim)

    def batcher(self) -> Batcher:
        """Make a batcher for this model."""
        return Batcher(self.execution, self.spec.id, context=self.context, side_by_side=True)

    def embed(self, tokens_RT: torch.Tensor) -> torch.Tensor:
        """Look up the input embeddings [R, T, width] of token ids."""
        embedded: torch.Tensor = self.model.get_input_embeddings()(tokens_RT)
        return embedded


def load_backbone(spec: Backbone, execution: Execution = ON_CPU) -> LoadedBackbone:
    """Load, freeze and place a causal language model; errors as of `load_pretrained`."""
    from transformers import AutoModelForCausalLM

    from raybias.engine.attention import use_fast_attention

    encoder = load_tokenizer(spec)
    check_causal(spec)
    model, _ = load_pretrained(AutoModelForCausalLM, spec, execution)
    use_fast_attention(model)
    execution.begin(model)
    return LoadedBackbone(encoder, model, execution)


def load_pretrained(
    kind: Any,
    spec: Backbone,
    execution: Execution,
    *,
    dtype: str | None = None,
    is_new: IsNew = lambda model, name: False,
    cure: str = WHOLE,
    **options: Any,
) -> tuple[PreTrainedModel, list[str]]:
    """Load, freeze and place a model of an auto class; return it and the names of missing weights.

    Raises ModelError: not found, no safetensors, not a model of this kind, or weights that
    `refuse_misfit` refuses.

    dtype: of the weights; the spec's by default.
    is_new: whether a checkpoint may lack a weight, by its name.
    cure: for a checkpoint that lacks others.
    options: of `from_pretrained`.

    A PEFT adapter is merged into its base; one that is a prompt cannot be.
    """
    adapter = adapter_of(spec)
    if adapter is not None:
        check_merges(spec, sharded=execution.sharding is not None)
        options.setdefault("config", read_config(spec))

    there: dict[str, Device] | None = None
    devices = execution.split() if execution.sharding is None else []
    if len(devices) > 1:
        there = layer_split(empty_model(spec, kind), devices)
    elif devices and devices[0].type != "cpu":
        there = {"": devices[0]}
    # Each weight goes straight from its file to its device; a CPU computes on the mapped files.
    if there is not None:
        options["device_map"] = there
    sharding = execution.sharding
    source = source_of(spec, weights=True)
    with reading_model(spec, "weights"), sharding.loading() if sharding else nullcontext():
        model, loading = kind.from_pretrained(
            source,
            revision=revision_of(spec),
            dtype=dtype_of(spec, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    if adapter is not None:
        from raybias.engine.merging import merge_adapter

        model = merge_adapter(model, adapter, spec)
    headers = check_files(Path(source), spec.id)
    fit = Fit(spec, kind, loading, headers, is_new, cure)
    missing = fit.refuse_misfit(model)
    model.requires_grad_(False).eval()
    return (model.to(execution.device) if there is None else model), missing


def check_loads(
    spec: Backbone,
    kind: Any = None,
    *,
    is_new: IsNew = lambda model, name: False,
    cure: str = WHOLE,
    labels: int | None = None,
) -> list[str]:
    """Refuse what `load_pretrained` would, by the headers of the weights on this machine alone.

    Returns the parts of the checkpoint that such a model has not, such as other heads. Weights that
    are not on this machine, pickled or quantised are not looked at.

    kind: an auto class; by default the one by which the backbone itself is loaded.
    labels: classes of a new classification head.
    is_new, cure: as for `load_pretrained`.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    headers = read_headers(spec)
    if not headers or quantisation(spec) is not None:
        return []
    if kind is None and is_encoder(spec):
        kind, cure = AutoModelForMaskedLM, MASKED
    elif kind is None:
        kind = AutoModelForCausalLM
    config = deepcopy(read_config(spec))
    check_kind(spec, config, kind)
    if labels is not None and labels != config.num_labels:
        config.num_labels = labels
    with reading_model(spec, CONFIG), torch.device("meta"):
        model_type = type(kind.from_config(config))
    model, loading = meta_load(spec, model_type, config, headers)
    fit = Fit(spec, kind, loading, headers, is_new, cure)
    fit.refuse_misfit(model)
    return fit.heads(model)


def check_merges(spec: Backbone, *, sharded: bool = False) -> None:
    """Refuse a soft prompt or prefix as a model, and an adapter of a sharded base."""
    adapter = adapter_of(spec)
    if adapter is not None and adapter.is_prompt:
        raise ModelError(
            f"is {adapter.described}, which no other method than classify reads",
            where=spec.id,
            cure="use the method classify on it, or name its base model",
        )
    if adapter is not None and sharded:
        raise ModelError(
            "is a PEFT adapter, and its base is sharded with ZeRO-3",
            where=spec.id,
            cure="merge it into its base (`merge_and_unload`, then `save_pretrained`) and name that"
            " folder, or set resources.shard to never",
        )


def is_encoder(spec: Backbone) -> bool:
    """Check whether a backbone reads text in both directions, as BERT and RoBERTa do."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    config = read_config(spec)
    # Few configs still have the flag.
    is_decoder = getattr(config, "is_decoder", False)
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not is_decoder


def check_causal(spec: Backbone, method: str = "this method") -> None:
    """Refuse an encoder with a ModelError: `method` needs a causal language model."""
    if spec.is_checkpoint and is_encoder(spec):
        raise ModelError(
            f"is an encoder, and {method} needs a causal language model",
            where=spec.id,
            cure="use full or lora on it, or another backbone",
        )


def empty_model(spec: Backbone, kind: Any = None) -> PreTrainedModel:
    """Build a model on torch's meta device from its config alone, by default the backbone's kind.

    `kind`: an auto class. Raises ModelError: no readable config, or not a model of this kind.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    check_merges(spec)
    config = read_config(spec)
    if kind is None:
        kind = AutoModel if is_encoder(spec) else AutoModelForCausalLM
    check_kind(spec, config, kind)
    with reading_model(spec, "config.json"), torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, dtype=dtype_of(spec))
    if (own := read_generation(spec)) is not None:
        model.generation_config = own
    return model


def check_kind(spec: Backbone, config: PretrainedConfig, kind: Any) -> None:
    """Refuse a model type that transformers has no model of this kind for, with a ModelError.

    kind: an auto class.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    mapping = kind._model_mapping
    if type(config) in mapping or getattr(config, "auto_map", None):
        return
    model_type = config.model_type
    if kind is AutoModelForSequenceClassification:
        problem = f"transformers has no classification head for {model_type} models"
        if type(config) in AutoModelForCausalLM._model_mapping:
            cure = "set the method's head to label_tokens, which any causal language model has"
        else:
            cure = "choose another backbone"
    elif getattr(config, "is_encoder_decoder", False):
        problem = f"is an encoder-decoder ({model_type}), which raybias does not load"
        cure = "serve it, and name it as a backbone with an `endpoint`"
    else:
        problem = (
            f"is a {model_type} model, which transformers cannot load as {KINDS[kind.__name__]}"
        )
        cure = "choose another backbone, or another method for this one"
    raise ModelError(problem, where=spec.id, cure=cure)


def layer_split(model: PreTrainedModel, devices: Sequence[Device]) -> dict[str, Device]:
    """Map modules to devices (`device_map`): as many blocks to each, the rest to the first."""
    inside = list(blocks(model))
    placed = {id(block): devices[n * len(devices) // len(inside)] for n, block in enumerate(inside)}

    def within(name: str, module: torch.nn.Module) -> Iterator[tuple[str, Device]]:
        if id(module) in placed:
            yield name, placed[id(module)]
        elif not any(id(each) in placed for each in module.modules()):
            yield name, devices[0]
        else:
            for own, _ in module.named_parameters(recurse=False):
                yield f"{name}.{own}".strip("."), devices[0]
            for child, each in module.named_children():
                yield from within(f"{name}.{child}".strip("."), each)

    return dict(within("", model))


def blocks(model: PreTrainedModel) -> Iterator[torch.nn.Module]:
    """Return the blocks of a model, in their order: its longest list of equal modules."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    wanted = int(model.config.get_text_config().num_hidden_layers)
    return iter(next((each for each in lists if len(each) == wanted), ()))


@dataclass(frozen=True)
class ModelContext:
    """Hold what trainers and readers of one model share in a process (`here`).

    words: the study's label words, in label order.
    memory: URI of the answers that studies share; empty for none.
    labels: the study's labels, in order.
    """

    spec: Backbone
    words: tuple[str, ...] = ()
    execution: Execution = ON_CPU
    memory: str = ""
    labels: tuple[str, ...] = LABELS
    _loaded: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def here(self, device: torch.device | None = None, sharding: Any = None) -> ModelContext:
        """Set this process's torch; return the process's context."""
        execution = self.execution
        execution.set_torch()
        there = replace(execution, device=device or execution.device, sharding=sharding)
        return replace(self, execution=there)

    def kept(self, load: Callable[..., Loaded]) -> Loaded:
        """Call `load`, such as `load_backbone`, with the spec and the execution, once for all."""
        if load not in self._loaded:
            self._loaded[load] = load(self.spec, self.execution)
        loaded: Loaded = self._loaded[load]
        return loaded
