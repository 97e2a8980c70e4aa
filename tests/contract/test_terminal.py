"""What data hold never moves a terminal: one module prints, and shows what it would obey."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from raybias.cli import app
from raybias.errors import DataError
from raybias.report.rendering import TextTable, markdown_text
from raybias.schema import PREDICTIONS
from raybias.terminal import say_json, shortened, visible, visible_line
from support.documents import ROOT

#: ESC, an OSC title with BEL, C1, a direction mark, backspace, DEL and a line separator.
HOSTILE = "\x1b]0;title\x07\x9b31m\u202egroup\x08\x7f\u2028"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
#: Modules that may print: the terminal's, and a protocol of a child process with its parent.
PRINTING = {"raybias/terminal.py", "raybias/engine/convert_alone.py"}


def test_one_module_prints() -> None:
    for path in sorted((ROOT / "raybias").rglob("*.py")):
        called = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "print" not in called or str(path.relative_to(ROOT)) in PRINTING, path


@given(st.text())
@example(HOSTILE)
@example("\ud800")
def test_what_is_obeyed_is_shown_and_the_rest_stays(text: str) -> None:
    for shown in (visible(text), visible_line(text)):
        assert not OBEYED.search(shown)
        shown.encode("utf-8")
    assert "\n" not in visible_line(text)
    assert visible(visible(text)) == visible(text)
    if not OBEYED.search(text) and text.isprintable():
        assert visible(text) == text
    table = TextTable("", ("name", "other"), ((text, "b"), ("c", "d")))
    for width in (None, 20):
        assert not OBEYED.search(table.within(width))
    assert "<script" not in markdown_text(f"<script>{text}</script>")


@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_json_says_the_same_after_it_is_escaped(row: dict[str, str]) -> None:
    line = json.dumps(row, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda text, **_: printed.append(text))
        say_json(line)
    assert json.loads(printed[0]) == row
    assert not OBEYED.search(printed[0])


def test_a_message_quotes_no_more_than_eighty_characters_and_keeps_its_cure() -> None:
    long = "x" * 1_000_000
    said = str(DataError(f"label {long!r} is no label", where="a.csv", cure="fix it"))
    assert len(said) < 200
    assert said.endswith("; fix it")
    assert shortened("it's the user's 'short' value") == "it's the user's 'short' value"
    assert str(DataError(f"group '{HOSTILE}'")).isprintable()


TEXTS = [field.name for field in PREDICTIONS if pa.types.is_string(field.type)]


@pytest.mark.parametrize("column", TEXTS)
def test_no_command_prints_what_a_terminal_obeys(column: str, tmp_path: Path) -> None:
    """Every text column of predictions, on every command that reads them."""
    rows = {
        "model": ["m"] * 40, "method": ["classify"] * 40, "dataset": [""] * 40,
        "run_id": ["r"] * 40, "probe": ["mine"] * 40, "style": ["original"] * 40,
        "item_id": [f"{n}" for n in range(40)], "label": [n // 2 % 2 for n in range(40)],
        "attribute": ["colour"] * 40, "group": ["red", "blue"] * 20, "term": ["red", "blue"] * 20,
        "template_id": [f"t{n // 2}" for n in range(40)], "pred": [n % 3 % 2 for n in range(40)],
    }  # fmt: skip
    if column in rows:
        rows[column] = [f"{HOSTILE}{value}" for value in rows[column]]
    else:
        rows[column] = [HOSTILE] * 40
    table = tmp_path / "table.parquet"
    pl.DataFrame(rows).write_parquet(table)
    for command in (
        ("measure", str(table)),
        ("measure", str(table), "--json"),
        ("measure", str(table), "--out", str(tmp_path / "out")),
        ("compare", str(table), str(table)),
        ("compare", str(table), str(table), "--json"),
    ):
        done = CliRunner().invoke(app, command)
        said = done.output + (str(done.exception) if done.exception else "")
        assert not OBEYED.search(said.replace("\r\n", "\n")), command
