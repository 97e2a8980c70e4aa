"""Examine a machine or cluster for what would go wrong in a study, with cures.

None of the checks changes anything, and only the last, which never fails, needs the network.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

import psutil
from packaging.requirements import Requirement

from raybias.engine.checkpoint import MIRROR, mirror
from raybias.errors import PlanError, RaybiasError
from raybias.network import is_loopback
from raybias.planning.inventory import choose, size
from raybias.redaction import redact
from raybias.runtime import ray_internals
from raybias.runtime.inventory import read_inventory, sick_gpus
from raybias.runtime.ray_session import connected
from raybias.storage import Store

_SCRATCH_NEEDED: Final = 2 * 2**30
_MEMORY_NEEDED: Final = 4 * 2**30
_SHOWN: Final = ("torch", "ray", "transformers", "peft", "polars")
_HUB: Final = "https://huggingface.co"
_HUB_TIMEOUT_S: Final = 3
#: Files that can run code when they are opened by who unpickles; so many are named.
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz")
_NAMED: Final = 3


State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check, in one line; it fails where something that is needed is broken."""

    state: State
    what: str
    detail: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.state:4}  {self.what}: {self.detail}{f'; {self.cure}' if self.cure else ''}"


def _finding(good: bool, what: str, detail: str, cure: str, otherwise: State = "warn") -> Finding:
    return Finding("ok", what, detail) if good else Finding(otherwise, what, detail, cure)


def examine(
    address: str | None = None, *, hub: bool = True, out: str | None = None
) -> Iterator[Finding]:
    """Yield findings as they are made; see `raybias.doctor`."""
    yield from _packages()
    yield from _machine()
    yield from _ray(address)
    if out is not None:
        yield from _pickles(out)
    if hub:
        yield from _reachable()


def _packages() -> Iterator[Finding]:
    python, needed = platform.python_version(), metadata("raybias")["Requires-Python"]
    yield _finding(
        Requirement(f"python{needed}").specifier.contains(python, prereleases=True),
        "python",
        f"{python} on {platform.system()} {platform.machine()}",
        f"use Python {needed}",
        "fail",
    )
    wrong = [problem for problem in map(_problem, requires("raybias") or ()) if problem]
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN) if not wrong else ""
    yield _finding(
        not wrong, "packages", shown or ", ".join(wrong), "install raybias again", "fail"
    )


def _problem(text: str) -> str:
    """Say what is wrong with an installed requirement, if anything."""
    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    fits = requirement.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{requirement.name} {installed}, not {requirement.specifier}"


def _machine() -> Iterator[Finding]:
    import torch

    threads, cores = torch.get_num_threads(), ray_internals.cpu_count()
    yield _finding(
        threads <= cores,
        "torch threads",
        f"{threads} on {cores} CPUs",
        f"set OMP_NUM_THREADS to {cores} at most",
    )
    gpus = ray_internals.gpus_of_machine(os.environ.get("CUDA_VISIBLE_DEVICES"))
    kinds = {each.kind or "GPU" for each in gpus}
    found = f"{len(gpus)} x {', '.join(sorted(kinds))}" if gpus else "no GPU"
    yield Finding("ok", "accelerator", found)
    total, enough = ray_internals.memory_bytes(), f"{size(_MEMORY_NEEDED)} or more is safer"
    yield _finding(total >= _MEMORY_NEEDED, "memory", size(total), enough)
    try:
        with tempfile.TemporaryFile():
            folder = tempfile.gettempdir()
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("fail", "temporary files", str(error), "set TMPDIR to another place")
        return
    yield _finding(
        free >= _SCRATCH_NEEDED,
        "temporary files",
        f"{size(free)} free in {folder}",
        "Ray puts its logs and spilled objects there",
    )


