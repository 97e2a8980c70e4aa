"""Load a sequence classifier as it was published, with its trained head.

Its outputs equal those of transformers' text-classification pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from raybias.config import Backbone
from raybias.engine.backbone import check_loads, empty_model, load_pretrained
from raybias.engine.checkpoint import (
    adapter_of,
    quantisation,
    read_config,
    reading_model,
    source_of,
)
from raybias.engine.classifier import Classifier, is_of_head
from raybias.engine.context import ON_CPU, Batcher, Execution
from raybias.engine.encoder import SpecialTokens, load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import FULL, Batch
from raybias.engine.trained_head import TrainedHead
from raybias.errors import ModelError

#: Ends the name of an architecture with a classification head.
_ARCHITECTURE: Final = "ForSequenceClassification"
_NO_HEAD_CURE: Final = "use lora, full or soft_prompt to train one"
_WHOLE: Final = "give a whole checkpoint of a classifier, saved with its config.json"
#: Weights that an error names.
_NAMED: Final = 2
#: Precisions that a model can be computed in.
_DTYPES: Final = ("float32", "bfloat16", "float16")


class PublishedClassifier:
    """A trained sequence classifier, as its checkpoint has it.

    head: what it gives for a text.
    context: longest text in tokens; None without a limit.

    Raises ModelError: no trained head, for which `cure` says what to do.
    """

    def __init__(
        self, spec: Backbone, execution: Execution = ON_CPU, *, cure: str = _NO_HEAD_CURE
    ) -> None:
        self.head = read_head(spec)
        encoder = load_tokenizer(spec)
        model, missing = load_pretrained(
            AutoModelForSequenceClassification, spec, execution, is_new=is_of_head, cure=_WHOLE
        )
        if missing:
            raise _no_head(spec, missing, cure)
        execution.begin(model, whole=True)
        self.encoder, self.context = encoder, encoder.context
        specials = SpecialTokens.of(encoder.tokenizer)
        self._classifier = Classifier(
            encoder, model, execution, head={}, label_ids=(), specials=specials
        )
        self._batcher = Batcher(execution, spec.id, context=self.context)

    def outputs(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Compute the head's outputs [N, C] for tokens that fit the context."""

        def read(batch: Batch) -> Tensor:
            values_RC: Tensor = self._classifier(*self._classifier.read(batch)).double()
            if self.head.outputs == "softmax":
                return values_RC.softmax(-1)
            return values_RC.sigmoid() if self.head.outputs == "sigmoid" else values_RC

        # A row as long as the longest of its batch has no padding.
        full = FULL if self._classifier.pads else 1.0
        stacked = self._batcher.stacked(read, rows, full=full)
        outputs_NC: npt.NDArray[np.float64] = stacked.numpy()
        return outputs_NC


def read_head(spec: Backbone) -> TrainedHead:
    """Read what a classifier gives for a text from its config, without its weights.

    One output without a `problem_type` is a probability, as the pipeline has it.

    Raises ModelError: no classifier in transformers, or classes without a name of their own.
    """
    config = read_config(spec)
    if type(config) not in AutoModelForSequenceClassification._model_mapping:
        raise ModelError(
            f"is a {config.model_type} model, for which transformers has no classification head",
            where=spec.id,
            cure="choose a classifier, or another method for this model",
        )
    adapter = adapter_of(spec)
    if adapter is not None and not adapter.is_classifier:
        raise ModelError(
            f"is a PEFT adapter for the task {adapter.task or 'none'}, without a classification"
            " head",
            where=spec.id,
            cure="use a prompted method on it, such as zero_shot, or give one of task SEQ_CLS",
        )
    names = [config.id2label.get(place) for place in range(config.num_labels)]
    classes = tuple(map(str, names))
    if None in names or len({*classes}) < len(classes):
        raise ModelError(
            f"id2label in its config.json does not name {len(classes)} different classes"
            f" ({', '.join(classes)})",
            where=spec.id,
            cure="give each class a name of its own there",
        )
    kind = getattr(config, "problem_type", None)
    if kind == "regression":
        return TrainedHead(classes, "number")
    by_itself = kind == "multi_label_classification" or len(classes) == 1
    return TrainedHead(classes, "sigmoid" if by_itself else "softmax")


