"""A few kills in a small study (`long.py` makes a hundred), and nodes that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from arena import PATIENCE_S, Arena, arena, until
from bout import EVERY, Run, fight, undisturbed, write_study
from fake_cloud import fake_cloud, workers
from verdict import faults

pytestmark = pytest.mark.chaos
KILLS = [
    *[("tuning", "worker"), ("tuning", "driver")],
    *[("scoring", "replica"), ("scoring", "node"), ("scoring", "driver")],
]
#: Signals, and the loss of Serve's own processes.
ENDS = [
    *[("tuning", "interrupted"), ("scoring", "proxy")],
    *[("scoring", "controller"), ("scoring", "terminated")],
]


@pytest.fixture(scope="module")
def place() -> Iterator[Arena]:
    with arena() as made:
        yield made


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), limit=120, arms=1)


@pytest.fixture(scope="module")
def calm(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OUT of an undisturbed run."""
    out = tmp_path_factory.mktemp("calm") / "out"
    undisturbed(study, out)
    return out


# Before there is an arena, which is a cluster too.
def test_nodes_come_under_load_and_go_when_idle(study: Path, calm: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one", "two")]
    with fake_cloud(fewest=1, most=3) as address:
        until(lambda: workers(address) == 1, "a node is there", patience_s=PATIENCE_S)
        # Each study is planned for the one node that is there; together they need another.
        runs = [Run(address, study, out) for out in outs]
        most = 0
        while any(run.driver.poll() is None for run in runs):
            most = max(most, workers(address))
            time.sleep(0.5)
        for run in runs:
            run.end()
        assert most > 1, "no node was added under load"
        until(lambda: workers(address) == 1, "one node is left", patience_s=PATIENCE_S)
    for out in outs:
        assert faults(out, calm) == []


@pytest.mark.parametrize("kills", [KILLS, ENDS], ids=["kills", "ends"])
def test_what_is_killed_loses_and_changes_nothing(
    place: Arena, study: Path, calm: Path, tmp_path: Path, kills: list[tuple[str, str]]
) -> None:
    if ("scoring", "proxy") in kills:
        place.open_proxies()
    bout = fight(place, study, tmp_path / "out", calm, number=len(kills), seed=1, kills=kills)
    assert bout.faults == []
    assert bout.beyond() == []
    assert bout.kills, "the study ended before anything was killed"
    if kills is ENDS:
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
