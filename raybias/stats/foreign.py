"""Read others' predictions: Kohankhaki2024's tab-separated files, and anyone's table.

Kohankhaki2024's format has no template column: a template is the text around a term, and the term
the shortest span for which its sentences have one label and name every group of the attribute.

In anyone's table missing columns are filled in: `model` is the file's name, `attribute` is "group",
an item is named by its place in its run, and `pred` is 1 from a `score` of 0.5 on. Without
templates, source examples are resampled, else blocks of items.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import DataError, said_by
from raybias.formats.openings import REGARD_OPENING
from raybias.stats import sentiment
from raybias.stats.checks import warn
from raybias.stats.classes import CODE, Classes, Positive
from raybias.stats.group_columns import add_groups, check_names
from raybias.stats.label_words import read_classes
from raybias.stats.units import BLOCK, CLUSTER
from raybias.table_files import (
    as_text,
    check_separator,
    conformed,
    need_columns,
    refuse,
    select_columns,
    unpack_text,
)

#: Columns beside those of schema.PREDICTIONS: the score of class 1, and what names the source
#: example of versions that differ in the group alone (else `template_id` does).
EXTRA: Final = pl.Schema({"score": pl.Float64(), "source_id": pl.String()})
_BLOCKS: Final = 1_000
#: Counts of groups by block that are held, 8 MiB for each rate: of more than 1,048 groups there
#: are fewer blocks than a thousand, and no fewer than a hundred.
_GROUPS_BY_BLOCKS: Final = 1 << 20
_LEAST_BLOCKS: Final = 100
_TYPES: Final = pl.Schema({**pl.Schema(schema.PREDICTIONS), **EXTRA})
_CURE: Final = "correct the row or leave it out"


@dataclass(frozen=True)
class Columns:
    """Where a table of others has what predictions need, and how its values are read."""

    label: str = "label"
    pred: str = "pred"
    by: tuple[str, ...] = ()
    """Columns of groups, each an attribute; several are also crossed. By default `group`, of the
    attribute that a column `attribute` names."""
    cut: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The bounds between the groups of columns of numbers."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """How wide the groups of other columns of numbers are."""
    cluster: str = ""
    """A column that says which rows belong together, and are drawn anew together, such as those
    about one person; it goes before template ids."""
    positive: Positive = field(default_factory=Positive)
    """The class, where it is named."""
    only: tuple[str, ...] = ()
    """Columns of predictions to read; by default all."""
    classes: tuple[str, ...] = ()
    """The classes, in the order of their numbers, of a table that is measured by class together
    with others; by default the words of the table."""

    @property
    def named(self) -> list[str]:
        """The columns whose names a user can give."""
        return [*filter(None, (self.label, self.pred, *self.by, self.cluster))]

    @property
    def are_named(self) -> bool:
        """Whether a user says which columns to read, so that the table is not one of ours."""
        named = self.by or self.cluster or (self.label, self.pred) != ("label", "pred")
        return bool(named or self.positive.threshold is not None)

    def used(self, names: Sequence[str], where: str) -> list[str]:
        """Return the columns that are read, of those that a table has.

        Raises DataError: the table lacks a column that is named.
        """
        renamed = [name for name in (self.label, self.pred) if name not in ("label", "pred")]
        units = [self.cluster] if self.cluster and not self.only else []
        for name in (*renamed, *self.by, *units):
            if name not in names:
                raise DataError(
                    f"has no column {name!r}",
                    where=where,
                    cure=f"its columns are {', '.join(names)}",
                )
        filled = {"label": self.label, "pred": self.pred}
        types = [name for name in _TYPES if not (self.by and name in _GROUPS)]
        known = (filled.get(name, name) for name in (self.only or types))
        return [name for name in dict.fromkeys((*known, *self.by, *units)) if name in names]

    @property
    def of_classes(self) -> Columns:
        """Those that say which classes a table has."""
        return replace(self, only=("label", "pred", "score"))


#: Columns that `Columns.by` takes the place of.
_GROUPS: Final = ("attribute", "group")


def classes_in(table: pl.DataFrame, columns: Columns, where: str) -> Classes:
    """Read what the labels and predictions of a table stand for; raises as `plain_predictions`."""
    table = _named(select_columns(table, columns.used(table.columns, where), where), columns, where)
    if not table.height:
        raise DataError("holds no predictions", where=where, cure="leave it out")
    names = {"label": columns.label, "pred": columns.pred}
    return read_classes(table, names, columns.positive, where, columns.classes)


def plain_predictions(
    table: pl.DataFrame, *, name: str, where: str, columns: Columns
) -> pl.DataFrame:
    """Make schema.PREDICTIONS, and the columns of `EXTRA`, of a table.

    It has `label`, `group`, and `pred` or `score`, under the names of `columns`; known columns of
    both schemas are read too. `name` is that of its file. A DataError names a wrong column or row.
    """
    classes = classes_in(table, columns, where)
    table = _named(select_columns(table, columns.used(table.columns, where), where), columns, where)
    there = table.columns
    frame = table.with_columns(*classes.codes.values())
    if classes.names:
        # Only metrics of one class take scores.
        frame = frame.drop("score", "scores", strict=False)
    elif "score" in there:
        frame = frame.with_columns(_score(table, columns, where))
    if "scores" in frame.columns and classes.is_recoded:
        warn(f"{where}: `scores` are not read, since which of them is of the class is not known")
        frame = frame.drop("scores")
    if columns.by:
        frame = add_groups(frame, columns.by, columns.cut, columns.widths, where)
    stem = name.rstrip("/").rpartition("/")[2].split(".")[0]
    for column, default in (("model", stem), ("attribute", "group")):
        if column not in frame.columns:
            frame = frame.with_columns(pl.lit(default).alias(column))
    _refuse_empty(frame, ("model", "attribute", "group"), where)
    frame = check_names(frame, where)
    filled = [
        (
            pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String).alias(name)
        ).fill_null("original" if name == "style" else "")
        for name in ("run_id", "method", "dataset", "probe", "style")
    ]
    frame = frame.with_columns(*filled, parsed=pl.lit(True))
    within = [*schema.KEYS, "attribute"]
    if "item_id" not in there:
        number = pl.int_range(pl.len()).over([*within, "run_id"]).cast(pl.String).str.zfill(9)
        frame = frame.with_columns(item_id=pl.col("attribute") + "." + number)
    known = [unit for unit in ("template_id", "source_id") if unit in there]
    if columns.cluster:
        _refuse_empty(frame, (columns.cluster,), where)
    unit = _clusters(columns.cluster, within) if columns.cluster else unit_of(within, known)
    frame = frame.with_columns(template_id=unit)
    return conformed(frame, _TYPES)


def _named(table: pl.DataFrame, columns: Columns, where: str) -> pl.DataFrame:
    """Give the columns of labels and predictions the names of predictions; refuse what lacks."""
    asked = {"label": columns.label, "pred": columns.pred}
    needed = [name for name, called in asked.items() if called not in table.columns]
    if "pred" in needed:
        needed = [name for name in needed if name != "pred"]
        needed += [] if "score" in table.columns else ["pred (or score)"]
    if not (columns.by or columns.only) and "group" not in table.columns:
        needed.insert(len(needed) and needed[0] == "label", "group")
    need_columns(
        needed,
        (),
        where,
        "predictions need label, group, and pred or score; --label-column, --pred-column and --by "
        "name columns that are called otherwise",
    )
    columns_by_role = {name: pl.col(called) for name, called in asked.items() if called in table}
    return table.with_columns(**columns_by_role)


def _score(table: pl.DataFrame, columns: Columns, where: str) -> pl.Series:
    """Read the score of class 1, a probability unless predictions are made of it by a threshold."""
    column = table["score"]
    score = column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    refuse(~score.is_finite().fill_null(False), column, "is not a number", where, _CURE)
    if columns.positive.threshold is not None and not score.is_between(0, 1).all():
        return pl.Series("score", [None] * len(score), pl.Float64)
    cure = (
        "divide it by the largest; or say from which number on it is of the class: --threshold, "
        "with --pred-column score"
    )
    beyond = ~score.is_between(0, 1)
    refuse(beyond, column, "is no score of class 1: not within 0 and 1", where, cure)
    return score


def unit_of(own: Sequence[str], known: Sequence[str]) -> pl.Expr:
    """Name what is resampled: the first column of `known` whole within `own`, else item blocks."""
    whole = [pl.when((pl.col(name).null_count() == 0).over(own)).then(name) for name in known]
    return pl.coalesce(*whole, pl.lit(BLOCK) + _block("item_id", own))


def _clusters(column: str, own: Sequence[str]) -> pl.Expr:
    """Name the block of a row's cluster: `_BLOCKS` at most, of whole clusters."""
    return pl.lit(CLUSTER) + _block(column, own)


