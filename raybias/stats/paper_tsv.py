"""Read Kohankhaki2024's table of predictions: tab-separated, text unquoted, plain or gzipped.

The format has no template column: they are found again from the sentences. Sentences of one
template differ in one run of words, the term. So a template is what is left and right of a term,
and its sentences, which have one label, name every group of the attribute. Of the spans of a
sentence for which that is so, the shortest is its term.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.formats.openings import regard_opening
from raybias.table_files import check_separator, refuse, unzipped

_CURE: Final = "mend the row or leave it out"
#: Kohankhaki2024's output columns, without the three accuracies that some of its files add.
COLUMNS: Final = (
    "y_true", "y_pred", "category", "group", "text", "model", "run_id", "dataset", "num_params",
)  # fmt: skip

#: Kohankhaki2024's files are named by the probe they hold; other names say nothing of it.
_PROBE_NAME: Final = re.compile(r"^(amazon|regard|ns)[-_ ]", re.IGNORECASE)

#: Begins the categories of attributes but `names_gender`.
PREFIX: Final = "grouped_"


def read_paper_tsv(data: bytes, *, name: str, where: str) -> pl.DataFrame:
    """Read one file of Kohankhaki2024's format into schema.PREDICTIONS.

    `item_id` is the attribute and the row's place within its run; `probe` is told by a
    file name such as `regard_opt-125m.tsv`, else empty; `method` is "published".

    Parameters
    ----------
    data: the file's bytes, gzipped where `name` ends in .gz.
    where: the file's path, for messages.

    Raises
    ------
    DataError: not gzip, empty, a missing column, a line with another number of fields,
        a label that is not 0, 1 or 2, or an empty field.
    """
    table = _numbers(_table(unzipped(data, name, where), where), where)
    known = _PROBE_NAME.match(name)
    runs = ("model", "dataset", "run_id", "category")
    attribute = pl.col("category").str.strip_prefix(PREFIX)
    place = pl.int_range(pl.len()).over(runs).cast(pl.String).str.zfill(6)
    frame = table.with_columns(
        attribute=attribute,
        method=pl.lit("published"),
        probe=pl.lit(known.group(1).lower() if known else ""),
        style=pl.lit("original"),
        item_id=attribute + "." + place,
        label="y_true",
        pred="y_pred",
        scores=pl.lit(None, pl.List(pl.Float32)),
        parsed=pl.lit(True),
        unread=pl.lit(None, pl.String),
        answer=pl.lit(None, pl.String),
    )
    frame = pl.concat([frame, recovered_templates(frame)], how="horizontal")
    continued = pl.when(probe="regard").then(regard_opening("text"))
    return frame.with_columns(family=continued).select(
        pl.col(column).cast(dtype) for column, dtype in pl.Schema(schema.PREDICTIONS).items()
    )


def _table(data: bytes, where: str) -> pl.DataFrame:
    # Published files leave out trailing fields; Polars would also fill the needed ones.
    header, *lines = data.rstrip(b"\r\n").split(b"\n")
    names = header.decode("utf-8", "replace").rstrip("\r").split("\t")
    check_separator(names, "\t", where)
    missing = [column for column in COLUMNS[:-1] if column not in names]
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            cure=f"Kohankhaki2024's header is {', '.join(COLUMNS)}",
        )
    if not lines:
        raise DataError("has a header and no predictions", where=where, cure="leave it out")
    needed = 1 + max(names.index(column) for column in COLUMNS[:-1])
    for number, line in enumerate(lines, start=2):
        fields = line.count(b"\t") + 1
        if not needed <= fields <= len(names):
            raise DataError(
                f"has {fields} fields of the header's {len(names)}",
                where=f"{where}, line {number}",
                cure="fields are separated by single tabs and never quoted",
            )
    try:
        return pl.read_csv(
            io.BytesIO(data), separator="\t", quote_char=None, infer_schema=False
        ).select(COLUMNS[:-1])
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read ({error})", where=where, cure="save it as UTF-8"
        ) from error


def _numbers(table: pl.DataFrame, where: str) -> pl.DataFrame:
    for column in COLUMNS[2:4] + COLUMNS[5:7]:
        empty = table[column].is_null() | (table[column].str.strip_chars() == "")
        refuse(empty, table[column], "is empty", where, _CURE)
    numbers = table.with_columns(pl.col("y_true", "y_pred").cast(pl.Float64, strict=False))
    for column in COLUMNS[:2]:
        wrong = ~numbers[column].is_in([float(label) for label in schema.Label]).fill_null(False)
        refuse(wrong, table[column], "is not 0, 1 or 2", where, _CURE)
    return numbers.with_columns(pl.col("dataset").fill_null(""), pl.col("text").fill_null(""))


#: The most words of a term.
_LONGEST: Final = 6
#: Parts a term's last word from what does not belong to it: `Mary's`, `asian.`
_END: Final = re.compile(r"(.*?)((?:'s)?\W*)$")
#: Terms must stand in this share of the templates on average, else they are phrases, not words.
_SHARED: Final = 0.5

#: group, label, text
_Sentence = tuple[str, int, str]
#: The template and its term.
_Parts = tuple[str, str | None]


def recovered_templates(sentences: pl.DataFrame) -> pl.DataFrame:
    """Find the template and the term of each sentence.

    Parameters
    ----------
    sentences: attribute, group, label, text.

    Returns
    -------
    template_id (the sentence with {term} in its place) and term (lower case), a row for each;
    null for attributes that have a sentence without a template, one group or one template.
    """
    columns = ["attribute", "group", "label", "text"]
    distinct = sentences.select(columns).unique(maintain_order=True)
    rows = []
    for (attribute,), part in distinct.group_by(["attribute"], maintain_order=True):
        found = _recovered(tuple(part.select(columns[1:]).sort(columns[1:]).iter_rows()))
        rows += [(attribute, *sentence, *parts) for sentence, parts in found.items()]
    types = {**{name: sentences.schema[name] for name in columns},
             "template_id": pl.String(), "term": pl.String()}  # fmt: skip
    table = pl.DataFrame(rows, types, orient="row")
    joined = sentences.join(table, on=columns, how="left", maintain_order="left")
    return joined.select("template_id", "term")


# Each model's file holds the same sentences.
@lru_cache(maxsize=32)
def _recovered(sentences: tuple[_Sentence, ...]) -> dict[_Sentence, _Parts]:
    every = {group for group, _, _ in sentences}
    groups: dict[tuple[int, str], set[str]] = defaultdict(set)
    for group, label, text in sentences:
        for template, _ in _spans(text):
            groups[label, template].add(group)
    found: dict[_Sentence, _Parts] = {}
    for sentence in sentences:
        _, label, text = sentence
        named = (parts for parts in _spans(text) if groups[label, parts[0]] == every)
        parts = next(named, None)
        if parts is None:
            return {}
        found[sentence] = parts
    templates, terms = ({parts[side] for parts in found.values()} for side in (0, 1))
    if len(every) < 2 or len(templates) < 2:
        return {}
    share = len(set(found.values())) / len(templates) / len(terms)
    return found if share >= _SHARED else {key: (t, None) for key, (t, _) in found.items()}


def _spans(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is around a span and the span, without an article before it, short ones first."""
    words = text.split(" ")
    for size in range(1, _LONGEST + 1):
        for start in range(len(words) - size + 1):
            end = start + size
            left = words[:start]
            if left and left[-1].lower() in ("a", "an"):
                left = left[:-1]
            last, rest = _END.fullmatch(words[end - 1]).groups()  # type: ignore[union-attr]
            term = " ".join([*words[start : end - 1], last])
            yield " ".join([*left, f"{{term}}{rest}", *words[end:]]), term.lower()
