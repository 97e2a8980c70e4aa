"""A few kills in one run of a small study; `long.py` makes a hundred (about 60 s)."""

from __future__ import annotations

from pathlib import Path

import pytest
from arena import Arena
from bout import Kill, attribute, fight
from verdict import faults

pytestmark = pytest.mark.chaos

KILLS = [("tuning", "worker"), ("scoring", "replica"), ("scoring", "node"), ("scoring", "driver")]


def test_what_is_killed_loses_and_changes_nothing(
    place: Arena, study: Path, calm: Path, tmp_path: Path
) -> None:
    bout = fight(place, study, tmp_path / "out", calm, number=1, seed=1, kills=KILLS)
    assert bout.faults == []
    assert bout.beyond() == []
    assert bout.kills, "the study ended before anything was killed"
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


def test_work_that_is_begun_again_is_counted_for_the_kill_before() -> None:
    kills = [Kill("replica", "scoring", 2.0), Kill("caller", "scoring", 4.0)]
    begun = [(1.0, "a"), (1.5, "b"), (3.0, "a"), (5.0, "b"), (6.0, "c")]
    attribute(kills, begun)
    assert [kill.repeated for kill in kills] == [1, 1]
