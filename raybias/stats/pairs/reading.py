"""Read score files: pair scores and coreference answers, and printed tables of a paper.

What a file holds is told by its columns. Every row is checked where it is read, so that a
wrong value is named with its file and row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import polars as pl
import pyarrow as pa

from raybias import registry, schema
from raybias.errors import DataError
from raybias.formats.lm_eval import pair_sample
from raybias.stats.pairs.outcomes import (
    CONDITIONS,
    DIRECTIONS,
    ORIGINAL,
    coreference_outcomes,
    pair_outcomes,
)
from raybias.stats.predictions import Source
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame, refuse, unzipped

_MEND: Final = "mend the row or leave it out"
SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
_SAMPLES: Final = (".jsonl", ".jsonl.gz")
_TABLES: Final = {"pair_scores": schema.PAIR_SCORES, "answers": schema.COREFERENCE_ANSWERS}
#: What a file of our own may leave out.
_DEFAULTS: Final = {"probe": "", "score": "", "answer": None, "contains": None, "cluster": None,
                    "turned": None, "scores": None, "method": "", "prompt": "",
                    "reference": None, "reading": None}  # fmt: skip
_MAY_BE_MISSING: Final = (
    "preference", "score_more", "score_less", "answer", "contains", "cluster", "pred", "target",
    "scores", "reference", "turned", "reading",
)  # fmt: skip
_ALLOWED: Final[Mapping[str, Collection[str]]] = {
    "style": registry.styles, "direction": DIRECTIONS, "condition": CONDITIONS,
    "context": schema.CONTEXTS, "polarity": schema.POLARITIES, "reading": schema.READINGS,
}  # fmt: skip
_CURES: Final = {"style": "styles are {}", "direction": "directions are {}",
                 "condition": "conditions are {}", "context": "contexts are {}",
                 "polarity": "polarities are {}", "reading": "readings are {}"}  # fmt: skip


@dataclass(frozen=True)
class ScoreFiles:
    """What the files hold: each table is None where no file has it."""

    pair_scores: pl.DataFrame | None = None
    """schema.PAIR_SCORES."""
    answers: pl.DataFrame | None = None
    """schema.COREFERENCE_ANSWERS."""
    printed: dict[str, pl.DataFrame] = field(default_factory=dict)
    """Printed tables by name."""

    @property
    def outcomes(self) -> pl.DataFrame | None:
        """One number per metric, style and pair, of scores and answers; None without either."""
        parts = []
        if self.pair_scores is not None:
            parts.append(pair_outcomes(self.pair_scores))
        if self.answers is not None:
            parts.append(coreference_outcomes(self.answers))
        return pl.concat(parts) if parts else None


def read_score_files(
    paths: Sequence[str | Path], printed: Mapping[str, pl.Schema] = MappingProxyType({})
) -> ScoreFiles:
    """Read and check Parquet and CSV files of scores, answers or printed tables.

    Parameters
    ----------
    paths: files, or folders of them; in a folder files of other tables are passed over. Also
        lm-eval's `samples_crows_pairs*.jsonl`, whose folder names the model.
    printed: columns of printed tables that are read too, by name (`papers.zhao2025.PRINTED`).

    Raises
    ------
    DataError: a missing or unreadable file, missing columns, an unknown style, direction or
        condition, a preference other than 0, 1 or none, a pair repeated, or of a style but
        not of `original`, or of another bias type or cluster there, or a preference that the
        scores contradict.
    """
    found: dict[str, list[pl.DataFrame]] = {}
    suffixes = (*SUFFIXES, *_SAMPLES)
    for source, inside in (each for path in paths for each in sources(path, suffixes)):
        if source.name.endswith(_SAMPLES):
            found.setdefault("pair_scores", []).append(_samples(source))
            continue
        frame = read_frame(source.store, source.name)
        kind = _kind(frame.columns, printed)
        if kind is not None:
            columns = printed.get(kind)
            read = (
                typed(frame, _TABLES[kind], source.uri)
                if columns is None
                else _printed(frame, columns, source.uri)
            )
            found.setdefault(kind, []).append(read)
        elif not inside:
            raise _no_kind(frame.columns, source.uri)
    where = ", ".join(map(str, paths))
    if not found:
        raise DataError(
            "no file holds scores of pairs or answers", where=where,
            cure="give Parquet or CSV files of raybias's pair scores or coreference answers",
        )  # fmt: skip
    joined = {kind: pl.concat(frames) for kind, frames in found.items()}
    if "pair_scores" in joined:
        _check_cells(joined["pair_scores"], ("model", "score", "probe"), ("pair_id",), where)
        _check_pairs(joined["pair_scores"], where)
        _check_preferences(joined["pair_scores"], where)
    if "answers" in joined:
        _check_cells(
            joined["answers"], ("model", "probe"),
            ("wino_type", "prompt", "condition", "pair_id"), where,
        )  # fmt: skip
    return ScoreFiles(joined.pop("pair_scores", None), joined.pop("answers", None), printed=joined)


def holds_scores(path: str | Path) -> bool:
    """Tell whether a file, or the first file of a folder, has the columns of scores or answers."""
    text, suffixes = str(path), (*SUFFIXES, *_SAMPLES)
    if Store(text).is_file() and not text.endswith(suffixes):
        return False
    for source, _ in sources(text, suffixes)[:1]:
        if source.name.endswith(_SAMPLES):
            return True
        return _kind(read_frame(source.store, source.name).columns, {}) is not None
    return False


def sources(path: str | Path, suffixes: tuple[str, ...] = SUFFIXES) -> list[tuple[Source, bool]]:
    """List the files of a path, and whether they were found in a folder.

    Raises
    ------
    DataError: nothing is there, or a file has none of the suffixes.
    """
    path = str(path)
    store = Store(path)
    if store.is_file():
        folder, name = split_uri(path)
        if not name.endswith(suffixes):
            *others, last = suffixes
            raise DataError(f"is neither {', '.join(others)} nor {last}", where=path,
                            cure="give such a file")  # fmt: skip
        return [(Source(folder, name), False)]
    if not store.exists(""):
        raise DataError("is not there", where=path, cure="check the path")
    names = [name for name in store.files(recursive=True) if name.endswith(suffixes)]
    return [(Source(store, name), True) for name in names]


def _samples(source: Source) -> pl.DataFrame:
    """Read lm-eval's samples of CrowS-Pairs; the score is called `lm_eval`."""
    data = unzipped(source.store.read_bytes(source.name), source.name, source.uri)
    folder = source.uri.rpartition("/")[0].rpartition("/")[2]
    rows = [
        {"model": folder, "score": "lm_eval", "probe": "crows_pairs", "style": ORIGINAL,
         **pair_sample(line, f"{source.uri}, line {number}")}
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    ]  # fmt: skip
    return typed(pl.DataFrame(rows), schema.PAIR_SCORES, source.uri)


