"""Rewrite sentences in another style with a T5 checkpoint: draw candidates, let a judge choose.

As Styleformer does (Zhao2025 section 3.2): draw a few candidates, keep those with the same meaning,
take the best. Draws are keyed per sentence, so neither batch nor order nor worker changes them.
Shapes: R sentences of a batch, C candidates of each, N = R x C rows, T tokens, H hidden, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    LogitsProcessorList,
)
from transformers.modeling_outputs import BaseModelOutput

from raybias.config.parts import Adequacy, Rewriting
from raybias.engine.backbone import empty_model, load_pretrained
from raybias.engine.context import ON_CPU, Batcher, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import check_lengths, load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import Batch, pack, padded
from raybias.engine.sampling import KeyedDraw, Sampler, Sampling
from raybias.errors import ConfigError, ModelError

#: The prefixes that Styleformer's checkpoints were tuned with.
INSTRUCTIONS: Final = {
    "formal": "transfer Casual to Formal: ",
    "informal": "transfer Formal to Casual: ",
}
#: Weights that some checkpoints of encoders lack and that mean pooling does not use.
_UNREAD: Final = "pooler."
#: The token type of padding; padding is masked, so any value does.
_NO_TYPE: Final = 0
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
        self._sampler = Sampler(
            Sampling(options.temperature, options.top_k, options.top_p, 0.0, 1.0, ())
        )
        self._generation = _generation(self._model, self._encoder.tokenizer, options)
        self.adequacy = AdequacyModel(options.adequacy, execution)
        self._batcher = Batcher(execution, spec.id)

    def __call__(
        self, texts: Sequence[str], keys: Sequence[tuple[str | int, ...]]
    ) -> list[list[tuple[str, float]]]:
        """Rewrite sentences; return each one's adequate rewritings with their scores, best first.

        Rewritings equal to the sentence are left out, so a list may be empty; ties keep the draws'
        order.
        Raises ModelError: a sentence is longer than the judge's context.
        """
        candidates = self.candidates(texts, keys)
        pairs = [
            (text, each) for text, drawn in zip(texts, candidates, strict=True) for each in drawn
        ]
        scores = iter(self.adequacy.score(pairs))
        rewritings: list[list[tuple[str, float]]] = []
        for drawn in candidates:
            scored = [(each, next(scores)) for each in drawn]
            adequate = [each for each in scored if each[1] >= self.adequacy.threshold]
            rewritings.append(sorted(adequate, key=lambda each: -round(each[1], _PLACES)))
        return rewritings

    def candidates(
        self, texts: Sequence[str], keys: Sequence[tuple[str | int, ...]]
    ) -> list[list[str]]:
        """Draw the different rewritings of each sentence, in the order of the draws.

        Draws that do not end within the length limit are dropped; longer sentences get none.
        """
        # An instruction is the task's, not the sentence's: the limit is on the sentence.
        lengths = [len(row) for row in self._encoder.ids(texts)]
        short = [n for n, length in enumerate(lengths) if length <= self.options.max_length]
        rows = self._encoder.ids([self.instruction + texts[n] for n in short])

        def work(batch: Batch) -> list[list[str]]:
            return self._draw(batch, [keys[short[n]] for _, n in batch.rows])

        rewritings: list[list[str]] = [[] for _ in texts]
        with torch.inference_mode():
            for n, drawn in self._batcher.by_row(work, pack(rows, max_tokens=0)).items():
                unlike = dict.fromkeys(each.strip() for each in drawn)
                text = texts[short[n]].strip()
                rewritings[short[n]] = [each for each in unlike if each not in ("", text)]
        return rewritings

    def _draw(self, batch: Batch, keys: Sequence[tuple[str | int, ...]]) -> list[list[str]]:
        device, count = self._model.device, self.options.candidates
        tokens_RT, mask_RT = (
            to_device(each, device) for each in padded(batch, self._generation.pad_token_id)
        )
        hidden_RTH = self._model.get_encoder()(
            input_ids=tokens_RT, attention_mask=mask_RT
        ).last_hidden_state
        draw = KeyedDraw(
            self._sampler,
            [(*each, c) for each in keys for c in range(count)],
            self.options.max_length,
            torch.device(device),
        )
        made_NT = self._model.generate(
            encoder_outputs=BaseModelOutput(
                last_hidden_state=hidden_RTH.repeat_interleave(count, dim=0)
            ),
            attention_mask=mask_RT.repeat_interleave(count, dim=0),
            generation_config=self._generation,
            logits_processor=LogitsProcessorList([draw]),
        )
        ended_N = (made_NT[:, 1:] == self._generation.eos_token_id).any(-1).tolist()
        texts = self._encoder.tokenizer.batch_decode(made_NT, skip_special_tokens=True)
        whole = [text if ended else "" for text, ended in zip(texts, ended_N, strict=True)]
        return [whole[r : r + count] for r in range(0, len(whole), count)]


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
    spec = options.spec()
    model = empty_model(spec, AutoModelForSeq2SeqLM)
    _ends(model, load_tokenizer(spec).tokenizer, options)
    judge = options.adequacy.spec()
    load_tokenizer(judge)
    judging = empty_model(judge, _kind(options.adequacy))
    _check_labels(judging.config, options.adequacy)
    return shape_of(model, spec), shape_of(judging, judge)


class AdequacyModel:
    """Score pairs of (sentence, rewritten sentence), higher meaning closer.

    By a classifier of both sentences whose label 1 means yes (such as Parrot's), or by the cosine
    of mean-pooled last hidden states, as sentence-transformers does. `threshold`: the least
    adequate score.
    Raises ModelError: as `load_pretrained` says, or a classifier without a label 1.
    """

    def __init__(self, options: Adequacy, execution: Execution = ON_CPU) -> None:
        self.threshold, self._classifies = options.threshold, options.kind == "classifier"
        spec = options.spec()
        encoder = load_tokenizer(spec)
        self._context, self._tokenizer = encoder.context, encoder.tokenizer
        cure = "give a whole encoder"
        if self._classifies:
            cure = "give a checkpoint tuned as a classifier, or set kind: embedding"
        self._model, _ = load_pretrained(
            _kind(options),
            spec,
            execution,
            is_new=lambda model, name: not self._classifies and name.startswith(_UNREAD),
            cure=cure,
        )
        _check_labels(self._model.config, options)
        self._batcher = Batcher(execution, spec.id)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Score each second sentence's adequacy; ModelError: longer than the context."""
        if not pairs:
            return []

        def says_yes(inputs: dict[str, Tensor]) -> Tensor:
            logits_RL: Tensor = self._model(**inputs).logits
            return logits_RL.float().softmax(-1)[:, 1]

        def embed(inputs: dict[str, Tensor]) -> Tensor:
            hidden_RTH: Tensor = self._model(**inputs).last_hidden_state
            mask_RT1 = inputs["attention_mask"][:, :, None]
            mean_RH = (hidden_RTH.float() * mask_RT1).sum(1) / mask_RT1.sum(1)
            return torch.nn.functional.normalize(mean_RH, dim=-1)

        if self._classifies:
            inputs = self._tokenizer([one for one, _ in pairs], [two for _, two in pairs])
            return self._run(says_yes, inputs, [f"{one} | {two}" for one, two in pairs]).tolist()
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        embedded_NH = self._run(embed, self._tokenizer(texts), texts)
        place = {text: n for n, text in enumerate(texts)}
        return [float(embedded_NH[place[one]] @ embedded_NH[place[two]]) for one, two in pairs]

    def _run(
        self,
        read: Callable[[dict[str, Tensor]], Tensor],
        inputs: Mapping[str, Any],
        names: Sequence[str],
    ) -> Tensor:
        """Apply `read` to every row; return its results in the rows' order, on the CPU."""
        rows: list[list[int]] = inputs["input_ids"]
        check_lengths([*map(len, rows)], context=self._context, names=names)
        types: list[list[int]] | None = inputs.get("token_type_ids")

        def work(batch: Batch) -> Tensor:
            tokens_RT, mask_RT = padded(batch, self._tokenizer.pad_token_id or 0)
            given = {"input_ids": tokens_RT, "attention_mask": mask_RT.long()}
            if types is not None:
                width = tokens_RT.shape[1]
                filled = [types[n] + [_NO_TYPE] * (width - len(types[n])) for _, n in batch.rows]
                given["token_type_ids"] = torch.tensor(filled)
            device = self._model.device
            return read({name: to_device(each, device) for name, each in given.items()}).cpu()

        with torch.inference_mode():
            results = self._batcher.by_row(work, pack(rows, max_tokens=0))
            return torch.stack([results[n] for n in range(len(rows))])


def _kind(options: Adequacy) -> Any:
    return AutoModelForSequenceClassification if options.kind == "classifier" else AutoModel


def _check_labels(config: Any, options: Adequacy) -> None:
    if options.kind == "classifier" and config.num_labels < 2:
        raise ModelError(
            "has no label 1, whose probability says that a sentence is adequate",
            where=options.model,
            cure="give a classifier with two labels or more",
        )


def _ends(model: Any, tokenizer: Any, options: Rewriting) -> tuple[int, int]:
    """Return the tokens that begin and end a rewriting."""
    eos = tokenizer.eos_token_id
    start = getattr(model.config, "decoder_start_token_id", None)
    if eos is None or start is None:
        raise ModelError(
            f"has no {'end' if eos is None else 'start'} token to write with",
            where=options.model,
            cure="mend its config.json, or give another checkpoint",
        )
    return int(start), int(eos)


def _generation(model: Any, tokenizer: Any, options: Rewriting) -> GenerationConfig:
    """Build settings under which `generate` adds nothing from the checkpoint to the draw."""
    start, eos = _ends(model, tokenizer, options)
    config = GenerationConfig(
        max_length=options.max_length,
        do_sample=False,
        num_beams=1,
        eos_token_id=eos,
        pad_token_id=eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        decoder_start_token_id=start,
    )
    # `generate` would take unset values from here.
    model.generation_config = GenerationConfig(decoder_start_token_id=start)
    return config
