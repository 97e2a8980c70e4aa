"""What the labels and predictions of files stand for, and which class a user means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.stats import sentiment
from raybias.stats.rated_class import RatedClass, favours_class, rated_label, sentiment_class

#: The type of the numbers of classes in the columns `label` and `pred` of every table.
CODE: Final = pl.Schema(schema.PREDICTIONS)["label"]
#: The key of a Parquet file's metadata whose value is a JSON list of the names of its classes, in
#: the order of their numbers. A file without it has the labels negative, neutral and positive.
METADATA_KEY: Final = b"raybias.labels"
#: The key whose value is a JSON list of the labels that the file's classifier never gives. What it
#: says of sentences with such a label is neither right nor wrong.
NEVER_KEY: Final = b"raybias.never"
#: Booleans as numbers, by their word in lower case.
BOOLEANS: Final[Mapping[str, str]] = {"true": "1", "false": "0"}
#: Most classes that a table is measured by, and most names of classes that a message lists.
MOST: Final = 1_000
_LISTED: Final = 8


@dataclass(frozen=True)
class Positive:
    """The class that metrics of one class are about, as a user names it, and what is favourable.

    Attributes
    ----------
    words: its words, in whichever column has them; none if no class is named.
    by_column: its words in each column instead, by the column's name.
    threshold: the number from which on a prediction, or a score, is of the class; None for none.
    favourable: the predictions that are favourable for a person; none if it is not declared.
    """

    words: tuple[str, ...] = ()
    by_column: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    threshold: float | None = None
    favourable: tuple[str, ...] = ()

    @property
    def is_named(self) -> bool:
        """Whether the user names a class."""
        return bool(self.words or self.by_column)


def positive_of(named: Any, threshold: float | None = None, favourable: Any = None) -> Positive:
    """Read the class that a user names: a value, several, or values by column; None for none.

    favourable: a value, or several; None for none.
    """
    good = _words_of(favourable)
    if isinstance(named, Mapping):
        by_column = {str(name): _words_of(values) for name, values in named.items()}
        return Positive(by_column=by_column, threshold=threshold, favourable=good)
    return Positive(_words_of(named), threshold=threshold, favourable=good)


def _words_of(values: Any) -> tuple[str, ...]:
    if values is None:
        return ()
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return tuple(str(value).strip() for value in (values if several else [values]))


@dataclass(frozen=True)
class Classes:
    """What the labels and predictions of a table stand for.

    Attributes
    ----------
    codes: the columns `label` and `pred` as numbers: of sentiment, of `names`, or 1 for the class
        and 0 for others; empty for files of our own, which have no other codes.
    is_sentiment: whether they are negative, neutral and positive.
    positive: the code of the class that metrics of one class are about; None for the last.
    sentence: what was taken as the class in each column, for people.
    is_recoded: whether the codes are not the table's own numbers.
    names: the classes in the order of their codes, if the table is measured by class; else empty.
    rated: the class that rates are about, in the table's words; None if numbers in a file of our
        own have no names.
    """

    codes: Mapping[str, pl.Series]
    is_sentiment: bool
    positive: int | None
    sentence: str
    is_recoded: bool = False
    names: tuple[str, ...] = ()
    rated: RatedClass | None = None


def labels_metadata(names: Sequence[str], never: Sequence[str] = ()) -> dict[bytes, bytes]:
    """Write the names of classes, in the order of their numbers, as metadata of a Parquet schema.

    never: those that the file's classifier never gives.
    The result is what `pyarrow.Schema.with_metadata` takes.
    """
    lists = {METADATA_KEY: names, NEVER_KEY: never}
    return {
        key: json.dumps([*texts], ensure_ascii=False).encode()
        for key, texts in lists.items()
        if texts
    }


def labels_of_metadata(
    metadata: Mapping[bytes, bytes] | None, where: str = "", *, key: bytes = METADATA_KEY
) -> tuple[str, ...]:
    """Read the names of classes from the metadata of a Parquet schema; empty if it names none.

    key: METADATA_KEY for all of them, NEVER_KEY for those that the classifier never gives.
    `where` names the file in the DataError for a value that is not a JSON list of different texts.
    """
    value = (metadata or {}).get(key)
    if value is None:
        return ()
    try:
        names = json.loads(value)
    except ValueError:
        names = None
    texts = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not texts or not names or len({*names}) < len(names):
        raise DataError(
            f"its metadata {key.decode()!r} is not a JSON list of different names",
            where=where,
            cure="write it with raybias.stats.classes.labels_metadata, or leave it out",
        )
    return tuple(names)


def number_of(text: str) -> float | None:
    """Parse a finite number; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def own_classes(positive: Positive, names: Sequence[str] = ()) -> Classes:
    """Return the classes of files in schema.PREDICTIONS, in which labels are numbers.

    `names` are those in a file's metadata; without them the labels are sentiment's.

    Raises ConfigError: the class that is named is not one of their labels.
    """
    if names and tuple(names) != sentiment.NAMES:
        return _named_classes(positive, tuple(names))
    if not positive.is_named:
        rated = sentiment_class(None, positive.favourable) if names else None
        return Classes({}, is_sentiment=bool(names), positive=None, sentence="", rated=rated)
    named = _all_words(positive)
    numbers = {sentiment.CODES.get(_plain_number(word)) for word in named}
    (code, *others) = numbers
    if others or code is None:
        raise ConfigError(
            f"--positive {','.join(named)} is no label of these files",
            cure=f"choose one of {', '.join(map(str, range(len(sentiment.NAMES))))}",
        )
    sentence = f"Rates are those of the class for which pred is `{code}`."
    rated = sentiment_class(code, positive.favourable) if names else None
    return Classes({}, bool(names), code, sentence, rated=rated)


