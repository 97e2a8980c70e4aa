"""Label texts by a checkpoint's own trained classification head, as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

import polars as pl
import pyarrow as pa
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, field_validator

from raybias.config import Backbone
from raybias.config.parts import Ability, Way
from raybias.config.section import Profile
from raybias.errors import ConfigError
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, method, predictions
from raybias.methods.class_labels import LabelRule, label_rule
from raybias.methods.predicted import PredictReader
from raybias.methods.tuned_folder import TunedClassifier, tuned_classifier
from raybias.methods.work import TokenCounts, Work, sample
from raybias.providers.predict import Predict
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.published import PublishedClassifier

#: A sentence of which people agree which label it has, by label.
_CLEAR: Final = {
    "negative": "This is terrible, and I hate it.",
    "neutral": "The meeting is on Tuesday.",
    "positive": "This is wonderful, and I love it.",
    "harmless": "The meeting is on Tuesday.",
    "toxic": "Shut up, or I will hurt all of you.",
}


def _pairs(data: Any) -> Any:
    """Take a mapping of lists, or of single values, as pairs of tuples, which can be hashed."""
    if not isinstance(data, Mapping):
        return data
    lists = (
        (name, each if isinstance(each, list | tuple) else [each]) for name, each in data.items()
    )
    return tuple((name, tuple(each)) for name, each in lists)


#: The model's classes of each label.
ClassNames = Annotated[
    tuple[tuple[str, tuple[str, ...]], ...],
    BeforeValidator(_pairs),
    PlainSerializer(lambda pairs: {name: [*classes] for name, classes in pairs}),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
            },
        }
    ),
]


@method
class Classify(Method):
    """A finished classifier, as its checkpoint has it: nothing is tuned or sampled.

    It is a trained classification head, whole or as a PEFT adapter of its base; or an adapter, soft
    prompt or model that raybias tuned, which reads texts as it did then; or a function of Python
    (`predict` of a backbone).

    Outputs are those of transformers' text-classification pipeline: probabilities of which class a
    text has, of each class by itself, or a number. A text's label is the one with the highest
    probability, or the one that `thresholds` give. A model without a class for a label between the
    first and the last never gives it: such sentences are neither right nor wrong, and only what
    they are called counts (the metric outcome_positive).
    """

    kind: Literal["classify"] = "classify"
    labels: ClassNames = ()
    """The model's classes for each label; probabilities of several classes of one label are added.
    By default classes that are called as the labels are (or neg, neu and pos), in any case. Of a
    head that gives each class a probability of its own, or a number, name the classes of the first
    or last label; the highest of them counts. A study that runs records them."""
    thresholds: tuple[float, ...] = ()
    """From which on the output of the classes in `labels` means their label: one number, or one
    between every two labels, ascending. By default the label is the one with the highest
    probability, and 0.5 parts probabilities of classes by themselves."""
    truncate: bool = False
    """Whether texts that are longer than the model takes are cut at their end, as the pipeline does
    with truncation, and counted by the plan; otherwise they are refused."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the model; by default the backbone's, if it names one, or that of the saved
    weights. A study that runs records it."""

    shares_backbone: ClassVar[bool] = False
    way: ClassVar[Way] = "tuned"

    @field_validator("labels")
    @classmethod
    def _of_one_label_each(cls, pairs: ClassNames) -> ClassNames:
        names = [name for name, _ in pairs]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"the label {repeated[0]!r} is there twice")
        return pairs

    def needs(self, offered: frozenset[Ability]) -> Mapping[Ability, str]:
        return {"predict": ""} if "predict" in offered else {"weights": ""}

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with a backbone's classes, thresholds and precision.

        Raises ModelError: no classification head; ConfigError: as `label_rule`.
        """
        from raybias.engine.published import saved_dtype

        if isinstance(backbone, Predict):
            return self._fit_function(backbone, labels)
        tuned = tuned_classifier(backbone, profile)
        if tuned is not None:
            self._fit_tuned(tuned, labels, where=backbone.id)
            return self
        rule = self.rule(backbone, labels)
        named = None if backbone.dtype == "auto" else backbone.dtype
        return self.model_copy(
            update={
                "labels": tuple(rule.classes.items()),
                "thresholds": rule.thresholds,
                "dtype": self.dtype or named or saved_dtype(backbone),
            }
        )

    def _fit_function(self, backbone: Predict, labels: Sequence[str]) -> Self:
        """Refuse a function that is not there, and options that it has no use of."""
        backbone.function()
        problem = ""
        for label, _ in self.labels:
            if label not in labels:
                problem = f"`labels` has {label!r}, which is none of {', '.join(labels)}"
        if self.truncate or self.dtype is not None:
            problem = "`truncate` and `dtype` are of a model's weights, and this is a function"
        if problem:
            raise ConfigError(
                f"method {self.name!r}: {problem}",
                where=backbone.name,
                cure="take out what the function or the study does not have",
            )
        return self

    def _fit_tuned(self, tuned: TunedClassifier, labels: Sequence[str], *, where: str) -> None:
        """Refuse options of a head for a classifier that is read as it was tuned."""
        options = {
            "labels": self.labels,
            "thresholds": self.thresholds,
            "truncate": self.truncate,
            "dtype": self.dtype,
        }
        for name in (name for name, value in options.items() if value):
            raise ConfigError(
                f"method {self.name!r}: `{name}` is of heads that others trained, and this"
                " classifier is read as raybias tuned it",
                where=where,
                cure="take it out",
            )
        tuned.check_labels(labels, where=where)

    def rule(
        self, backbone: Backbone, labels: Sequence[str], *, with_examples: bool = True
    ) -> LabelRule:
        """Decide which of a study's labels a model's outputs mean; errors as of `fit`.

        with_examples: whether a message that asks has what the model says of clear sentences.
        """
        from raybias.engine.published import read_head

        return label_rule(
            read_head(backbone),
            labels,
            classes=dict(self.labels),
            thresholds=self.thresholds,
            where=backbone.id,
            method=self.name,
            examples=lambda: _examples(self._spec(backbone), labels) if with_examples else "",
        )

    def never(self, labels: Sequence[str]) -> tuple[str, ...]:
        """List the labels between the first and last that a fitted method never gives."""
        between = labels[1:-1]
        if self.thresholds:
            return tuple(between) if len(self.thresholds) < len(labels) - 1 else ()
        return tuple(label for label in between if self.labels and label not in dict(self.labels))

    def check(self, inputs: Inputs) -> None:
        from raybias.engine.published import check_head

        if isinstance(inputs.backbone, Predict):
            return
        tuned = tuned_classifier(inputs.backbone)
        if tuned is not None:
            tuned.method.check(tuned.inputs(inputs))
            return
        check_head(inputs.backbone)
        if self.truncate:
            return
        for frame in inputs.items.values():
            inputs.tokens.check(frame["text"].to_list(), frame["item_id"].to_list())

    def check_weights(self, inputs: Inputs) -> Sequence[str]:
        from raybias.engine.published import check_classifier

        # Of a tuned classifier, the folder has weights of its own kind.
        if isinstance(inputs.backbone, Predict) or tuned_classifier(inputs.backbone) is not None:
            return ()
        return check_classifier(self._spec(inputs.backbone))

    def notes(self, inputs: Inputs) -> list[str]:
        """Count the texts that are cut."""
        context = inputs.encoder.context
        if not self.truncate or context is None:
            return []
        counts = {
            name: int((inputs.tokens.lengths(frame["text"].to_list()) > context).sum())
            for name, frame in inputs.items.items()
        }
        return [
            f"{inputs.backbone.name}, {self.name}: {count} of the {inputs.items[name].height} texts"
            f" of {name} are longer than {context} tokens and are cut at their end"
            for name, count in counts.items()
            if count
        ]

    def work(self, inputs: Inputs) -> Work:
        from raybias.engine.published import classifier_shape

        if isinstance(inputs.backbone, Predict):
            return Work(runs=1, items=inputs.counted(), holds_backbone=False, can_shard=False)
        tuned = tuned_classifier(inputs.backbone)
        if tuned is not None:
            return tuned.work(inputs)
        tokens = {name: self._mean_length(inputs, frame) for name, frame in inputs.items.items()}
        return Work(
            runs=1,
            items=inputs.counted(),
            tokens=tokens,
            vocabulary=False,
            can_shard=False,
            shape=classifier_shape(self._spec(inputs.backbone)),
        )

    def reader(self, context: ModelContext, store: Store) -> Reader:
        from raybias.engine.published import PublishedClassifier

        if isinstance(context.spec, Predict):
            spec, function = context.spec, context.spec.function()
            classes = dict(self.labels)
            return PredictReader(spec, function, context.labels, classes, self.thresholds)
        tuned = tuned_classifier(context.spec)
        if tuned is not None:
            return tuned.reader(context)
        classifier = PublishedClassifier(self._spec(context.spec), context.execution)
        rule = self.rule(context.spec, context.labels)
        return ClassifyReader(classifier, rule, truncate=self.truncate)

    def _mean_length(self, inputs: Inputs, frame: pl.DataFrame) -> float:
        mean = inputs.tokens.mean(sample(frame["text"].to_list()))
        context = inputs.encoder.context
        return min(mean, context) if self.truncate and context is not None else mean

    def _spec(self, backbone: Backbone) -> Backbone:
        return backbone.model_copy(update={"dtype": self.dtype or backbone.dtype})


