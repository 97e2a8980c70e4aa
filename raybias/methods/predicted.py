"""Read what a user's function returns for texts, as labels and probabilities of a study.

Shapes: N texts, L labels of the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybias.engine.trained_head import TrainedHead
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.methods.base import Answered, Compute, Reader, predictions
from raybias.methods.class_labels import HALF, ClassesOfLabels, LabelRule, label_called, label_rule
from raybias.providers.predict import Predict, PredictTexts

#: How far the probabilities of a text may be from 1 together.
_ROUNDING: Final = 1e-3
_RETURNS: Final = (
    "return for each text a label (a word, or its number in the study's order), the probabilities"
    " of all labels, a mapping from classes to probabilities, or a number"
)


@dataclass(frozen=True)
class PredictReader(Reader):
    """Label texts with a user's function.

    classes, thresholds: of the method; see `Classify`.
    labels: of the study, in order.
    """

    spec: Predict
    function: PredictTexts
    labels: tuple[str, ...]
    classes: ClassesOfLabels
    thresholds: tuple[float, ...]

    def prepare(self, run: None, items: pa.Table) -> Compute:
        texts = items["text"].to_pylist()

        def label() -> Answered:
            labels, scores_NL = self.read(texts)
            tokens = sum(len(text.encode()) // 4 + 1 for text in texts)
            return Answered(predictions(items, scores=scores_NL, labels=labels), tokens)

        return label

    def read(self, texts: Sequence[str]) -> tuple[list[int], npt.NDArray[np.float32] | list[None]]:
        """Call the function; return labels, and scores [N, L] if it returns probabilities.

        Raises WorkFailed: the function raises, or returns something else.
        """
        try:
            returned = self.function(list(texts))
        # Whatever a user's function raises.
        except Exception as error:
            if isinstance(error, RaybiasError):
                raise
            said = " ".join(str(error).split())
            raise WorkFailed(
                f"{self.spec.predict} raises {type(error).__name__}{said and f': {said}'}",
                where=f"{self.spec.name}, on texts such as {texts[0]!r}",
                cure="call it with these texts to see where",
            ) from error
        return self._labels(returned, texts)

    def _labels(
        self, returned: Any, texts: Sequence[str]
    ) -> tuple[list[int], npt.NDArray[np.float32] | list[None]]:
        values = returned.tolist() if hasattr(returned, "tolist") else returned
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
            raise self._wrong(f"returns {type(returned).__name__}, not a value for each text")
        # Numbers of NumPy and torch in a list.
        values = [
            value.item() if hasattr(value, "item") and not np.ndim(value) else value
            for value in values
        ]
        if len(values) != len(texts):
            raise self._wrong(f"returns {len(values)} values for {len(texts)} texts")
        if all(isinstance(value, str) for value in values):
            return [self._label_of(value) for value in values], [None] * len(values)
        if all(isinstance(value, bool | int) for value in values):
            return [self._checked(int(value)) for value in values], [None] * len(values)
        if all(isinstance(value, int | float) for value in values):
            return self._by_number(np.array(values, np.float64)[:, None])
        if all(isinstance(value, Mapping) for value in values):
            return self._by_class(values)
        return self._by_probability(values)

    def _label_of(self, word: str) -> int:
        for label, names in self.classes.items():
            if word in names:
                return self.labels.index(label)
        label = label_called(word, self.labels)
        if label and not self.classes:
            return self.labels.index(label)
        raise self._wrong(
            f"returns {word!r}, and the labels are {', '.join(self.labels)}",
            "say with `labels` of the method classify which label it is, such as"
            f" {{kind: classify, labels: {{{self.labels[0]}: [{word}]}}}}",
        )

    def _checked(self, number: int) -> int:
        named = {str(n) for names in self.classes.values() for n in names}
        if named:
            return self._label_of(str(number))
        if not 0 <= number < len(self.labels):
            raise self._wrong(
                f"returns {number}, and the labels are 0 to {len(self.labels) - 1}:"
                f" {', '.join(self.labels)}",
                "say with `labels` of the method classify which label each number is",
            )
        return number

    def _by_number(
        self, values_N1: npt.NDArray[np.float64]
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        self._check_finite(values_N1)
        is_share = bool(((values_N1 >= 0) & (values_N1 <= 1)).all())
        if not self.thresholds and not (is_share and len(self.labels) == 2):
            raise self._wrong(
                "returns one number for each text, and nothing says which label it means",
                "set `thresholds` of the method classify: one number, or one between every two"
                " labels",
            )
        named = next(iter(self.classes), self.labels[-1])
        head = TrainedHead(("value",), "number")
        rule = self._rule(head, {named: ("value",)}, self.thresholds or HALF)
        # Without thresholds it is the probability of a label.
        return rule.read(values_N1, are_numbers=bool(self.thresholds))

    def _by_class(
        self, values: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        names = tuple(dict.fromkeys(str(name) for value in values for name in value))
        known = [name for names in self.classes.values() for name in names] or [*self.labels]
        if {*names} <= {*known}:
            # A class that no text of these has is one too.
            names = tuple(known)
        try:
            rows_NC = np.array([[float(value.get(n, 0.0)) for n in names] for value in values])
        except (TypeError, ValueError):
            raise self._wrong("returns a mapping whose values are no numbers") from None
        self._check_finite(rows_NC)
        exclusive = bool((abs(rows_NC.sum(axis=1) - 1) < _ROUNDING).all())
        head = TrainedHead(names, "softmax" if exclusive else "sigmoid")
        rule = self._rule(head, self.classes, self.thresholds)
        return rule.read(rows_NC, are_numbers=False)

    def _by_probability(self, values: Sequence[Any]) -> tuple[list[int], npt.NDArray[np.float32]]:
        try:
            rows_NL = np.array([[*map(float, value)] for value in values])
        except (TypeError, ValueError):
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise self._wrong(f"returns values that are no labels ({kinds})") from None
        self._check_finite(rows_NL)
        if rows_NL.ndim != 2 or rows_NL.shape[1] != len(self.labels):
            raise self._wrong(
                f"returns {np.shape(values[0])[0]} numbers for a text, and there are"
                f" {len(self.labels)} labels: {', '.join(self.labels)}"
            )
        if (rows_NL < 0).any() or (abs(rows_NL.sum(axis=1) - 1) > _ROUNDING).any():
            raise self._wrong("returns rows of numbers that are not probabilities")
        last = self.labels[-1]
        classes = {last: (last,)} if self.thresholds else {}
        rule = self._rule(TrainedHead(self.labels, "softmax"), classes, self.thresholds)
        return rule.read(rows_NL, are_numbers=False)

    def _rule(
        self, head: TrainedHead, classes: ClassesOfLabels, thresholds: Sequence[float]
    ) -> LabelRule:
        try:
            return label_rule(
                head, self.labels, classes=classes, thresholds=thresholds, where=self.spec.name
            )
        except ConfigError as error:
            # What a function returns shows when it is called.
            raise WorkFailed(error.problem, where=self.spec.name, cure=error.cure) from error

    def _check_finite(self, values: npt.NDArray[np.float64]) -> None:
        if not np.isfinite(values).all():
            raise self._wrong("returns numbers that are not finite")

    def _wrong(self, problem: str, cure: str = _RETURNS) -> WorkFailed:
        return WorkFailed(f"{self.spec.predict} {problem}", where=self.spec.name, cure=cure)
