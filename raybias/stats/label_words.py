"""Read the classes of a table of others, in which every column has words of its own.

Labels and predictions can be numbers, booleans or words, and the two columns need not agree: labels
0 and 1 beside predictions Low, Medium and High. What cannot be told is refused, with the words of
each column; nothing is taken for "not the class" only because it is spelled otherwise.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import ConfigError, DataError
from raybias.stats import sentiment
from raybias.stats.class_words import classes_by_name, classes_of_names
from raybias.stats.classes import BOOLEANS, CODE, Classes, Positive, number_of
from raybias.stats.label_columns import LabelColumn, fold
from raybias.stats.rated_class import RatedClass, favours_class, sentiment_class
from raybias.table_files import refuse

_TWO: Final = frozenset(("0", "1"))
_SENTIMENT: Final = frozenset(map(str, sentiment.BY_CODE))
_CURE: Final = "correct the row or leave it out"
#: From this score on an example is predicted to be of the class, if the table has no predictions.
CALLED: Final = 0.5


def read_classes(
    table: pl.DataFrame,
    names: Mapping[str, str],
    positive: Positive,
    where: str,
    known: Sequence[str] = (),
) -> Classes:
    """Read the columns `label` and, if there is one, `pred` of a table.

    Parameters
    ----------
    table: also with `score`, a number, if predictions are made of it.
    names: what the user calls the columns `label` and `pred`.
    positive: the class that is named, if any.
    where: names the table in messages.
    known: the classes of all tables that are measured by class together; by default its own.

    Raises DataError: a missing value, words that do not tell the classes, or a word that a column
    does not have.
    """
    columns = [_column(table, "label", names["label"], where)]
    by_number = "pred" not in table.columns or positive.threshold is not None
    if not by_number:
        columns.append(_column(table, "pred", names["pred"], where))
    if known:
        return classes_of_names(columns, known)
    classes = _read_two(columns, positive, where)
    if classes is None and not by_number and not positive.is_named:
        classes = classes_by_name(columns, where)
    if classes is None:
        _refuse_odd(columns, where)
        raise DataError(
            f"its words do not tell which is the class: {_listed(columns)}",
            where=where,
            cure=_cure(columns),
        )
    if not by_number:
        return classes
    role = "pred" if "pred" in table.columns else "score"
    name = names["pred"] if role == "pred" else role
    of_one = positive.is_named or columns[0].words <= _TWO or role == "pred"
    if classes.is_sentiment or not of_one:
        raise DataError(
            f"{name} is of one class, and the labels do not tell which: {columns[0].listed}",
            where=where,
            cure=_cure(columns),
        )
    return _with_threshold(classes, table[role].alias(name), positive, where)


def _read_two(columns: Sequence[LabelColumn], positive: Positive, where: str) -> Classes | None:
    """Read columns of one class against the rest, or of sentiment; None if that is not told."""
    named = positive.is_named
    return _read_named(columns, positive, where) if named else _read_plain(columns, positive)


def _column(table: pl.DataFrame, role: str, name: str, where: str) -> LabelColumn:
    column = table[role]
    texts = column.cast(pl.String).str.strip_chars()
    missing = texts.is_null() | texts.str.to_lowercase().is_in(["", "nan"])
    refuse(missing, column.alias(name), "is missing", where, _CURE)
    return LabelColumn(role, name, texts)


def _refuse_odd(columns: Sequence[LabelColumn], where: str) -> None:
    """Refuse the first word of a column that has numbers too."""
    for column in columns:
        words = [text for text in column.spellings if number_of(text) is None]
        if 0 < len(words) < len(column.spellings) and not column.has_numbers:
            texts = column.texts.alias(column.name)
            refuse(texts.is_in(words), texts, "is no number, as others are", where, _CURE)


def _listed(columns: Sequence[LabelColumn]) -> str:
    return "; ".join(column.listed for column in columns)


def _cure(columns: Sequence[LabelColumn], chosen: Mapping[str, Set[str]] | None = None) -> str:
    """Write --positive that names the class in each column, as far as that is known."""
    every = {word for words in (chosen or {}).values() for word in words}
    alike = len({column.words for column in columns}) == 1
    named = [f"{column.name}={word}" for column in columns for word in _suggested(column, every)]
    if alike:
        named = _suggested(columns[0], {columns[0].word_of(columns[0].spellings[-1])})
    cure = f"name the class{'' if alike else ' in each column'}: {_option(named)}"
    if columns[-1].role == "pred" and columns[-1].has_numbers and len(columns[-1].words) > 2:
        cure += f"; or the number from which {columns[-1].name} is of it, with --threshold"
    return cure


def _option(words: Sequence[str]) -> str:
    """Write --positive as a shell takes it: a word with a comma in quotes."""
    quoted = (f'"{word}"' if "," in word else word for word in words)
    return f"--positive {shlex.quote(','.join(quoted))}"


def _suggested(column: LabelColumn, named: Set[str]) -> list[str]:
    """Return the words of a column that look like words of the class; else its largest number."""
    folded = {fold(word) for word in named}
    words = sorted(word for word in column.words if fold(word) in folded)
    return words or ([max(column.words, key=float)] if column.has_numbers else ["WORD"])


def _all_words(columns: Sequence[LabelColumn]) -> frozenset[str]:
    return frozenset[str]().union(*(column.words for column in columns))


def _read_plain(columns: Sequence[LabelColumn], positive: Positive) -> Classes | None:
    """Read columns whose words tell the classes; None if they do not."""
    if _are_sentiment(columns):
        return _sentiment(columns, None, positive)
    if not all(column.has_numbers for column in columns):
        return None
    words = _all_words(columns)
    if words <= _TWO:
        return _two_classes(columns, {column.role: {"1"} for column in columns}, positive)
    if len(words) > 2 or not all(float(word).is_integer() for word in words):
        return None
    last = max(words, key=float)
    return _two_classes(columns, {column.role: {last} for column in columns}, positive)


def _are_sentiment(columns: Sequence[LabelColumn]) -> bool:
    """Whether all columns have words of sentiment, or all three of its numbers beside these."""
    if all(column.words <= _SENTIMENT for column in columns):
        return any(column.words == _SENTIMENT for column in columns)
    return all(column.is_sentiment or column.words == _SENTIMENT for column in columns)


def _read_named(columns: Sequence[LabelColumn], positive: Positive, where: str) -> Classes:
    """Read columns in which the user names the class."""
    _refuse_unknown(columns, positive, where)
    chosen = {column.role: _chosen_words(column, positive) for column in columns}
    for column in columns:
        if not chosen[column.role]:
            chosen[column.role] = _words_of_another(column, columns, chosen)
    named = {word.lower() for words in chosen.values() for word in words}
    if len(named) == 1 and not positive.by_column:
        (word,) = named
        if _are_sentiment(columns):
            return _sentiment(columns, sentiment.CODES[word], positive)
        if _all_words(columns) <= _TWO and positive.threshold is None:
            return _two_classes(columns, {role: {word} for role in chosen}, positive, kept=word)
    for column in columns:
        _check_chosen(column, chosen, columns, where)
    return _two_classes(columns, chosen, positive)


def _chosen_words(column: LabelColumn, positive: Positive) -> set[str]:
    """Return the words of the class that a column has, among those that the user names."""
    named = positive.by_column.get(column.name, positive.words)
    return {column.word_of(text) for text in named if _is_known(column, text)}


def _words_of_another(
    column: LabelColumn, columns: Sequence[LabelColumn], chosen: Mapping[str, set[str]]
) -> set[str]:
    """Return the class of another column that has all the words of this one; else nothing."""
    return next(
        (
            chosen[other.role]
            for other in columns
            if other is not column and column.words <= other.words
        ),
        set(),
    )


def _refuse_unknown(columns: Sequence[LabelColumn], positive: Positive, where: str) -> None:
    """Refuse a word of the class that no column has, and a column that there is not."""
    names = [column.name for column in columns]
    for name in positive.by_column:
        if name not in names:
            raise DataError(
                f"--positive names the column {name!r}, which has no classes",
                where=where,
                cure=f"choose from {', '.join(names)}",
            )
    for column in columns:
        for text in positive.by_column.get(column.name, ()):
            if not _is_known(column, text):
                raise DataError(
                    f"no {column.name} is {text!r}",
                    where=where,
                    cure=f"choose the class from its words: {column.listed}",
                )
    for text in positive.words:
        if not any(_is_known(column, text) for column in columns):
            raise DataError(
                f"no label is {text!r}",
                where=where,
                cure=f"choose the class from the words of the columns: {_listed(columns)}",
            )


def _is_known(column: LabelColumn, text: str) -> bool:
    word = column.word_of(text)
    return word in column.words or (word in _TWO and column.words <= _TWO)


def _check_chosen(
    column: LabelColumn, chosen: Mapping[str, set[str]], columns: Sequence[LabelColumn], where: str
) -> None:
    """Refuse a column that lacks the class, has nothing else, or spells it in several ways."""
    words = chosen[column.role]
    if not words:
        raise DataError(
            f"no {column.name} is of the class: {_listed(columns)}",
            where=where,
            cure=_cure(columns, chosen),
        )
    every = _TWO if column.words <= _TWO else column.words
    if len(every) > 1 and words >= every:
        raise DataError(
            f"every {column.name} is of the class: {_listed(columns)}",
            where=where,
            cure=_cure(columns),
        )
    folded = {fold(word): word for word in words}
    for word in sorted(column.words - words):
        if fold(word) in folded:
            one = folded[fold(word)]
            raise DataError(
                f"{column.name} has both {one!r} and {word!r}, and one of them is of the class",
                where=where,
                cure=f"write them alike, or name both: {_option([one, word])}",
            )


def _two_classes(
    columns: Sequence[LabelColumn],
    chosen: Mapping[str, set[str]],
    positive: Positive,
    kept: str = "",
) -> Classes:
    """Code the class as 1 and others as 0; numbers 0 and 1 stay, of which `kept` is the class."""
    parts = " and ".join(
        f"{column.name} is {_quoted(column, chosen[column.role])}" for column in columns
    )
    codes = {}
    for column in columns:
        ones = {"1"} if kept else chosen[column.role]
        codes[column.role] = column.codes({word: int(word in ones) for word in column.words})
    return Classes(
        codes,
        is_sentiment=False,
        positive=int(kept) if kept else None,
        sentence=f"Rates are those of the class for which {parts}.",
        is_recoded=not _all_words(columns) <= _TWO or not all(w == {"1"} for w in chosen.values()),
        rated=_rated(columns, chosen, positive),
    )


def _rated(
    columns: Sequence[LabelColumn], chosen: Mapping[str, set[str]], positive: Positive
) -> RatedClass:
    """Return the class in the words of the columns; predictions by a number are named later."""
    labels, predictions = columns[0], columns[-1]
    label = " or ".join(_spelled(labels, chosen[labels.role]))
    if predictions.role != "pred":
        return RatedClass(label, label)
    inside = chosen[predictions.role]
    every = _TWO if predictions.words <= _TWO else predictions.words
    named = {predictions.word_of(text) for text in positive.favourable}
    return RatedClass(
        name=" or ".join(_spelled(predictions, inside)),
        label=label,
        favourable=" or ".join(_spelled(predictions, named)),
        is_favourable=favours_class(named, inside, every - inside),
    )


def _quoted(column: LabelColumn, words: Set[str]) -> str:
    """Write the words of a class as the table spells them: `` `Medium` or `High` ``."""
    return " or ".join(f"`{text}`" for text in _spelled(column, words))


def _spelled(column: LabelColumn, words: Set[str]) -> list[str]:
    """Return words as the table spells them, those that it does not have as they are."""
    spelled = [text for text in column.spellings if column.word_of(text) in words]
    return spelled or sorted(words)


def _sentiment(columns: Sequence[LabelColumn], code: int | None, positive: Positive) -> Classes:
    """Code the columns by the numbers of sentiment; `code` is the class of rates of one class."""
    codes = {}
    for column in columns:
        numbers = {word: sentiment.CODES[word.lower()] for word in column.words}
        codes[column.role] = column.codes(numbers)
    names = " and ".join(column.name for column in columns)
    classes = ", ".join(f"{code} {name}" for code, name in sentiment.BY_CODE.items())
    sentence = f"{names} are read as sentiment: {classes}."
    if code is not None:
        sentence += f" Rates of one class are those of {code}, {sentiment.NAMES[code]}."
    return Classes(
        codes,
        is_sentiment=True,
        positive=code,
        sentence=sentence,
        rated=sentiment_class(code, positive.favourable),
    )


def _with_threshold(classes: Classes, column: pl.Series, positive: Positive, where: str) -> Classes:
    """Predict the class from a number on, in a column of predictions or scores."""
    threshold = positive.threshold
    numbers = column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    cure = "--threshold needs numbers; --positive takes words"
    refuse(~numbers.is_finite().fill_null(False), column, "is not a number", where, cure)
    least = CALLED if threshold is None else threshold
    low, high = (float(end) for end in np.quantile(numbers.to_numpy(), [0, 1]))
    if threshold is not None and not low < threshold <= high:
        raise DataError(
            f"{column.name} is from {low:g} to {high:g}: --threshold {threshold:g} parts nothing",
            where=where,
            cure="name a number between these; or another column with --pred-column",
        )
    beyond = "below" if classes.positive == 0 else "at least"
    return Classes(
        {**classes.codes, "pred": (numbers >= least).cast(CODE).alias("pred")},
        is_sentiment=False,
        positive=classes.positive,
        sentence=f"{classes.sentence.removesuffix('.')} and {column.name} is {beyond} {least:g}.",
        is_recoded=classes.is_recoded,
        rated=_rated_from(classes, positive, least),
    )


def _rated_from(classes: Classes, positive: Positive, least: float) -> RatedClass | None:
    """Name the class that predictions are of from the number `least` on, or below it."""
    if classes.rated is None:
        return None
    label, is_above = classes.rated.label, classes.positive != 0
    above, below = f"{least:g} or above", f"below {least:g}"
    # A score without a threshold of the user's predicts the class of the labels.
    named = (above if is_above else below) if positive.threshold is not None else label
    sides = {_is_from(text, least) == is_above for text in positive.favourable}
    if len(sides) > 1:
        raise ConfigError(
            f"--favourable {','.join(positive.favourable)} has numbers on both sides of {least:g}",
            cure="name a number of one side",
        )
    is_favourable = next(iter(sides), None)
    rest = below if is_above else above
    favourable = {True: named, False: rest, None: ""}[is_favourable]
    return RatedClass(named, label, favourable, is_favourable)


def _is_from(text: str, least: float) -> bool:
    number = number_of(BOOLEANS.get(text.lower(), text))
    if number is None:
        raise ConfigError(
            f"--favourable {text} is no number, and predictions are numbers",
            cure="name a number that is predicted for a person",
        )
    return number >= least
