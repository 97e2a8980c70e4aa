"""Read tables from a folder or URI and check a user's columns; errors name file, row and value."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config.card import Column
from raybias.errors import DataError, RaybiasWarning, said_by
from raybias.schema import LABELS, SENTENCES
from raybias.storage import Store
from raybias.table_files import as_text, match_columns, read_frame, refuse

#: Labels that a message lists.
_SHOWN: Final = 12
#: How files write sentiment as numbers, by the number that no other way has.
_CODINGS: Final = {
    "2": dict(zip(("0", "1", "2"), LABELS, strict=True)),
    "-1": dict(zip(("-1", "0", "1"), LABELS, strict=True)),
}
_LABEL_CURE: Final = (
    "fix it, map it with `labels` of a training set or `codes` of a card, or set the study's"
    " `verbalizer` to the labels of the file"
)


class CodingWarning(RaybiasWarning):
    """Labels of a file are numbers other than raybias' own, which a value of the file decides."""


def column(frame: pl.DataFrame, name: str, *, where: str) -> pl.Series:
    """Return one column of a table; `DataError` names the nearest there is."""
    if name not in frame.columns:
        near = difflib.get_close_matches(name, frame.columns, n=1)
        cure = f"rename {near[0]!r}" if near else f"its columns are {', '.join(frame.columns)}"
        raise DataError(f"no column {name!r}", where=where, cure=cure)
    return frame[name]


def filled(values: pl.Series, *, where: str) -> pl.Series:
    """Cast a column to text as it is; an empty or blank value is a `DataError`."""
    text = as_text(values, where=where)
    blank = text.is_null() | (text.str.strip_chars() == "")
    refuse(blank, text.set(blank, None), "is empty", where, "fill it in")
    return text


def label_spellings(labels: Sequence[str]) -> dict[str, str]:
    """Map how a file may write each label to the label: its name, or its number from 0.

    If a label is a number itself, only names count.
    """
    spellings = {label: label for label in labels}
    if not any(label.isdecimal() for label in labels):
        spellings |= {str(number): label for number, label in enumerate(labels)}
    return spellings


def sentiment_coding(words: Collection[str], *, where: str) -> Mapping[str, str]:
    """Return the sentiment of each number among the words of a column; empty without numbers.

    A 2 decides for 0, 1, 2, and a -1 for -1, 0, 1; of both, and of other words, it says nothing.
    Raises DataError: 0 or 1 alone, which either fits.
    """
    names = {*map(str.lower, words)}
    numbers = names - {*LABELS}
    decided = [coding for number, coding in _CODINGS.items() if number in numbers]
    if decided:
        return decided[0] if numbers <= decided[0].keys() else {}
    if not numbers or not numbers <= {"0", "1"}:
        return {}
    ways = "; ".join(map(coding_said, _CODINGS.values()))
    mapped = ", ".join(f'"{number}": {_CODINGS["2"][number]}' for number in sorted(numbers))
    raise DataError(
        f"its labels have no number but {' and '.join(sorted(numbers))}, and two codings fit:"
        f" {ways}",
        where=where,
        cure=f"say which, such as `codes: {{label: {{{mapped}}}}}` of a card or `labels` of a"
        " training set, or write the names; for two labels of your own give the study a"
        " `verbalizer` or the card `labels`",
    )


def coding_said(coding: Mapping[str, str]) -> str:
    """Put a coding into words: `0 negative, 1 neutral, 2 positive`."""
    return ", ".join(f"{number} {label}" for number, label in coding.items())


def label_codes(values: pl.Series, *, where: str, labels: Sequence[str]) -> dict[str, str]:
    """Return the label of each spelling in a column: of its name, and of its number.

    Numbers are from 0, in the order of `labels`; those of sentiment are as `sentiment_coding`, and
    a `CodingWarning` says so if they are -1, 0 and 1.
    """
    spellings = label_spellings(labels)
    if tuple(labels) != LABELS:
        return spellings
    words = as_text(values, where=where).drop_nulls().str.strip_chars().unique().to_list()
    coding = sentiment_coding(words, where=where)
    if "-1" not in coding:
        return spellings
    said = f"{where}: {values.name} is read as {coding_said(coding)}"
    warnings.warn(said, CodingWarning, stacklevel=2)
    return {**{label: label for label in labels}, **coding}


def label_numbers(
    values: pl.Series,
    *,
    where: str,
    labels: Sequence[str] = LABELS,
    codes: Mapping[str, str] | None = None,
) -> pl.Series:
    """Return the number of each label (its index in `labels`), in the type of schema.SENTENCES.

    labels: of the study, in order.
    codes: the label of each value of the file; by default as `label_codes`.
    Raises DataError: a value that is no label, or numbers that fit two codings.
    """
    written = filled(values, where=where).str.strip_chars()
    spellings = codes or label_codes(written, where=where, labels=labels)
    known = {text.strip().lower(): label for text, label in spellings.items()}
    numbers = written.str.to_lowercase().replace_strict(
        {text: labels.index(label) for text, label in known.items()},
        default=None,
        return_dtype=pl.Schema(SENTENCES)["label"],
    )
    shown = ", ".join([*known][:_SHOWN]) + ", ..." * (len(known) > _SHOWN)
    refuse(numbers.is_null(), written, f"is none of {shown}", where, _LABEL_CURE)
    return numbers


