"""What README.md, docs/ and cluster/README.md tell a reader to type, and the tutorial.

test_guides.py runs commands of docs/, tests/cluster/test_readme.py the README and the guides that
go on from it, test_extending.py the package of docs/extending.md.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray.scripts.scripts import cli as ray_commands

from raybias.cli import app
from raybias.config import parse_study
from raybias.config.policy import load_policy
from support.documents import CLUSTER, ROOT, blocks

PARSED: dict[str, Any] = {"raybias": typer.main.get_command(app), "ray": ray_commands}
DOCS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reference"),
]
#: Where the Python of each page is run.
PYTHON = {
    "README.md": "tests/cluster/test_readme.py",
    "reference.md": "tests/cluster/test_readme.py",
    "extending.md": "tests/contract/test_extending.py",
    "precision.md": "tests/engine/test_quantised.py",
    "own_probe.md": "tests/contract/test_guides.py",
    "own_model.md": "tests/contract/test_guides.py",
    "associations.md": "tests/measures/test_associations.py",
}
#: Blocks that show what is printed or written, by their first word.
SHOWN = ("model ", "study.yaml ", "$ raybias compare", "raybias measure FILES...")


def written(page: Path) -> Iterator[str]:
    """The lines of a page's blocks of commands, and its quoted commands that have arguments."""
    for block in blocks(page):
        if not block.language and not block.text.startswith(SHOWN):
            yield from block.commands
    if page.parent == CLUSTER:
        prose = re.sub("^    .*$", "", page.read_text("utf-8"), flags=re.M)
        for span in re.findall(r"`([^`]+)`", prose):
            if re.match(r"(raybias|ray) \S+ \S", span):
                yield span


def calls(line: str) -> Iterator[list[str]]:
    """The programs of a line with their arguments: pipes, redirections and $(...) taken apart."""
    while found := re.search(r"\$\(((?:[^()]|\([^()]*\))*)\)", line):
        yield from calls(found[1])
        line = line.replace(found[0], "VALUE")
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.wordchars += "$@:,%+{}[]()!"
    call: list[str] = []
    words = iter(lexer)
    for word in words:
        if word == "|":
            yield call
            call = []
        elif word in ("<", ">"):
            next(words)
        else:
            call.append(word)
    yield call


def resolved(program: str, words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words name, its context, and the words behind it; nothing is run."""
    command = PARSED[program]
    context = command.context_class(command, info_name=program)
    while words and not words[0].startswith("-") and hasattr(command, "resolve_command"):
        word, command, words = command.resolve_command(context, words)
        context = command.context_class(command, info_name=word, parent=context)
    return command, context, words


def parse(program: str, *words: str) -> None:
    command, context, rest = resolved(program, [*words])
    command.parse_args(context, rest)


def test_every_command_parses() -> None:
    found = [call for page in (*DOCS, CLUSTER / "README.md") for line in written(page)
             for call in calls(line) if call]  # fmt: skip
    ours = [call for call in found if call[0] in PARSED]
    assert len(ours) > 60
    for call in ours:
        try:
            parse(*call)
        except Exception as error:
            pytest.fail(f"{shlex.join(call)}: {error}")
    for word in {word for call in found for word in call}:
        if re.fullmatch(r"cluster/[\w./]+\.\w+", word):
            assert (ROOT / word).exists(), word
    for wrong in ("ray job submitt", "ray up", "raybias plan --assumed x y.yaml", "raybias runn"):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(*wrong.split())


def test_prose_names_commands_and_options_that_there_are() -> None:
    found = 0
    for page in (*DOCS, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "ARCHITECTURE"))):
        prose = re.sub("^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
        for span in re.findall(r"`raybias (\w[^`]+)`", prose):
            command, context, words = resolved("raybias", shlex.split(span))
            known = {name for each in command.get_params(context) for name in each.opts}
            for word in words:
                assert not word.startswith("--") or word.partition("=")[0] in known, span
            found += 1
    assert found > 50


def test_every_block_has_a_test_and_every_study_is_taken() -> None:
    """Parts of studies are read with what the README's has beside them."""
    readme, *_ = (block for block in blocks(ROOT / "README.md") if block.language == "yaml")
    taken = 0
    for page in DOCS:
        for block in blocks(page):
            if block.language == "python":
                assert page.name in PYTHON
                compile(block.text, page.name, "exec")
            if block.language != "yaml":
                assert block.language in ("", "python", "text", "toml", "diff", "mermaid")
                continue
            content = yaml.safe_load(block.text)
            # Cards are read by tests/probes/test_cards.py, a package of one's own by
            # test_extending.py, steps of a workflow by test_guides.py.
            if isinstance(content, list) or "kind" in content or page.name == "extending.md":
                continue
            if "rules" in content:
                assert len(load_policy(content).rules) == 3
                continue
            whole = {**({} if "name" in content else yaml.safe_load(readme.text)), **content}
            there = [each["name"] for each in whole["backbones"] if "name" in each]
            named = [name for each in content.get("methods", ())
                     for name in each.get("backbones", ()) if name not in there]  # fmt: skip
            whole["backbones"] = [*whole["backbones"], *named]
            parse_study(whole)
            taken += 1
    assert taken >= 10


@pytest.mark.long
def test_the_tutorial_finds_the_bias_that_it_plants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make docs` runs it, and the other notebook, for the pages."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads((ROOT / "docs/tutorial.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            *before, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr), "a cell ends with what it shows"
            exec(compile(ast.Module(before, []), "cell", "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    *_, plotted, planned = shown
    assert "quix" in names["gaps"].filter(survives=True)["group"].to_list()
    assert "are significant if seeds, sentences and words" in capsys.readouterr().out
    assert "quix" in plotted.data
    assert planned.height


def test_a_public_method_has_a_docstring_or_its_base_has() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "raybias").rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]

    def documented(node: ast.ClassDef, name: str) -> bool:
        own = (
            each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name
        )
        bases = {ast.unparse(base).split("[")[0] for base in node.bases}
        named = (each for each in classes if each.name in bases)
        return any(map(ast.get_docstring, own)) or any(documented(each, name) for each in named)

    silent = [
        f"{node.name}.{each.name}"
        for node in classes if not node.name.startswith("_")
        for each in node.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
        and not documented(node, each.name)
    ]  # fmt: skip
    assert not silent
