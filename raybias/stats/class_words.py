"""Read a table of others whose labels and predictions have more than two classes.

Both columns then have the same words, or the same whole numbers, and each of these is a class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from raybias.errors import DataError
from raybias.stats.classes import MOST, Classes, class_order, number_of, sentence_of
from raybias.stats.label_columns import LabelColumn, fold

_TWO: Final = frozenset(("0", "1"))
#: A column of more different values than this, and than half of its rows, names rows and no class.
_FEW: Final = 20
#: The numbers of three classes from 0, and around 0, in which 0 and 1 differ.
_CODINGS: Final = (frozenset(("0", "1", "2")), frozenset(("-1", "0", "1")))


def classes_by_name(columns: Sequence[LabelColumn], where: str) -> Classes | None:
    """Return the classes of columns with more than two; None if their words do not tell them.

    Raises DataError: too many classes, two that are spelled nearly alike, or two codings by number.
    """
    if not _share_classes(columns):
        return None
    _refuse_two_codings(columns, where)
    for column in columns:
        _refuse_ids(column, where)
    _refuse_near_misses(columns, where)
    return classes_of_names(columns, sorted(_all_words(columns), key=class_order))


def classes_of_names(columns: Sequence[LabelColumn], names: Sequence[str]) -> Classes:
    """Replace the words of columns by their places in `names`, which has all of them."""
    numbers = {name: number for number, name in enumerate(names)}
    return Classes(
        {column.role: column.codes(numbers) for column in columns},
        is_sentiment=False,
        positive=None,
        sentence=sentence_of(names, " and ".join(column.name for column in columns)),
        is_recoded=True,
        names=tuple(names),
    )


def _all_words(columns: Sequence[LabelColumn]) -> frozenset[str]:
    return frozenset[str]().union(*(column.words for column in columns))


def _share_classes(columns: Sequence[LabelColumn]) -> bool:
    """Return whether columns have more than two words together, with a meaning in common.

    Words need one that all columns have. Numbers could also be two codings: the labels need more
    than two, and a column of 0 and 1 is decisions unless the other column has both numbers too.
    """
    labels, *_ = columns
    every, common = _all_words(columns), labels.words.intersection(*(c.words for c in columns))
    if len(every) < 3 or not common:
        return False
    if not all(column.has_numbers for column in columns):
        return not any(number_of(word) is not None for word in every)
    decisions = any(column.words == _TWO for column in columns) and not common >= _TWO
    whole = all(float(word).is_integer() for word in every)
    return whole and len(labels.words) > 2 and not decisions


def _refuse_two_codings(columns: Sequence[LabelColumn], where: str) -> None:
    """Refuse numbers from 0 in one column and around 0 in the other."""
    found = {coding for coding in _CODINGS for column in columns if column.words <= coding}
    told = [{"2", "-1"} & column.words for column in columns]
    if len(found) == 2 and sorted(map(sorted, told)) == [["-1"], ["2"]]:
        raise DataError(
            "its columns count classes from 0 and around 0, where 0 and 1 differ: "
            + "; ".join(column.listed for column in columns),
            where=where,
            cure="write both alike, or the names of the classes",
        )


def _refuse_ids(column: LabelColumn, where: str) -> None:
    """Refuse a column with too many different values for classes."""
    values, rows = len(column.words), len(column.texts)
    beyond = f"more than {MOST:,}" if values > MOST else f"in {rows:,} rows"
    if values > MOST or (values > _FEW and values > rows / 2):
        raise DataError(
            f"{column.name} has {values:,} different values, {beyond}: too many for classes",
            where=where,
            cure=f"name the column of classes with --{column.role}-column, or one class with "
            "--positive",
        )


def _refuse_near_misses(columns: Sequence[LabelColumn], where: str) -> None:
    """Refuse two words that differ in case, blanks or a last dot alone."""
    spelled: dict[str, dict[str, str]] = defaultdict(dict)
    for column in columns:
        for word in sorted(column.words):
            spelled[fold(word)].setdefault(word, column.name)
    for words in spelled.values():
        if len(words) > 1:
            (one, first), (other, second), *_ = words.items()
            raise DataError(
                f"{first} has {one!r} and {second} has {other!r}, which differ in case, blanks or "
                "a last dot alone",
                where=where,
                cure="write them alike",
            )
