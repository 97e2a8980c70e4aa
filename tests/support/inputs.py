"""Hypothesis strategies for input that a user could give by mistake: trees, tables and bytes."""

from __future__ import annotations

import csv
import io
from copy import deepcopy
from datetime import date
from typing import Any, Final

import polars as pl
from hypothesis import strategies as st
from pydantic import BaseModel

from raybias import config

#: Text that means something somewhere, and text that has broken readers before.
_WORDS: Final = (
    *("", " ", "0", "1", "2", "-1", "3", "nan", "inf", "1e400", "True", "null", "original"),
    *("negative", "neutral", "positive", "age", "planted", "file", "hub", "none", "auto", "m"),
    *("a\tb", 'a"b', "a,b", "a\nb", "a\rb", "\ufeff", "\x00", "\u2028", "é", "e\u0301", "😀"),
    *("../up", "/", "s3://bucket/x", "https://127.0.0.1:1/x", "~", "{text}", "{0}", "%s", "[a]"),
    *("formal", "prefix_1", "stereo", "grouped_age", "9" * 40, "a" * 300),
)
WORDS: Final = st.sampled_from(_WORDS) | st.text(max_size=12)
_NUMBERS: Final = st.integers() | st.floats() | st.sampled_from((0, 1, -1, 2, 3, 2**63, 10**30))
_LEAVES: Final = st.none() | st.booleans() | _NUMBERS | WORDS | st.dates()
_VALUES: Final = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def _keys() -> list[str]:
    """Every key that some section of a study has."""
    sections = [each for each in vars(config).values() if isinstance(each, type)]
    return sorted({key for each in sections if issubclass(each, BaseModel)
                   for key in each.model_fields})  # fmt: skip


_KEYS: Final = st.sampled_from(_keys()) | WORDS


@st.composite
def studies(draw: st.DrawFn, tree: dict[str, Any]) -> dict[Any, Any]:
    """A study with up to three keys changed, taken out, renamed or put in."""
    made: dict[Any, Any] = deepcopy(tree)
    for _ in range(draw(st.integers(0, 3))):
        node: Any = made
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
                continue
            match draw(st.sampled_from(("change", "change", "drop", "rename", "add"))):
                case "change":
                    node[key] = draw(_VALUES)
                case "drop":
                    del node[key]
                case "rename" if isinstance(node, dict):
                    node[draw(_KEYS)] = node.pop(key)
                case _ if isinstance(node, dict):
                    node[draw(_KEYS)] = draw(_VALUES)
                case _:
                    node.append(draw(_VALUES))
            break
    return made


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A file with up to four places of it flipped, overwritten, cut out, doubled or cut off."""
    made = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, len(made)))
        last = min(len(made), first + draw(st.integers(0, 8)))
        match draw(st.sampled_from(("flip", "write", "text", "cut", "double", "end"))):
            case "flip" if first < len(made):
                made[first] ^= 1 << draw(st.integers(0, 7))
            case "write":
                made[first:last] = draw(st.binary(max_size=8))
            case "text":
                made[first:last] = draw(WORDS).encode("utf-8", "replace")
            case "cut":
                del made[first:last]
            case "double":
                made[first:first] = made[first:last]
            case "end":
                del made[first:]
    return bytes(made)


_TYPED: Final[tuple[tuple[Any, st.SearchStrategy[Any]], ...]] = (
    (pl.String, WORDS),
    (pl.Categorical, WORDS),
    (pl.Int8, st.integers(-3, 3)),
    (pl.UInt64, st.integers(0, 2**63)),
    (pl.Float64, st.floats()),
    (pl.Boolean, st.booleans()),
    (pl.Date, st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    (pl.Binary, st.binary(max_size=4)),
    (pl.List(pl.Float32), st.lists(st.floats(width=32), max_size=3)),
    (pl.Struct({"a": pl.Int64}), st.fixed_dictionaries({"a": st.integers(-3, 3)})),
    (pl.Null, st.none()),
)


@st.composite
def tables(draw: st.DrawFn, table: pl.DataFrame) -> pl.DataFrame:
    """A table with up to three columns or cells changed, taken out or renamed."""
    made = table
    for _ in range(draw(st.integers(0, 3))):
        if not made.width:
            break
        name = draw(st.sampled_from(made.columns))
        match draw(st.sampled_from(("cell", "cell", "column", "drop", "rename", "rows"))):
            case "cell" if made.height and not made.schema[name].is_nested():
                row = draw(st.integers(0, made.height - 1))
                value = draw(st.none() | st.sampled_from(made[name].to_list()) | WORDS)
                cells: list[Any] = made[name].to_list()
                cells[row] = value
                kind = made.schema[name]
                made = made.with_columns(pl.Series(name, cells, kind, strict=False))
            case "column":
                kind, values = draw(st.sampled_from(_TYPED))
                some = draw(st.lists(st.none() | values, min_size=1, max_size=4))
                cells = (some * made.height)[: made.height]
                made = made.with_columns(pl.Series(name, cells, kind, strict=False))
            case "drop":
                made = made.drop(name)
            case "rename":
                other = draw(st.sampled_from(table.columns) | WORDS)
                if other not in made.columns:
                    made = made.rename({name: other})
            case _:
                first, count = draw(st.integers(0, made.height)), draw(st.integers(0, made.height))
                made = pl.concat([made, made[first : first + count]])
    return made


def csv_bytes(table: pl.DataFrame, *, separator: str = ",") -> bytes:
    """A table as a spreadsheet program writes it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator)
    writer.writerow(table.columns)
    writer.writerows(table.rows())
    return text.getvalue().encode("utf-8", "replace")


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """A table as a Parquet file."""
    data = io.BytesIO()
    table.write_parquet(data)
    return data.getvalue()
