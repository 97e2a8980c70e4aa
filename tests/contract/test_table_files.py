"""Tables as files: no cell is a formula to a spreadsheet, and what was written is read again."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybias import storage
from raybias.errors import DataError
from raybias.storage import Store
from raybias.table_files import csv_text, read_frame
from support.hostile import WORDS
from support.stats_data import read_predictions

CELLS = st.none() | WORDS | st.text("='+-@\t\r\n0aé", max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(CELLS, min_size=1, max_size=8))
def test_text_is_read_as_it_was_written(tmp_path: Path, cells: list[str | None]) -> None:
    store = Store(tmp_path)
    frame = pl.DataFrame(
        {"text": cells, "n": list(range(len(cells)))}, {"text": pl.String, "n": int}
    )
    store.write_text("x.csv", csv_text(frame))
    assert read_frame(store, "x.csv")["text"].to_list() == cells


def test_no_cell_is_a_formula_and_numbers_stay() -> None:
    frame = pl.DataFrame({"=a": ["=1+1", "-x", "@x", "+1", "\t=1", "a=1", "1-1"], "n": -1.5})
    lines = csv_text(frame).splitlines()
    assert lines[0] == "'=a,n"
    assert lines[1:] == ["'=1+1,-1.5", "'-x,-1.5", "'@x,-1.5", "'+1,-1.5", "'\t=1,-1.5", "a=1,-1.5",
                         "1-1,-1.5"]  # fmt: skip


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_text("long.csv", f"text\n{'x' * 200_000}\n")
    assert read_frame(store, "long.csv")["text"].str.len_chars().to_list() == [200_000]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.parquet", "text", "cannot be read as a Parquet table"),
        ("x.txt", "text", r"none of \.csv, \.csv\.gz, \.tsv, \.jsonl, \.jsonl\.gz and \.parquet"),
        ("x.csv", "a,b\n\xff,1\n", "cannot be read as a table of UTF-8 text"),
        ("x.csv", "", "cannot be read as a table of UTF-8 text"),
        ("x.csv", "a,a\n1,2\n", "has the column a twice"),
        ("x.csv", "a;b\n1;2, 3\n", "its columns are separated by semicolons; write it with commas"),
        ("x.csv", "a\tb\n1\t2\n", "its columns are separated by tabs; write it with commas"),
        ("x.tsv", "a,b\n1,2\n", "its columns are separated by commas; write it with tabs"),
        ("x.csv", "a,b\n1,2,3\n", "more than the header's 2 fields; put text that holds a comma"),
    ],
)
def test_what_is_no_table_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_bytes(name, text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_frame(store, name)
    if name == "x.tsv":
        with pytest.raises(DataError, match=message):
            read_predictions([tmp_path / name])


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.gz", "x.parquet"])
def test_a_small_file_that_fills_the_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_UNPACKED", 2**20)
    store = Store(tmp_path)
    if name.endswith(".parquet"):
        store.write_table(name, pa.table({"text": ["a text of thirty-two characters."] * 2**16}))
    else:
        store.write_bytes(name, gzip.compress(b'{"a": 1}\n' * 2**17))
    assert (tmp_path / name).stat().st_size < 2**16
    with pytest.raises(DataError, match=r"unpacks to more than .* GiB; give fewer rows, or sev"):
        read_frame(store, name)
