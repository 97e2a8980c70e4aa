"""What carries raybias on: workflows, templates, the citation, and what a wheel holds."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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
