"""Tuning on real Ray Train: the same prompts however it is spread, cut or killed (about 2 min)."""

from __future__ import annotations

import io
import re
import shutil
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from raybias.methods import tuned_methods
from raybias.methods.tuned import hyper_parameter_grid
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.tasks import tasks_of
from raybias.runtime.graph import Graph
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_workers import RayWorkers
from raybias.runtime.tuning import TuningJob, trials_of
from raybias.storage import Store
from support import studies

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

PATIENCE_S = 240
#: What Ray calls the processes that tune.
WORKERS = ("PackWorker", "RayTrainWorker")


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of five seeds of a prompt, with a test split."""
    path = studies.save(tmp_path_factory.mktemp("tuning"), "soft_prompt")
    sentences = path.parent / "sentences"
    shutil.copyfile(sentences / "validation.csv", sentences / "test.csv")
    content = yaml.safe_load(path.read_text())
    content["methods"][0] |= {"learning_rates": [0.01], "seeds": [1, 2, 3, 4, 5], "keep": 2}
    content["methods"][0] |= {"batch_size": 4, "eval_every": 10, "max_steps": 120}
    content["resources"] = {"train_workers": 2, "tokens_per_batch": 256}
    path.write_text(yaml.safe_dump(content))
    return path


def tuned(
    study: Study,
    out: Path,
    said: io.StringIO | None = None,
    cpus: int = 4,
    load_s: float | None = None,
) -> list[dict[str, Any]]:
    """Rows of all runs of a study's method, tuned without the rest of the study.

    Parameters
    ----------
    load_s: after so many seconds a pack may be halved; as planned by default.
    """
    prepared = PreparedStudy.of(study)
    made = plan(prepared, assumed(f"cpus={cpus},memory=16GiB"))
    backbone, training = study.backbones[0], study.training[0]
    (method,) = tuned_methods(study.methods_of(backbone))
    workers = RayWorkers(made, "raybias-test")
    graph = Graph(workers)
    job = TuningJob(
        prepared, backbone, training, method,
        made.tune(backbone.name, training.name, method.name), Store(out),
        Reporter(Console(file=said or io.StringIO(), width=200)), workers,
    )  # fmt: skip
    for task in tasks_of(made):
        if task.kind == "tune":
            graph.add(task if load_s is None else replace(task, load=load_s), job.tune)
    try:
        graph.run()
    finally:
        workers.close()
    return job.rows()


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name} {name}": tensor
        for path in sorted(out.glob("adapters/*/adapter_model.safetensors"))
        for name, tensor in load_file(path).items()
    }


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def by_the_engine(study: Study) -> dict[str, torch.Tensor]:
    """The prompts of all runs in one pack of the engine by itself."""
    torch.set_num_threads(1)
    spec, training, method = study.backbones[0], study.training[0], study.methods[0]
    nobody: Any = None
    prepared = PreparedStudy.of(study)
    tokens = TuningJob(prepared, spec, training, method, nobody, nobody, nobody, nobody).tokens
    trainer = method.trainer(ModelContext(spec, study.verbalizer.words()))
    trials = trials_of(spec, training, method, method.seeds, hyper_parameter_grid(method))
    tuner = PackedTuner(
        trainer, method.recipe, trials, train=tokens.train, validation=tokens.validation
    )
    while tuner.advance():
        pass
    return {
        f"{each.run_id} prompt_embeddings": trainer.prompt(tuner.runs[each.run_id].weights)
        for each in trials
    }


def test_an_idle_worker_takes_half_of_a_pack_and_the_prompts_are_the_engines(
    study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps enough that another worker starts meanwhile.
    study = load_study(
        study_file, overrides=("resources.train_workers=1", "methods.0.max_steps=240")
    )
    said = io.StringIO()
    rows = tuned(study, tmp_path, said, cpus=2, load_s=0.3)
    assert same_bits(weights_of(tmp_path), by_the_engine(study))
    # Some went on elsewhere, one after another where halves were halved; no step was done twice.
    assert repeated_steps(said.getvalue(), runs=range(2, 20)) == 0
    assert [row["seed"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["steps"] for row in rows} == {240}
    assert sorted(row["rank"] for row in rows) == [1, 2, 3, 4, 5]
    assert sum(row["selected"] for row in rows) == 2
    assert all(len(row["eval_losses"]) == 1 + 24 for row in rows)
    assert all(row["untuned_accuracy"] == row["eval_accuracies"][0] for row in rows)
    assert all(0 <= row["test_accuracy"] <= 1 for row in rows)
    assert not list(tmp_path.glob("train/*"))
    # What is tuned is not tuned again: to start a worker would fail.
    monkeypatch.setattr("raybias.runtime.ray_workers.RayWorkers.tune", None)
    assert tuned(study, tmp_path) == rows
    changed = load_study(study_file, overrides=("methods.0.batch_size=5",))
    with pytest.raises(WorkFailed, match="not callable"):
        tuned(changed, tmp_path)


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
@pytest.mark.parametrize("method", SHARDED)
def test_a_killed_rank_of_a_sharded_backbone_changes_no_bit(
    study_file: Path, tmp_path: Path, method: str
) -> None:
    study = load_study(study_file, overrides=SHARDED[method])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed = tuned(study, whole)
    if method == "soft_prompt":
        alone = by_the_engine(study)
        torch.testing.assert_close(weights_of(whole), alone, atol=1e-4, rtol=0)

    def kill() -> None:
        """Kill a rank once there is a state to go on from."""
        ended = time.monotonic() + PATIENCE_S
        while not any(cut.glob("train/*/*.safetensors")):
            if time.monotonic() > ended:
                return
            time.sleep(0.02)
        children = psutil.Process().children(recursive=True)
        ranks = [p for p in children if any(kind in p.cmdline()[0] for kind in WORKERS)]
        ranks[0].send_signal(signal.SIGKILL)

    said, killer = io.StringIO(), threading.Thread(target=kill)
    killer.start()
    rows = tuned(study, cut, said)
    killer.join()
    assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in undisturbed]
    assert repeated_steps(said.getvalue()) <= 2 * 10 * 5
    assert same_bits(weights_of(cut), weights_of(whole))
