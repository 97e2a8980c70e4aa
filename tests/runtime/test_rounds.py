"""When a worker keeps the states of its runs, and what it gives away; its passes and its GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.air._internal.device_manager.nvidia_gpu import CUDATorchDeviceManager
from ray.train.v2._internal.callbacks.accelerators import _get_visible_accelerator_ids_per_worker
from safetensors.torch import load_file

from raybias.config import Backbone
from raybias.engine.adapters.tuning import Evaluation, Run, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import Full, Lora, SoftPrompt
from raybias.runtime import pack_worker
from raybias.runtime.pack_worker import PackWorker
from raybias.runtime.progress import Meter, WorkerReport
from raybias.runtime.worker_group import BrokenPass, tell_device, within_memory
from raybias.schema import LABELS
from raybias.storage import Store
from support import backbones


class Clock:
    """Seconds that pass only while a `SlowTuner` works."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowTuner:
    """Runs that are evaluated every five steps; these, and keeping a state, take some seconds."""

    def __init__(self, clock: Clock, seconds: float, runs: str, keeping: float = 0.0) -> None:
        self.clock, self.seconds, self.runs, self.keeping = clock, seconds, list(runs), keeping
        self.steps = self.tokens = 0

    def advance(self, leaving: Callable[[], bool]) -> list[Evaluation]:
        self.steps += 5
        self.clock.now += self.seconds
        return [Evaluation(run, self.steps, 1.0, 0.5, None) for run in self.runs]

    def state(self, run_id: str) -> dict[str, torch.Tensor]:
        self.clock.now += self.keeping
        return {"steps": torch.tensor(self.steps)}

    def drop(self, run_id: str) -> None:
        self.runs.remove(run_id)


def pack_of(tuner: Any, method: Any, out: Path) -> PackWorker:
    pack = PackWorker(SimpleNamespace(), lambda: False)  # type: ignore[arg-type]
    pack.task = SimpleNamespace(method=method, folder="train/x", sharded=False, until=None)  # type: ignore
    pack.store, pack.name, pack.active, pack.tuner = Store(out), "u", list(tuner.runs), tuner
    pack._kept, pack._keeping = 0.0, 0.0
    return pack


def kept(out: Path) -> set[str]:
    return {path.stem for path in out.glob("train/x/*.safetensors")}


@pytest.mark.parametrize(
    ("method", "keeping", "evaluations"),
    [(SoftPrompt(), 9, 1), (Lora(), 0.01, 1), (Lora(), 0.5, 10), (Full(), 3, 60)],
)
def test_a_killed_worker_repeats_one_evaluation_or_twenty_times_what_keeping_large_states_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: Any, keeping: float, evaluations: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(pack_worker, "time", clock)
    pack = pack_of(SlowTuner(clock, 1.0, "u", keeping), method, tmp_path)
    pack.advance()  # What keeping takes is not known before.
    for _ in range(2):
        (tmp_path / "train/x/u.safetensors").unlink()
        for n in range(1, evaluations + 1):
            pack.advance()
            assert kept(tmp_path) == (set("u") if n == evaluations else set())


def test_what_a_pack_is_asked_for_is_kept_and_given_after_the_evaluation(tmp_path: Path) -> None:
    pack = pack_of(SlowTuner(Clock(), 1, "uvw"), Full(), tmp_path)
    assert pack.advance().given == ()
    pack.give(("v", "w", "gone"))
    assert pack.advance().given == ("v", "w")
    assert pack.active == ["u"]
    assert kept(tmp_path) >= {"v", "w"}
    assert pack.advance().given == ()


def tuned(
    method: Any,
    folder: Path,
    out: Path,
    *,
    sharded: bool = False,
    leaving: Callable[[], bool] = lambda: False,
) -> PackWorker:
    """A pack of runs r1, r2, ... on a random OPT in `folder`."""
    context = ModelContext(backbones.spec_of("opt", folder / "opt"), LABELS, Execution(512))
    tokens = pack_worker.Tokens(
        backbones.token_set(9, seed=1), backbones.token_set(3, seed=2), None
    )
    task: Any = SimpleNamespace(
        context=context, method=method, dataset="d", store=Store(out), folder="train/x",
        fingerprint="f", sharded=sharded, meter=Meter(study="s", stage="tune", model="m"),
        tokens=tokens, until=None,
    )  # fmt: skip
    trials = [Trial(f"r{n}", n, 1e-3, "final", 1e-2, 2) for n in method.seeds]
    worker = PackWorker(context, leaving)
    worker.begin(task, trials, method.trainer(context))
    return worker


