"""A whole small study on real Ray through the command line: what it leaves and refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import ray
import torch
import yaml
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load, save
from typer.testing import CliRunner

import raybias
from raybias.cli import app
from raybias.config import load_study
from raybias.errors import OutputError, RaybiasError
from raybias.planning.machine import Speed
from raybias.runtime import graph
from raybias.runtime.predict import replica, stream
from raybias.runtime.predict.shards import Reading
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Done
from raybias.runtime.serve.app import Serving
from raybias.runtime.serve.app import app as application
from raybias.schema import RUNS
from raybias.storage import Store
from support import studies
from support.studies import NO_RAY, run

pytestmark = pytest.mark.cluster


#: A tuning of seconds.
LONG = {"learning_rates": [0.01], "keep": 2, "batch_size": 4, "eval_every": 10, "max_steps": 120}


@pytest.fixture(scope="module")
def method_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study file of a prompted method and of a soft prompt."""
    path = studies.save(tmp_path_factory.mktemp("methods"), "few_shot", "soft_prompt")
    sentences = path.parent / "sentences"
    shutil.copyfile(sentences / "validation.csv", sentences / "test.csv")
    content = yaml.safe_load(path.read_text())
    content["resources"] |= {"replicas_max": 2, "rows_per_shard": 3}
    content["methods"][1] |= LONG
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def method_out(
    method_file: Path, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> Path:
    """The OUT of a run that halved a pack and lost a replica; beside it, what it said."""
    out = tmp_path_factory.mktemp("cold") / "out"
    read, killed, retried = Replicas.read, list[psutil.Process](), list[int]()

    def disturbed(
        self: Replicas, reading: Reading, grant: Any, add: Any, *, max_failures: int
    ) -> None:
        def kill_one(done: Done) -> None:
            add(done)
            retried.append(done.retries)
            if not killed:
                # The one that works, held first, so that requests are at it when it dies.
                killed.append(max(replicas_of(self.name), key=lambda p: p.cpu_times().user))
                killed[0].suspend()
                threading.Timer(0.5, killed[0].kill).start()

        read(self, reading, grant, kill_one, max_failures=max_failures)
        for name in ("rows_total", "tokens_total", "busy_seconds_total"):
            await_metric(f"ray_raybias_{name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replicas, "read", disturbed)
        patch.setattr(stream, "_LINGERS_S", 10.0)
        # A pack may be halved from its first report on, long before a fast machine ends it.
        patch.setattr(Speed, "load", lambda self, size: 0.0)
        patch.setattr(graph, "LOOK_EVERY_S", 0.02)
        result = CliRunner().invoke(app, ["run", str(method_file), "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    (out.parent / "printed").write_text(result.stdout)
    (out.parent / "said").write_text(result.stderr)
    assert killed
    assert sum(retried) <= replica.REQUESTS_PER_REPLICA
    return out


def replicas_of(app: str) -> list[psutil.Process]:
    title = f"ray::ServeReplica:{app}-"
    every = psutil.process_iter(["cmdline"])
    return [each for each in every if title in " ".join(each.info["cmdline"] or ())]


def await_metric(name: str) -> None:
    """Wait until Ray's agent exports a metric of this study's replicas."""
    tags = {"study": "methods", "stage": "score", "model": "tiny"}
    (node,) = ray.nodes()
    place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    for _ in range(60):
        with urllib.request.urlopen(place) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [each for family in families for each in family.samples if each.value]
        if any(each.name == name and tags.items() <= each.labels.items() for each in samples):
            return
        time.sleep(0.5)
    raise AssertionError(f"{name} is not exported")


def test_a_run_leaves_tables_report_and_runs(method_out: Path) -> None:
    printed = (method_out.parent / "printed").read_text()
    assert "colour" in printed
    assert f"report: {method_out}/report.html" in printed
    assert "<html" in (method_out / "report.html").read_text()
    columns = pl.read_csv(method_out / "tables" / "estimates.csv", n_rows=1).columns
    assert columns[:5] == ["kind", "model", "method", "dataset", "probe"]
    runs = Store(method_out).read_table("runs.parquet")
    assert runs.schema == RUNS
    assert sum(runs["selected"].to_pylist()) == 4
    assert yaml.safe_load((method_out / "study.yaml").read_text())["study"]["name"] == "methods"


def test_an_idle_worker_takes_half_of_a_pack_and_no_step_is_done_twice(method_out: Path) -> None:
    runs = pl.read_parquet(method_out / "runs.parquet").filter(method="soft_prompt")
    rows = runs.sort("seed").to_dicts()
    assert [row["seed"] for row in rows] == [1, 2]
    assert {row["steps"] for row in rows} == {120}
    assert sorted(row["rank"] for row in rows) == [1, 2]
    assert all(len(row["eval_losses"]) == 1 + 12 for row in rows)
    assert all(row["untuned_accuracy"] == row["eval_accuracies"][0] for row in rows)
    assert all(0 <= row["test_accuracy"] <= 1 for row in rows)
    assert not list(method_out.glob("train/*"))
    said = (method_out.parent / "said").read_text()
    assert re.search(r"[1-9]\d* runs resumed, 0 steps done twice", said), said


def test_other_weights_under_the_same_name_are_refused(method_file: Path, method_out: Path) -> None:
    """By a second run and by `raybias serve`; the report names those that were used."""
    file = method_file.parent / "tiny" / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"model.safetensors {digest[:12]}" in (method_out / "report.html").read_text()
    held = file.read_bytes()
    weights = {name: -tensor for name, tensor in load(held).items()}
    file.write_bytes(save(weights, metadata={"format": "pt"}))
    said = rf"holds another study \(models\.tiny\.model\.safetensors is {digest[:12]}\.\., now "
    try:
        with pytest.raises(OutputError, match=said):
            run(method_file, method_out)
        with pytest.raises(OutputError, match=said):
            application(Serving(out=str(method_out), anyone=True))
    finally:
        file.write_bytes(held)
    application(Serving(out=str(method_out), anyone=True))


@pytest.mark.slow
def test_failed_work_is_one_line_and_exit_code_1(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """An adapter that another program broke; the replica's error reaches the user."""
    out = tmp_path / "out"
    shutil.copytree(method_out, out)
    read = next((out / "predictions").rglob("*soft_prompt*.parquet"))
    read.unlink()
    adapter = read.stem
    (out / "adapters" / adapter / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(RaybiasError) as raised:
        run(method_file, out)
    assert "\n" not in str(raised.value)
    assert adapter in str(raised.value)


def test_without_ray_every_file_is_the_same_to_the_bit(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """The runs' seconds aside, and the schedule, whatever replicas were lost."""
    out = tmp_path / "out"
    printed = run(method_file, out, *NO_RAY, "--set", "resources.deterministic=false")
    # Ray says before it that a worker was lost.
    there = (method_out.parent / "printed").read_text()
    assert there.replace(str(method_out), str(out)).endswith(printed)
    for folder in ("predictions", "prompts", "items"):
        assert contents(out / folder) == contents(method_out / folder)
    here, there = records(out), records(method_out)
    assert {each.pop("deterministic") for each in here.values()} == {False}
    assert {each.pop("deterministic") for each in there.values()} == {True}
    assert here == there
    tensors = "*/adapter_model.safetensors"
    assert contents(out / "adapters", tensors) == contents(method_out / "adapters", tensors)
    timed = ["seconds"]
    one, other = (pl.read_parquet(each / "runs.parquet").drop(timed) for each in (out, method_out))
    assert one.equals(other)


def records(out: Path) -> dict[str, dict[str, Any]]:
    """What was written down of each reader and each tuned run, and of the torch they had."""
    readers = {f.name: json.loads(f.read_text()) for f in (out / "readers").glob("*.json")}
    tuned = {
        f.parent.name: json.loads(f.read_text())["computed"] | {"pack": "may be halved"}
        for f in (out / "adapters").glob("*/raybias.json")
    }
    assert readers
    assert tuned
    return readers | tuned


def contents(folder: Path, pattern: str = "**/*.*") -> dict[str, bytes]:
    found = {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.glob(pattern))
        if f.is_file()
    }
    assert found
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("method", ["soft_prompt", "lora"])
def test_a_killed_rank_of_a_sharded_backbone_changes_no_bit(
    tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = studies.save(tmp_path, method)
    content = yaml.safe_load(path.read_text())
    content["methods"][0] |= {**LONG, "seeds": [1, 2, 3, 4, 5]}
    content["resources"] |= {"shard": "zero3", "train_workers": 2, "tokens_per_batch": 256}
    path.write_text(yaml.safe_dump(content))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(path, whole)
    if method == "soft_prompt":
        changes = ("--set", "resources.shard=never", "--set", "resources.train_workers=1")
        run(path, tmp_path / "alone", *NO_RAY, *changes)
        for name, prompt in weights_of(tmp_path / "alone").items():
            # A twentieth of a step: AdamW divides a gradient by its own size.
            torch.testing.assert_close(weights_of(whole)[name], prompt, atol=5e-4, rtol=0)

    def kill() -> None:
        """Kill a rank once there is a state to go on from."""
        ended = time.monotonic() + 240
        while not any(cut.glob("train/*/*.safetensors")) and time.monotonic() < ended:
            time.sleep(0.02)
        ranks = [p for p in psutil.Process().children(recursive=True)
                 if "RayTrainWorker" in p.cmdline()[0]]  # fmt: skip
        ranks[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    capfd.readouterr()
    raybias.run(load_study(path), out=cut)
    killer.join()
    said = capfd.readouterr().err
    again = re.search(r" 5 runs resumed, (\d+) steps done twice", said)
    assert again is not None, said
    assert int(again[1]) <= 2 * 10 * 5
    for folder, pattern in (("adapters", "*/adapter_model.safetensors"), ("predictions", "**/*.*")):
        assert contents(cut / folder, pattern) == contents(whole / folder, pattern)
    one, other = (pl.read_parquet(each / "runs.parquet").drop("seconds") for each in (cut, whole))
    assert one.equals(other)


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name} {name}": tensor
        for path in sorted(out.glob("adapters/*/adapter_model.safetensors"))
        for name, tensor in load(path.read_bytes()).items()
    }
