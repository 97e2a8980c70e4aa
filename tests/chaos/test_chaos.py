"""A few kills in one run of a small study; `long.py` makes a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from arena import PATIENCE_S, Arena, until
from bout import EVERY, Run, fight
from verdict import faults

pytestmark = pytest.mark.chaos
KILLS = [
    *[("tuning", "worker"), ("tuning", "driver")],
    *[("scoring", "replica"), ("scoring", "node"), ("scoring", "driver")],
]

ENDS = [
    ("tuning", "interrupted"),
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
def test_signals_and_the_loss_of_serves_own_processes_change_nothing(
    place: Arena, study: Path, calm: Path, tmp_path: Path
) -> None:
    place.open_proxies()
    bout = fight(place, study, tmp_path / "out", calm, number=2, seed=1, kills=ENDS)
    assert bout.faults == []
    assert bout.beyond() == []
    assert {kill.kind for kill in bout.kills} == {kind for _, kind in ENDS}
    assert place.left() == []


def test_an_announced_loss_of_a_node_costs_few_steps_and_counts_as_no_failure(
    place: Arena, study: Path, calm: Path, tmp_path: Path
) -> None:
    content = yaml.safe_load(study.read_text("utf-8"))
    content["resources"]["max_failures"] = 0
    careful = study.with_name("careful.yaml")
    careful.write_text(yaml.safe_dump(content), "utf-8")
    run = Run(place.address, careful, tmp_path / "out")
    until(lambda: run.progress("tuning"), "it tunes", patience_s=PATIENCE_S)
    going = next(node for node in place.nodes() if place.actors("worker", node))
    place.announce_loss(going)
    run.end()
    place.lose(going)
    place.fill_up()
    assert faults(run.out, calm) == []
    assert "runs resumed" in run.said.read_text()
    assert run.steps_again().total() <= EVERY


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
