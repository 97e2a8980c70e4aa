"""A few kills in one run of a small study; `long.py` makes a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
from arena import Arena
from bout import Kill, attribute, fight
from verdict import faults

pytestmark = pytest.mark.chaos
KILLS = [
    *[("tuning", "worker"), ("tuning", "driver")],
    *[("scoring", "replica"), ("scoring", "node"), ("scoring", "driver")],
]

ENDS = [
    ("tuning", "interrupted"),
    ("tuning", "rival"),
    ("scoring", "proxy"),
    ("scoring", "controller"),
    ("scoring", "terminated"),
]


def test_what_is_killed_loses_and_changes_nothing(
    place: Arena, study: Path, calm: Path, tmp_path: Path
) -> None:
    bout = fight(place, study, tmp_path / "out", calm, number=1, seed=1, kills=KILLS)
    assert bout.faults == []
    assert bout.beyond() == []
    assert bout.kills, "the study ended before anything was killed"
    assert place.left() == []


@pytest.mark.chaos
def test_signals_rivals_and_the_loss_of_serves_own_processes_change_nothing(
    place: Arena, study: Path, calm: Path, tmp_path: Path
) -> None:
    place.open_proxies()
    bout = fight(place, study, tmp_path / "out", calm, number=2, seed=1, kills=ENDS)
    assert bout.faults == []
    assert bout.beyond() == []
    assert {kill.kind for kill in bout.kills} == {kind for _, kind in ENDS}
    assert place.left() == []


def test_a_lost_row_is_seen(calm: Path) -> None:
    """The verdict itself, on an OUT that is whole and then is not."""
    assert faults(calm, calm) == []
    victim = next((calm / "predictions").rglob("*.parquet"))
    held = victim.read_bytes()
    victim.unlink()
    try:
        assert faults(calm, calm) == [f"missing: {victim.relative_to(calm)}"]
    finally:
        victim.write_bytes(held)


def test_work_that_is_begun_again_is_counted_for_a_kill_between() -> None:
    kills = [
        Kill("replica", "scoring", 2.0, 2.2, {"replica": 1}),
        Kill("node", "scoring", 4.0, 4.2, {"replica": 2}),
    ]
    begun = [(1.0, "a"), (2.1, "b"), (3.0, "c"), (4.5, "a"), (5.0, "b"), (5.5, "c"), (6.0, "c")]
    assert attribute(kills, begun) == ["begun again without a kill: c"]
    assert [kill.repeated for kill in kills] == [1, 2]