def _kind(columns: Sequence[str], printed: Mapping[str, pl.Schema]) -> str | None:
    present = set(columns)
    for kind, table in _TABLES.items():
        if {*required(table)} <= present:
            return kind
    return next((kind for kind, types in printed.items() if {*types} <= present), None)


def required(table: pa.Schema) -> list[str]:
    """List the columns that a file of this table must have."""
    return [name for name in table.names if name not in _DEFAULTS]


def _no_kind(columns: Sequence[str], where: str) -> DataError:
    """Name what the nearest kind of table lacks."""
    needed = {kind: required(table) for kind, table in _TABLES.items()}
    gaps = {kind: [n for n in names if n not in columns] for kind, names in needed.items()}
    kind = min(gaps, key=lambda each: len(gaps[each]) / len(needed[each]))
    missing = gaps[kind]
    called = {"pair_scores": "pair scores", "answers": "coreference answers"}[kind]
    return DataError(
        f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
        where=where,
        cure=f"{called} need {', '.join(needed[kind])}",
    )


def typed(frame: pl.DataFrame, table: pa.Schema, where: str) -> pl.DataFrame:
    """Cast and check the columns of a table; `DataError` names the first wrong row.

    Parameters
    ----------
    frame: has them all, but for those that may be left out.
    """
    types = pl.Schema(table)
    if not frame.height:
        raise DataError("holds no rows", where=where, cure="leave it out")
    filled = frame.with_columns(
        pl.lit(value, types[name]).alias(name)
        for name, value in _DEFAULTS.items()
        if name in types and name not in frame.columns
    )
    columns = []
    for name, dtype in types.items():
        column = _cast(filled[name], dtype, where)
        if name not in _MAY_BE_MISSING:
            refuse(column.is_null(), column, "is missing", where, _MEND)
        if name in _ALLOWED:
            allowed = list(_ALLOWED[name])
            refuse(~column.is_in(allowed), column, "is not known", where,
                    _CURES[name].format(", ".join(allowed)))  # fmt: skip
        if name == "preference":
            refuse(
                ~column.is_in([0, 1]).fill_null(True),
                column,
                "is not 0, 1 or none",
                where,
                "1 where sent_more scores higher, 0 where sent_less does, empty for a tie",
            )
        if dtype == pl.Int8:
            refuse((column < 0).fill_null(False), column, "is negative", where, _MEND)
        columns.append(column)
    return pl.DataFrame(columns)


