"""The package stays small and readable: statements, files, long functions and long files per room.

Lines are not counted: documentation, blank lines and plain layout are free.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pytest

from support.documents import ROOT

MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 400


@dataclass
class Size:
    """Counts over the Python files of one room."""

    statements: int = 0
    files: int = 0
    long_functions: int = 0
    long_files: int = 0


#: `raybias` is the whole package, `raybias/*.py` its top-level modules. A capability may raise the
#: statements and files of its room, with the reason in the commit; the other two only fall.
BUDGET = {
    "benchmarks": Size(3_137, 29, 2, 2),
    "raybias": Size(33_703, 283, 22, 9),
    "raybias/*.py": Size(1_480, 19, 0, 0),
    "raybias/api": Size(412, 6, 3, 0),
    "raybias/cli": Size(693, 6, 3, 0),
    "raybias/config": Size(1_202, 8, 0, 2),
    "raybias/engine": Size(4_965, 38, 2, 1),
    "raybias/formats": Size(450, 6, 0, 0),
    "raybias/measures": Size(2_789, 22, 0, 0),
    "raybias/methods": Size(2_771, 19, 0, 2),
    "raybias/planning": Size(2_182, 14, 3, 1),
    "raybias/probes": Size(2_257, 23, 0, 0),
    "raybias/providers": Size(1_328, 11, 0, 0),
    "raybias/report": Size(4_426, 37, 6, 1),
    "raybias/runtime": Size(3_321, 24, 4, 1),
    "raybias/stats": Size(5_427, 50, 1, 1),
    "tests": Size(23_514, 224, 3, 3),
}


def measure_sizes() -> dict[str, Size]:
    """Count each room as it is now."""
    sizes: defaultdict[str, Size] = defaultdict(Size)
    for top in ("raybias", "tests", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            room = "raybias/*.py" if len(parts) == 2 else "/".join(parts[:2])
            for name in {top, room} if top == "raybias" else {top}:
                add_file(sizes[name], path)
    return dict(sorted(sizes.items()))


def add_file(size: Size, path: Path) -> None:
    """Add one file's counts to its room's."""
    text = path.read_text("utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    size.statements += sum(isinstance(node, ast.stmt) for node in nodes)
    size.files += 1
    size.long_functions += sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
        for node in functions
    )
    size.long_files += len(text.splitlines()) > MAX_FILE_LINES


def test_the_budget_names_every_room() -> None:
    assert {*measure_sizes()} == {*BUDGET}, "give a new room its numbers; remove one that is gone"


@pytest.mark.parametrize("room", BUDGET)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    size = measure_sizes().get(room, Size())
    slack = (20, 1, 0, 0)
    for field, now, most, least in zip(
        fields(Size), astuple(size), astuple(BUDGET[room]), slack, strict=True
    ):
        what = field.name.replace("_", " ")
        assert now <= most, (
            f"{room} has {now:,} {what}, more than its {most:,}: make it smaller, or raise the "
            "number in a commit that says why"
        )
        allowed = max(least, 0.03 * most) if least else 0
        assert now >= most - allowed, (
            f"{room} has {now:,} {what}, fewer than its {most:,}: lower the number, so that it "
            "stays so small"
        )