def exclusive_classes(spec: Backbone) -> tuple[str, ...]:
    """Return the classes of a head of which a text has one.

    Raises ModelError: as `read_head`, or a head that gives each class a probability of its own, or
    a number.
    """
    head = read_head(spec)
    if head.outputs != "softmax":
        what = "a number" if head.outputs == "number" else "a probability of its own"
        raise ModelError(
            f"its classification head gives {what} for each of {', '.join(head.classes)}, not one"
            " label of several for a text",
            where=spec.id,
            cure="give a classifier with two or more classes and softmax probabilities, saved with"
            " its config.json",
        )
    return head.classes


def classifier_shape(spec: Backbone) -> ModelShape:
    """Find a classifier's sizes without its weights; ModelError as `read_head` has it."""
    read_head(spec)
    model = empty_model(spec, AutoModelForSequenceClassification)
    with reading_model(spec, "config.json"):
        return shape_of(model, spec)


def saved_dtype(spec: Backbone) -> str | None:
    """Return the precision of a checkpoint's weights by its config; None if it is quantised."""
    if quantisation(spec) is not None:
        return None
    name = str(read_config(spec).dtype).removeprefix("torch.")
    return name if name in _DTYPES else "float32"


def has_trained_head(spec: Backbone) -> bool:
    """Return whether a checkpoint is a sequence classifier by its config and its weights.

    Weights that are not on this machine, or are pickled, count as complete.
    """
    config, adapter = read_config(spec), adapter_of(spec)
    named = any(str(name).endswith(_ARCHITECTURE) for name in config.architectures or ())
    if not (named if adapter is None else adapter.is_classifier):
        return False
    known = type(config) in AutoModelForSequenceClassification._model_mapping
    return known and not _lacking_in_files(spec)


def check_head(spec: Backbone) -> None:
    """Refuse a checkpoint whose weights on this machine lack the head, with a ModelError."""
    if lacking := _lacking_in_files(spec):
        raise _no_head(spec, lacking, _NO_HEAD_CURE)


def check_classifier(spec: Backbone) -> list[str]:
    """Refuse a checkpoint whose weights on this machine are not a whole classifier.

    Returns the parts of it that a classifier has not; see `check_loads`.
    """
    check_head(spec)
    return check_loads(spec, AutoModelForSequenceClassification, is_new=is_of_head, cure=_WHOLE)


def _no_head(spec: Backbone, lacking: Sequence[str], cure: str) -> ModelError:
    return ModelError(
        f"has no trained classification head (its weights lack {', '.join(lacking[:_NAMED])})",
        where=spec.id,
        cure=cure,
    )


def _lacking_in_files(spec: Backbone) -> list[str]:
    """List the head's weights that the headers of safetensors on this machine lack.

    A name may have a prefix there. None is lacking if there are no such files.
    """
    adapter = adapter_of(spec)
    names: set[str] = set() if adapter is None else {*adapter.shapes}
    for path in sorted(Path(source_of(spec)).glob("*.safetensors")):
        with reading_model(spec, path.name), safe_open(path, framework="numpy") as tensors:
            names.update(tensors.keys())
    if not names:
        return []
    return [
        weight
        for weight in _class_weights(spec)
        if not any(name == weight or name.endswith(f".{weight}") for name in names)
    ]


def _class_weights(spec: Backbone) -> list[str]:
    """List the weights of a classifier that have a row for each class, without loading them."""
    config = read_config(spec)
    shapes: list[dict[str, torch.Size]] = []
    for more in (0, 1):
        sized: Any = deepcopy(config)
        sized.num_labels = config.num_labels + more
        with reading_model(spec, "config.json"), torch.device("meta"):
            model: PreTrainedModel = AutoModelForSequenceClassification.from_config(sized)
        shapes.append({name: weight.shape for name, weight in model.named_parameters()})
    own, larger = shapes
    return [name for name, shape in own.items() if larger[name] != shape]
