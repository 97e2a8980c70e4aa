"""Read Kohankhaki2024's table of predictions: tab-separated, text unquoted, plain or gzipped.

The format has no template column: they are found again from the sentences.
"""

from __future__ import annotations

import io
import re
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.formats.openings import regard_opening
from raybias.stats.recovered_templates import recovered_templates
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
