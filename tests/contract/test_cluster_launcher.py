"""cluster/: the launcher files are Ray's, nothing is open in them, and all versions agree."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from raybias.config import load_study
from raybias.runtime.progress import METRICS
from support.documents import CLUSTER, KUBERAY, ROOT, documents, pins

LAUNCHERS = ["aws.yaml", "gcp.yaml"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (CLUSTER / "Containerfile").read_text()


def launcher(name: str) -> dict[str, Any]:
    return documents(CLUSTER / name)[0]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ray_accepts_the_launcher_file(name: str) -> None:
    prepared = prepare_config(launcher(name))
    validate_config(prepared)
    types = prepared["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0}
    assert types["head"]["max_workers"] == 0
    assert set(types) == {"head", "gpu-spot", "gpu-on-demand"}
    for worker in ("gpu-spot", "gpu-on-demand"):
        assert types[worker]["resources"] == {"CPU": 48, "GPU": 4}
        assert types[worker]["min_workers"] == 0
        assert 0 < types[worker]["max_workers"] <= prepared["max_workers"]
    assert types["gpu-spot"]["priority"] > types["gpu-on-demand"].get("priority", 0)
    assert 0 < prepared["idle_timeout_minutes"] <= 15


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_dashboard_is_on_loopback_and_nodes_have_the_token_and_watch_for_their_end(
    name: str,
) -> None:
    config = launcher(name)
    (start,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in start
    assert "--num-cpus=0" in start
    assert config["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}
    assert re.search(r"^ENV RAY_AUTH_MODE=token", RECIPE, re.MULTILINE)
    assert "0.0.0.0" not in (CLUSTER / name).read_text()
    *_, start, watch = config["worker_start_ray_commands"]
    assert start.startswith("ray start --address")
    cloud = name.removesuffix(".yaml")
    program = rf"nohup .*python /home/ray/raybias/cluster/spot_watch.py {cloud} .*&"
    assert re.fullmatch(program, watch)


def test_nodes_are_on_a_closed_network_and_have_their_own_role() -> None:
    for name, each in launcher("gcp.yaml")["available_node_types"].items():
        node = each["node_config"]
        (interface,) = node["networkInterfaces"]
        assert interface["subnetwork"].endswith("/subnetworks/raybias")
        spot = node.get("scheduling", {}).get("provisioningModel") == "SPOT"
        assert spot == (name == "gpu-spot")
    for name, each in launcher("aws.yaml")["available_node_types"].items():
        node = each["node_config"]
        # Without it the launcher would make a group that lets SSH in from everywhere.
        assert node["SecurityGroupIds"] == ["sg-0123456789abcdef0"]
        assert node["MetadataOptions"]["HttpTokens"] == "required"
        role = "raybias-head" if name == "head" else "raybias-worker"
        assert node["IamInstanceProfile"] == {"Name": role}
        spot = node.get("InstanceMarketOptions") == {"MarketType": "spot"}
        assert spot == (name == "gpu-spot")
    stack = (CLUSTER / "aws_setup.yaml").read_text()
    made = re.findall(r"InstanceProfileName: (\S+)", stack)
    assert {*made} == {"raybias-head", "raybias-worker"}
    assert "0.0.0.0/0" not in stack


def test_the_study_that_the_readme_runs_is_one() -> None:
    study = load_study(CLUSTER / "study.yaml")
    script = (CLUSTER / "study.sh").read_text()
    for each in (*study.training, *study.probes):
        assert each.source in script
    assert script.index("\nraybias doctor\n") < script.index("raybias run study.yaml --out")
    for name in LAUNCHERS:
        node = launcher(name)["available_node_types"]["gpu-spot"]["resources"]
        assert study.resources.cpus_per_worker * node["GPU"] <= node["CPU"]


def test_skypilot_starts_the_same_image_and_study() -> None:
    (task,) = documents(CLUSTER / "skypilot.yaml")
    assert task["resources"]["image_id"].startswith("docker:")
    assert 'bash /home/ray/raybias/cluster/study.sh "$OUT"' in task["run"]
    assert task["file_mounts"] == launcher("aws.yaml")["file_mounts"]
    assert "0.0.0.0" not in task["run"]


def test_one_ray_and_one_python_everywhere() -> None:
    ray = pins()["ray"]
    assert version("ray") == ray
    specs = []
    for path in KUBERAY.glob("ray*.yaml"):
        (manifest,) = documents(path)
        found = re.findall(r'"rayVersion": "([^"]+)"', json.dumps(manifest))
        assert found, path
        specs += found
    assert set(specs) == {ray}
    (python,) = re.findall(r"^FROM docker.io/library/python:(\d\.\d+)-", RECIPE, re.MULTILINE)
    assert f"Python {python}" in (ROOT / "constraints.txt").read_text()
    assert PROJECT["requires-python"] == f">={python}"
    assert sys.version_info >= tuple(map(int, python.split(".")))


def test_the_image_is_what_the_constraints_say_and_no_more() -> None:
    assert re.search(r"pip install [^\n]*--require-hashes --requirement cluster/req", RECIPE)
    assert re.search(r"pip install [^\n]*--no-deps --no-build-isolation '.\[aws,gcp\]'", RECIPE)
    hashed = (CLUSTER / "requirements.txt").read_text()
    listed = dict(
        re.findall(r"^([\w.-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", hashed, flags=re.M)
    )
    assert len(listed) == len(re.findall(r"^\w", hashed, flags=re.M)), "each has a hash"
    assert "://" not in hashed, "from where pip is told to look"
    mine = {name.lower().replace("_", "-"): version for name, version in pins().items()}
    # The pins are those of a machine without a GPU, and without what the package is built with.
    of_torch = re.compile(r"cuda-|nvidia-|triton|setuptools|vcs-versioning")
    own = {name: version for name, version in listed.items() if not of_torch.match(name)}
    assert own.items() <= mine.items(), "`make hashes`"
    needed = {re.split(r"[=<>\[]", name)[0] for name in PROJECT["dependencies"]}
    assert needed | {"boto3", "google-api-python-client"} <= listed.keys()
    assert re.findall(r"^USER (.*)", RECIPE, re.MULTILINE) == ["1000:1000"]
    assert not re.search(r"(SECRET|PASSWORD|_KEY|TOKEN)\s*=", RECIPE)
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", RECIPE, re.MULTILINE):
        for source in sources.split():
            assert list(ROOT.glob(source)), source


def test_the_readme_names_the_image_of_the_version_that_is_cited() -> None:
    readme = (CLUSTER / "README.md").read_text()
    tags = re.findall(r"raybias:(\d[\w.]*)", readme)
    assert tags
    assert set(tags) == {yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]}


def test_the_board_asks_for_metrics_that_exist() -> None:
    ours = {f"ray_{name}" for name in METRICS}
    board = json.loads((CLUSTER / "grafana.json").read_text())
    # Names of labels are not metrics.
    queries = [re.sub(r"\{[^}]*\}|\bby \([^)]*\)", "", target["expr"])
               for panel in board["panels"] for target in panel.get("targets", [])]  # fmt: skip
    asked = {*re.findall(r"\b(?:ray|autoscaler)_[a-z_]+\b", "\n".join(queries))}
    folder = Path(ray.__file__).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    known = "".join(path.read_text() for path in folder.glob("*_panels.py"))
    assert asked >= ours
    unknown = {n for n in asked - ours if not re.search(rf"\b{n}\b", known)}
    assert not unknown
