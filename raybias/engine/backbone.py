"""A frozen model with its tokenizer, from a hub id or a path.

Only safetensors weights are read and no code of the model's own is run. The
begin-of-sequence policy is explicit, and what the model itself computes is compared
with our packed layout when it is loaded (see `forward`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from raybias.config import Backbone
from raybias.engine.checkpoint import reading_model, revision_of, source_of
from raybias.engine.context import ON_CPU, Execution, Sharding
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.model_files import dtype_of, read_config, read_generation
from raybias.engine.pipelining import device_map
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raybias.engine.batching import Batcher

Loaded = TypeVar("Loaded")
#: What each of transformers' auto classes that are used here loads.
_KINDS: Final = {
    "AutoModel": "an encoder",
    "AutoModelForCausalLM": "a causal language model",
    "AutoModelForMaskedLM": "a masked language model",
    "AutoModelForSeq2SeqLM": "a sequence-to-sequence model",
    "AutoModelForSequenceClassification": "a classifier",
}
#: Weights that an error names; the others are counted.
_NAMED: Final = 2


class LoadedBackbone:
    """A frozen model in eval mode with its tokenizer.

    Attributes
    ----------
    width: width of the input embeddings, which soft prompts share. OPT-350M's are 512
        wide and projected to 1,024 inside the model.
    context: longest input in tokens, prompt vectors counted; None without a limit.
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

    def batcher(self, *, most: int | None = None, side_by_side: bool = False) -> Batcher:
        """Make what cuts sequences into batches for this model; see `Execution.batcher`."""
        execution = self.execution
        return execution.batcher(
            self.spec.id, context=self.context, most=most, side_by_side=side_by_side
        )

    @property
    def prompt_token_id(self) -> int:
        """The token whose embedding soft prompts start from."""
        return self.encoder.prompt_token_id

    def encode(self, texts: Sequence[str], *, append_eos: bool = False) -> list[list[int]]:
        """Tokenise texts; see `TextEncoder.encode`."""
        return self.encoder.encode(texts, append_eos=append_eos)

    def embed(self, tokens_RT: torch.Tensor) -> torch.Tensor:
        """Look up the input embeddings [R, T, width] of token ids."""
        embedded: torch.Tensor = self.model.get_input_embeddings()(tokens_RT)
        return embedded


