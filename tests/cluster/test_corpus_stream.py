"""Counting on real Ray: the same counts however a corpus is stored and cut (about 15 s)."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybias.cli import main
from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes.corpus import Vocabulary, counts, find, vocabularies
from raybias.runtime.corpus import corpus_counts
from raybias.schema import CORPUS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

KNOWN = [
    Vocabulary("race", (("african_american", "black"), ("white", "white")), ("family", "person")),
    Vocabulary("age", (("old", "old"),), ("person",)),
]


def documents() -> list[str]:
    """300 lines, long and short, some empty, one longer than any piece, with known counts."""
    kinds = ["Black people sang.", "a white person", "old people", "the family", "", "é ü — x"]
    lines = [kind for kind in kinds for _ in range(50)]
    random.Random(1).shuffle(lines)
    lines[17] += " word" * 2000
    return lines


def expected() -> pl.DataFrame:
    rows = [
        ("race", "african_american", "black", "family", 0, 50),
        ("race", "african_american", "black", "person", 50, 50),
        ("race", "white", "white", "family", 0, 50),
        ("race", "white", "white", "person", 50, 50),
        ("age", "old", "old", "person", 50, 100),
    ]
    return pl.DataFrame(rows, schema=pl.DataFrame(CORPUS.empty_table()).schema, orient="row")


@pytest.mark.parametrize("piece_bytes", [37, 1000, 2**20])
def test_pieces_change_no_count(tmp_path: Path, piece_bytes: int) -> None:
    lines = documents()
    path = tmp_path / "one.txt"
    path.write_text("\n".join(lines), "utf-8")
    if piece_bytes == 37:
        # The smallest pieces cut every line, and characters too.
        lines = lines[:20]
        path.write_text("\n".join(lines) + "\n", "utf-8")
    seen: list[int] = []
    table, total = corpus_counts(str(path), KNOWN, piece_bytes=piece_bytes, on_part=seen.append)
    assert total == sum(seen) == len(lines)
    plain = find(pl.Series(lines), [each.pattern() for each in KNOWN])
    assert table.equals(counts(KNOWN, plain))
    assert len(lines) == 20 or table.equals(expected())


def test_every_kind_of_source_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = documents()
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(lines[:100]), "utf-8")
    with gzip.open(folder / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[100:]))
    tables = tmp_path / "tables"
    tables.mkdir()
    for number, start in enumerate(range(0, 300, 70)):
        column = pa.array([line or None for line in lines[start : start + 70]])
        pq.write_table(pa.table({"id": column, "body": column}), tables / f"{number}.parquet")
    hub = tmp_path / "hub"
    hub.mkdir()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    asked: list[str] = []
    load = datasets.load_dataset

    def load_dataset(name: str, *rest: Any, **options: Any) -> Any:
        asked.append(name)
        return load(name, *rest, **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    datasets.Dataset.from_dict({"body": lines}).to_parquet(hub / "train.parquet")
    for source, options in (
        (str(folder), {}),
        (f"{folder}/*.txt*", {}),
        (str(tables), {"column": "body"}),
        (f"{tables}/?.parquet", {"column": "body"}),
        (f"hub:{hub}", {"column": "body"}),
    ):
        table, total = corpus_counts(source, KNOWN, **options)
        assert (total, table.equals(expected())) == (300, True), source
    # And no stranger's data set of the folder's name.
    assert asked == [str(hub)]


def test_the_command_on_a_real_text(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shared / "data"
    text = data / "sst5" / "sst_train.txt"
    common = [
        *(
            "probes",
            "corpus",
            str(text),
            "--probe",
            "amazon",
            "--data",
            str(data / "amazon_templates"),
        ),
        *("--attribute", "race", "--attribute", "age"),
    ]
    for name in ("counts.parquet", "counts.csv"):
        assert exit_code(*common, "--out", str(tmp_path / name)) == 0
    assert "8544 documents" in capsys.readouterr().out
    table = pq.read_table(tmp_path / "counts.parquet")
    assert table.schema.equals(CORPUS)
    assert pl.read_csv(tmp_path / "counts.csv").equals(pl.DataFrame(table))
    known = vocabularies(
        Probe(source="amazon", data=str(data / "amazon_templates"), attributes=("age", "race"))
    )
    whole = find(pl.Series(text.read_text("utf-8").splitlines()), [v.pattern() for v in known])
    assert counts(known, whole).equals(pl.DataFrame(table))
    marked = dict(pl.DataFrame(table).group_by("term").agg(pl.col("marked").sum()).rows())
    # As grep finds "young people", "young person", "young males", "white stereotypes", ...
    assert {term: n for term, n in marked.items() if n} == {"young": 6, "white": 2, "black": 1}


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(words)
    return int(done.value.code or 0)


def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "race.csv").write_text("TERM,GROUP\nblack,b\n")
    (tmp_path / "Regard.csv").write_text("TEMPLATE,SENT\nThe {identity_adj} person.,1\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "no.parquet").write_text("no")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.txt").write_text("a")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "mixed" / "b.parquet")
    (tmp_path / "none").mkdir()
    common = ("--probe", "regard", "--data", str(tmp_path), "--out")
    out = str(tmp_path / "out.csv")
    for source, target, message in (
        (f"{tmp_path}/absent", out, "no such file or folder"),
        (f"{tmp_path}/empty.txt", out, "holds no documents"),
        (f"{tmp_path}/none", out, "matches no files"),
        (f"{tmp_path}/mixed", out, "holds text and Parquet"),
        (f"{tmp_path}/no.parquet", out, "not a Parquet table"),
        (f"{tmp_path}/mixed/b.parquet", out, "column 'text' holds int64, not text"),
        (f"{tmp_path}/empty.txt", "out.txt", "end its name in .parquet or .csv"),
        (f"hub:{tmp_path}/absent", out, "cannot load"),
    ):
        assert exit_code("probes", "corpus", source, *common, target) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert error.count("\n") == 1
    assert not Path(out).exists()


def test_a_column_or_split_that_is_not_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'text'; choose with --text-column from body"):
        corpus_counts(str(tmp_path / "a.parquet"), KNOWN)