def distinct(values: pl.Series, *, where: str) -> None:
    """Refuse a column with a repeated value; the `DataError` names both rows."""

    def repeated(row: int) -> str:
        first = (values == values[row]).arg_true()[0] + 1
        return f"{values.name} {values[row]!r} is already in row {first}"

    cure = "give every row its own, or leave the column out"
    refuse(~values.is_first_distinct(), values, repeated, where, cure)


def whole(values: pl.Series, sheet: pl.Series, *, where: str, cure: str) -> None:
    """Refuse values that are not those of a sheet, once each (`DataError`)."""
    distinct(values, where=where)
    refuse(~values.is_in(sheet.to_list()), values, "is not in the sheet", where, cure)
    if missing := sheet.filter(~sheet.is_in(values.to_list())).to_list():
        problem = f"lacks {values.name} {missing[0]!r} ({len(missing)} of {len(sheet)})"
        raise DataError(problem, where=where, cure=cure)


def among(values: pl.Series, known: Sequence[str], *, where: str, cure: str) -> None:
    """Refuse a column of text with a value that is not known."""
    unknown = ~values.is_in(known).fill_null(False)
    refuse(unknown, values, f"is none of {', '.join(known)}", where, cure)


def checked(
    frame: pl.DataFrame,
    columns: Iterable[Column],
    *,
    where: str,
    labels: Sequence[str] = LABELS,
    codes: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Check a user's own table; return its known columns, and those with a default or number.

    Columns are known whatever their capitals and the blanks around them. `DataError` names the row:
    no rows, a missing column, or a wrong value. `labels` and `codes` are as for `label_numbers`.
    """
    if frame.is_empty():
        raise DataError("holds no rows", where=where)
    columns = list(columns)
    read_labels = partial(label_numbers, where=where, labels=labels, codes=codes)
    known = [each.name for each in columns]
    frame = frame.rename(match_columns(frame.columns, known, where))
    found, stem = [], where.partition("?")[0].rpartition("/")[2].partition(".")[0]
    for each in columns:
        if each.needed or each.name in frame.columns:
            found.append(_checked(column(frame, each.name, where=where), each, where, read_labels))
        elif each.unique:
            numbers = [f"{stem}/{row:05d}" for row in range(len(frame))]
            found.append(pl.Series(each.name, numbers, pl.String))
        elif each.default is not None:
            found.append(pl.Series(each.name, [each.default]).new_from_index(0, len(frame)))
    return pl.DataFrame(found)


def _checked(
    values: pl.Series, known: Column, where: str, read_labels: Callable[[pl.Series], pl.Series]
) -> pl.Series:
    if known.several:
        if not isinstance(values.dtype, pl.List):
            raise DataError(
                f"{values.name} is {values.dtype}, not a list",
                where=where,
                cure="give a card that names the column of each",
            )
        return values.cast(pl.List(pl.String))
    if known.labels:
        return read_labels(values)
    if not known.filled:
        text = as_text(values, where=where)
        return text if known.default is None else text.fill_null(known.default)
    text = filled(values, where=where)
    if known.among:
        among(text, known.among, where=where, cure=known.cure)
    if known.unique:
        distinct(text, where=where)
    return text


def as_table(frame: pl.DataFrame, schema: pa.Schema, *, where: str) -> pl.DataFrame:
    """Select the columns of a schema with its types; `DataError`: missing or another type."""
    for name in schema.names:
        column(frame, name, where=where)
    try:
        return frame.select(schema.names).cast(pl.Schema(schema))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"a column has the wrong type ({said_by(error)})", where=where) from error


def needed(data: str | None, *, where: str) -> str:
    """Return `data` of a section; `DataError` where it is not given."""
    if not data:
        raise DataError("needs `data`", where=where, cure="say where its files are")
    return data


def choose(wanted: Iterable[str], known: Iterable[str], *, where: str) -> list[str]:
    """Return the wanted attributes; `DataError` for one that is not known."""
    there = list(known)
    chosen = list(wanted)
    for name in chosen:
        if name not in there:
            raise DataError(
                f"no attribute {name!r}", where=where, cure=f"choose from {', '.join(there)}"
            )
    return chosen


Row = dict[str, str]


def attribute_name(category: str) -> str:
    """Return our name of a published category: `grouped_race` and `race` are `race`."""
    plain = category.removeprefix("grouped_")
    return "nationality" if plain == "country_by_gdp_ppp_quantile" else plain


def read_lines(store: Store, name: str) -> list[str]:
    """Read the lines of one file; only line feeds end one, for tweets hold other separators.

    Raises DataError: an empty file.
    """
    lines = [line.removesuffix("\r") for line in store.read_text(name).split("\n")]
    if lines == [""]:
        raise DataError("holds no rows", where=store.uri_of(name))
    return lines[:-1] if lines[-1] == "" else lines


def read_records(store: Store, name: str, *, columns: Iterable[str]) -> list[Row]:
    """Read the rows of a table, empty cells as empty text; `DataError` names a column it lacks."""
    frame = read_frame(store, name)
    for each in columns:
        column(frame, each, where=store.uri_of(name))
    return frame.select(pl.all().fill_null("")).to_dicts()


def read_samples(store: Store, name: str) -> Iterator[list[str]]:
    """Yield the place, label, category, group and text of a published expansion, no header."""
    for number, line in enumerate(read_lines(store, name), start=1):
        where = f"{store.uri_of(name)} row {number}"
        fields = line.split("\t")
        if len(fields) != 4:
            raise DataError(f"has {len(fields)} fields, not 4", where=where)
        yield [where, *fields]
