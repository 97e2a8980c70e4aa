"""Judge texts with a classifier, each by itself, and whether a rewritten sentence means the same.

Shapes: N texts, C classes, R rows of a batch, T tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from raybias.config import Adequacy, Backbone
from raybias.engine.backbone import empty_model, load_pretrained
from raybias.engine.classifier import Classifier
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import check_lengths, load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import Batch, pack, padded
from raybias.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CURE: Final = "give a classifier with one label a text, saved with its config.json"
#: Weights that some checkpoints of encoders lack and that mean pooling does not read.
_UNREAD: Final = "pooler."
#: The token type of padding; padding is masked, so any value does.
_NO_TYPE: Final = 0


class TextJudge:
    """A classifier as its authors have it: its own tokenizer, head and classes.

    Attributes
    ----------
    context: the longest text in tokens; None without a limit.
    """

    def __init__(self, spec: Backbone, execution: Execution = ON_CPU) -> None:
        """Load the classifier.

        Raises
        ------
        ModelError: not found, no safetensors weights, no trained head, or not of one label a text.
        """
        from transformers import AutoModelForSequenceClassification

        encoder = load_tokenizer(spec)
        model, _ = load_pretrained(
            AutoModelForSequenceClassification, spec, execution, dtype=spec.dtype, cure=_CURE
        )
        class_names(model.config, spec)
        execution.begin(model, whole=True)
        self.context = encoder.context
        self._tokenizer = encoder.tokenizer
        self._classifier = Classifier(encoder, model, execution, head={}, label_ids=())
        self._batcher = execution.batcher(spec.id, context=self.context)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts as the classifier reads them."""
        return [[*row] for row in self._tokenizer([*texts])["input_ids"]] if texts else []

    def probabilities(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Compute the probability of every class [N, C] for tokens that fit the context."""

        def read(batch: Batch) -> Tensor:
            logits_RC: Tensor = self._classifier(*self._classifier.read(batch))
            return logits_RC.double().softmax(-1)

        with torch.inference_mode():
            found = self._batcher.by_row(read, pack(rows, max_tokens=0))
            probability_NC = torch.stack([found[n] for n in range(len(rows))])
        probabilities: npt.NDArray[np.float64] = probability_NC.cpu().numpy()
        return probabilities


def class_names(config: Any, spec: Backbone) -> list[str]:
    """Return the names of a classifier's classes, in their order.

    Raises
    ------
    ModelError: fewer than two, or several for one text.
    """
    kind = getattr(config, "problem_type", None)
    if config.num_labels < 2 or kind in ("multi_label_classification", "regression"):
        what = "one output" if config.num_labels < 2 else f"problem_type {kind}"
        raise ModelError(f"has {what}, not one label a text", where=spec.id, cure=_CURE)
    return [str(config.id2label[place]) for place in range(config.num_labels)]


def check_judge(spec: Backbone) -> tuple[ModelShape, list[str]]:
    """Refuse what is no classifier, without its weights; returns its shape and its classes.

    Raises
    ------
    ModelError: no readable config or tokenizer, or not of one label a text.
    """
    from transformers import AutoModelForSequenceClassification

    load_tokenizer(spec)
    model = empty_model(spec, AutoModelForSequenceClassification)
    return shape_of(model, spec), class_names(model.config, spec)


class AdequacyModel:
    """Score pairs of (sentence, rewritten sentence), higher meaning closer.

    By a classifier that reads both sentences and whose label 1 says yes (Parrot's adequacy model is
    one), or by the cosine of mean-pooled last hidden states, as sentence-transformers computes it
    for all-MiniLM.

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
            dtype=options.dtype,
            is_new=lambda model, name: not self._classifies and name.startswith(_UNREAD),
            cure=cure,
        )
        _check_labels(self._model.config, options)
        self._batcher = execution.batcher(spec.id)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Score how adequate the second sentence of each pair is for the first.

        Raises
        ------
        ModelError: a sentence, or two together for a classifier, longer than the context.
        """
        if not pairs:
            return []
        if self._classifies:
            inputs = self._tokenizer([one for one, _ in pairs], [two for _, two in pairs])
            scores_N = self._run(self._says_yes, inputs, [f"{one} | {two}" for one, two in pairs])
            return [float(score) for score in scores_N]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        embedded_NH = self._run(self._embed, self._tokenizer(texts), texts)
        place = {text: n for n, text in enumerate(texts)}
        return [float(embedded_NH[place[one]] @ embedded_NH[place[two]]) for one, two in pairs]

    def _says_yes(self, inputs: dict[str, Tensor]) -> Tensor:
        logits_RL: Tensor = self._model(**inputs).logits
        return logits_RL.float().softmax(-1)[:, 1]

    def _embed(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden_RTH: Tensor = self._model(**inputs).last_hidden_state
        mask_RT1 = inputs["attention_mask"][:, :, None]
        mean_RH = (hidden_RTH.float() * mask_RT1).sum(1) / mask_RT1.sum(1)
        return torch.nn.functional.normalize(mean_RH, dim=-1)

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
