"""What README.md and docs/ tell a reader to type: every command parses, every notebook runs.

test_guides.py runs the commands and studies of docs/, tests/cluster/test_readme.py the README and
the guides that need Ray, test_extending.py the package of docs/extending.md.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from raybias.cli import app, main
from raybias.stats.metric import metrics
from support.documents import ROOT, blocks

PROGRAM: Any = typer.main.get_command(app)
DOCS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reference"),
]
#: Where the Python of each page is run, or why it is not.
PYTHON = {
    "README.md": "tests/cluster/test_readme.py",
    "reference.md": "tests/cluster/test_readme.py",
    "extending.md": "tests/contract/test_extending.py",
    "precision.md": "tests/engine/test_quantised.py",
    "own_probe.md": "tests/contract/test_documented.py",
}
#: What begins other lines of blocks, and why they are not parsed as commands of raybias.
OTHERS = {
    "make": "tests/contract/test_project_files.py knows the targets",
    "python": "a script of the repository; it takes minutes",
    "PYTHONPATH=tests": "makes the models of a results page",
    "docker": "a network", "uvx": "a network",
    "pip": "a network", "git": "publishes", "ray": "a cluster", "/tmp/new/bin/pip": "a network",
    "/tmp/new/bin/raybias": "an installed release", "curl": "tests/cluster/test_readme.py",
    "openssl": "tests/cluster/test_readme.py", "python3": "a fresh machine",
    "export": "a cluster with tokens",
    "RAYBIAS_SHARED=/path/to/shared": "make test",
}  # fmt: skip
#: Blocks that show what is printed or written, by their first word.
SHOWN = ("model ", "study.yaml ", "$ raybias compare", "raybias measure FILES...")


def commands() -> list[str]:
    plain = (
        block for page in DOCS for block in blocks(page)
        if not block.language and not block.text.startswith(SHOWN)
    )  # fmt: skip
    return list(dict.fromkeys(line for block in plain for line in block.commands if line))


def test_every_command_is_one_that_raybias_takes() -> None:
    for command in commands():
        program, *words = shlex.split(command.partition("> ")[0], comments=True)
        if program != "raybias":
            if program in OTHERS or command.startswith(("-", "http")):
                continue
            pytest.fail(f"{command!r}: run it in a test, or say why not")
        parsed, context, words = resolved(words)
        parsed.parse_args(context, words)


def resolved(words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words name, its context, and the words behind it."""
    parsed = PROGRAM
    context = parsed.context_class(parsed, info_name="raybias")
    while words and not words[0].startswith("-") and hasattr(parsed, "resolve_command"):
        word, parsed, words = parsed.resolve_command(context, words)
        context = parsed.context_class(parsed, info_name=word, parent=context)
    return parsed, context, words


def test_prose_names_commands_and_options_that_there_are() -> None:
    found = 0
    for page in (*DOCS, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "ARCHITECTURE"))):
        prose = re.sub("^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
        for span in re.findall(r"`raybias (\w[^`]+)`", prose):
            parsed, context, words = resolved(shlex.split(span))
            known = {name for each in parsed.get_params(context) for name in each.opts}
            for word in words:
                assert not word.startswith("--") or word.partition("=")[0] in known, span
            found += 1
    assert found > 60


def test_every_block_has_a_test() -> None:
    for page in DOCS:
        for block in blocks(page):
            if block.language == "python":
                assert page.name in PYTHON
                compile(block.text, page.name, "exec")
            elif block.language == "yaml" and not block.text.startswith("- "):
                assert yaml.safe_load(block.text)
            else:
                assert block.language in ("", "text", "toml", "diff", "mermaid", "yaml")


def test_the_metric_and_the_probe_of_the_guides_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = [*blocks(ROOT / "docs/guides/own_probe.md")]
    (made,) = (block for block in guide if block.language == "python")
    exec(compile(made.text, "own_probe.md", "exec"), {"__name__": "own_metric"})
    # Taken out again, since other tests of this process compute all metrics there are.
    assert metrics._entries.pop("neutral_negative").effect(0.1) == "harm"
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    shown = [line for block in guide if not block.language for line in block.commands]
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(shown[0])[1:])
    assert not ended.value.code
    assert Path("data/mine.yaml").exists()
    capsys.readouterr()


def run_notebook(name: str, names: dict[str, Any]) -> list[Any]:
    """Run a notebook's cells in the working folder; returns what each cell would show."""
    shown = []
    for cell in json.loads((ROOT / "docs" / name).read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        *before, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr), "a cell ends with what it shows"
        exec(compile(ast.Module(before, []), name, "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    return shown


@pytest.mark.long
def test_the_tutorial_finds_the_bias_that_it_plants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    *_, plotted, planned = run_notebook("tutorial.ipynb", names)
    assert "quix" in names["gaps"].filter(survives=True)["group"].to_list()
    assert "are significant if seeds, sentences and words" in capsys.readouterr().out
    assert "quix" in plotted.data
    assert planned.height


@pytest.mark.slow
def test_the_notebook_of_a_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notebook"])
    shown = run_notebook("study_in_a_notebook.ipynb", {})
    assert all(hasattr(each, "_repr_html_") for each in shown)
