"""Label texts by a checkpoint's own trained classification head, as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

import numpy as np
import pyarrow as pa

from raybias.config import Backbone
from raybias.config.section import Profile, Section
from raybias.errors import ConfigError
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, method, predictions
from raybias.methods.work import TokenCounts, Work, sample
from raybias.schema import LABELS
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.published import PublishedClassifier

#: Class names that can mean one label only, in lower case.
_UNMISTAKABLE: Final = {
    **{label: place for place, label in enumerate(LABELS)},
    **{"neg": 0, "neu": 1, "pos": 2},
}
#: Places of the labels that a model must be able to give; one of two classes is never neutral.
_NEEDED: Final = (0, 2)


class ClassLabels(Section):
    """A model's classes for each label, by their names in its config.json."""

    negative: tuple[str, ...] = ()
    """Classes that mean negative."""
    neutral: tuple[str, ...] = ()
    """Classes that mean neutral; none for a model that never says so."""
    positive: tuple[str, ...] = ()
    """Classes that mean positive."""

    @property
    def places(self) -> list[tuple[str, int]]:
        """Each class that is named, with its label's place in LABELS."""
        lists = self.negative, self.neutral, self.positive
        return [(name, place) for place, names in enumerate(lists) for name in names]

    @classmethod
    def of(cls, places: Mapping[str, int]) -> Self:
        """Make it of each class's label, as a place in LABELS."""
        classes = {
            label: tuple(name for name, place in places.items() if place == number)
            for number, label in enumerate(LABELS)
        }
        return cls(**{label: names for label, names in classes.items() if names})


@method
class Classify(Method):
    """A trained classification head, as its checkpoint has it: nothing is tuned or sampled.

    A text's label is the one with the highest probability, as of transformers' text-classification
    pipeline; its scores are the logarithms of the labels' probabilities. A model without a class
    for `neutral` never gives that label, so that every neutral sentence counts as an error.
    """

    kind: Literal["classify"] = "classify"
    labels: ClassLabels = ClassLabels()
    """The model's classes for each label; probabilities of several classes of one label are added.
    By default classes called negative, neutral or positive, or neg, neu or pos, in any case; a
    study that runs records them."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the model; by default the backbone's, if it names one, or that of the saved
    weights. A study that runs records it."""

    shares_backbone: ClassVar[bool] = False

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with a backbone's labels and precision.

        Raises ModelError: no head that gives one label of several; ConfigError: `labels` that are
        not its classes, or classes that need them.
        """
        from raybias.engine.published import class_names, saved_dtype

        places = self.label_places(class_names(backbone), where=backbone.id)
        named = None if backbone.dtype == "auto" else backbone.dtype
        dtype = self.dtype or named or saved_dtype(backbone)
        return self.model_copy(update={"labels": ClassLabels.of(places), "dtype": dtype})

    def label_places(self, classes: Sequence[str], *, where: str) -> dict[str, int]:
        """Return the label of each class, in the order of `classes`, as its place in LABELS.

        where: the model's id, for messages.
        Raises ConfigError: `labels` that name a class twice or one that the model lacks, leave one
        out, or have none for negative or positive; or no `labels`, and classes with other names.
        """
        pairs = self.labels.places
        if pairs:
            problem = _find_problem([name for name, _ in pairs], classes)
        else:
            words = [(name, name.strip().lower()) for name in classes]
            pairs = [(name, _UNMISTAKABLE[word]) for name, word in words if word in _UNMISTAKABLE]
            clear = len({place for _, place in pairs}) == len(classes)
            problem = None if clear else "it is not clear which label each class is"
        place_of_class = dict(pairs)
        lacking = [label for label in _NEEDED if label not in place_of_class.values()]
        if problem is None and lacking:
            problem = f"no class is {LABELS[lacking[0]]}"
        if problem is not None:
            raise ConfigError(
                f"method {self.name!r}: {problem}; the model's classes are {', '.join(classes)}",
                where=where,
                cure="say in the study which label each is, such as"
                f" {{kind: classify, labels: {_example(classes)}}} if that is what they mean",
            )
        return {name: place_of_class[name] for name in classes}

    def check(self, inputs: Inputs) -> None:
        from raybias.engine.published import check_head

        check_head(inputs.backbone)
        for frame in inputs.items.values():
            inputs.tokens.check(frame["text"].to_list(), frame["item_id"].to_list())

    def work(self, inputs: Inputs) -> Work:
        from raybias.engine.published import classifier_shape

        tokens = {
            name: inputs.tokens.mean(sample(frame["text"].to_list()))
            for name, frame in inputs.items.items()
        }
        return Work(
            runs=1,
            items=inputs.counted(),
            tokens=tokens,
            vocabulary=False,
            can_shard=False,
            shape=classifier_shape(self._spec(inputs.backbone)),
        )

    def reader(self, context: ModelContext, store: Store) -> ClassifyReader:
        from raybias.engine.published import PublishedClassifier

        classifier = PublishedClassifier(self._spec(context.spec), context.execution)
        places = self.label_places(classifier.classes, where=context.spec.id)
        return ClassifyReader(classifier, tuple(places.values()))

    def _spec(self, backbone: Backbone) -> Backbone:
        return backbone.model_copy(update={"dtype": self.dtype or backbone.dtype})


def _find_problem(named: Sequence[str], classes: Sequence[str]) -> str | None:
    """Return what is wrong with the classes that `labels` names; None if nothing is."""
    for name in named:
        if name not in classes:
            return f"`labels` names the class {name!r}, which the model lacks"
        if named.count(name) > 1:
            return f"`labels` names the class {name!r} twice"
    for name in classes:
        if name not in named:
            return f"`labels` leaves out the class {name!r}"
    return None


def _example(classes: Sequence[str]) -> str:
    """Write `labels` in YAML for classes that go from the most negative to the most positive."""
    half = len(classes) // 2
    parts = {
        "negative": [*classes[:half]],
        "neutral": [*classes[half : len(classes) - half]],
        "positive": [*classes[len(classes) - half :]],
    }
    lists = (
        f"{label}: {json.dumps(names, ensure_ascii=False)}"
        for label, names in parts.items()
        if names
    )
    return f"{{{', '.join(lists)}}}"


@dataclass(frozen=True)
class ClassifyReader(Reader):
    """Label texts with a published classifier; `labels` has the label of each class in LABELS."""

    classifier: PublishedClassifier
    labels: tuple[int, ...]

    def check(self, texts: Sequence[str]) -> None:
        names = [f"text {place}" for place in range(len(texts))]
        TokenCounts(self.classifier.encoder).check(texts, names)

    def prepare(self, run: None, items: pa.Table) -> Compute:
        rows = self.classifier.encoder.encode(items["text"].to_pylist())
        sums_CL = np.eye(len(LABELS))[list(self.labels)]

        def label() -> Answered:
            probabilities_NL = self.classifier.probabilities(rows) @ sums_CL
            # The logarithm of a label that the model never gives is finite too.
            least = np.finfo(np.float32).tiny
            scores_NL = np.log(np.maximum(probabilities_NL, least)).astype(np.float32)
            labels = probabilities_NL.argmax(axis=1).tolist()
            return Answered(
                predictions(items, scores=scores_NL, labels=labels), sum(map(len, rows))
            )

        return label
