"""Load a sequence classifier as it was published, with its trained head.

Probabilities equal those of transformers' text-classification pipeline.
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
from raybias.engine.backbone import empty_model, load_pretrained
from raybias.engine.checkpoint import quantisation, read_config, reading_model, source_of
from raybias.engine.classifier import Classifier, is_of_head
from raybias.engine.context import ON_CPU, Batcher, Execution
from raybias.engine.encoder import SpecialTokens, load_tokenizer
from raybias.engine.model_shape import ModelShape, shape_of
from raybias.engine.packing import FULL, Batch
from raybias.errors import ModelError

#: Ends the name of an architecture with a classification head.
_ARCHITECTURE: Final = "ForSequenceClassification"
_NO_HEAD_CURE: Final = "use lora, full or soft_prompt to train one"
#: Weights that an error names.
_NAMED: Final = 2
#: Precisions that a model can be computed in.
_DTYPES: Final = ("float32", "bfloat16", "float16")


class PublishedClassifier:
    """A trained sequence classifier, as its checkpoint has it.

    classes: names of the classes, in the order of the model's outputs.
    context: longest text in tokens; None without a limit.

    Raises ModelError: no trained head, for which `cure` says what to do, or a head that does not
    give one label of several for a text.
    """

    def __init__(
        self, spec: Backbone, execution: Execution = ON_CPU, *, cure: str = _NO_HEAD_CURE
    ) -> None:
        self.classes = class_names(spec)
        encoder = load_tokenizer(spec)
        model, missing = load_pretrained(
            AutoModelForSequenceClassification,
            spec,
            execution,
            is_new=is_of_head,
            cure="give a whole checkpoint of a classifier, saved with its config.json",
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

    def probabilities(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Compute the probability of every class [N, C] for tokens that fit the context."""

        def read(batch: Batch) -> Tensor:
            logits_RC: Tensor = self._classifier(*self._classifier.read(batch))
            return logits_RC.double().softmax(-1)

        # A row as long as the longest of its batch has no padding.
        full = FULL if self._classifier.pads else 1.0
        stacked = self._batcher.stacked(read, rows, full=full)
        probabilities: npt.NDArray[np.float64] = stacked.numpy()
        return probabilities


def class_names(spec: Backbone) -> list[str]:
    """Return a classifier's classes by its config, in the order of its outputs.

    Raises ModelError: no classifier in transformers, fewer than two classes, several labels or a
    number for one text, or classes without a name of their own.
    """
    config = read_config(spec)
    if type(config) not in AutoModelForSequenceClassification._model_mapping:
        raise ModelError(
            f"is a {config.model_type} model, for which transformers has no classification head",
            where=spec.id,
            cure="choose a classifier, or another method for this model",
        )
    kind = getattr(config, "problem_type", None)
    if config.num_labels < 2 or kind in ("multi_label_classification", "regression"):
        what = "one output" if config.num_labels < 2 else f"problem_type {kind}"
        raise ModelError(
            f"has a classification head with {what}, not with one label of several for a text",
            where=spec.id,
            cure="give a classifier with two or more classes and softmax probabilities, saved with"
            " its config.json",
        )
    names = [config.id2label.get(place) for place in range(config.num_labels)]
    classes = [str(name) for name in names]
    if None in names or len({*classes}) < len(classes):
        raise ModelError(
            f"id2label in its config.json does not name {len(classes)} different classes"
            f" ({', '.join(classes)})",
            where=spec.id,
            cure="give each class a name of its own there",
        )
    return classes


def classifier_shape(spec: Backbone) -> ModelShape:
    """Find a classifier's sizes without its weights; ModelError as `class_names` has it."""
    class_names(spec)
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
    config = read_config(spec)
    if not any(str(name).endswith(_ARCHITECTURE) for name in config.architectures or ()):
        return False
    known = type(config) in AutoModelForSequenceClassification._model_mapping
    return known and not _lacking_in_files(spec)


def check_head(spec: Backbone) -> None:
    """Refuse a checkpoint whose weights on this machine lack the head, with a ModelError."""
    if lacking := _lacking_in_files(spec):
        raise _no_head(spec, lacking, _NO_HEAD_CURE)


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
    names: set[str] = set()
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
