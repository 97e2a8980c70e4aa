"""Encoders and causal models as classifiers (Kohankhaki2024).

Label logits come from a classification head, as in transformers' `ForSequenceClassification`, or
from the label words' rows of a causal model's LM head.
Shapes: R rows (or sequences), N rows, T tokens, H hidden, L labels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from raybias.config import Backbone
from raybias.engine.adapters.options import ClassifierOptions
from raybias.engine.attention import states_at, use_fast_attention
from raybias.engine.backbone import check_loads, empty_model, is_encoder, load_pretrained
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import SpecialTokens, TextEncoder, load_tokenizer, verbalizer_ids
from raybias.engine.output_head import OutputHead, read_output_head
from raybias.engine.packing import BLOCK, Batch, Placed, single_row, stack
from raybias.engine.self_check import agrees, first_matching, measure_rounding, sample_tokens
from raybias.errors import ConfigError, ModelError
from raybias.seeding import generator

#: Standard deviation of a new head where a model's config names none.
_SPREAD: Final = 0.02
#: A cure for a checkpoint that lacks more than a head, by the number of labels.
_HEAD_CURE: Final = "give a whole checkpoint without a head, or with one of {} labels"


class Classifier(torch.nn.Module):
    """A model with an output for each label.

    head: shape of each new weight, by its name in `model`; they are tuned whole.
    label_ids: the label words' tokens; none under a classification head.
    output_head: the LM head, applied to the last token alone; None under a classification head, and
        for a model that must be called as a whole.
    pads_left: whether rows are padded at the left, as for a model that always reads the last
        position (XLNet).
    pads: whether rows can be padded. Only a published model may change its labels with the padding
        beside a row; its batches then have rows of one length.
    specials: the tokenizer's special tokens around a text, if the model is computed as it was
        published: by its own padding token and the tokenizer's token types. None for a model that
        is tuned, whose padding token is the tokenizer's.

    Raises ModelError: a model to be tuned whose labels change with the padding beside a row.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        model: PreTrainedModel,
        execution: Execution,
        *,
        head: Mapping[str, tuple[int, ...]],
        label_ids: Sequence[int],
        specials: SpecialTokens | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.model = model
        self.execution = execution
        self.device = torch.device(execution.device)
        self.head = dict(head)
        self.label_ids = tuple(label_ids)
        self.specials = specials
        self.pad = _pad_token(encoder) if specials is None else _own_pad_token(model)
        if self.pad is not None:
            _set_pad_token(model, self.pad)
        parameters = signature(model.forward).parameters
        types = None if specials is None else specials.types
        self._has_types = types is not None and "token_type_ids" in parameters
        # A causal model would copy the keys and values of every layer for a next token.
        caches = "use_cache" in parameters
        self._no_cache = {"use_cache": False} if caches or label_ids else {}
        self.pads, self.pads_left = True, False
        self.output_head: OutputHead | None = None
        if label_ids:
            self.output_head = self._usable_output_head()
            part = self.output_head is not None
            execution.note("classifier", packs=False, part=part, fastest=part)
        self.pads_left = self._must_pad_left()

    @property
    def label_count(self) -> int:
        """How many labels there are."""
        return len(self.label_ids) or int(self.model.config.num_labels)

    def read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Pad a batch of single rows; return the tokens, masks and last places of `forward`."""
        tokens_RT, last_R = batch.tokens_RT, batch.at_T
        place_T = torch.arange(tokens_RT.shape[1])
        if self.pads_left:
            # Row r moves right by the length of its padding.
            place_RT = place_T - (place_T[-1] - last_R)[:, None]
            mask_RT = place_RT >= 0
            tokens_RT = tokens_RT.gather(1, place_RT.clamp(min=0))
            last_R = torch.full_like(last_R, int(place_T[-1]))
        else:
            mask_RT = place_T <= last_R[:, None]
        tokens_RT = tokens_RT.masked_fill(~mask_RT, self._pad_token_of(tokens_RT, last_R))
        tokens, mask, last = (to_device(each, self.device) for each in (tokens_RT, mask_RT, last_R))
        return tokens, mask.long(), last

    def forward(self, tokens_RT: Tensor, mask_RT: Tensor, last_R: Tensor) -> Tensor:
        """Compute the label logits [R, L], float32."""
        inputs: dict[str, Any] = {"input_ids": tokens_RT, "attention_mask": mask_RT}
        inputs |= self._no_cache
        if self._has_types:
            inputs["token_type_ids"] = self._token_types(mask_RT)
        if not self.label_ids:
            logits_RL: Tensor = self.model(**inputs).logits
            return logits_RL.float()
        rows_R = torch.arange(len(tokens_RT), device=tokens_RT.device)
        if self.output_head is not None:
            hidden_RTH = self.model.base_model(**inputs).last_hidden_state
            return self.label_logits(hidden_RTH[rows_R, last_R])
        return self._labels_of(self.model(**inputs).logits[rows_R, last_R])

    def hidden(self, batch: Batch) -> Tensor:
        """Compute the hidden state [N, H] of each row's last token in packed sequences."""
        tokens_RT = to_device(batch.tokens_RT, self.device)
        at = batch.at_R, batch.at_T
        return states_at(self.model, batch, at, {"input_ids": tokens_RT})

    def label_logits(self, hidden_NH: Tensor) -> Tensor:
        """Compute the label words' logits [N, L] float32 by `output_head`, which must exist."""
        if self.output_head is None:
            raise ValueError("the model's logits are not its head's")
        # With empty rows, since products of few rows have other bits on a CPU.
        more = max(0, 2 * BLOCK - len(hidden_NH))
        logits_NV = self.output_head.logits(pad(hidden_NH, (0, 0, 0, more)))
        return self._labels_of(logits_NV[: len(hidden_NH)])

    def _token_types(self, mask_RT: Tensor) -> Tensor:
        """Return the tokenizer's token types [R, T] of rows; those of padding are not read."""
        if self.specials is None or self.specials.types is None:
            raise ValueError("the tokenizer returns no token types")
        before, inside, after = self.specials.types
        place_T = torch.arange(mask_RT.shape[1], device=mask_RT.device)
        place_RT = place_T - mask_RT.argmax(1)[:, None]
        left_RT = mask_RT.sum(1)[:, None] - 1 - place_RT
        types_RT = torch.full_like(mask_RT, inside)
        for at, kind in enumerate(before):
            types_RT = types_RT.masked_fill(place_RT == at, kind)
        for at, kind in enumerate(reversed(after)):
            types_RT = types_RT.masked_fill(left_RT == at, kind)
        return types_RT

    def _pad_token_of(self, tokens_RT: Tensor, last_R: Tensor) -> int:
        """Return a batch's padding token; one that ends no row, if the model has none.

        A decoder without one reads the last token, and one with a padding token the last other.
        """
        if self.pad is not None:
            return self.pad
        ends = set(tokens_RT[torch.arange(len(last_R)), last_R].tolist())
        pad = next(token for token in range(len(ends) + 1) if token not in ends)
        _set_pad_token(self.model, pad)
        return pad

    def _labels_of(self, logits_NV: Tensor) -> Tensor:
        return logits_NV[:, to_device(self.label_ids, logits_NV.device)].float()

    def _usable_output_head(self) -> OutputHead | None:
        """Return the LM head if it gives the model's own logits on the last token alone."""
        head = read_output_head(self.model, sample_tokens(self.model, 11))

        def sample(output_head: OutputHead | None) -> Tensor:
            self.output_head = output_head
            return self._sample_logits()

        return first_matching([] if head is None else [head], None, sample, self.model)

    def _must_pad_left(self) -> bool:
        """Find at which side padding leaves the logits of a row as they are; right if both do."""
        with torch.no_grad():
            expected, rounding = measure_rounding(self.model, self._sample_logits)
            for self.pads_left in (False, True):
                values = self._sample_logits(padding=3)
                if agrees(values, expected, rounding=rounding, dtype=self.model.dtype):
                    return self.pads_left
        if self.specials is not None:
            self.pads = False
            return False
        raise ModelError(
            "its labels of a text change with the padding beside the text",
            where=self.encoder.spec.id,
            cure="choose another model: batches of texts would not have its own values",
        )

    def _sample_logits(self, padding: int = 0) -> Tensor:
        """Compute the label logits [1, L] of one row, with so many tokens of padding."""
        row = sample_tokens(self.model, 8)
        if self.specials is not None:
            row = [*self.specials.before, *row, *self.specials.after]
        batch = stack([Placed(0, single_row(0, row))], len(row) + padding)
        logits_RL: Tensor = self(*self.read(batch))
        return logits_RL


