"""Code the labels of two arms by one class: of two classes the last, of more classes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import polars as pl

from raybias.measures.class_rows import CLASS
from raybias.measures.compare_answers import Matched
from raybias.measures.entries.predictions import OF_TWO_CLASSES
from raybias.stats.intervals import Rules
from raybias.stats.metric import THE_CLASS
from raybias.stats.metric_files import as_class

#: Rates that are compared for each of more than two classes.
OF_EACH_CLASS: Final = ("tpr", "fpr")
#: The number of the other classes, if one is measured.
_OTHER: Final = 0


def of_two_classes(arms: Sequence[Matched], rules: Rules) -> tuple[list[Matched], Rules]:
    """Compare labels of two classes, which are no sentiment, by the rates of the last one.

    Arms with more labels, and rules, stay as they are.
    """
    frames = [frame for pair in arms for frame in (pair.base, pair.candidate)]
    codes = {*pl.concat(frame[name] for frame in frames for name in ("label", "pred")).drop_nulls()}
    if len(codes) > 2:
        return [*arms], rules
    last = max(1, *codes)
    coded = [
        replace(pair, base=as_class(pair.base, last), candidate=as_class(pair.candidate, last))
        for pair in arms
    ]
    methods = frozenset(str(frame["method"][0]) for frame in frames)
    changed = {"metrics": OF_TWO_CLASSES, "judged": methods}
    return coded, rules.model_copy(update=changed)


def split_classes(
    arms: Sequence[Matched], classes: Sequence[str], rules: Rules, *, able: bool
) -> tuple[list[Matched], Rules]:
    """Split arms with more than two classes into arms of each class against the rest.

    Gives them, and the rules of the arms as they are: their accuracy is compared, and all
    classifiers are judged if they are known to be `able`. `classes` are names in the order of their
    numbers.
    """
    parts = []
    for pair, (code, name) in product(arms, enumerate(classes)):
        own = {column: pl.col(column) == code for column in ("label", "pred")}
        coded = {
            column: pl.when(is_class).then(THE_CLASS).when(is_class.not_()).then(_OTHER)
            for column, is_class in own.items()
        }
        base, candidate = (frame.with_columns(**coded) for frame in (pair.base, pair.candidate))
        condition = f"{CLASS}{name}"
        parts.append(replace(pair, base=base, candidate=candidate, condition=condition))
    changed: dict[str, Any] = {"metrics": ("accuracy",)}
    if able:
        frames = [frame for pair in arms for frame in (pair.base, pair.candidate)]
        changed["judged"] = frozenset(str(frame["method"][0]) for frame in frames)
    return parts, rules.model_copy(update=changed)
