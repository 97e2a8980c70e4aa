"""The package gets smaller: lines and files of Python in each room are at most those below."""

from __future__ import annotations

from collections import Counter

import pytest

from support.documents import ROOT

#: Lines and files. `raybias` is the whole package, `raybias/*.py` its modules beside the rooms.
BUDGET = {
    "benchmarks": (3_999, 21),
    "raybias": (41_981, 190),
    "raybias/*.py": (1_839, 13),
    "raybias/api": (646, 3),
    "raybias/cli": (1_243, 5),
    "raybias/config": (1_780, 7),
    "raybias/engine": (5_835, 22),
    "raybias/formats": (478, 4),
    "raybias/measures": (3_621, 17),
    "raybias/methods": (3_289, 11),
    "raybias/planning": (3_330, 12),
    "raybias/probes": (3_416, 20),
    "raybias/providers": (1_040, 5),
    "raybias/report": (4_584, 22),
    "raybias/runtime": (5_156, 24),
    "raybias/stats": (5_724, 25),
    "tests": (25_660, 168),
}


def sizes() -> dict[str, tuple[int, int]]:
    """Lines and files of each room today."""
    lines, files = Counter[str](), Counter[str]()
    for top in ("raybias", "tests", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            inside = path.relative_to(ROOT).parts
            room = "raybias/*.py" if len(inside) == 2 else "/".join(inside[:2])
            for name in {top, room} if top == "raybias" else {top}:
                lines[name] += len(path.read_text("utf-8").splitlines())
                files[name] += 1
    return {name: (lines[name], files[name]) for name in sorted(lines)}


def test_the_budget_names_every_room() -> None:
    assert {*sizes()} == {*BUDGET}, "give a new room its numbers, and take out one that is gone"


@pytest.mark.parametrize("room", BUDGET)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    for what, now, most, least in zip(
        ("lines", "files"), sizes().get(room, (0, 0)), BUDGET[room], (20, 1), strict=True
    ):
        assert now <= most, (
            f"{room} has {now:,} {what}, more than its {most:,}: make it smaller, or raise the "
            "number in a commit that says why"
        )
        assert now >= most - max(least, 0.03 * most), (
            f"{room} has {now:,} {what}, far fewer than its {most:,}: lower the number, so that "
            "it stays so small"
        )
