"""What carries raybias on: workflows, templates, the citation, and what a wheel holds."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from scipy.stats import t

from support.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


JOBS: dict[str, Any] = {
    f"{path.stem} {name}": job for path in WORKFLOWS for name, job in read(path)["jobs"].items()
}
STEPS = [step for job in JOBS.values() for step in job.get("steps", ())]


def test_only_publishing_may_do_more_than_read_and_waits_for_approval() -> None:
    for content in map(read, WORKFLOWS):
        assert content["permissions"] == {"contents": "read"}
    rights = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert rights == {"release publish": {"id-token": "write"}}
    assert JOBS["release publish"]["environment"]["name"] == "pypi"
    assert JOBS["release publish"]["needs"] == "ci"


def test_every_step_is_a_make_target_that_there_is() -> None:
    """What CI runs a laptop runs too."""
    commands = {step["run"] for step in STEPS if "run" in step and "name" not in step}
    assert {command.removeprefix("make ") for command in commands} <= TARGETS
    texts = ["README.md", "AGENTS.md", "CONTRIBUTING.md", "docs/releasing.md", ".ci/run"]
    named = re.findall(
        r"^ *make ([a-z ]+?)(?=$| [^a-z]|  )",
        "\n".join((ROOT / name).read_text("utf-8") for name in texts),
        flags=re.M,
    )
    assert set(" ".join(named).split()) <= TARGETS
    for target in sorted(TARGETS - {"clean"}):
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_fast_tests_run_on_every_python_that_the_package_claims() -> None:
    claimed = [
        name.rpartition(" ")[2]
        for name in PROJECT["project"]["classifiers"]
        if re.search(r"Python :: 3\.\d+$", name)
    ]
    matrix = JOBS["ci fast"]["strategy"]["matrix"]
    assert matrix["python"] == claimed
    assert PROJECT["project"]["requires-python"] == f">={claimed[0]}"


def test_the_release_checks_that_the_citation_has_the_version_of_the_tag() -> None:
    (check,) = (step["run"] for step in JOBS["release version"]["steps"] if "run" in step)
    version = read(ROOT / "CITATION.cff")["version"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    for tag, passes in ((f"v{version}", True), ("v9.9.9", False), (f"v{version}1", False)):
        done = subprocess.run(
            ["bash", "-c", check], cwd=ROOT, env={"TAG": tag, "PATH": "/usr/bin:/bin"},
            capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == passes, tag


def test_a_wheel_holds_every_file_of_the_package() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "raybias"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["raybias"]
    data = {path for pattern in patterns for path in (ROOT / "raybias").glob(pattern)}
    for name in map(Path, listed.stdout.split()):
        if name.suffix == ".py":
            assert (ROOT / name.parent / "__init__.py").exists(), "setuptools would not find it"
        else:
            assert ROOT / name in data, "name it in pyproject's package-data"


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("benchmarks.__main__")


def test_a_table_has_ratios_with_intervals_and_what_could_not_run(gathered: ModuleType) -> None:
    pair = gathered.Comparison("tuning", "ours", "PEFT", gathered.PROCESSOR, (2.0, 8.0))
    middle, low, high = pair.interval()
    assert middle == pytest.approx(4)
    # Two logarithms that differ by 2 log 2: their mean's standard error is log 2.
    assert high / middle == pytest.approx(2 ** t.ppf(0.975, 1))
    assert low * high == pytest.approx(middle**2)
    one = gathered.Comparison("reading", "ours", "HFLM", gathered.PROCESSOR, (3.0,))
    found = [
        gathered.Outcome("tuning", (pair, one), "", 1.0),
        gathered.Outcome("pairs", (), "needs minicons", 0.1),
    ]
    page = gathered.table(found)
    assert re.search(r"\| tuning +\| ours +\| PEFT +\| 4.00x +\| 0.00 to", page)
    assert re.search(r"\| 3.00x +\| one round", page)
    assert re.search(r"not run +\|.*needs minicons +\| `pairs.py`", page)


def test_what_is_not_there_is_a_reason(gathered: ModuleType) -> None:
    found, reason = gathered.compare("no_such_peer", gathered.SIZES["small"])
    assert found == ()
    assert reason.startswith("needs no_such_peer (`pip install")