def _block(column: str, own: Sequence[str]) -> pl.Expr:
    """Return the number of a row's block, equal for equal values of a column within `own`."""
    of_groups = _GROUPS_BY_BLOCKS // pl.col("group").n_unique().over(own)
    blocks = of_groups.clip(_LEAST_BLOCKS, _BLOCKS)
    return (pl.col(column).cast(pl.String).rank("dense").over(own) % blocks).cast(pl.String)


#: Kohankhaki2024's output columns, without the three accuracies that some of its files add.
COLUMNS: Final = (
    "y_true", "y_pred", "category", "group", "text", "model", "run_id", "dataset", "num_params",
)  # fmt: skip

#: Of these, the labels, which no other table calls so.
PAPER_LABELS: Final = frozenset(COLUMNS[:2])
#: Kohankhaki2024's files are named by the probe they hold; other names say nothing of it.
_PROBE_NAME: Final = re.compile(r"^(amazon|regard|ns)[-_ ]", re.IGNORECASE)

#: Begins the categories of attributes but `names_gender`.
PREFIX: Final = "grouped_"


def read_paper_tsv(data: bytes, *, name: str, where: str) -> pl.DataFrame:
    """Read one file of Kohankhaki2024's format, gzipped or not, into schema.PREDICTIONS.

    `item_id` is the attribute and the row's place within its run; `probe` is told by a file name
    such as `regard_opt-125m.tsv`, else empty; `method` is "published". A DataError names a wrong
    line or field.
    """
    table = _table(unpack_text(data, name, where), where)
    _refuse_empty(table, COLUMNS[2:4] + COLUMNS[5:7], where)
    known = _PROBE_NAME.match(name)
    runs = ("model", "dataset", "run_id", "category")
    attribute = pl.col("category").str.strip_prefix(PREFIX)
    place = pl.int_range(pl.len()).over(runs).cast(pl.String).str.zfill(6)
    frame = table.with_columns(
        pl.col("dataset", "text").fill_null(""),
        attribute=attribute,
        method=pl.lit("published"),
        probe=pl.lit(known.group(1).lower() if known else ""),
        style=pl.lit("original"),
        item_id=attribute + "." + place,
        label=_label(table["y_true"], table["y_true"], where),
        pred=_label(table["y_pred"], table["y_pred"], where),
        parsed=pl.lit(True),
    )
    frame = check_names(frame, where)
    frame = pl.concat([frame, recovered_templates(frame)], how="horizontal")
    continued = pl.when(probe="regard").then(REGARD_OPENING)
    return conformed(frame.with_columns(family=continued), pl.Schema(schema.PREDICTIONS))