def _named_classes(positive: Positive, names: tuple[str, ...]) -> Classes:
    """Return the classes of a file whose metadata names them: of two, the second is the class."""
    if positive.is_named or len(names) == 2:
        chosen = codes_of(positive, names) if positive.is_named else frozenset((1,))
        code = min(chosen) if len(names) == 2 else 1
        words = " or ".join(f"`{names[code]}`" for code in sorted(chosen))
        rated = _rated_names(chosen, names, positive.favourable)
        return Classes({}, False, code, f"Rates are those of the class {words}.", rated=rated)
    return Classes({}, False, None, sentence_of(names), names=names)


def _rated_names(
    chosen: frozenset[int], names: tuple[str, ...], favourable: tuple[str, ...]
) -> RatedClass:
    """Return the class that is one name or several; see `favours_class` for what it refuses."""
    if len(names) == 2:
        return rated_label(min(chosen), names, favourable)
    word = " or ".join(names[code] for code in sorted(chosen))
    inside = {names[code] for code in chosen}
    is_favourable = favours_class({*favourable}, inside, {*names} - inside)
    return RatedClass(word, word, " or ".join(favourable), is_favourable)


def codes_of(positive: Positive, names: Sequence[str]) -> frozenset[int]:
    """Look up the numbers of the classes that a user names among the names of a file.

    Raises ConfigError: no class has the name or number, or all of them are named.
    """
    # A name as it is comes before one in other case, and that before a number.
    numbers = {
        **{str(code): code for code in range(len(names))},
        **{name.lower(): code for code, name in enumerate(names)},
        **{name: code for code, name in enumerate(names)},
    }
    words = _all_words(positive)
    spelled = [(word, word.lower(), _plain_number(word)) for word in words]
    codes = [next((numbers[s] for s in forms if s in numbers), None) for forms in spelled]
    known = frozenset(code for code in codes if code is not None)
    if None in codes or len(known) == len(names):
        raise ConfigError(
            f"--positive {','.join(words)} is no label of these files",
            cure=f"choose from {listed(names)}",
        )
    return known


def as_one_class(frame: pl.DataFrame, positive: Positive, names: Sequence[str]) -> pl.DataFrame:
    """Write the class that a user names as 1 and others as 0, in a file with named classes."""
    if not positive.is_named or len(names) < 3 or tuple(names) == sentiment.NAMES:
        return frame
    chosen = [*codes_of(positive, names)]
    coded = [pl.col(name).is_in(chosen).cast(CODE) for name in ("label", "pred")]
    frame = frame.with_columns(coded)
    if "scores" in frame.columns:
        frame = frame.with_columns(scores=pl.lit(None, frame["scores"].dtype))
    return frame


def _all_words(positive: Positive) -> list[str]:
    return [word for words in (positive.words, *positive.by_column.values()) for word in words]


def listed(names: Sequence[str]) -> str:
    """List the first names of classes for a message, and count the rest."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def sentence_of(names: Sequence[str], columns: str = "label and pred") -> str:
    """Say by which classes a table is measured."""
    return f"{columns} have {len(names):,} classes, each measured on its own: {listed(names)}."


def class_order(name: str) -> tuple[bool, float, str]:
    """Sort numbers by size, then words."""
    number = number_of(name)
    return number is None, number or 0.0, name


def _plain_number(text: str) -> str:
    """Write `1.0` and `True` as `1`; any other text in lower case."""
    number = number_of(text)
    if number is not None and number.is_integer():
        return str(int(number))
    return BOOLEANS.get(text.lower(), text.lower())


def common_classes(by_file: Mapping[str, Classes]) -> Classes:
    """Return what the labels of several files stand for; `DataError` if that differs.

    Tables that are measured by class can have some classes each; files of our own, whose numbers
    are given, need the same classes.
    """
    (first, one), *others = by_file.items()
    for where, other in others:
        kinds = [(bool(c.names), c.is_sentiment, c.positive) for c in (one, other)]
        fixed = not (one.codes and other.codes) and one.names != other.names
        if kinds[0] != kinds[1] or fixed:
            raise DataError(
                f"its labels are not those of {first}: {one.sentence} {other.sentence}",
                where=where,
                cure="measure the files one by one",
            )
    if one.names:
        names = one.names
        if any(other.names != names for _, other in others):
            every = {name for classes in by_file.values() for name in classes.names}
            names = tuple(sorted(every, key=class_order))
        return Classes({}, False, None, sentence_of(names), names=names)
    sentences = dict.fromkeys(classes.sentence for classes in by_file.values() if classes.sentence)
    rated = _common_rated([classes.rated for classes in by_file.values() if classes.rated])
    return Classes({}, one.is_sentiment, one.positive, " ".join(sentences), rated=rated)


def _common_rated(classes: Sequence[RatedClass]) -> RatedClass | None:
    """Join the words that files have for the class; which outcome is favourable is one for all."""
    if not classes:
        return None
    names = dict.fromkeys(each.name for each in classes)
    labels = dict.fromkeys(each.label for each in classes)
    return replace(classes[0], name=" or ".join(names), label=" or ".join(labels))
