"""Zhao2025's printed tables, judged by themselves (benchmarks/printed_tables.py)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from benchmarks.printed_tables import check_published, read_tables, said, trends


def test_the_printed_tables_judged_by_themselves(shared: Path) -> None:
    tables = read_tables(shared / "paper_tables")
    checks, rows = check_published(tables)
    assert [(each.table, each.holds, each.of) for each in checks] == [
        ("Tables 10-17", 576, 576),
        ("Table 3", 95, 96),
        ("Tables 8 and 9", 24, 25),
        ("Tables 8 and 9", 44, 47),
        ("Table 2", 63, 64),
        ("Table 2", 27, 64),
        ("Table 2", 32, 64),
        ("Tables 6 and 7", 13, 15),
    ]
    output = "\n".join(said(checks))
    for exception in (
        "GPT-2 original type1: printed 4.03, is 4.00",
        "OPT-6.7B prefix1: printed 67.31, is 67.64",
        "OPT-2.7B formal: printed -6.33 not bold, z -3.59",
        "informal_stereo and formal_anti",
    ):
        assert f"  not {exception}" in output
    detail = rows["published_tables10_17"]
    assert (detail.height, detail.filter(pl.col("signed") < -1e-9).height) == (576, 39)
    assert rows["published_table3"].height == 96
    assert rows["published_tables8_9"].height == 72
    sizes = trends(tables, {"GPT-2": 124e6})
    assert sizes["n"].unique().to_list() == [8]
    assert sizes.filter(pl.col("p") <= 0.05).height == 22
    assert sizes.filter(pl.col("q") <= 0.05).height == 0
