"""A frozen model with its tokenizer, from a hub id or a path.

Only safetensors weights are read and no code of the model's own is run. The
begin-of-sequence policy is explicit, and what the model itself computes is compared
with our packed layout when it is loaded (see `forward`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from raybias.config import Backbone
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.model_files import (
    read_config,
    read_generation,
    reading_model,
    revision_of,
    source_of,
    weights_of,
)
from raybias.engine.pipelining import device_map
from raybias.engine.quantised import dtype_of
from raybias.engine.template_limits import check_template
from raybias.errors import ModelError
from raybias.schema import LABELS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from raybias.engine.batching import Batcher

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

#: Policies of `Backbone.bos`; any other value names a token.
_POLICIES: Final = ("tokenizer", "prepend", "none")
#: Tokens that separate documents in pretraining, by their usual names.
_SEPARATORS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

#: Tokenizers without a limit report an absurd one.
_NO_LIMIT: Final = 10**9


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer under a begin-of-sequence policy.

    `context` is the longest input in tokens, or None where the model has no limit; `rows` are
    those of its embeddings.
    """

    spec: Backbone
    tokenizer: PreTrainedTokenizerBase
    context: int | None
    rows: int | None = None

    @property
    def prompt_token_id(self) -> int:
        """Id of the token that begins sentences, and that soft prompts start from.

        The one that `bos` names; else BOS, or EOS for tokenizers without BOS (Tian2023 section 3),
        unless that token marks the turns of a chat and so never precedes plain text: then the
        token that separates documents.

        Raises
        ------
        ModelError: the tokenizer has neither BOS nor EOS.
        """
        return self._begin_ids[0]

    @property
    def other_begin_id(self) -> int | None:
        """Id of the other token that sentences could begin with; None where there is no doubt."""
        return next(iter(self._begin_ids[1:]), None)

    @property
    def begin_tokens(self) -> list[str]:
        """The token that begins sentences, and the other that could, if there is one."""
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens([*self._begin_ids])]

    @cached_property
    def _begin_ids(self) -> tuple[int, ...]:
        given = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        own = next((int(token_id) for token_id in given if token_id is not None), None)
        named = None if self.spec.bos in _POLICIES else self._vocabulary[self.spec.bos]
        if own is None:
            if named is None:
                raise ModelError("the tokenizer has neither BOS nor EOS", where=self.spec.id)
            return (named,)
        separator = own
        if self._marks_turns(self.tokenizer.decode([own])):
            there = (self._vocabulary[name] for name in _SEPARATORS if name in self._vocabulary)
            separator = next(there, own)
        return tuple(dict.fromkeys([separator if named is None else named, separator, own]))[:2]

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    def _marks_turns(self, token: str) -> bool:
        """Tell whether the chat template writes a token in every turn, of the user and the model.

        A template that begins a conversation, or each of the user's turns, with BOS does not.
        """
        if not self.has_chat_template:
            return False
        turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
        # A template that refuses these says nothing of the token.
        with suppress(ModelError):
            return self.chat(turns).count(token) >= len(turns)
        return False

    #: Whether tokens are known, or only how many there are, roughly. Where they are, the model can
    #: be given the begin of its own turn in a chat.
    knows_tokens: ClassVar[bool] = True

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer comes with a chat template."""
        return bool(self.tokenizer.chat_template)

    @cached_property
    def for_chat(self) -> TextEncoder:
        """The same tokenizer for chats, whose templates write special tokens by themselves."""
        return replace(self, spec=self.spec.model_copy(update={"bos": "none"}))

    def chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Write messages in the tokenizer's chat template, up to where the model is to answer.

        A last message of the assistant is left open, so that the model continues it. Templates
        that can ask for an answer without thoughts before it do so.

        Parameters
        ----------
        messages: of a `role` (system, user, assistant) and a `content`.

        Raises
        ------
        ModelError: the template refuses the messages, such as a system message that it has none of.
        """
        begun = messages[-1]["role"] == "assistant"
        with reading_model(self.spec, "chat template"):
            check_template(self.tokenizer, messages)
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(each) for each in messages],
                    tokenize=False,
                    add_generation_prompt=not begun,
                    continue_final_message=begun,
                    enable_thinking=False,
                )
            )

    def encode(self, texts: Sequence[str], *, append_eos: bool = False) -> list[list[int]]:
        """Tokenise texts; return the token ids of each.

        Raises
        ------
        ModelError: a text without any token or with one that the model does not have, or no EOS to
            append.
        """
        specials = self.spec.bos == "tokenizer"
        with reading_model(self.spec, "tokenizer"):
            rows = (
                self.tokenizer(list(texts), add_special_tokens=specials)["input_ids"]
                if texts
                else []
            )
        if self.spec.bos not in ("tokenizer", "none"):
            rows = [[self.prompt_token_id, *row] for row in rows]
        if append_eos:
            if self.tokenizer.eos_token_id is None:
                raise ModelError("append_eos: the tokenizer has no EOS", where=self.spec.id)
            rows = [[*row, self.tokenizer.eos_token_id] for row in rows]
        for text, row in zip(texts, rows, strict=True):
            if row and self.rows is not None and max(row) >= self.rows:
                raise ModelError(
                    f"text {text!r} has the token {max(row)}, and the model has {self.rows}",
                    where=self.spec.id,
                    cure="give the model's own tokenizer",
                )
            if not row:
                raise ModelError(
                    f"text {text!r} has no tokens", where=self.spec.id, cure="set bos: prepend"
                )
        return [list(row) for row in rows]


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
                weights_of(spec),
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


