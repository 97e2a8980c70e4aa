"""Judge texts with a sequence classifier, each by itself.

Shapes: N texts, C classes, R rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from raybias.config import Backbone
from raybias.engine.backbone import empty_model, load_pretrained
from raybias.engine.classifier import Classifier
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.encoder import load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import Batch, pack
from raybias.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CURE: Final = "give a classifier with one label a text, saved with its config.json"


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
