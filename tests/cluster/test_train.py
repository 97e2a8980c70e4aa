"""Tuning on real Ray Train: the same prompts however it is spread, cut or killed (about 2 min)."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from raybias.config import Study, load_study
from raybias.engine.adapters.tuning import PackedTuner
from raybias.engine.backbone import ModelContext
from raybias.errors import WorkFailed
from raybias.methods.tuned import hyper_parameter_grid
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.runtime.progress import Reporter
from raybias.runtime.tuning import tokenise, trials_of
from raybias.storage import Store
from support.tuning import tune

pytestmark = pytest.mark.cluster

PREEMPTED = Path(__file__).with_name("preempted.py")
#: What these drivers import from beside the tests.
SUPPORT = {**os.environ, "PYTHONPATH": str(PREEMPTED.parents[1])}
PATIENCE_S = 240
#: What Ray calls the processes that tune.
WORKERS = ("PackWorker", "RayTrainWorker")
ON_RAY = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def study_file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny OPT, a training set whose words tell the label, and a study of six seeds."""
    root = tmp_path_factory.mktemp("tuning")
    (root / "tiny").symlink_to(tiny_model)
    words = [f"w{i}" for i in range(40)]
    random = np.random.default_rng(5)
    for split, count in (("train", 60), ("validation", 30), ("test", 12)):
        labels = random.integers(0, 3, count)
        texts = [" ".join(random.choice(words[k::3], random.integers(2, 12))) for k in labels]
        pl.DataFrame({"text": texts, "label": labels}).write_csv(root / f"{split}.csv")
    pl.DataFrame(
        {"text": ["w1", "w2"], "label": [0, 1], "attribute": ["a", "a"], "group": ["x", "y"]}
    ).write_csv(root / "probe.csv")
    study = {
        "name": "tuning",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "methods": [
            {
                "prompt_length": 3,
                "learning_rates": [0.01],
                "seeds": [1, 2, 3, 4, 5],
                "keep": 2,
                "batch_size": 4,
                "eval_every": 10,
                "max_steps": 120,
            }
        ],
        "training": [{"source": "file", "name": "set", "data": "."}],
        "probes": [{"source": "file", "name": "mine", "data": "probe.csv"}],
        "resources": {"train_workers": 2, "tokens_per_batch": 256},
    }
    (root / "study.yaml").write_text(yaml.safe_dump(study))
    return root / "study.yaml"


def tuned(
    study: Study, out: Path, said: io.StringIO | None = None, cpus: int = 4, **options: Any
) -> list[dict[str, Any]]:
    reporter = Reporter(Console(file=said or io.StringIO(), width=200))
    prepared = PreparedStudy.of(study)
    made = plan(prepared, assumed(f"cpus={cpus},memory=16GiB"))
    backbone, training = study.backbones[0], study.training[0]
    return tune(prepared, backbone, training, made, Store(out), reporter=reporter, **options)


def prompts_of(out: Path) -> dict[str, torch.Tensor]:
    return {
        path.parent.name: load_file(path)["prompt_embeddings"]
        for path in sorted(out.glob("adapters/*/adapter_model.safetensors"))
    }


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def alone(study_file: Path) -> dict[str, torch.Tensor]:
    """The prompts of the engine by itself."""
    return by_the_engine(load_study(study_file))


def by_the_engine(study: Study) -> dict[str, torch.Tensor]:
    """The prompts of all runs in one pack."""
    torch.set_num_threads(1)
    spec, training, method = study.backbones[0], study.training[0], study.methods[0]
    tokens = tokenise(PreparedStudy.of(study).inputs(method, spec), training.name, method)
    trainer = method.trainer(ModelContext(spec, study.verbalizer.words()))
    trials = trials_of(spec, training, method, method.seeds, hyper_parameter_grid(method))
    tuner = PackedTuner(
        trainer, method.recipe, trials, train=tokens.train, validation=tokens.validation
    )
    while not tuner.done:
        tuner.advance()
    return {u.run_id: trainer.prompt(tuner.runs[u.run_id].weights) for u in trials}


def assert_close(
    one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float
) -> None:
    assert one.keys() == other.keys()
    for name, prompt in one.items():
        torch.testing.assert_close(prompt, other[name], atol=tolerance, rtol=0)


