"""Score whether a rewritten sentence still means the same, by a classifier or by embeddings.

The classifier reads both sentences and its label 1 says yes (Parrot's adequacy model is one);
the embedding way is the cosine of mean-pooled last hidden states, as sentence-transformers
computes it for all-MiniLM. Neither knows pairs, styles or where sentences come from.
Shapes: R rows of a batch, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from raybias.config import Adequacy
from raybias.engine.backbone import empty_model, load_pretrained
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.encoder import check_lengths, load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import Batch, pack
from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Weights that some checkpoints of encoders lack and that mean pooling does not read.
_UNREAD: Final = "pooler."
#: What a padded token type is; padding is masked, so any value does.
_NO_TYPE: Final = 0


class AdequacyModel:
    """Score pairs of (sentence, rewritten sentence), higher meaning closer.

    Attributes
    ----------
    threshold: the least score of an adequate rewriting.
    """

    def __init__(self, options: Adequacy, execution: Execution = ON_CPU) -> None:
        """Load the judge that `options` names.

        Raises
        ------
        ModelError: not found, no safetensors weights, or a classifier without a trained head
            or a label 1.
        """
        self.threshold = options.threshold
        spec = options.spec()
        encoder = load_tokenizer(spec)
        self._name, self._context = spec.id, encoder.context
        self._tokenizer: PreTrainedTokenizerBase = encoder.tokenizer
        self._pad = self._tokenizer.pad_token_id or 0
        self._model = _load(options, execution)
        self._batcher = execution.batcher(spec.id)
        self._compare = self._label if options.kind == "classifier" else self._cosine

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Score how adequate the second sentence of each pair is for the first.

        Raises
        ------
        ModelError: a sentence, or two together for a classifier, longer than the context.
        """
        return self._compare(pairs) if pairs else []

    def _label(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        read = self._tokenizer([one for one, _ in pairs], [two for _, two in pairs])
        names = [f"{one} | {two}" for one, two in pairs]

        def yes(inputs: dict[str, Tensor]) -> Tensor:
            logits_RL: Tensor = self._model(**inputs).logits
            return logits_RL.float().softmax(-1)[:, 1]

        scores_R: Tensor = self._run(yes, read, names)
        return [float(score) for score in scores_R]

    def _cosine(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))

        def embed(inputs: dict[str, Tensor]) -> Tensor:
            hidden_RTH: Tensor = self._model(**inputs).last_hidden_state
            mask_RT1 = inputs["attention_mask"][:, :, None]
            mean_RH = (hidden_RTH.float() * mask_RT1).sum(1) / mask_RT1.sum(1)
            return torch.nn.functional.normalize(mean_RH, dim=-1)

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
            return read(self._padded(batch, types)).cpu()

        with torch.inference_mode():
            results = self._batcher.by_row(work, pack(rows, max_tokens=0))
            return torch.stack([results[n] for n in range(len(rows))])

    def _padded(self, batch: Batch, types: list[list[int]] | None) -> dict[str, Tensor]:
        width = batch.tokens_RT.shape[1]
        mask_RT = torch.arange(width) <= batch.at_T[:, None]
        inputs = {
            "input_ids": batch.tokens_RT.masked_fill(~mask_RT, self._pad),
            "attention_mask": mask_RT.long(),
        }
        if types is not None:
            filled = [types[n] + [_NO_TYPE] * (width - len(types[n])) for _, n in batch.rows]
            inputs["token_type_ids"] = torch.tensor(filled)
        return {name: each.to(self._model.device) for name, each in inputs.items()}


def check_adequacy(options: Adequacy) -> ModelShape:
    """Refuse a judge that cannot be one, without its weights; returns its shape.

    Raises
    ------
    ModelError: no readable config or tokenizer, or a classifier without a label 1.
    """
    spec = options.spec()
    load_tokenizer(spec)
    model = empty_model(spec, _kind(options))
    _check_labels(model.config, options)
    return shape_of(model, spec)


def _load(options: Adequacy, execution: Execution) -> PreTrainedModel:
    judges = options.kind == "classifier"
    model, _ = load_pretrained(
        _kind(options),
        options.spec(),
        execution,
        dtype=options.dtype,
        is_new=lambda model, name: not judges and name.startswith(_UNREAD),
        cure="give a checkpoint tuned as a classifier, or set kind: embedding"
        if judges
        else "give a whole encoder",
    )
    _check_labels(model.config, options)
    return model


def _kind(options: Adequacy) -> Any:
    from transformers import AutoModel, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification if options.kind == "classifier" else AutoModel


def _check_labels(config: Any, options: Adequacy) -> None:
    if options.kind == "classifier" and config.num_labels < 2:
        raise ModelError(
            "has no label 1, whose probability says that a sentence is adequate",
            where=options.model,
            cure="give a classifier with two labels or more",
        )