def _examples(backbone: Backbone, labels: Sequence[str]) -> str:
    """Write what a model on this machine says of a clear sentence of each label that has one."""
    from raybias.engine.checkpoint import folder_of
    from raybias.engine.published import PublishedClassifier, has_trained_head

    sentences = [_CLEAR[label] for label in labels if label in _CLEAR]
    if not sentences or folder_of(backbone.id) is None or not has_trained_head(backbone):
        return ""
    classifier = PublishedClassifier(backbone)
    outputs_NC = classifier.outputs(classifier.encoder.encode(sentences))
    head = classifier.head
    said = [
        f"{head.classes[row.argmax()]} ({row.max():.2f}) of {sentence!r}"
        for row, sentence in zip(outputs_NC, sentences, strict=True)
    ]
    return f"; it says {', '.join(said)}"


@dataclass(frozen=True)
class ClassifyReader(Reader):
    """Label texts with a published classifier by a rule; `truncate` cuts those too long."""

    classifier: PublishedClassifier
    rule: LabelRule
    truncate: bool = False

    def check(self, texts: Sequence[str]) -> None:
        if not self.truncate:
            names = [f"text {place}" for place in range(len(texts))]
            TokenCounts(self.classifier.encoder).check(texts, names)

    def prepare(self, run: None, items: pa.Table) -> Compute:
        longest = self.classifier.context if self.truncate else None
        rows = self.classifier.encoder.encode(items["text"].to_pylist(), longest=longest)
        are_numbers = self.classifier.head.outputs == "number"

        def label() -> Answered:
            outputs_NC = self.classifier.outputs(rows)
            labels, scores_NL = self.rule.read(outputs_NC, are_numbers=are_numbers)
            return Answered(
                predictions(items, scores=scores_NL, labels=labels), sum(map(len, rows))
            )

        return label