def load_tokenizer(spec: Backbone) -> TextEncoder:
    """Load the tokenizer and its begin-of-sequence policy, without weights.

    Raises
    ------
    ModelError: not found or unreadable.
    """
    from transformers import AutoTokenizer

    if not spec.is_checkpoint:
        written: TextEncoder = spec.text_encoder()
        return written
    config = read_config(spec)
    with reading_model(spec, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            source_of(spec), revision=revision_of(spec), trust_remote_code=False
        )
        limits = (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length)
        known = [int(limit) for limit in limits if limit is not None and 0 < limit < _NO_LIMIT]
        # What a tokenizer cannot do shows in its first use.
        tokenizer([LABELS[0]])
        vocabulary = tokenizer.get_vocab()
    if spec.bos not in _POLICIES and spec.bos not in vocabulary:
        raise ModelError(
            f"bos: {spec.bos!r} is no token of the tokenizer",
            where=spec.id,
            cure=f"name one of its tokens, or {', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}",
        )
    rows = getattr(config.get_text_config(), "vocab_size", None)
    return TextEncoder(spec, tokenizer, min(known, default=None), rows)


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


def check_lengths(
    lengths: Sequence[int] | npt.NDArray[np.signedinteger[Any]],
    *,
    context: int | None,
    taken: int = 0,
    by: str = "",
    names: Sequence[str],
) -> None:
    """Refuse texts that do not fit the context; nothing is ever cut silently.

    Parameters
    ----------
    lengths: tokens of each text.
    taken: tokens of the context that are needed beside a text, such as prompt vectors.
    by: what takes them.
    names: of the texts, for the message.

    Raises
    ------
    ModelError: counts the texts and names the longest.
    """
    if context is None:
        return
    room = context - taken
    over = {name: int(n) for name, n in zip(names, lengths, strict=True) if n > room}
    if over:
        longest = max(over, key=lambda name: over[name])
        beside = f" leaves beside {taken} {by}" if taken else " has"
        raise ModelError(
            f"{len(over)} of {len(lengths)} texts are longer than the {max(room, 0)} tokens that"
            f" the context of {context}{beside} (longest: {longest}, {over[longest]} tokens)",
            cure="shorten or remove them, or use a backbone with a longer context",
        )


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
