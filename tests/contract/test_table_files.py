"""Tables as files: no cell is a formula to a spreadsheet, and what was written is read again."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raybias
from raybias import memory_limits
from raybias.errors import DataError
from raybias.storage import Store
from raybias.table_files import columns_of, csv_text, match_columns, read_frame
from support.hostile import WORDS
from support.stats_data import read_predictions

#: A text with a NUL is refused.
CELLS = (
    st.none() | WORDS.filter(lambda word: "\0" not in word) | st.text("='+-@\t\r\n0aé", max_size=4)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(CELLS, min_size=1, max_size=8))
def test_text_is_read_as_it_was_written(tmp_path: Path, cells: list[str | None]) -> None:
    store = Store(tmp_path)
    frame = pl.DataFrame(
        {"text": cells, "n": list(range(len(cells)))}, {"text": pl.String, "n": int}
    )
    store.write_text("x.csv", csv_text(frame))
    assert read_frame(store, "x.csv")["text"].to_list() == cells


def test_a_nul_is_written_so_that_the_table_can_be_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_text("x.csv", csv_text(pl.DataFrame({"a": ["\0=1", "b\0"]})))
    assert read_frame(store, "x.csv")["a"].to_list() == [r"\x00=1", r"b\x00"]


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
        ("x.txt", "text", r"none of \.csv, .*\.tsv\.gz, \.jsonl, \.jsonl\.gz and \.parquet"),
        ("x.csv", "a,b\n\xff,1\n", "cannot be read as a table of UTF-8 text"),
        ("x.csv", "", "is empty; leave it out"),
        ("x.csv", "a,b\n1,2\n\0,3\n", "x.csv, line 3: has a NUL in its text"),
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


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.gz", "x.parquet", "x.csv", "zstd.csv"])
def test_a_small_file_that_fills_the_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "MOST_UNPACKED", 2**20)
    store = Store(tmp_path)
    if name.endswith(".parquet"):
        store.write_table(name, pa.table({"text": ["a text of thirty-two characters."] * 2**16}))
    elif name == "zstd.csv":
        store.write_bytes(name, pa.compress(b"a,b\n" * 2**19, "zstd", asbytes=True))
    else:
        store.write_bytes(name, gzip.compress(b'{"a": 1}\n' * 2**17))
    assert (tmp_path / name).stat().st_size < 2**16
    with pytest.raises(DataError, match=r"unpacks to more than .* GiB; give fewer rows, or sev"):
        read_frame(store, name)


def test_compressed_text_is_read_whatever_its_name(tmp_path: Path) -> None:
    text = b"a,b\n1,2\n"
    (tmp_path / "gzip.csv").write_bytes(gzip.compress(text))
    (tmp_path / "zstd.csv").write_bytes(pa.compress(text, "zstd", asbytes=True))
    store = Store(tmp_path)
    for name in ("gzip.csv", "zstd.csv"):
        assert read_frame(store, name).rows() == [("1", "2")]
        cut = (tmp_path / name).read_bytes()[:-6]
        (tmp_path / name).write_bytes(cut)
        with pytest.raises(DataError, match=f"is not a whole {name[:4]} file"):
            read_frame(store, name)


def test_rows_that_this_memory_cannot_hold_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    words = pa.array(["yes"] * 2**17).dictionary_encode()
    store.write_table("x.parquet", pa.table({"group": words, "pred": words}))
    assert (tmp_path / "x.parquet").stat().st_size < 2**11
    monkeypatch.setattr(memory_limits, "free_memory", lambda: 2**24)
    monkeypatch.setattr(memory_limits.pq.ParquetFile, "iter_batches", None)
    with pytest.raises(DataError, match=r"needs about 0.024 GiB of memory, of which 0.016 are"):
        read_frame(store, "x.parquet")


#: Encodings that a byte order mark names, and UTF-8 without one.
ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
CELL = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\x85\u2028\u2029"),
    min_size=1,
    max_size=8,
).filter(lambda text: text.strip("'\ufeff") == text != "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cells=st.lists(CELL, min_size=1, max_size=5),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl"]),
    packed=st.booleans(),
)
def test_text_is_read_in_every_encoding_and_line_end(
    tmp_path: Path, cells: list[str], encoding: str, end: str, ending: str, packed: bool
) -> None:
    frame = pl.DataFrame({"text": cells, "group": ["a"] * len(cells)})
    if ending == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in frame.to_dicts()]
    else:
        lines = csv_text(frame).splitlines()
        if ending == ".tsv":
            lines = frame.write_csv(separator="\t", quote_style="always").splitlines()
    data = ENCODINGS[encoding] + "".join(line + end for line in lines).encode(encoding)
    name = f"x{ending}" + ".gz" * packed
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    store = Store(tmp_path)
    assert columns_of(store, name) == ["text", "group"]
    assert read_frame(store, name)["text"].to_list() == cells


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text,label\na,1\n".encode("utf-16-le"), "without a byte order mark; save it as UTF-8"),
        ("text,label\na,1\n".encode("utf-16-be"), "without a byte order mark; save it as UTF-8"),
        (b"\xff\xfea", "is no UTF-16-LE text .*; save it as UTF-8"),
        (b"\xff\xfe\x00\xd8", "is no UTF-16-LE text .*; save it as UTF-8"),
    ],
)
def test_other_encodings_are_one_line(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_frame(Store(tmp_path), "x.csv")


def spelled(name: str) -> st.SearchStrategy[str]:
    """A name in other capitals, with blanks around."""
    letters = st.tuples(*(st.sampled_from([c.lower(), c.upper()]) for c in name)).map("".join)
    blanks = st.sampled_from(["", " ", "  "])
    return st.tuples(blanks, letters, blanks).map("".join)


@pytest.mark.long
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8
)
@given(
    names=st.tuples(*map(spelled, ("label", "group", "pred"))),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl", ".parquet", ""]),
)
def test_columns_are_known_whatever_their_capitals_and_blanks(
    tmp_path: Path, names: tuple[str, ...], ending: str
) -> None:
    rows = [(1, "a", 1), (0, "a", 1), (1, "b", 0), (0, "b", 0)] * 5
    frame = pl.DataFrame(rows, [*names], orient="row")
    path = tmp_path / f"table{ending}"
    if ending in (".csv", ".tsv"):
        frame.write_csv(path, separator="\t" if ending == ".tsv" else ",")
    elif ending == ".jsonl":
        frame.write_ndjson(path)
    elif ending == ".parquet":
        frame.write_parquet(path)
    wanted = raybias.measure(
        frame.rename(dict(zip(names, ("label", "group", "pred"), strict=True)))
    )
    columns = ["group", "statistic", "score", "value", "low", "high"]
    estimates = raybias.measure(path if ending else frame)
    assert estimates.select(columns).equals(wanted.select(columns))
    by_option = raybias.measure(
        path if ending else frame,
        by=names[1],
        label_column=names[0],
        pred_column=names[2],
    )
    rates, named = (
        table.filter(pl.col("group").is_in(["a", "b"]), statistic="rate").sort("group", "score")
        for table in (wanted, by_option)
    )
    assert rates.height
    assert named.select(columns).equals(rates.select(columns))


def test_a_column_that_two_names_could_be_is_refused() -> None:
    with pytest.raises(
        DataError, match="has the columns 'Label' and ' label', either of which may"
    ):
        match_columns(["Label", " label"], ["label"], "x.csv")
    assert match_columns(["Label", "label"], ["label"], "x.csv") == {}
    assert match_columns(["Label", "LABEL"], ["label"], "x.csv", taken=["LABEL"]) == {
        "Label": "label"
    }
