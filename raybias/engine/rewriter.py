"""Rewrite sentences in another style with a T5 checkpoint: draw candidates, let a judge choose.

As Styleformer does (Zhao2025 section 3.2): draw a few candidates, keep those with the same meaning,
take the best. Draws are keyed per sentence, so neither batch nor order nor worker changes them.
Shapes: R sentences of a batch, C candidates of each, N = R x C rows, T tokens, H hidden, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

from raybias.config.parts import Adequacy, Rewriting
from raybias.engine.answers import Key
from raybias.engine.backbone import check_loads, empty_model, load_pretrained
from raybias.engine.context import ON_CPU, Batcher, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import check_lengths, load_tokenizer
from raybias.engine.keyed_draws import KeyedDraw, Sampling
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import Batch, padded, single_rows
from raybias.errors import ConfigError, ModelError

#: The prefixes that Styleformer's checkpoints were tuned with.
INSTRUCTIONS: Final = {
    "formal": "transfer Casual to Formal: ",
    "informal": "transfer Formal to Casual: ",
}
#: Decimals of adequacies that are compared; batches may change the rest.
_PLACES: Final = 5


class Rewriter:
    """A T5 checkpoint with a judge; call it with sentences and their keys.

    `style` chooses among INSTRUCTIONS where `options` has none.
    Raises ConfigError: no instruction for the style; ModelError: as `load_pretrained` says, or no
    end token.
    """

    def __init__(self, options: Rewriting, execution: Execution = ON_CPU, *, style: str) -> None:
        self.options = options
        self.instruction = _instruction(options, style)
        spec = options.spec()
        self._encoder = load_tokenizer(spec)
        model, _ = load_pretrained(AutoModelForSeq2SeqLM, spec, execution)
        self._model: Any = model
        self._sampling = Sampling(options.temperature, options.top_k, options.top_p, 0.0, 1.0, ())
        self._generation = _generation(self._model, self._encoder.tokenizer, options)
        self.adequacy = AdequacyModel(options.adequacy, execution)
        self._batcher = Batcher(execution, spec.id)

    def __call__(self, texts: Sequence[str], keys: Sequence[Key]) -> list[list[tuple[str, float]]]:
        """Rewrite sentences; return each one's adequate rewritings with their scores, best first.

        Rewritings equal to the sentence are left out, so a list may be empty; ties keep the draws'
        order.
        Raises ModelError: a sentence is longer than the judge's context.
        """
        candidates = self.candidates(texts, keys)
        by_text = zip(texts, candidates, strict=True)
        pairs = [(text, each) for text, made in by_text for each in made]
        scores, least = iter(self.adequacy.score(pairs)), self.options.adequacy.threshold
        rewritings: list[list[tuple[str, float]]] = []
        for made in candidates:
            scored = [(each, next(scores)) for each in made]
            adequate = [pair for pair in scored if pair[1] >= least]
            rewritings.append(sorted(adequate, key=lambda pair: -round(pair[1], _PLACES)))
        return rewritings

    def candidates(self, texts: Sequence[str], keys: Sequence[Key]) -> list[list[str]]:
        """Draw the different rewritings of each sentence, in order, but those over the limit."""
        # An instruction is the task's, not the sentence's: the limit is on the sentence.
        lengths, count = map(len, self._encoder.ids(texts)), self.options.candidates
        short = [n for n, length in enumerate(lengths) if length <= self.options.max_length]
        rows = self._encoder.ids([self.instruction + texts[n] for n in short])
        device = torch.device(self._model.device)

        def draw(batch: Batch) -> list[list[str]]:
            tokens_RT, mask_RT = (
                to_device(each, device) for each in padded(batch, self._generation.pad_token_id)
            )
            encoder = self._model.get_encoder()
            hidden_RTH = encoder(input_ids=tokens_RT, attention_mask=mask_RT).last_hidden_state
            hidden_NTH = hidden_RTH.repeat_interleave(count, dim=0)
            mine = [(*keys[short[n]], c) for _, n in batch.rows for c in range(count)]
            chosen = KeyedDraw(self._sampling, mine, self.options.max_length, device)
            made_NT = self._model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden_NTH),
                attention_mask=mask_RT.repeat_interleave(count, dim=0),
                generation_config=self._generation,
                logits_processor=LogitsProcessorList([chosen]),
            )
            ended_N = (made_NT[:, 1:] == self._generation.eos_token_id).any(-1).tolist()
            made = self._encoder.tokenizer.batch_decode(made_NT, skip_special_tokens=True)
            whole = [text if ended else "" for text, ended in zip(made, ended_N, strict=True)]
            return [whole[r : r + count] for r in range(0, len(whole), count)]

        rewritings: list[list[str]] = [[] for _ in texts]
        with torch.inference_mode():
            for n, drawn in self._batcher.by_row(draw, single_rows(rows)).items():
                unlike = dict.fromkeys(each.strip() for each in drawn)
                text = texts[short[n]].strip()
                rewritings[short[n]] = [each for each in unlike if each not in ("", text)]
        return rewritings


def _instruction(options: Rewriting, style: str) -> str:
    if options.instruction is not None:
        return options.instruction
    if style not in INSTRUCTIONS:
        raise ConfigError(
            f"no words are known that ask for the style {style!r}",
            where=f"rewriting with {options.model}",
            cure="set instruction to what the checkpoint was tuned with, or to ''",
        )
    return INSTRUCTIONS[style]


def check_rewriter(options: Rewriting, *, style: str) -> tuple[ModelShape, ModelShape]:
    """Refuse what `Rewriter` would, as far as it shows without weights; return both shapes."""
    _instruction(options, style)
    spec, judge = options.specs
    model = empty_model(spec, AutoModelForSeq2SeqLM)
    _generation(model, load_tokenizer(spec).tokenizer, options)
    load_tokenizer(judge)
    judging = empty_model(judge, _kind(options.adequacy))
    _check_labels(judging.config, options.adequacy)
    check_loads(spec, AutoModelForSeq2SeqLM)
    check_loads(judge, _kind(options.adequacy), is_new=partial(_is_new, options.adequacy))
    return shape_of(model, spec), shape_of(judging, judge)


def _is_new(options: Adequacy, _model: PreTrainedModel, name: str) -> bool:
    """Return whether an encoder may lack a weight: a pooler, which mean pooling does not use."""
    return options.kind != "classifier" and name.startswith("pooler.")


class AdequacyModel:
    """Score pairs of (sentence, rewritten sentence), higher meaning closer.

    By a classifier of both sentences whose label 1 means yes (such as Parrot's), or by the cosine
    of mean-pooled last hidden states, as sentence-transformers does.
    Raises ModelError: as `load_pretrained` says, or a classifier without a label 1.
    """

    def __init__(self, options: Adequacy, execution: Execution = ON_CPU) -> None:
        spec, self._classifies = options.spec(), options.kind == "classifier"
        self._encoder = load_tokenizer(spec)
        tuned = "give a checkpoint tuned as a classifier, or set kind: embedding"
        self._model, _ = load_pretrained(
            _kind(options),
            spec,
            execution,
            is_new=partial(_is_new, options),
            cure=tuned if self._classifies else "give a whole encoder",
        )
        _check_labels(self._model.config, options)
        self._batcher = Batcher(execution, spec.id)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Score each second sentence's adequacy; ModelError: longer than the context."""
        if not pairs:
            return []
        tokenizer = self._encoder.tokenizer
        if self._classifies:
            inputs = tokenizer([one for one, _ in pairs], [two for _, two in pairs])
            return self._read(inputs, [f"{one} | {two}" for one, two in pairs]).tolist()
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        embedded = dict(zip(texts, self._read(tokenizer(texts), texts), strict=True))
        return [float(embedded[one] @ embedded[two]) for one, two in pairs]

    def _read(self, inputs: Mapping[str, Any], names: Sequence[str]) -> Tensor:
        """Compute each row's probability of label 1 [R], or its embedding [R, H]."""
        rows: list[list[int]] = inputs["input_ids"]
        check_lengths([*map(len, rows)], context=self._encoder.context, names=names)
        types: list[list[int]] | None = inputs.get("token_type_ids")

        def read(batch: Batch) -> Tensor:
            tokens_RT, mask_RT = padded(batch, self._encoder.tokenizer.pad_token_id or 0)
            given = {"input_ids": tokens_RT, "attention_mask": mask_RT.long()}
            if types is not None:
                mine = [torch.tensor(types[n]) for _, n in batch.rows]
                given["token_type_ids"] = pad_sequence(mine, batch_first=True)
            there = {name: to_device(each, self._model.device) for name, each in given.items()}
            found = self._model(**there)
            if self._classifies:
                says_yes_R: Tensor = found.logits.float().softmax(-1)[:, 1]
                return says_yes_R
            mask_RT1 = there["attention_mask"][:, :, None]
            mean_RH = (found.last_hidden_state.float() * mask_RT1).sum(1) / mask_RT1.sum(1)
            return normalize(mean_RH, dim=-1)

        return self._batcher.stacked(read, rows)


def _kind(options: Adequacy) -> Any:
    return AutoModelForSequenceClassification if options.kind == "classifier" else AutoModel


def _check_labels(config: Any, options: Adequacy) -> None:
    if options.kind == "classifier" and config.num_labels < 2:
        raise ModelError(
            "has no label 1, whose probability says that a sentence is adequate",
            where=options.model,
            cure="give a classifier with two labels or more",
        )


def _generation(model: Any, tokenizer: Any, options: Rewriting) -> GenerationConfig:
    """Build settings under which `generate` adds nothing from the checkpoint to the draw."""
    eos, start = tokenizer.eos_token_id, getattr(model.config, "decoder_start_token_id", None)
    if eos is None or start is None:
        raise ModelError(
            f"has no {'end' if eos is None else 'start'} token to write with",
            where=options.model,
            cure="mend its config.json, or give another checkpoint",
        )
    # `generate` would take unset values from here.
    model.generation_config = GenerationConfig(decoder_start_token_id=start)
    return GenerationConfig(
        max_length=options.max_length,
        do_sample=False,
        num_beams=1,
        eos_token_id=eos,
        pad_token_id=eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        decoder_start_token_id=start,
    )