def load_classifier(
    spec: Backbone,
    options: ClassifierOptions,
    words: Sequence[str],
    execution: Execution = ON_CPU,
) -> Classifier:
    """Load a classifier in eval mode, without gradients; transformers draws a new head.

    words: the study's label words, one for each label; a method may have others of its own.
    Raises ModelError: as `load_pretrained` says, or a head that the model cannot have.
    """
    encoder = load_tokenizer(spec)
    check_classifier(encoder, options, words)
    if options.head == "label_tokens":
        label_ids = verbalizer_ids(encoder.tokenizer, options.label_words or words)
        model, _ = load_pretrained(AutoModelForCausalLM, spec, execution, dtype=options.loads_as)
        head: dict[str, tuple[int, ...]] = {}
    else:
        label_ids = ()
        model, missing = load_pretrained(
            AutoModelForSequenceClassification,
            spec,
            execution,
            dtype=options.loads_as,
            is_new=is_of_head,
            cure=_HEAD_CURE.format(len(words)),
            num_labels=len(words),
        )
        head = {
            name: tuple(getattr(tensor, "ds_shape", tensor.shape))
            for name, tensor in model.named_parameters()
            if name in missing or not name.startswith(f"{model.base_model_prefix}.")
        }
    use_fast_attention(model)
    execution.begin(model, whole=not label_ids)
    return Classifier(encoder, model, execution, head=head, label_ids=label_ids)