def test_ranks_that_share_a_backbone_go_on_from_states_of_one_step(tmp_path: Path) -> None:
    """Even where a rank dies after the first run's result: there rows of all runs share passes."""
    method = Lora(
        rank=2, seeds=(1, 2), keep=1, eval_every=2, max_steps=4, early_stop={"after_step": 4}
    )

    def begun(out: Path) -> tuple[PackWorker, WorkerReport]:
        pack = tuned(method, tmp_path, out, sharded=True)
        return pack, pack.restore()

    pack, _ = begun(tmp_path)
    pack.advance()
    saved, save = list[str](), pack._save

    def dies(result: Run) -> None:
        """Save one result, and end with the next."""
        if saved:
            raise SystemExit
        save(result)
        saved.append(result.trial.run_id)

    pack._save = dies  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        pack.advance()
    assert saved == ["r1"]
    assert kept(tmp_path) == {"pack"}, "one file, of both runs"
    pack, report = begun(tmp_path)
    assert report.finished == ("r1", "r2")
    assert pack.active == []
    calm, _ = begun(tmp_path / "calm")
    while calm.active:
        calm.advance()
    for run in ("r1", "r2"):
        name = f"adapters/{run}/adapter_model.safetensors"
        assert (tmp_path / "calm" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_worker_that_must_leave_keeps_states_after_the_step_under_way(tmp_path: Path) -> None:
    """Not after the next evaluation; another worker comes to the same bits."""
    method = SoftPrompt(seeds=(1, 2), keep=1, eval_every=8, max_steps=8, validation_rows=0)
    looks = iter([False] * 4)
    pack = tuned(method, tmp_path, tmp_path, leaving=lambda: next(looks, True))
    reports = [*pack.reports()]
    assert [len(report.evaluated) for report in reports] == [0, 2], "at step 0 alone"
    step = load_file(tmp_path / "train/x/r1.safetensors")["steps"].item()
    assert 0 < step < 8
    for out in (tmp_path, tmp_path / "calm"):
        [*tuned(method, tmp_path, out).reports()]
    name = "adapters/r2/adapter_model.safetensors"
    assert (tmp_path / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


def test_each_start_has_half_of_the_passes_that_were_too_large(tmp_path: Path) -> None:
    store, context = Store(str(tmp_path)), ModelContext(Backbone(id="m"), (), Execution(4096))
    given = []
    errors: list[Exception] = [
        torch.OutOfMemoryError("CUDA out of memory."),
        ValueError("no memory's fault"),
        # Its first pass ran out of memory on this rank, and the budget was halved in vain.
        BrokenPass("a pass broke off"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
    ]
    for error in errors:
        with suppress(type(error)), within_memory(context, store, "train/x") as here:
            given.append(here.execution.tokens_per_batch)
            raise error
    with within_memory(context, store, "train/x") as here:
        given.append(here.execution.tokens_per_batch)
    assert given == [4096, 2048, 2048, 1024, 512]
    with within_memory(context, store, "train/y") as here:
        assert here.execution.tokens_per_batch == 4096


@pytest.mark.parametrize("gpus", [2, 12])
def test_each_rank_computes_on_the_gpu_that_ray_gave_it(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed counts GPUs by LOCAL_RANK, and Ray Train shows them sorted as text."""
    ids = [str(n) for n in range(gpus)]
    members: Any = [SimpleNamespace(node_id="node", accelerator_ids={"GPU": [n]}) for n in ids]
    visible = _get_visible_accelerator_ids_per_worker(members, "GPU")
    for rank, given in enumerate(ids):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible[rank])
        monkeypatch.setattr(ray, "get_gpu_ids", lambda given=given: [given])
        (device,) = CUDATorchDeviceManager().get_devices()
        tell_device(device)
        assert visible[rank].split(",")[int(os.environ["LOCAL_RANK"])] == given
