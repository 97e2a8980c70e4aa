"""Audit the security of this machine's Ray, of an OUT and of local models; nothing is changed.

Ports are those of Ray's processes on this machine; another node is audited by running there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import psutil

from raybias.errors import BadInput
from raybias.storage import Store
from raybias.study_record import read_record

#: Files that can run code when they are opened by who unpickles.
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz")
#: Processes of Ray that execute users' requests, by a part of their command line.
_SERVICES: Final = {
    "ray::ProxyActor": ("Serve's HTTP proxy", "listen on 127.0.0.1, or behind a firewall"),
    "dashboard/dashboard.py": ("Ray's dashboard", "start Ray with --dashboard-host=127.0.0.1"),
    "ray.util.client.server": ("Ray's client server", "start Ray without --ray-client-server-port"),
}
#: The dashboard's process has an internal port of Ray beside the one of --dashboard-host.
_DASHBOARD_HOST: Final = re.compile(r"dashboard/dashboard\.py .*?--host=(\S+)")
_PARTS: Final = ("ray::", "/ray/core/src/ray/", "/ray/dashboard/", "/ray/_private/")
#: Most files and folders of an OUT that are checked.
_MOST: Final = 20_000
_SHOWN: Final = 3


@dataclass(frozen=True)
class Finding:
    """The result of one check, in one line.

    Attributes
    ----------
    state: fail where something that is needed is broken.
    what: was checked.
    detail: what was found.
    cure: what the user can do about it.
    """

    state: Literal["ok", "warn", "fail"]
    what: str
    detail: str
    cure: str = ""

    @classmethod
    def of(
        cls,
        good: bool,
        what: str,
        detail: str,
        cure: str,
        *,
        otherwise: Literal["warn", "fail"] = "warn",
    ) -> Self:
        """Make the finding of a check that is good, or has a cure."""
        return cls("ok", what, detail) if good else cls(otherwise, what, detail, cure)

    def __str__(self) -> str:
        return f"{self.state:4}  {self.what}: {self.detail}{f'; {self.cure}' if self.cure else ''}"


@dataclass(frozen=True)
class Port:
    """A TCP port that a process of Ray listens on."""

    host: str
    port: int
    command: str

    @property
    def is_open(self) -> bool:
        """Tell whether other machines reach it."""
        return not is_loopback(self.host)

    @property
    def service(self) -> tuple[str, str] | None:
        """Name the service and how to close it, where it executes users' requests."""
        dashboard = _DASHBOARD_HOST.search(self.command)
        if self.is_open and dashboard and is_loopback(dashboard[1]):
            return None
        found = (detail for part, detail in _SERVICES.items() if part in self.command)
        return next(found, None)


def is_loopback(host: str) -> bool:
    """Tell whether an address or name to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cluster_weaknesses() -> Iterator[Finding]:
    """Check who can reach the connected Ray, and whether it asks for a token."""
    token = asks_for_token()
    if token:
        yield Finding("ok", "Ray's token", "required")
        yield from _readable(Path.home() / ".ray" / "auth_token")
    else:
        detail = "not required: who reaches a port of Ray runs code as its user"
        yield Finding("warn", "Ray's token", detail, "set RAY_AUTH_MODE=token on every node")
    yield from port_weaknesses(listening(), token=token)


def asks_for_token() -> bool:
    """Tell whether Ray's processes ask each other, and everybody else, for a token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


def port_weaknesses(ports: Iterable[Port], *, token: bool) -> Iterator[Finding]:
    """Check the ports that Ray's processes listen on.

    Parameters
    ----------
    token: whether the cluster asks for one.
    """
    reached = [port for port in ports if port.is_open]
    if not reached:
        yield Finding("ok", "ports", "Ray listens on loopback alone")
        return
    internal = 0
    for port in reached:
        if port.service is None:
            internal += 1
            continue
        name, cure = port.service
        yield Finding("warn", "ports", f"{name} listens on {port.host}:{port.port}", cure)
    if internal:
        detail = f"{internal} ports between Ray's processes are open beyond loopback"
        cure = "keep them behind a firewall or network policy"
        asked = "; a token is asked for" if token else " and ask for no token"
        yield Finding("warn", "ports", f"{detail}{asked}", cure)


def listening() -> list[Port]:
    """List the TCP ports that Ray's processes of this user listen on."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if not any(part in command for part in _PARTS):
            continue
        try:
            held = process.net_connections("tcp")
        except psutil.Error:
            continue
        found += [
            Port(each.laddr.ip, each.laddr.port, command)
            for each in held
            if each.status == psutil.CONN_LISTEN
        ]
    return found


def _readable(file: Path) -> Iterator[Finding]:
    """Check whether other users of the machine can read a secret."""
    try:
        shown = file.stat().st_mode & 0o044
        reached = all(parent.stat().st_mode & 0o011 for parent in file.parents)
    except OSError:
        return
    if shown and reached:
        yield Finding("warn", "Ray's token", f"others can read {file}", f"chmod 600 {file}")


def out_weaknesses(out: str) -> Iterator[Finding]:
    """Check an OUT and the local models that its study names."""
    store = Store(out)
    if store.is_local:
        yield from _writable(Path(store.root))
    names = store.files("", recursive=True)
    yield from _pickles(store.uri, names)
    try:
        study = read_record(store).study
    except BadInput as error:
        yield Finding("warn", "OUT", str(error))
        return
    for backbone in study.backbones:
        if Path(backbone.id).is_dir():
            yield from model_weaknesses(Path(backbone.id))


def model_weaknesses(folder: Path) -> Iterator[Finding]:
    """Check a local model for what raybias does not open, and another program may."""
    yield from _pickles(str(folder), [path.name for path in folder.iterdir()])
    config = folder / "config.json"
    try:
        own_code = "auto_map" in json.loads(config.read_text("utf-8"))
    except (OSError, ValueError):
        return
    if own_code:
        detail = f"{config} asks for code of its own (trust_remote_code)"
        yield Finding("warn", "model", detail, "raybias never runs it; take a model without")


def _writable(folder: Path) -> Iterator[Finding]:
    """Check for files that every user of the machine can change."""
    places = [folder]
    for place, folders, files in os.walk(folder):
        places += [Path(place, name) for name in (*folders, *files)]
        if len(places) > _MOST:
            break
    found = [p for p in places if p.exists() and not p.is_symlink() and p.stat().st_mode & 0o002]
    if found:
        detail = f"everyone can write {_some([str(path) for path in found])}"
        yield Finding("warn", "OUT", detail, f"chmod -R o-w {folder}")
    elif folder.exists():
        yield Finding("ok", "OUT", f"{folder} is not everyone's to write")


def _pickles(where: str, names: Iterable[str]) -> Iterator[Finding]:
    if found := [name for name in names if name.endswith(_PICKLES)]:
        detail = f"{where} holds {_some(found)}, which run code where they are unpickled"
        yield Finding("warn", "pickle", detail, "raybias never opens them; delete them")


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
