"""Compute the numbers that no change of the code should move, and compare them with stored ones.

    python tests/golden.py [SOURCE ...]            # compares; ends with 1 where a value differs
    python tests/golden.py --write [SOURCE ...]    # stores, for all sources or those named

A fact is one value of one row of a table: `key` holds the row's text columns (`name=value`, sorted
by name; rows with the same key are numbered), `column` the value's column. Missing values (null,
NaN, no text) are not stored, so an absent value equals a missing one. Sources are tiny studies of
every kind of method in this process, the demo, made up tables, logs of other harnesses, and, of
../shared, the published files, a hash of each column of their items, and the memory of every study
in jobs/. Facts are in tests/golden.parquet.

Left out: seconds and the schedule; counts by cell and template, and texts that models write (what
is read from them is there); figures and pages; Ray, endpoints and vLLM; the model that rewrites
sentences; (IA)3, whose kind has LoRA.

A change that renames a table or column says so in `RENAMED`, and stores the values anew once they
were found equal.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

import raybias

sys.path[:0] = [str(Path(__file__).parents[1])]
from support.documents import ROOT  # noqa: E402
from support.golden_sources import SOURCES, skipped  # noqa: E402

#: What today's tables and columns were called when they were stored: (source, table, column) ->
#: (table, column). A source is one of SOURCES, a part of it (`published: bbq`), or "*" for any; the
#: column "*" renames the table alone.
RENAMED: Final[Mapping[tuple[str, str, str], tuple[str, str]]] = {}

STORED: Final = ROOT / "tests" / "golden.parquet"
PLACE: Final = ("source", "table", "key", "column")
#: Text columns that are results, and so no part of a row's key.
RESULTS: Final = frozenset(
    ("reason", "no_verdict", "verdict", "levels", "exceptions", "reading", "stop_reason", "unread",
     "hash", "still")
)  # fmt: skip
#: Columns that tell time, or hold texts of a model.
DROPPED: Final = frozenset(("seconds", "adapter", "answer", "text"))
TABLES_DROPPED: Final = frozenset(("schedule", "cells", "by_template", "notes"))


def facts_of(name: str) -> pl.DataFrame:
    """Compute the facts of a source: PLACE, `number` and `text`, one of which is null."""
    parts = []
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory(prefix="golden") as folder:
            for part, tables in SOURCES[name].tables(Path(folder)):
                source = f"{name}: {part}"
                parts += [_facts(source, table, frame) for table, frame in tables.items()
                          if frame.height and table not in TABLES_DROPPED]  # fmt: skip
    return pl.concat(parts).sort(PLACE)


def _facts(source: str, table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Take a table apart into facts."""
    today = table
    for (where, now, column), (then, name) in RENAMED.items():
        if now == today and where in (source, source.partition(":")[0], "*"):
            frame = frame if column == "*" else frame.rename({column: name}, strict=False)
            table = then
    frame = _without_lists(frame.drop(DROPPED, strict=False))
    words = sorted({*frame.select(pl.col(pl.String)).columns} - RESULTS)
    shown = [pl.when(pl.col(name) != "").then(pl.format(name + "={}", name)) for name in words]
    number = pl.int_range(pl.len()).over("key") + 1
    numbered = pl.when(number > 1).then(pl.format("{} #{}", "key", number)).otherwise("key")
    rows = frame.with_columns(
        key=pl.concat_str(shown, separator=" ", ignore_nulls=True) if shown else pl.lit("")
    ).with_columns(numbered.alias("key"))
    texts = [name for name in frame.columns if name in RESULTS]
    numbers = [name for name in frame.columns if name not in (*words, *texts)]
    found = [
        rows.select("key", pl.col(numbers).cast(pl.Float64).fill_nan(None))
        .unpivot(index="key", variable_name="column", value_name="number")
        .with_columns(text=pl.lit(None, pl.String)),
        rows.select("key", pl.col(texts).cast(pl.String))
        .unpivot(index="key", variable_name="column", value_name="text")
        .with_columns(number=pl.lit(None, pl.Float64)),
    ]
    rest = pl.lit(source).alias("source"), pl.lit(table).alias("table")
    facts = pl.concat(found, how="diagonal_relaxed").select(
        *rest, "key", "column", "number", "text"
    )
    return facts.filter(pl.col("number").is_not_null() | (pl.col("text") != ""))


def _without_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Give each place of a list a column of its own."""
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.List):
            longest = int(frame[name].list.len().max() or 0)
            places = [pl.col(name).list.get(n, null_on_oob=True).alias(f"{name}[{n}]")
                      for n in range(longest)]  # fmt: skip
            frame = frame.with_columns(places).drop(name)
    return frame


def stored(name: str) -> pl.DataFrame:
    """Read the stored facts of a source."""
    return pl.read_parquet(STORED).filter(pl.col("source").str.starts_with(f"{name}: "))


def differences(name: str, old: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return the facts that differ: PLACE, `old` and `new`."""
    both = old.join(found, on=PLACE, how="full", coalesce=True, suffix="_new").sort(PLACE)
    one, other = (both[column].fill_null(np.nan).to_numpy() for column in ("number", "number_new"))
    tolerance = SOURCES[name].tolerance
    # A difference near 0 keeps the rounding of what it is made of; scores that are probabilities
    # are small without it.
    least = np.where((both["table"] == "answers: pair_scores").to_numpy(), 0.0, 0.1)
    near = np.isclose(other, one, rtol=tolerance, atol=tolerance * least, equal_nan=True)
    alike = pl.Series(near) & both["text"].eq_missing(both["text_new"])
    shown = {
        "old": pl.coalesce(pl.col("number").cast(pl.String), "text"),
        "new": pl.coalesce(pl.col("number_new").cast(pl.String), "text_new"),
    }
    return both.filter(~alike).select(*PLACE, **shown)


def main(arguments: list[str]) -> int:
    """Compare or store the sources that are named, by default all."""
    write = "--write" in arguments
    names = [each for each in arguments if each != "--write"] or list(SOURCES)
    if unknown := [name for name in names if name not in SOURCES]:
        print(f"golden: no source {unknown[0]!r}; there are {', '.join(SOURCES)}")
        return 2
    if Path(raybias.__file__).parents[1] != ROOT:
        print(f"golden: raybias is imported from {raybias.__file__}; set PYTHONPATH to {ROOT}")
        return 2
    kept, equal, apart = {}, 0, []
    for name in names:
        if why := skipped(name):
            print(f"{name}: skipped, since {why}")
            continue
        begun = time.monotonic()
        kept[name] = found = facts_of(name)
        print(f"{name}: {found.height:,} values, {time.monotonic() - begun:.1f} s")
        if not write:
            apart.append(differences(name, stored(name), found))
            equal += found.height
    if write:
        others = [] if not STORED.exists() else [pl.read_parquet(STORED).filter(
            ~pl.col("source").str.split(": ").list.first().is_in([*kept]))]  # fmt: skip
        facts = pl.concat([*others, *kept.values()]).sort(PLACE)
        facts.write_parquet(STORED, compression="zstd", compression_level=19)
        print(f"golden: stored {facts.height:,} values, {STORED.stat().st_size / 1024:,.0f} KiB")
        return 0
    wrong = pl.concat(apart) if apart else pl.DataFrame()
    for row in wrong.head(20).iter_rows(named=True):
        print("  ".join(f"{name}: {value}" for name, value in row.items()))
    if wrong.height:
        print(f"golden: {wrong.height:,} values differ")
        return 1
    print(f"golden: {equal:,} values equal in {len(kept)} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