def _printed(frame: pl.DataFrame, types: pl.Schema, where: str) -> pl.DataFrame:
    if not frame.height:
        raise DataError("holds no rows", where=where, cure="leave it out")
    table = pl.DataFrame([_cast(frame[name], dtype, where) for name, dtype in types.items()])
    for name in types:
        if table[name].dtype == pl.String:
            refuse(table[name].is_null(), table[name], "is missing", where, _MEND)
    return table


def _cast(column: pl.Series, dtype: pl.DataType, where: str) -> pl.Series:
    text = column.dtype == pl.String
    if text and dtype == pl.Boolean:
        lower = column.str.to_lowercase()
        cast = lower.replace_strict({"true": True, "1": True, "false": False, "0": False},
                                    default=None, return_dtype=pl.Boolean)  # fmt: skip
    else:
        try:
            cast = column.cast(dtype, strict=False)
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"{column.name} is {column.dtype}, not {_called(dtype)}", where=where,
                cure="write it again",
            ) from error  # fmt: skip
    lost = cast.is_null() & column.is_not_null()
    if text and dtype != pl.String:
        lost &= column != ""
    if column.dtype.is_float() and dtype.is_integer():
        lost |= cast != column
    refuse(lost, column, f"is no {_called(dtype)}", where, "mend the row")
    if not cast.dtype.is_float():
        return cast
    refuse(cast.is_infinite().fill_null(False), column, "is not finite", where,
            "mend the row; leave a score empty that there is not")  # fmt: skip
    return cast.fill_nan(None)


def _called(dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "true or false"
    return "number" if dtype.is_numeric() else "text"


def _check_cells(
    frame: pl.DataFrame, metric: Sequence[str], cell: Sequence[str], where: str
) -> None:
    """Refuse a cell given twice, and a style without the same cells under `original`."""
    keys = [*metric, *cell, "style"]
    repeated = frame.filter(pl.struct(keys).is_duplicated()).head(1)
    if repeated.height:
        row = repeated.row(0, named=True)
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} under {row['style']!r} is given more "
            "than once",
            where=where,
            cure="give each pair, style and score once",
        )
    styles = frame.group_by(metric).agg((pl.col("style") == ORIGINAL).any(),
                                        first=pl.col("style").min())  # fmt: skip
    for row in styles.filter(~pl.col("style")).sort(metric).head(1).iter_rows(named=True):
        raise DataError(
            f"{row['model']!r} has the style {row['first']!r} but not {ORIGINAL!r}",
            where=where,
            cure="score the original sentences too; effects are taken from them",
        )
    base = frame.filter(style=ORIGINAL).select(*metric, *cell)
    alone = frame.join(base, on=[*metric, *cell], how="anti").sort(keys).head(1)
    for row in alone.iter_rows(named=True):
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} is there under {row['style']!r} but not "
            f"under {ORIGINAL!r}",
            where=where,
            cure="a style's pairs must be among those of the original",
        )


def _check_preferences(scores: pl.DataFrame, where: str) -> None:
    """Refuse a preference for the side that scores lower; a tie may be of scores that are near."""
    more = pl.when(pl.col("preference") == 1).then("score_more").otherwise("score_less")
    less = pl.when(pl.col("preference") == 1).then("score_less").otherwise("score_more")
    wrong = scores.filter(pl.col("preference").is_not_null(), more < less)
    for row in wrong.head(1).iter_rows(named=True):
        others = f" ({wrong.height} pairs are such)" if wrong.height > 1 else ""
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} under {row['style']!r} has the "
            f"preference {row['preference']} and the scores {row['score_more']:g} and "
            f"{row['score_less']:g}{others}",
            where=where,
            cure="1 where sent_more scores higher, 0 where sent_less does: mend the files",
        )


def _check_pairs(scores: pl.DataFrame, where: str) -> None:
    """Refuse a pair with several bias types, directions or clusters."""
    called = {"bias_type": "bias types", "direction": "directions", "cluster": "clusters"}
    kinds = scores.group_by("probe", "pair_id").agg(pl.col(called).drop_nulls().n_unique())
    split = kinds.filter(pl.any_horizontal(pl.col(called) > 1)).sort("pair_id").head(1)
    for row in split.iter_rows(named=True):
        what = next(text for name, text in called.items() if row[name] > 1)
        raise DataError(
            f"pair {row['pair_id']!r} has different {what}",
            where=where,
            cure="a style changes a pair's wording, not its content: mend the files",
        )
