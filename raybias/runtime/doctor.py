"""Looks at a machine or cluster and says what would go wrong in a study, and the cure.

Each check is a small function that returns findings; none changes anything or needs
the network, but for the last, which is short and only informs.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from raybias.errors import PlanError
from raybias.planning.inventory import size
from raybias.planning.precision import choose
from raybias.redaction import redact
from raybias.runtime.serve.security_audit import Finding, cluster_weaknesses, out_weaknesses

_SCRATCH_NEEDED: Final = 2 * 2**30
_MEMORY_NEEDED: Final = 4 * 2**30
_HUB: Final = "https://huggingface.co"
_HUB_TIMEOUT_S: Final = 3


def examine(
    address: str | None = None, *, hub: bool = True, out: str | None = None
) -> Iterator[Finding]:
    """All findings, as they are made.

    Parameters
    ----------
    address: of a Ray cluster to look at; None starts one on this machine.
    hub: whether to try the model hub.
    out: of a study, to be looked at too.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _packages, _processor, _memory, _disk]
    for check in checks:
        yield from check()
    yield from _ray(address)
    if out is not None:
        yield from out_weaknesses(out)
    if hub:
        yield from _reachable()


def _python() -> Iterator[Finding]:
    said = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    needed = metadata("raybias")["Requires-Python"]
    if SpecifierSet(needed).contains(platform.python_version(), prereleases=True):
        yield Finding("ok", "python", said)
    else:
        yield Finding("fail", "python", said, f"use Python {needed}")


def _packages() -> Iterator[Finding]:
    """Every requirement of raybias against what is installed."""
    wrong, held = [], {}
    for text in requires("raybias") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            held[requirement.name] = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(held[requirement.name], prereleases=True):
            wrong.append(
                f"{requirement.name} {held[requirement.name]}, not {requirement.specifier}"
            )
    if wrong:
        yield Finding("fail", "packages", ", ".join(wrong), "install raybias again")
        return
    main = ("torch", "ray", "transformers", "peft", "polars")
    yield Finding("ok", "packages", ", ".join(f"{name} {held.get(name, '?')}" for name in main))


def _processor() -> Iterator[Finding]:
    import torch

    # Only Linux limits a process to some of the processors.
    ours = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count() or 1))(0)
    threads, cores = torch.get_num_threads(), len(ours)
    said = f"{threads} on {cores} CPUs"
    if threads > cores:
        cure = f"set OMP_NUM_THREADS to {cores} at most"
        yield Finding("warn", "torch threads", said, cure)
    else:
        yield Finding("ok", "torch threads", said)
    if torch.cuda.is_available():
        count, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
        yield Finding("ok", "accelerator", f"{count} x {name}")
    else:
        yield Finding("ok", "accelerator", "no GPU")


def _memory() -> Iterator[Finding]:
    from ray._common.utils import get_system_memory

    total = int(get_system_memory())
    if total < _MEMORY_NEEDED:
        yield Finding("warn", "memory", size(total), f"{size(_MEMORY_NEEDED)} or more is safer")
    else:
        yield Finding("ok", "memory", size(total))


def _disk() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile():
            folder = tempfile.gettempdir()
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("fail", "temporary files", str(error), "set TMPDIR to another place")
        return
    said = f"{size(free)} free in {folder}"
    if free < _SCRATCH_NEEDED:
        yield Finding(
            "warn", "temporary files", said, "Ray puts its logs and spilled objects there"
        )
    else:
        yield Finding("ok", "temporary files", said)


def _ray(address: str | None) -> Iterator[Finding]:
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.ray_session import connected

    try:
        with connected(address):
            inventory = read_inventory(address, products=True)
            weaknesses = list(cluster_weaknesses())
    except PlanError as error:
        yield Finding("fail", "ray", error.problem, f"{error.where}: {error.cure}")
        return
    if inventory.cpus < 1:
        yield Finding("fail", "ray", str(inventory), "add nodes with CPUs")
    else:
        yield Finding("ok", "ray", str(inventory))
        chosen = choose(inventory, gpus=inventory.gpus > 0)
        said = f"{chosen.dtype}: {chosen.reason}"
        if chosen.dtype == "bfloat16":
            yield Finding("ok", "dtype auto", said)
        else:
            yield Finding("warn", "dtype auto", said, "large models are slow on it")
    yield from weaknesses


def _reachable() -> Iterator[Finding]:
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
    except (urllib.error.URLError, OSError, ValueError) as error:
        yield Finding(
            "warn",
            "model hub",
            f"{place} does not answer ({error})",
            "use local paths or a filled cache; the demo needs no download",
        )
