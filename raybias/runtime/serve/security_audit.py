"""What makes a machine, a cluster or an OUT less safe than it could be, each with its cure.

Looks and changes nothing. Ports are those of Ray's processes on this machine; another node
is looked at by asking there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from raybias.errors import BadInput
from raybias.storage import Store
from raybias.study_record import read_record

#: Files that can run code when they are opened by who unpickles.
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz")
#: Processes of Ray that take orders, by a part of their command line.
_SERVICES: Final = {
    "ray::ProxyActor": ("Serve's HTTP proxy", "listen on 127.0.0.1, or behind a firewall"),
    "dashboard/dashboard.py": ("Ray's dashboard", "start Ray with --dashboard-host=127.0.0.1"),
    "ray.util.client.server": ("Ray's client server", "start Ray without --ray-client-server-port"),
}
#: The dashboard's process has a port of Ray's own beside the one that it listens on as it is told.
_DASHBOARD_HOST: Final = re.compile(r"dashboard/dashboard\.py .*?--host=(\S+)")
_PARTS: Final = ("ray::", "/ray/core/src/ray/", "/ray/dashboard/", "/ray/_private/")
#: Files and folders of an OUT that are looked at.
_MOST: Final = 20_000
_SHOWN: Final = 3


@dataclass(frozen=True)
class Finding:
    """One line of an examination."""

    state: Literal["ok", "warn", "fail"]
    what: str
    said: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.state:4}  {self.what}: {self.said}{f'; {self.cure}' if self.cure else ''}"


@dataclass(frozen=True)
class Port:
    """Where a process of Ray listens."""

    host: str
    port: int
    command: str

    @property
    def is_open(self) -> bool:
        """Whether others than this machine reach it."""
        return not is_loopback(self.host)

    @property
    def service(self) -> tuple[str, str] | None:
        """What it is and how to close it, where it takes orders from users."""
        dashboard = _DASHBOARD_HOST.search(self.command)
        if self.is_open and dashboard and is_loopback(dashboard[1]):
            return None
        found = (said for part, said in _SERVICES.items() if part in self.command)
        return next(found, None)


def is_loopback(host: str) -> bool:
    """Whether an address or name to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cluster_weaknesses() -> Iterator[Finding]:
    """Of the Ray that is connected: who may reach it, and whether it asks for a token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    token = bool(is_token_auth_enabled())
    if token:
        yield Finding("ok", "Ray's token", "asked for")
        yield from _readable(Path.home() / ".ray" / "auth_token")
    else:
        said = "not asked for: who reaches a port of Ray runs code as its user"
        yield Finding("warn", "Ray's token", said, "set RAY_AUTH_MODE=token on every node")
    yield from port_weaknesses(listening(), token=token)


def port_weaknesses(ports: Iterable[Port], *, token: bool) -> Iterator[Finding]:
    """Of the ports that Ray's processes listen on; `token` as the cluster asks for one."""
    reached = [port for port in ports if port.is_open]
    if not reached:
        yield Finding("ok", "ports", "Ray listens on loopback alone")
        return
    own = [port for port in reached if port.service is None]
    for port in reached:
        if port.service is not None:
            name, cure = port.service
            yield Finding("warn", "ports", f"{name} listens on {port.host}:{port.port}", cure)
    if own:
        said = f"{len(own)} ports of Ray's own are open beyond loopback"
        cure = "keep them behind a firewall or network policy"
        yield Finding("ok" if token else "warn", "ports", said, cure)


def listening() -> list[Port]:
    """The TCP ports that Ray's processes of this user listen on."""
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
    """A secret that other users of the machine can read."""
    try:
        shown = file.stat().st_mode & 0o044
        reached = all(parent.stat().st_mode & 0o011 for parent in file.parents)
    except OSError:
        return
    if shown and reached:
        yield Finding("warn", "Ray's token", f"others can read {file}", f"chmod 600 {file}")


def out_weaknesses(out: str) -> Iterator[Finding]:
    """Of an OUT and of the local models that its study names."""
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
    """Of a local model: what raybias does not open, and another program may."""
    yield from _pickles(str(folder), [path.name for path in folder.iterdir()])
    config = folder / "config.json"
    try:
        own_code = "auto_map" in json.loads(config.read_text("utf-8"))
    except (OSError, ValueError):
        return
    if own_code:
        said = f"{config} asks for code of its own (trust_remote_code)"
        yield Finding("warn", "model", said, "raybias never runs it; take a model without")


def _writable(folder: Path) -> Iterator[Finding]:
    """Files that every user of the machine can change."""
    places = [folder]
    for place, folders, files in os.walk(folder):
        places += [Path(place, name) for name in (*folders, *files)]
        if len(places) > _MOST:
            break
    found = [p for p in places if p.exists() and not p.is_symlink() and p.stat().st_mode & 0o002]
    if found:
        said = f"everyone can write {_some([str(path) for path in found])}"
        yield Finding("warn", "OUT", said, f"chmod -R o-w {folder}")
    elif folder.exists():
        yield Finding("ok", "OUT", f"{folder} is not everyone's to write")


def _pickles(where: str, names: Iterable[str]) -> Iterator[Finding]:
    if found := [name for name in names if name.endswith(_PICKLES)]:
        said = f"{where} holds {_some(found)}, which run code where they are unpickled"
        yield Finding("warn", "pickle", said, "raybias never opens them; delete them")


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