def is_of_head(model: PreTrainedModel, name: str) -> bool:
    """Return whether a weight belongs to the classification head; a pooler that it reads does."""
    base = f"{model.base_model_prefix}."
    return not name.startswith(base) or name.startswith(f"{base}pooler.")


def check_classifier(
    encoder: TextEncoder, options: ClassifierOptions, words: Sequence[str]
) -> None:
    """Refuse what `load_classifier` would, as far as it shows without weights.

    Raises ModelError: no classifier of the backbone's kind, no token to pad with, label tokens on
    an encoder, or label words that begin alike. ConfigError: another number of label words than
    of labels.
    """
    if options.label_words is not None and len(options.label_words) != len(words):
        raise ConfigError(
            f"method {options.name} has {len(options.label_words)} label words, and the study"
            f" {len(words)} labels",
            where="label_words",
            cure="give one word for each label, in label order",
        )
    _pad_token(encoder)
    if options.head == "classification":
        config = empty_model(encoder.spec, AutoModelForSequenceClassification).config
        if config.is_encoder_decoder:
            raise ModelError(
                f"is an encoder-decoder ({config.model_type}), and {options.name} tunes none",
                where=encoder.spec.id,
                cure="choose an encoder or a causal language model",
            )
        return
    if is_encoder(encoder.spec):
        raise ModelError(
            f"is an encoder, and method {options.name} reads label tokens from a causal model",
            where=encoder.spec.id,
            cure="set the method's head to classification",
        )
    verbalizer_ids(encoder.tokenizer, options.label_words or words)


def check_classifier_loads(
    spec: Backbone, options: ClassifierOptions, words: Sequence[str]
) -> list[str]:
    """Refuse weights that `load_classifier` would, by their headers; see `check_loads`."""
    if options.head == "label_tokens":
        return check_loads(spec, AutoModelForCausalLM)
    return check_loads(
        spec,
        AutoModelForSequenceClassification,
        is_new=is_of_head,
        cure=_HEAD_CURE.format(len(words)),
        labels=len(words),
    )


def initial_head(classifier: Classifier, seed: int) -> dict[str, Tensor]:
    """Draw a head, float32, keyed by the seed.

    Weights are Normal(0, initializer_range), biases zero, and the weights of norm layers one.
    """
    spread = getattr(classifier.model.config, "initializer_range", None) or _SPREAD
    drawn: dict[str, Tensor] = {}
    for name, shape in classifier.head.items():
        is_norm_weight = len(shape) == 1 and name.endswith(".weight")
        values = np.ones(shape) if is_norm_weight else np.zeros(shape)
        if len(shape) > 1:
            values = generator(seed, "head", name).normal(0.0, spread, shape)
        drawn[name] = torch.from_numpy(values.astype(np.float32)).to(classifier.device)
    return drawn


def _own_pad_token(model: PreTrainedModel) -> int | None:
    """Return the padding token of a model's config; None if it has none that is a token."""
    config = model.config.get_text_config()
    pad = config.pad_token_id
    return pad if pad is not None and 0 <= pad < config.vocab_size else None


def _set_pad_token(model: PreTrainedModel, pad: int) -> None:
    # A model of text and images reads it in the config of its text part.
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = pad


def _pad_token(encoder: TextEncoder) -> int:
    for token_id in (encoder.tokenizer.pad_token_id, encoder.tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)
    raise ModelError("the tokenizer has neither a padding nor an EOS token", where=encoder.spec.id)