@ON_RAY
def test_an_idle_worker_takes_half_of_a_pack_and_the_prompts_are_the_engines(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps enough that another worker starts meanwhile.
    study = load_study(
        study_file, overrides=("resources.train_workers=1", "methods.0.max_steps=400")
    )
    said = io.StringIO()
    rows = tuned(study, tmp_path, said, cpus=2, load_s=1.0)
    assert same_bits(prompts_of(tmp_path), by_the_engine(study))
    # Some went on elsewhere, one after another where halves were halved; no step was done twice.
    assert repeated_steps(said.getvalue(), runs=range(2, 20)) == 0
    assert [row["seed"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["steps"] for row in rows} == {400}
    assert sorted(row["rank"] for row in rows) == [1, 2, 3, 4, 5]
    assert sum(row["selected"] for row in rows) == 2
    assert all(len(row["eval_losses"]) == 1 + 40 for row in rows)
    assert all(row["untuned_accuracy"] == row["eval_accuracies"][0] for row in rows)
    assert all(0 <= row["test_accuracy"] <= 1 for row in rows)
    assert not list(tmp_path.glob("train/*"))
    # What is tuned is not tuned again: to start a worker would fail.
    monkeypatch.setattr("raybias.runtime.ray_workers.RayWorkers.tune", None)
    assert tuned(study, tmp_path) == rows
    changed = load_study(study_file, overrides=("methods.0.batch_size=5",))
    with pytest.raises(WorkFailed, match="not callable"):
        tuned(changed, tmp_path)


@pytest.mark.slow
@ON_RAY
def test_a_sweep_on_one_worker_records_diverged_runs_and_the_chosen_rate(
    study_file: Path, alone: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    study = load_study(
        study_file,
        overrides=("methods.0.learning_rates=[1.0e+30, 0.01]", "resources.train_workers=1"),
    )
    rows = tuned(study, tmp_path)
    diverged = [row for row in rows if row["stop_reason"] == "diverged"]
    assert [(row["stage"], row["seed"], row["adapter"]) for row in diverged] == [("sweep", 1, None)]
    final = [row for row in rows if row["stage"] == "final"]
    assert [(row["seed"], row["learning_rate"]) for row in final] == [
        (s, 0.01) for s in range(1, 6)
    ]
    assert_close(prompts_of(tmp_path), alone, 1e-5)


def checkpointed(out: Path) -> bool:
    return any(out.glob("train/*/*.safetensors"))


def train_workers(driver: psutil.Process) -> list[psutil.Process]:
    return [
        p
        for p in driver.children(recursive=True)
        if any(kind in p.cmdline()[0] for kind in WORKERS)
    ]


def when(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """Do `action` in a thread once `condition` holds."""

    def wait() -> None:
        ended = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > ended:
                return
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def repeated_steps(said: str, *, runs: Collection[int] = (5,)) -> int:
    """Steps that were done twice by so many runs that went on from their state."""
    (found,) = re.findall(r"(\d+) runs resumed, (\d+) steps done twice", said)
    assert int(found[0]) in runs
    return int(found[1])


SHARDED = {
    "soft_prompt": ("resources.shard=zero3",),
    "lora": (
        "resources.shard=zero3",
        "methods.0={kind: lora, rank: 2, learning_rates: [0.01], seeds: [1, 2, 3, 4, 5], keep: 2,"
        " batch_size: 4, eval_every: 10, max_steps: 60, early_stop: {after_step: 60}}",
    ),
}


@pytest.mark.slow
@ON_RAY
@pytest.mark.parametrize("method", SHARDED)
def test_a_killed_rank_of_a_sharded_backbone_changes_no_bit(
    study_file: Path, alone: dict[str, torch.Tensor], tmp_path: Path, method: str
) -> None:
    study = load_study(study_file, overrides=SHARDED[method])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed = tuned(study, whole)
    if method == "soft_prompt":
        assert_close(prompts_of(whole), alone, 1e-4)

    def kill() -> None:
        train_workers(psutil.Process())[0].send_signal(signal.SIGKILL)

    said = io.StringIO()
    killer = when(lambda: checkpointed(cut), kill)
    rows = tuned(study, cut, said)
    killer.join()
    assert timeless(rows) == timeless(undisturbed)
    assert repeated_steps(said.getvalue()) <= 2 * 10 * 5
    assert weights_of(cut).keys() == weights_of(whole).keys()
    assert same_bits(weights_of(cut), weights_of(whole))


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name} {name}": tensor
        for path in sorted(out.glob("adapters/*/adapter_model.safetensors"))
        for name, tensor in load_file(path).items()
    }


@pytest.mark.slow
def test_an_announced_loss_of_a_node_costs_few_steps_and_counts_as_no_failure(
    study_file: Path, tmp_path: Path
) -> None:
    lora = (
        "methods.0={kind: lora, rank: 2, learning_rates: [0.01], seeds: [1, 2, 3, 4, 5], keep: 2,"
        " batch_size: 4, eval_every: 10, max_steps: 1500, early_stop: {after_step: 1500}}"
    )
    command = [sys.executable, str(PREEMPTED), str(study_file), str(tmp_path)]
    found = subprocess.run(
        [*command, lora, "resources.max_failures=0"],
        env=SUPPORT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert "drained" in found.stdout
    # Those of the pack on that node, and halves that an idle worker took.
    assert repeated_steps(found.stdout, runs=range(2, 20)) <= 10 * 3