def load_backbone(spec: Backbone, execution: Execution = ON_CPU) -> LoadedBackbone:
    """Load, freeze and place a backbone.

    Raises
    ------
    ModelError: not found, no safetensors weights, not a causal language model, or a checkpoint
        that lacks weights of one.
    """
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
    is_new: Callable[[PreTrainedModel, str], bool] = lambda model, name: False,
    cure: str = "give a whole checkpoint, saved as such a model with its config.json",
    **options: Any,
) -> tuple[PreTrainedModel, list[str]]:
    """Load, freeze and place a model of one of transformers' auto classes.

    All of its weights are the checkpoint's.

    Parameters
    ----------
    dtype: of the weights; the spec's by default.
    is_new: whether a checkpoint may lack a weight of the model, by the weight's name.
    cure: of a checkpoint that lacks others.
    options: of `from_pretrained`.

    Returns the model, and the names of the weights that the checkpoint lacks.

    Raises
    ------
    ModelError: not found, no safetensors weights, not a model of this kind, or weights that the
        checkpoint lacks or holds in another shape.
    """
    from transformers.utils import logging

    # What a checkpoint lacks is refused below, so its report need not alarm a user.
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    there = None
    if execution.sharding is None:
        there = device_map(execution.split(), partial(empty_model, spec, kind))
    if there is not None:
        options["device_map"] = there
    try:
        with reading_model(spec, "weights"), execution.loading():
            model, loading = kind.from_pretrained(
                source_of(spec, weights=True),
                revision=revision_of(spec),
                dtype=dtype_of(spec, dtype),
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
    finally:
        logging.set_verbosity(level)
    missing = sorted(loading["missing_keys"])
    lacking = [name for name in missing if not is_new(model, name)]
    problem = _misshapen(loading["mismatched_keys"])
    if lacking:
        total = len({*missing, *(name for name, _ in model.named_parameters())})
        problem = _lacking(lacking, total, _KINDS[kind.__name__], loading["unexpected_keys"])
    if problem:
        raise ModelError(f"its checkpoint {problem}", where=spec.id, cure=cure)
    model.requires_grad_(False).eval()
    return (model.to(execution.device) if there is None else model), missing


def is_encoder(spec: Backbone) -> bool:
    """Check whether a backbone reads text in both directions, as BERT and RoBERTa do.

    Raises
    ------
    ModelError: no readable config.
    """
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    config = read_config(spec)
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_decoder


def check_causal(spec: Backbone, method: str = "this method") -> None:
    """Refuse an encoder.

    Raises
    ------
    ModelError: says that `method` needs a causal language model.
    """
    if spec.is_checkpoint and is_encoder(spec):
        raise ModelError(
            f"is an encoder, and {method} needs a causal language model",
            where=spec.id,
            cure="use full or lora on it, or another backbone",
        )


def empty_model(spec: Backbone, kind: Any = None) -> PreTrainedModel:
    """Build a model without weights, on torch's meta device, from its config alone.

    Parameters
    ----------
    kind: one of transformers' auto classes; by default a causal language model or an encoder.

    Raises
    ------
    ModelError: no readable config, or not a model of this kind.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    config = read_config(spec)
    if kind is None:
        kind = AutoModel if is_encoder(spec) else AutoModelForCausalLM
    with reading_model(spec, "config.json"), torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, dtype=dtype_of(spec))
    if (own := read_generation(spec)) is not None:
        model.generation_config = own
    return model


def _lacking(names: Sequence[str], total: int, kind: str, unread: Iterable[str]) -> str:
    """Name the first weights that a checkpoint lacks, and the one it may hold the first by."""
    first = ", ".join([*names[:_NAMED], *["..."] * (len(names) > _NAMED)])
    similar = get_close_matches(names[0], sorted(unread), n=1)
    renamed = f", and holds {similar[0]}, which is not read" if similar else ""
    return f"lacks {first} ({len(names)} of the {total} weights that {kind} needs){renamed}"


def _misshapen(weights: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> str:
    """Name the first weight of another shape than a model's, or nothing where there is none."""
    for name, shape, needed in sorted(weights):
        return f"holds {name} as {list(shape)}, and its config.json asks for {list(needed)}"
    return ""


@dataclass(frozen=True)
class ModelContext:
    """What every trainer and reader of one model in one process has in common.

    A driver makes it of its plan and sends it; `here` is what its process then works with.

    Attributes
    ----------
    spec: the model's checkpoint.
    words: the study's label words, in label order.
    memory: URI of the answers that studies share; empty for none.
    """

    spec: Backbone
    words: tuple[str, ...] = ()
    execution: Execution = ON_CPU
    memory: str = ""
    _loaded: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def here(
        self, device: torch.device | None = None, sharding: Sharding | None = None
    ) -> ModelContext:
        """Return the context of this process, whose torch it sets."""
        self.execution.set_torch()
        execution = self.execution
        there = replace(execution, device=device or execution.device, sharding=sharding)
        return replace(self, execution=there)

    def backbone(self, load: Callable[..., LoadedBackbone] | None = None) -> LoadedBackbone:
        """Load the frozen backbone, once for all that ask.

        Parameters
        ----------
        load: called with the spec and the execution; `load_backbone` by default.

        Raises
        ------
        ModelError: not found, no safetensors weights, or another architecture than asked for.
        """
        return self.kept(load or load_backbone)

    def kept(self, load: Callable[..., Loaded]) -> Loaded:
        """Call `load` with the spec and the execution, once for all that ask by it."""
        if load not in self._loaded:
            self._loaded[load] = load(self.spec, self.execution)
        loaded: Loaded = self._loaded[load]
        return loaded
