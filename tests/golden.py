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

A change that renames a table or column, or gives a table another shape, says so in `RENAMED` or
`RESHAPED`, which make today's tables those that were stored; the stored file stays as it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

import raybias

sys.path[:0] = [str(Path(__file__).parents[1])]
from support.documents import ROOT  # noqa: E402
from support.golden_names import as_stored  # noqa: E402
from support.golden_sources import SOURCES, Tables, skipped  # noqa: E402

#: What today's tables and columns were called when they were stored: (source, table, column) ->
#: (table, column). A source is one of SOURCES, a part of it (`published: bbq`), or "*" for any; the
#: column "*" renames the table alone.
RENAMED: Final[Mapping[tuple[str, str, str], tuple[str, str]]] = {}
#: By source, what makes today's tables those that were stored, where names are not enough.
RESHAPED: Final[Mapping[str, Callable[[Tables], Tables]]] = {"*": as_stored}
#: What is no longer compared, and why, by (source, table, column); "*" stands for any.
GIVEN_UP: Final[Mapping[tuple[str, str, str], str]] = {
    **{
        ("*", table, "test"): "estimates say what is resampled"
        for table in (
            "bias_scores",
            "style_effects",
            "pairs, paper: bias_scores",
            "pairs, paper: style_effects",
        )
    },
    **{
        ("*", f"{before}style_effects", column): "scores are rows of their own; p is of one test"
        for before in ("", "pairs, paper: ")
        for column in (
            "original",
            "original_low",
            "original_high",
            "value",
            "value_low",
            "value_high",
            "z",
            "z_p",
            "paper",
            "flips",
            "up",
            "down",
            "pairs_needed",
            "significant",
        )
    },
    **{
        ("*", "pairs, paper: style_effects", column): "the paper's test of two proportions"
        for column in ("p_value", "q_value", "survives")
    },
    **{
        ("*", f"{before}stability", column): "scores and effects are rows of their own"
        for before in ("", "pairs, paper: ")
        for column in (
            "n",
            "original",
            "original_low",
            "original_high",
            "lowest",
            "highest",
            "largest_effect",
            "largest_style",
            "smallest_effect",
            "smallest_style",
            "pairs_needed",
            "flip_share",
        )
    },
    **{
        ("*", f"{before}{table}", "n_styles"): "styles are rows of their own"
        for before in ("", "pairs, paper: ")
        for table in ("style_scopes", "variance")
    },
    **{
        ("*", f"{before}table2_summary", "*"): "extremes of the rows of effects"
        for before in ("", "pairs, paper: ")
    },
    **{
        ("*", f"{before}size", column): "sizes of models are in the record"
        for before in ("", "published_")
        for column in ("smallest", "largest")
    },
    ("made_up", "pairs, paper: tables6_7_t_values", "*"): "logarithms of scores are no option",
    **{
        ("*", f"{before}metrics", column): "estimates say what is resampled; a metric its class"
        for before in ("", "metrics: ")
        for column in ("interval", "positive")
    },
    ("published", "published_tables6_7", "*"): "printed values, not computed",
    **{
        ("plans", "layout", column): "packs are chosen by bounds, no longer by simulation"
        for column in ("pack", "sweep_packs", "final_packs", "workers")
    },
}

#: Stages of plans whose packs hold more or fewer runs since they are chosen by bounds, so that
#: memory has other terms: (backbone, method) by source. At the old widths all terms were equal.
REPACKED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "plans: soft_prompt on 8 x 24 GB": (("llama-13b", "soft_prompt"),),
    "plans: soft_prompt on CPUs": tuple(
        (name, "soft_prompt") for name in ("llama-7b", "llama-13b", "opt-6.7b", "opt-13b")
    ),
    "plans: template_probes on 4 x 80 GB": (("Llama-2-13b-hf", "lora"), ("opt-13b", "lora")),
    "plans: template_probes on 8 x 24 GB": (("Llama-2-7b-hf", "lora"), ("opt-6.7b", "lora")),
    "plans: template_probes on CPUs": tuple(
        (name, "lora")
        for name in ("Llama-2-7b-hf", "Meta-Llama-3-8B", "Mistral-7B-v0.1", "opt-6.7b")
    ),
}

#: Rows that are no longer compared, and why: (source, text of the key).
ROWS_GIVEN_UP: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("made_up: files", f"{column}={rate}"): "labels of two classes are not of sentiment"
        for column in ("metric", "other")
        for rate in ("negative_fpr", "positive_fpr")
    },
    ("made_up: files", "metric=all "): "agreement is over fewer metrics of two classes",
    **{
        (source, f"backbone={backbone} method={method} {of}training="): "packs of another width"
        for source, stages in REPACKED.items()
        for backbone, method in stages
        for of in ("", "of=device ", "of=host ")
    },
}

STORED: Final = ROOT / "tests" / "golden.parquet"
PLACE: Final = ("source", "table", "key", "column")
#: Text columns that are results, and so no part of a row's key.
RESULTS: Final = frozenset(
    ("no_verdict", "no_interval", "interval", "note", "lowest", "highest", "lowest_without",
     "highest_without", "carried_by", "largest_style", "smallest_style", "verdict", "needs", "test",
     "levels", "exceptions", "reading", "stop_reason", "unread", "hash")
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
            for part, made in SOURCES[name].tables(Path(folder)):
                source, tables = f"{name}: {part}", made
                for where in (source, name, "*"):
                    tables = RESHAPED[where](tables) if where in RESHAPED else tables
                parts += [_facts(source, table, frame) for table, frame in tables.items()
                          if frame.height and table not in TABLES_DROPPED]  # fmt: skip
    return pl.concat(parts).sort(PLACE)


def _facts(source: str, table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Take a table apart into facts."""
    today = table
    for (where, now, column), (then, name) in RENAMED.items():
        if now == today and _within(source, where):
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


def _within(source: str, where: str) -> bool:
    """Whether a source is the one that is named, one of its parts, or any is meant."""
    return where in (source, source.partition(":")[0], "*")


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
    apart = both.filter(~alike).select(*PLACE, **shown)
    compared = [
        not any(
            _within(source, where) and of in (table, "*") and name in (column, "*")
            for where, of, name in GIVEN_UP
        )
        and not any(where == source and text in key for where, text in ROWS_GIVEN_UP)
        for source, table, key, column, *_ in apart.iter_rows()
    ]
    return apart.filter(pl.Series(compared, dtype=pl.Boolean))


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