def _table(data: bytes, where: str) -> pl.DataFrame:
    # Published files leave out trailing fields; Polars would also fill the needed ones.
    header, *lines = data.rstrip(b"\r\n").split(b"\n")
    names = header.decode("utf-8", "replace").rstrip("\r").split("\t")
    check_separator(names, "\t", where)
    need_columns(COLUMNS[:-1], names, where, f"Kohankhaki2024's header is {', '.join(COLUMNS)}")
    if twice := [name for name in COLUMNS if names.count(name) > 1]:
        raise DataError(f"has the column {twice[0]} twice", where=where, cure="drop one")
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
            f"cannot be read ({said_by(error)})", where=where, cure="save it as UTF-8"
        ) from error


def _refuse_empty(table: pl.DataFrame, columns: Sequence[str], where: str) -> None:
    for column in columns:
        text = as_text(table[column], where=where)
        refuse(text.is_null() | (text.str.strip_chars() == ""), text, "is empty", where, _CURE)


def _label(text: pl.Series, column: pl.Series, where: str, cure: str = _CURE) -> pl.Series:
    """Read labels from texts; refuse a column's value that is not 0, 1 or 2."""
    number = text.cast(pl.Float64, strict=False)
    known = number.is_in([float(code) for code in range(len(sentiment.NAMES))]).fill_null(False)
    refuse(~known, column, "is not 0, 1 or 2", where, cure)
    return number.cast(CODE)


_LONGEST: Final = 6
#: Parts a term's last word from what does not belong to it: `Mary's`, `asian.`
_END: Final = re.compile(r"(.*?)((?:'s)?\W*)$")
#: Terms must stand in this share of the templates on average, else they are phrases, not words.
_SHARED: Final = 0.5

_Sentence = tuple[str, int, str]
_Parts = tuple[str, str | None]


def recovered_templates(sentences: pl.DataFrame) -> pl.DataFrame:
    """Find the template and the term of each sentence (attribute, group, label, text).

    Gives template_id (the sentence with {term} in its place) and term (lower case), a row for each;
    null for attributes that have a sentence without a template, one group or one template.
    """
    columns = ["attribute", "group", "label", "text"]
    rows: list[tuple[object, ...]] = []
    for (attribute,), part in sentences.select(columns).unique().group_by("attribute"):
        found = _recovered(tuple(part.select(columns[1:]).sort(columns[1:]).iter_rows()))
        rows += ((attribute, *sentence, *parts) for sentence, parts in found.items())
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
