"""Judge the ways of asking that an audit's pilot tried, by its few sentences.

The best of a dozen ways on 24 sentences is 9 to 11 points too good on average: it was chosen for
being so. Ways that the pilot does not tell apart are chosen by a fixed preference instead, and what
is expected of a way is its accuracy, shrunk towards the mean of all ways (empirical Bayes, Efron
and Morris 1975).

Shapes: N sentences, L labels, W ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.schema import LABELS
from raybias.stats.components import Doubles

#: Readings, kinds of methods and forms of prompts, each in the order in which they are preferred.
_READINGS: Final = ("calibrated", "likelihood", "answer")
_KINDS: Final = ("zero_shot", "few_shot")
_FORMS: Final = ("chat", "raw")
#: A way is worse than the best one if chance makes such a difference less often than this.
_LEVEL: Final = 0.05

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """A way of asking that the pilot tried.

    read: answer, likelihood or calibrated; what calibration takes off comes from the other half.
    sentences: how many the pilot asked about.
    accuracy: the share of them that it labels rightly.
    expected: its accuracy, shrunk towards the mean of all ways.
    unread: share of the answers that name no label word.
    named: how many sentences got each label.
    mass: mean probability on the label words where the answer begins.
    """

    options: Mapping[str, Any]
    read: str
    sentences: int
    accuracy: float
    expected: float
    unread: float
    named: tuple[int, ...]
    mass: float

    @property
    def record(self) -> dict[str, Any]:
        """What OUT keeps of it, in schema.PILOT_FILE."""
        return {
            **self.options,
            "read": self.read,
            "sentences": self.sentences,
            "accuracy": self.accuracy,
            "expected": self.expected,
            "unread": self.unread,
        }

    @property
    def preference(self) -> tuple[int, ...]:
        """Its place among ways that are not told apart, the smaller the better."""
        kind, form = self.options["kind"], self.options["prompt_format"]
        orders = (_READINGS, self.read), (_KINDS, kind), (_FORMS, form)
        return tuple(order.index(one) if one in order else len(order) for order, one in orders)

    def __str__(self) -> str:
        kind, form = self.options["kind"], self.options["prompt_format"]
        named = ", ".join(f"{n} {label}" for n, label in zip(self.named, LABELS, strict=True))
        right = round(self.accuracy * self.sentences)
        return (
            f"{kind} {form}, read by {self.read}: {right} of {self.sentences} right,"
            f" {self.expected:.0%} expected, {self.unread:.0%} unread ({named};"
            f" {self.mass:.0%} of the probability on the label words)"
        )


def ways_of(predictions: pl.DataFrame) -> tuple[Way, ...]:
    """Return every prompt format and reading that a pilot tried, the one to choose first.

    Those that are not told apart from the most accurate one come first, as they are preferred
    (`Way.preference`), then the others by accuracy.
    """
    found: list[Way] = []
    right: list[npt.NDArray[np.bool_]] = []
    for (name,), rows in predictions.sort("item_id").group_by("method", maintain_order=True):
        kind, _, form = str(name).rpartition("_")
        gold_N = rows["label"].to_numpy()
        mass = float(np.exp(np.array(rows["scores"].to_list(), np.float64)).sum(axis=1).mean())
        for read, labels_N in _readings(rows).items():
            named = tuple(int((labels_N == label).sum()) for label in range(len(LABELS)))
            right.append(labels_N == gold_N)
            accuracy, unread = float(right[-1].mean()), float((labels_N < 0).mean())
            options = {"kind": kind, "prompt_format": form}
            found.append(Way(options, read, len(gold_N), accuracy, accuracy, unread, named, mass))

    right_WN = np.array(right)
    expected_W = shrunk(right_WN)
    best = min(range(len(found)), key=lambda w: (-found[w].accuracy, found[w].preference))
    worse_W = [told_apart(right_WN[best], each_N) for each_N in right_WN]
    order = sorted(
        range(len(found)),
        key=lambda w: (
            worse_W[w],
            -found[w].accuracy if worse_W[w] else 0.0,
            found[w].preference,
        ),
    )
    return tuple(replace(found[w], expected=float(expected_W[w])) for w in order)


def _readings(rows: pl.DataFrame) -> dict[str, Places]:
    """Return the label [N] of each sentence by every reading; -1 where an answer names none."""
    scores_NL = np.array(rows["scores"].to_list(), np.float64)
    half_N = np.arange(rows.height) % 2
    means_HL = np.array([scores_NL[half_N != half].mean(axis=0) for half in (0, 1)])
    return {
        "calibrated": (scores_NL - means_HL[half_N]).argmax(axis=1),
        "likelihood": scores_NL.argmax(axis=1),
        "answer": rows["pred"].fill_null(-1).to_numpy().astype(np.int64),
    }


def shrunk(right_WN: npt.NDArray[np.bool_]) -> Doubles:
    """Shrink accuracies [W] of ways that read the same sentences towards their mean.

    The share that is kept is what the accuracies vary beyond the noise of so few sentences, by what
    they vary.
    """
    right = right_WN.astype(float)
    accuracy_W = right.mean(axis=1)
    mean = accuracy_W.mean()
    if len(accuracy_W) < 2 or right.shape[1] < 2:
        return np.asarray(accuracy_W)
    beside_WN = right - right.mean(axis=0)
    noise = (beside_WN.var(axis=1, ddof=1) / right.shape[1]).mean()
    between = accuracy_W.var(ddof=1)
    kept = max(0.0, 1 - noise / between) if between > 0 else 0.0
    return np.asarray(mean + kept * (accuracy_W - mean))


def told_apart(one_N: npt.NDArray[np.bool_], other_N: npt.NDArray[np.bool_]) -> bool:
    """Return whether one way is right where another is not more often than chance (McNemar)."""
    better, worse = int((one_N & ~other_N).sum()), int((other_N & ~one_N).sum())
    if better + worse == 0:
        return False
    return bool(stats.binomtest(better, better + worse).pvalue < _LEVEL)
