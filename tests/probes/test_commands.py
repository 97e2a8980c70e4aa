"""`raybias probes` and `raybias data` as a user meets them: output, files, exit codes."""

from __future__ import annotations

import functools
import gc
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from raybias.probes.sources import registry
from raybias.schema import COREFERENCES, ITEMS, PAIRS

Run = Callable[..., Any]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        self.server.asked.append(self.path)


@pytest.fixture
def server(shared: Path) -> Iterator[ThreadingHTTPServer]:
    handler = functools.partial(Quiet, directory=str(shared / "data"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_write_gives_the_contract_in_both_formats(shared: Path, tmp_path: Path, run: Run) -> None:
    data = shared / "data" / "amazon_templates"
    common = ("probes", "write", "amazon", "--attribute", "race", "--attribute", "age")
    for name in ("items.csv", "items.parquet"):
        assert "1500" in run(*common, "--data", data, "--out", tmp_path / name).out
    table = pq.read_table(tmp_path / "items.parquet")
    assert table.schema.equals(ITEMS)
    again = pl.read_csv(tmp_path / "items.csv", schema_overrides={"label": pl.Int8})
    assert again.equals(pl.DataFrame(table))
    # What was written is a probe of one's own.
    own = ("probes", "write", tmp_path / "items.csv", "--out", tmp_path / "again.csv")
    run(*own)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "items.csv").read_bytes()


def test_pairs_are_listed_and_written_in_styles(shared: Path, tmp_path: Path, run: Run) -> None:
    listed = run("probes", "list").out
    for name in ("amazon", "crows_pairs", "winobias", "winobias_dev", "pairs"):
        assert f"\n{name} " in listed
    out = tmp_path / "pairs.parquet"
    for name, schema, rows in [("crows_pairs", PAIRS, 1508), ("winobias", COREFERENCES, 1584)]:
        styles = ("--style", "original", "--style", "question_answer", "--question", "seeded")
        common = ("probes", "write", name, "--data", shared / "data" / name, "--out", out)
        run(*common, *styles, "--seed", 4)
        table = pq.read_table(out)
        assert table.schema.equals(schema)
        assert len(table) == 2 * rows
        assert f"probe {name} has no unmarked forms" in run(*common, "--unmarked", code=2).err
    own = tmp_path / "own.csv"
    own.write_text("sent_more,sent_less,bias_type\nA b.,C b.,caste\n")
    write = ("probes", "write", "pairs", "--data", own, "--style", "punctuation", "--out")
    assert "raybias: warning: " in run(*write, tmp_path / "made.csv").err
    assert (
        "own/00000,caste,stereo,punctuation,A b!,C b!,false" in (tmp_path / "made.csv").read_text()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("amazn", "--out", "x.csv"), "no probe 'amazn'"),
        (("amazon", "--out", "x.tsv"), "end its name in .parquet or .csv"),
        (("amazon", "--style", "original", "--out", "x.csv"), "probe amazon has no styles"),
        (("pairs", "--out", "x.csv"), "needs `data`"),
        (("amazon", "--data", "nowhere", "--out", "x.csv"), "folder; `raybias data download "),
        (("winobias", "--data", "nowhere", "--out", "x.csv"), "folder; `raybias data download "),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    words: tuple[str, ...], message: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    captured = run("probes", "write", *words, code=2)
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_check_tells_what_differs(shared: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "amazon"
    shutil.copytree(shared / "data" / "amazon_templates", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    (folder / "sentiment_fairness_tests.tsv").unlink()
    assert "absent (optional)" in run("data", "check", folder).out

    with (folder / "identity_terms" / "race.csv").open("a") as file:
        file.write("\nmartian,martian")
    (folder / "templates" / "age_templates.csv").unlink()
    captured = run("data", "check", folder, code=2)
    lines = {line.split()[0]: line for line in captured.out.splitlines()}
    assert "rows should be 11, sha256 differs" in lines["identity_terms/race.csv"]
    assert "missing" in lines["templates/age_templates.csv"]
    assert lines["identity_terms/age.csv"].endswith("ok")
    assert "2 of 18 files" in captured.err

    assert "no files of a known data set" in run("data", "check", tmp_path, code=2).err
    assert "cannot list (Not a directory)" in run("data", "check", __file__, code=2).err


@pytest.mark.long
def test_download_fetches_checks_and_fetches_no_more(
    server: ThreadingHTTPServer, tmp_path: Path, run: Run
) -> None:
    mirror = f"http://127.0.0.1:{server.server_port}/sst5"
    command = ("data", "download", "sst5", "--out", tmp_path, "--mirror", mirror)
    changed, *_ = files = [path for _, path, _ in registry()["sst5"].files()]
    # Without a terminal, progress is plain lines.
    assert f"fetching sst5: {len(files)}/{len(files)}" in run(*command).err
    assert len(server.asked) == len(files)
    run("data", "check", tmp_path)
    (tmp_path / changed).write_text("broken")
    run(*command)
    assert len(server.asked) == len(files) + 1
    run("data", "check", tmp_path)


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ("http://{}/regard", "cannot fetch (404"),
        ("http://{}/wrong", "its sha256 differs"),
        ("http://user:s3cret@{}/regard", "cannot fetch (404"),
        ("http://user:s3cret@127.0.0.1:1/x", "cannot fetch ("),
    ],
)
def test_what_is_not_the_published_file_is_refused_and_no_password_is_said(
    mirror: str,
    message: str,
    server: ThreadingHTTPServer,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mirror.endswith("wrong"):
        # Every name leads to another file of the same server.
        monkeypatch.setattr(Quiet, "translate_path", lambda self, path: __file__)
    where, out = mirror.format(f"127.0.0.1:{server.server_port}"), tmp_path / "out"
    error = run("data", "download", "sst5", "--out", out, "--mirror", where, code=1).err
    assert message in error
    assert error.count("\n") == 1
    assert "s3cret" not in error
    assert where.replace("user:s3cret", "***") in error
    assert not out.exists()
    gc.collect()  # A connection left open would be warned of here, and not in a later test.


def test_a_set_without_an_address_says_where_it_is(tmp_path: Path, run: Run) -> None:
    refused = run("data", "download", "semeval2018", "--out", tmp_path, code=2)
    assert "competitions.codalab.org" in refused.err
    assert "Apache-2.0" in run("data", "list").out
