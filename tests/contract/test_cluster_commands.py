"""cluster/README.md: every command parses; and the board asks for metrics that exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import ray
import typer
from ray.scripts.scripts import cli as ray_commands

from raybias.cli import app
from raybias.runtime.metrics import Counted, Measured
from support.documents import CLUSTER, ROOT, blocks

README = (CLUSTER / "README.md").read_text()
PARSED = {"raybias": typer.main.get_command(app), "ray": ray_commands}
#: Others, whose words are not parsed here.
OTHERS = {
    *("aws", "gcloud", "kubectl", "helm", "sky", "docker", "pip", "base64", "chmod", "date"),
    *("curl", "envsubst", "openssl", "export"),
}
OURS = {f"ray_{name}" for kind in (Counted, Measured) for name in get_args(kind)}


def written() -> Iterator[str]:
    """The lines of the README's blocks, and its quoted commands that have arguments."""
    for block in blocks(CLUSTER / "README.md"):
        yield from block.commands
    prose = "\n".join(line for line in README.splitlines() if not line.startswith("    "))
    for span in re.findall(r"`([^`]+)`", prose):
        words = span.split()
        if len(words) > 2 and words[0] in {*PARSED, *OTHERS}:
            yield " ".join(words)


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


CALLS = [call for line in written() for call in calls(line)]


def test_there_is_something_to_check() -> None:
    assert len(CALLS) > 60
    assert {call[0] for call in CALLS} >= {"raybias", "ray", "aws", "gcloud", "kubectl", "helm"}


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_command_parses(call: list[str]) -> None:
    program, *arguments = call
    if program in PARSED:
        parse(PARSED[program], program, arguments)
    assert program in {*PARSED, *OTHERS}
    for word in call:
        if re.fullmatch(r"cluster/[\w./]+\.\w+", word):
            assert (ROOT / word).exists(), word


def test_a_command_that_is_not_one_is_seen() -> None:
    for wrong in ("ray job submitt", "ray up", "raybias plan --assumed x y.yaml", "raybias runn"):
        program, *arguments = wrong.split()
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(PARSED[program], program, arguments)


def test_the_board_asks_for_metrics_that_exist() -> None:
    board = json.loads((CLUSTER / "grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"\b(?:ray|autoscaler)_[a-z_]+\b", bare(target["expr"]))
    }
    folder = Path(ray.__file__).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    known = "".join(path.read_text() for path in folder.glob("*_panels.py"))
    assert asked >= OURS
    unknown = {n for n in asked - OURS if not re.search(rf"\b{n}\b", known)}
    assert not unknown
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def bare(expression: str) -> str:
    """A query without its labels: their names are not metrics."""
    expression = re.sub(r"\{[^}]*\}", "", expression)
    return re.sub(r"\bby \([^)]*\)", "", expression)


def parse(command: Any, name: str, arguments: list[str]) -> None:
    """Have click, or the click that typer carries, parse a command; nothing is run."""
    context = command.context_class(command, info_name=name)
    while hasattr(command, "resolve_command"):
        word, command, arguments = command.resolve_command(context, arguments)
        context = command.context_class(command, info_name=word, parent=context)
    command.parse_args(context, arguments)
