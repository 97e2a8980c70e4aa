"""GPUs without a GPU: settings under which its bits repeat, and passes that leave nothing behind.

No tensor is left on the CPU that a GPU needs; no copy or step waits for it (`fake_gpu.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raybias.engine.context import Batcher, Execution
from raybias.engine.devices import SumsOnCpu, as_found
from raybias.engine.keyed_draws import Sampling
from support.deterministic import settings

HERE = Path(__file__).parent
IN_FORCE = {
    "strict": True, "warns": False, "fills": False, "cudnn": True, "cudnn_tries": False,
    "cudnn_tf32": False, "tf32": False, "workspace": ":4096:8",
}  # fmt: skip


@pytest.mark.parametrize("workspace", [None, ":16:8", ":0:0"])
def test_settings_are_in_force_and_are_given_back(
    workspace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    with as_found():
        # As a user may have them.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        before = settings()
        with as_found():
            Execution().set_torch()
            assert settings() == before
            Execution(deterministic=True).set_torch()
            kept = ":16:8" if workspace == ":16:8" else ":4096:8"
            assert settings() == {**IN_FORCE, "workspace": kept}
        assert settings() == before


@pytest.mark.parametrize("given", [{}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}])
def test_a_gpus_memory_grows_in_segments_unless_a_user_chose(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        # Set first, so that what the test leaves is taken away after it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    Execution(device="cpu").set_torch()
    assert {n: os.environ[n] for n in names if n in os.environ} == given
    Execution(device="cuda:1").set_torch()
    chosen = given or {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert {n: os.environ[n] for n in names if n in os.environ} == chosen


def test_runs_have_passes_of_their_own_on_a_gpu_that_repeats_its_bits() -> None:
    apart = {
        (device, asked): Batcher(Execution(device=device, deterministic=asked), "m").apart
        for device in ("cpu", "cuda")
        for asked in (False, True)
    }
    assert [place for place, each in apart.items() if each] == [("cuda", True)]


def test_running_sums_of_filters_and_draws_are_those_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What torch refuses for floats on a GPU; the place of each sum is looked at."""
    sampler = Sampling(0.8, 0, 0.9, 0.0, 1.0, (1,))
    logits_NV = torch.randn(7, 300, generator=torch.Generator().manual_seed(3))
    uniforms_N = torch.linspace(0, 0.99, 7, dtype=torch.float64)
    expected = sampler.choose(logits_NV, history_NT=None, uniforms_N=uniforms_N)
    summed = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda each: summed.append(each.shape) or cpu(each))
    with SumsOnCpu():
        found = sampler.choose(logits_NV, history_NT=None, uniforms_N=uniforms_N)
    assert summed == [(7, 300), (7, 300)]
    assert torch.equal(found, expected)


@pytest.mark.long
def test_every_tensor_of_a_pass_is_made_on_the_device() -> None:
    done = subprocess.run(
        [sys.executable, HERE / "fake_gpu.py"],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": " in line and not line.startswith("[")]
    *sound, waits, misplaced = lines
    assert len(sound) == 10
    assert all(line.endswith(": ok") for line in sound), sound
    assert waits.startswith("waits: Waits")
    assert misplaced.startswith("misplaced: FakeTensorDeviceMismatchError")
