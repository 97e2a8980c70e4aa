"""Which of a study's labels a classification head's outputs mean.

A head names classes as whoever trained it chose. They are taken for the study's labels where their
names leave no doubt, or as `labels` of a method says; numbers and probabilities of their own become
labels by thresholds.
Shapes: N texts, C classes of the model, L labels of the study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raybias.engine.trained_head import TrainedHead
from raybias.errors import ConfigError

#: Short names of the labels of sentiment, as many models have them.
_SHORT: Final = {"neg": "negative", "neu": "neutral", "pos": "positive"}
#: A probability from which on a class holds, where a head gives one to each class by itself.
HALF: Final = (0.5,)
#: Classes of each label, by label.
ClassesOfLabels = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class LabelRule:
    """How outputs [N, C] of a head become labels, by their places in the study.

    classes: those of each label that has any, by label.
    places: the label of each class; None for a class that is not read.
    count: labels of the study, L.
    thresholds: from each on, the largest output of the classes that are read means the next of
        `steps`; none if the label is the one of the highest probability.
    steps: labels below the first threshold, between two, and from the last on.
    """

    classes: Mapping[str, tuple[str, ...]]
    places: tuple[int | None, ...]
    count: int
    thresholds: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()

    def read(
        self, outputs_NC: npt.NDArray[np.float64], *, are_numbers: bool
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Return each text's label, and its scores [N, L]: logarithms of probabilities.

        are_numbers: whether outputs are not probabilities. The score of the last step is then the
        logistic function of the number, which has its order.
        """
        # The logarithm of a label that the model never gives is finite too.
        least = np.finfo(np.float32).tiny
        if not self.thresholds:
            sums_NL = np.zeros((len(outputs_NC), self.count))
            for at, place in enumerate(self.places):
                if place is not None:
                    sums_NL[:, place] += outputs_NC[:, at]
            scores_NL = np.log(np.maximum(sums_NL, least))
            return sums_NL.argmax(axis=1).tolist(), scores_NL.astype(np.float32)
        value_N = self._value(outputs_NC)
        step_N = np.searchsorted(self.thresholds, value_N, side="right")
        labels = [self.steps[step] for step in step_N]
        scores_NL = np.full((len(value_N), self.count), np.log(least))
        first, last = self.steps[0], self.steps[-1]
        if are_numbers:
            scores_NL[:, last] = -np.logaddexp(0.0, -value_N)
            scores_NL[:, first] = -np.logaddexp(0.0, value_N)
        else:
            scores_NL[:, last] = np.log(np.maximum(value_N, least))
            scores_NL[:, first] = np.log(np.maximum(1 - value_N, least))
        return labels, scores_NL.astype(np.float32)

    def _value(self, outputs_NC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        chosen = [at for at, place in enumerate(self.places) if place is not None]
        value_N: npt.NDArray[np.float64] = outputs_NC[:, chosen].max(axis=1)
        return value_N


def label_rule(
    head: TrainedHead,
    labels: Sequence[str],
    *,
    classes: ClassesOfLabels,
    thresholds: Sequence[float],
    where: str,
    method: str = "classify",
    examples: Callable[[], str] = lambda: "",
) -> LabelRule:
    """Decide which label the outputs of a head mean.

    Parameters
    ----------
    head: with its classes.
    labels: of the study, in order.
    classes: those of each label, as a study says; none to go by their names.
    thresholds: ascending, as a study says.
    where, method: for messages, the model's id and the method's name.
    examples: writes what the model says of a few sentences, for a message that asks.

    Raises
    ------
    ConfigError: classes that the model lacks, named twice or left out, or with names that do not
        tell which label they are; thresholds that do not fit the labels, or are missing.
    """
    try:
        if thresholds or head.outputs != "softmax":
            return _by_threshold(head, labels, classes, tuple(thresholds))
        return _by_probability(head, labels, classes)
    except _UnclearError as error:
        raise ConfigError(
            f"method {method!r}: {error}; the model's classes are {', '.join(head.classes)}"
            f"{examples()}",
            where=where,
            cure="say which label each is, with --labels and --threshold of `raybias audit` or in a"
            f" study, such as {error.example} if that is what they mean",
        ) from None


class _UnclearError(Exception):
    """Classes or thresholds that do not tell the labels; `example` is an entry for the study."""

    def __init__(self, problem: str, example: str) -> None:
        super().__init__(problem)
        self.example = example


def _by_probability(
    head: TrainedHead, labels: Sequence[str], classes: ClassesOfLabels
) -> LabelRule:
    """Make the rule of the highest probability, of which every class is one label."""
    example = _entry(_spread(head.classes, labels))
    label_of = _label_of_class(head, labels, classes, example, whole=True)
    clear = len(label_of) == len(head.classes) == len({*label_of.values()})
    if not classes and not clear:
        raise _UnclearError("it is not clear which label each class is", example)
    # A model of two classes on three labels never gives the one between.
    needed = (labels[0], labels[-1]) if len(labels) == 3 else labels
    for label in needed:
        if label not in label_of.values():
            raise _UnclearError(f"no class is {label}", example)
    return _rule(head, labels, label_of)


def _by_threshold(
    head: TrainedHead,
    labels: Sequence[str],
    classes: ClassesOfLabels,
    thresholds: tuple[float, ...],
) -> LabelRule:
    """Make the rule by which the outputs of one label's classes are parted by thresholds."""
    is_number = head.outputs == "number"
    example = _entry(
        {labels[-1]: head.classes[-1:]}, [0.0] if is_number else HALF, "the label of high values"
    )
    label_of = _label_of_class(head, labels, classes, example, whole=False)
    ends = (labels[0], labels[-1])
    named = {*label_of.values()}
    if len(named) != 1 or not named <= {*ends}:
        what = "a number" if is_number else "a probability of its own"
        raise _UnclearError(
            f"its head gives {what} for each class, so that the classes of one label,"
            f" {ends[0]} or {ends[1]}, have to be named",
            example,
        )
    if not thresholds and is_number:
        raise _UnclearError("its head gives a number, and `thresholds` are missing", example)
    thresholds = thresholds or HALF
    if len(thresholds) not in {1, len(labels) - 1} or [*thresholds] != sorted({*thresholds}):
        several = f", or {len(labels) - 1}" if len(labels) > 2 else ""
        raise _UnclearError(
            f"`thresholds` part {len(labels)} labels by one number{several}, ascending", example
        )
    steps = [0, len(labels) - 1] if len(thresholds) == 1 else [*range(len(labels))]
    if named == {labels[0]}:
        steps.reverse()
    rule = _rule(head, labels, label_of)
    return LabelRule(rule.classes, rule.places, rule.count, thresholds, tuple(steps))


def _label_of_class(
    head: TrainedHead,
    labels: Sequence[str],
    classes: ClassesOfLabels,
    example: str,
    *,
    whole: bool,
) -> dict[str, str]:
    """Return the label of each class that a study names, or else of each whose name tells it.

    whole: whether a study that names some has to name all.
    """
    problem = _find_problem(head, labels, classes, whole=whole)
    if problem is not None:
        raise _UnclearError(problem, example)
    if not classes:
        return _by_name(head.classes, labels)
    return {name: label for label, names in classes.items() for name in names}


def _rule(head: TrainedHead, labels: Sequence[str], label_of: Mapping[str, str]) -> LabelRule:
    """Make a rule of each class's label."""
    classes = {
        label: tuple(name for name in head.classes if label_of.get(name) == label)
        for label in labels
    }
    places = tuple(labels.index(label_of[n]) if n in label_of else None for n in head.classes)
    return LabelRule({k: v for k, v in classes.items() if v}, places, len(labels))


def _by_name(classes: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the label of each class whose name can mean that label only.

    Of two classes and two labels, one such name tells the other too.
    """
    found = {name: label for name in classes if (label := label_called(name, labels))}
    if len(classes) == len(labels) == 2 and len(found) == 1:
        ((name, label),) = found.items()
        other = next(each for each in classes if each != name)
        found[other] = next(each for each in labels if each != label)
    return found


def label_called(word: str, labels: Sequence[str]) -> str:
    """Return the label that a word is, in any case, or short for; empty if it is none."""
    known = {label.casefold(): label for label in labels}
    known |= {short: label for short, label in _SHORT.items() if label in labels}
    return known.get(word.strip().casefold(), "")


def _find_problem(
    head: TrainedHead, labels: Sequence[str], classes: ClassesOfLabels, *, whole: bool
) -> str | None:
    """Return what is wrong with the classes that a study names; None if nothing is."""
    for label in classes:
        if label not in labels:
            return f"`labels` has {label!r}, and the labels of the study are {', '.join(labels)}"
    named = [name for names in classes.values() for name in names]
    for name in named:
        if name not in head.classes:
            return f"`labels` names the class {name!r}, which the model lacks"
        if named.count(name) > 1:
            return f"`labels` names the class {name!r} twice"
    for name in head.classes if whole and classes else ():
        if name not in named:
            return f"`labels` leaves out the class {name!r}"
    return None


def _spread(classes: Sequence[str], labels: Sequence[str]) -> dict[str, Sequence[str]]:
    """Deal classes out to labels in order, as many to the first as to the last.

    Of two classes and three labels, the one between has none.
    """
    if len(labels) > len(classes):
        labels = (labels[0], labels[-1])
    bounds = np.linspace(0, len(classes), len(labels) + 1)
    ends = [int(bound + 0.5) for bound in bounds]
    if len(labels) == 3:
        half = len(classes) // 2
        ends = [0, half, len(classes) - half, len(classes)]
    parts = zip(labels, ends[:-1], ends[1:], strict=True)
    return {label: classes[begin:end] for label, begin, end in parts if end > begin}


def _entry(classes: ClassesOfLabels, thresholds: Sequence[float] = (), about: str = "") -> str:
    """Write the method in YAML with these labels."""
    lists = (
        f"{label}: {json.dumps([*names], ensure_ascii=False)}" for label, names in classes.items()
    )
    parts = ["kind: classify", f"labels: {{{', '.join(lists)}}}"]
    if thresholds:
        parts.append(f"thresholds: {[*thresholds]}")
    return f"{{{', '.join(parts)}}}" + (f" ({about})" if about else "")