def _ray(address: str | None) -> Iterator[Finding]:
    try:
        with connected(address):
            inventory = read_inventory(address, dtypes=True)
            sick = sick_gpus() if inventory.gpus else {}
            weaknesses = list(_weaknesses())
            left = ray_internals.left_behind()
    except PlanError as error:
        yield Finding("fail", "ray", error.problem, f"{error.where}: {error.cure}")
        return
    for app, driver in left.items():
        yield Finding(
            "warn",
            "left behind",
            f"{app}, whose driver has ended: {driver}",
            f"it ends within 30 s; if not, `ray.serve.delete({app!r})` ends it",
        )
    usable = inventory.cpus >= 1
    yield _finding(usable, "ray", str(inventory), "add nodes with CPUs", "fail")
    if inventory.gpus:
        yield _finding(
            not sick,
            "GPUs",
            "; ".join(f"{node}: {wrong}" for node, wrong in sorted(sick.items()))
            or "one of each node that is free multiplies matrices",
            "compare the node's driver with torch's CUDA; a container needs"
            " NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES",
            "fail",
        )
    if usable:
        chosen = choose(inventory, gpus=inventory.gpus > 0)
        yield _finding(
            chosen.dtype == "bfloat16",
            "dtype auto",
            f"{chosen.dtype}: {chosen.reason}",
            "large models are slow on it",
        )
    yield from weaknesses


def _weaknesses() -> Iterator[Finding]:
    """Check whether the connected Ray asks for a token, and who can reach it on this machine."""
    asks = ray_internals.asks_for_token()
    yield _finding(
        asks,
        "Ray's token",
        "required" if asks else "not required: who reaches a port runs code",
        "set RAY_AUTH_MODE=token on every node",
    )
    reached = sorted({each for each, host in _listening() if not is_loopback(host)})
    yield _finding(
        not reached,
        "open ports",
        ", ".join(reached)
        or "none of Ray's now; each Serve replica opens one, which asks for a token",
        "whoever reaches them reaches Ray: keep them behind a firewall or network policy",
    )


def _listening() -> Iterator[tuple[str, str]]:
    """Yield, as `NAME ADDRESS:PORT` and address, each TCP port that Ray's processes listen on."""
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        with suppress(psutil.Error):
            if any(part in command for part in ray_internals.COMMANDS):
                for each in process.net_connections("tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        name = command.split()[0].rpartition("/")[2]
                        yield f"{name} {each.laddr.ip}:{each.laddr.port}", each.laddr.ip


def _pickles(out: str) -> Iterator[Finding]:
    """Check an OUT for files that run code where they are unpickled; raybias opens none."""
    store = Store(out)
    if not store.exists(""):
        cure = "give the OUT of a study that was run"
        yield Finding("warn", "pickles", f"{store.uri} is not there", cure)
        return
    found = [name for name in store.files("", recursive=True) if name.endswith(_PICKLES)]
    yield _finding(
        not found,
        "pickles",
        f"{out} holds {', '.join(found[:_NAMED])}" if found else f"none in {out}",
        "they run code where they are unpickled, which raybias never does: delete them",
    )


def _reachable() -> Iterator[Finding]:
    if (held := mirror()) is not None:
        there = False
        with suppress(RaybiasError):
            there = held.exists("")
        found = f"not asked; {held.uri} {'has the models' if there else 'is not there'}"
        yield _finding(there, "model hub", found, f"mend {MIRROR}, or unset it")
        return
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        yield Finding("ok", "model hub", "not tried, HF_HUB_OFFLINE is set")
        return
    address = os.environ.get("HF_ENDPOINT", _HUB)
    place = redact(address)
    try:
        # urllib takes no user and password in an address, and needs none to see who answers.
        parts = urlsplit(address)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        with urllib.request.urlopen(bare, timeout=_HUB_TIMEOUT_S):
            yield Finding("ok", "model hub", f"{place} answers")
    except (OSError, ValueError) as error:
        yield Finding(
            "warn",
            "model hub",
            f"{place} does not answer ({error})",
            "use local paths or a filled cache; the demo needs no download",
        )
