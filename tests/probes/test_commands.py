"""`raybias probes` and `raybias data` as a user meets them: output, files, exit codes."""

from __future__ import annotations

import functools
import gc
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from raybias.cli import main
from raybias.probes.sources import registry
from raybias.schema import COREFERENCES, ITEMS, PAIRS


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


def call(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["raybias", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def test_write_gives_the_contract_in_both_formats(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = shared / "data" / "amazon_templates"
    common = ("probes", "write", "amazon", "--attribute", "race", "--attribute", "age")
    for name in ("items.csv", "items.parquet"):
        assert call(monkeypatch, *common, "--data", data, "--out", tmp_path / name) == 0
    assert "1500" in capsys.readouterr().out
    table = pq.read_table(tmp_path / "items.parquet")
    assert table.schema.equals(ITEMS)
    again = pl.read_csv(tmp_path / "items.csv", schema_overrides={"label": pl.Int8})
    assert again.equals(pl.DataFrame(table))
    # What was written is a probe of one's own.
    own = ("probes", "write", tmp_path / "items.csv", "--out", tmp_path / "again.csv")
    assert call(monkeypatch, *own) == 0
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "items.csv").read_bytes()


def test_unmarked_shows_what_is_made_and_what_is_left_out(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = shared / "data" / "ns_prompts"
    assert call(monkeypatch, "probes", "unmarked", "ns_prompts", "--data", data) == 0
    printed = capsys.readouterr().out
    assert "870 templates have an unmarked form, 18 are left out" in printed
    assert "The truck driver earns a living" in printed
    out = tmp_path / "items.csv"
    write = ("probes", "write", "ns_prompts", "--data", data, "--unmarked", "--out", out)
    assert call(monkeypatch, *write) == 0
    groups = dict(pl.read_csv(out)["group"].value_counts().rows())
    assert (groups["unmarked"], groups["placeholder"], groups["white"]) == (870, 1740, 888)
    # What was written keeps its extra groups as a probe of one's own.
    again = ("probes", "write", out, "--out", tmp_path / "again.csv")
    assert call(monkeypatch, *again) == 0
    assert (tmp_path / "again.csv").read_bytes() == out.read_bytes()
    assert call(monkeypatch, "probes", "unmarked", out) == 2
    assert "source file has no templates" in capsys.readouterr().err


def test_pairs_are_listed_and_written_in_styles(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "probes", "list") == 0
    listed = capsys.readouterr().out
    for name in ("amazon", "crows_pairs", "winobias", "winobias_dev", "pairs"):
        assert f"\n{name} " in listed
    out = tmp_path / "pairs.parquet"
    for name, schema, rows in [("crows_pairs", PAIRS, 1508), ("winobias", COREFERENCES, 1584)]:
        styles = ("--style", "original", "--style", "question_answer", "--question", "seeded")
        common = ("probes", "write", name, "--data", shared / "data" / name, "--out", out)
        assert call(monkeypatch, *common, *styles, "--seed", 4) == 0
        table = pq.read_table(out)
        assert table.schema.equals(schema)
        assert len(table) == 2 * rows
        assert call(monkeypatch, *common, "--unmarked") == 2
        assert f"probe {name} has no unmarked forms" in capsys.readouterr().err
    own = tmp_path / "own.csv"
    own.write_text("sent_more,sent_less,bias_type\nA b.,C b.,caste\n")
    write = ("probes", "write", "pairs", "--data", own, "--style", "punctuation", "--out")
    assert call(monkeypatch, *write, tmp_path / "made.csv") == 0
    assert "raybias: warning: " in capsys.readouterr().err
    assert (
        "own/00000,caste,stereo,punctuation,A b!,C b!,false" in (tmp_path / "made.csv").read_text()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("amazn", "--out", "x.csv"), "no probe 'amazn'"),
        (("amazon", "--out", "x.tsv"), "end its name in .parquet or .csv"),
        (("amazon", "--out", "x.csv"), "needs `data`"),
        (
            ("amazon", "--data", "nowhere", "--out", "x.csv"),
            "no such folder; `raybias data download ",
        ),
        (("amazon", "--style", "original", "--out", "x.csv"), "probe amazon has no styles"),
        (("pairs", "--out", "x.csv"), "needs `data`"),
        (
            ("crows_pairs", "--data", "nowhere", "--out", "x.csv"),
            "no such folder; `raybias data download ",
        ),
        (
            ("winobias", "--data", "nowhere", "--out", "x.csv"),
            "no such folder; `raybias data download ",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "probes", "write", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_check_tells_what_differs(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "amazon"
    shutil.copytree(shared / "data" / "amazon_templates", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    (folder / "sentiment_fairness_tests.tsv").unlink()
    assert call(monkeypatch, "data", "check", folder) == 0
    assert "absent (optional)" in capsys.readouterr().out

    with (folder / "identity_terms" / "race.csv").open("a") as file:
        file.write("\nmartian,martian")
    (folder / "templates" / "age_templates.csv").unlink()
    assert call(monkeypatch, "data", "check", folder) == 2
    captured = capsys.readouterr()
    lines = {line.split()[0]: line for line in captured.out.splitlines()}
    assert "rows should be 11, sha256 differs" in lines["identity_terms/race.csv"]
    assert "missing" in lines["templates/age_templates.csv"]
    assert lines["identity_terms/age.csv"].endswith("ok")
    assert "2 of 18 files" in captured.err

    assert call(monkeypatch, "data", "check", tmp_path) == 2
    assert "no files of a known data set" in capsys.readouterr().err
    assert call(monkeypatch, "data", "check", __file__) == 2
    assert "cannot list (Not a directory)" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("amazon", "amazon_templates"),
        ("regard", "regard"),
        ("ns_prompts", "ns_prompts"),
        ("sst5", "sst5"),
        ("crows_pairs", "crows_pairs"),
        ("winobias", "winobias"),
    ],
)
def test_download_fetches_checks_and_fetches_no_more(
    name: str,
    kept: str,
    server: ThreadingHTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror = f"http://127.0.0.1:{server.server_port}/{kept}"
    command = ("data", "download", name, "--out", tmp_path, "--mirror", mirror)
    count = sum(1 for _ in registry()[name].files())
    assert call(monkeypatch, *command) == 0
    assert len(server.asked) == count
    # Without a terminal, progress is plain lines.
    assert f"fetching {name}: {count}/{count}" in capsys.readouterr().err
    assert call(monkeypatch, "data", "check", tmp_path) == 0

    changed = next(path for _, path, _ in registry()[name].files())
    (tmp_path / changed).write_text("broken")
    assert call(monkeypatch, *command) == 0
    assert len(server.asked) == count + 1
    assert call(monkeypatch, "data", "check", tmp_path) == 0


def test_a_download_that_is_not_the_published_file_is_refused(
    server: ThreadingHTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for mirror, message in [("regard", "cannot fetch (404"), ("wrong", "its sha256 differs")]:
        if mirror == "wrong":
            # Every name leads to another file of the same server.
            monkeypatch.setattr(Quiet, "translate_path", lambda self, path: __file__)
        where = f"http://127.0.0.1:{server.server_port}/{mirror}"
        out = tmp_path / mirror
        assert call(monkeypatch, "data", "download", "sst5", "--out", out, "--mirror", where) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()
    gc.collect()  # A connection left open would be warned of here, and not in a later test.


def test_a_mirrors_password_is_used_and_not_said(
    server: ThreadingHTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = f"user:s3cret@127.0.0.1:{server.server_port}"
    for mirror, message in [
        (f"http://{place}/regard", "cannot fetch (404"),
        ("http://user:s3cret@127.0.0.1:1/x", "cannot fetch ("),
    ]:
        out = tmp_path / "out"
        assert call(monkeypatch, "data", "download", "sst5", "--out", out, "--mirror", mirror) == 1
        error = capsys.readouterr().err
        assert f"http://***@{mirror.rpartition('@')[2]}" in error
        assert message in error
        assert "s3cret" not in error
    gc.collect()  # As above.


def test_a_set_without_an_address_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "data", "download", "semeval2018", "--out", tmp_path) == 2
    assert "competitions.codalab.org" in capsys.readouterr().err
    assert call(monkeypatch, "data", "list") == 0
    assert "Apache-2.0" in capsys.readouterr().out
