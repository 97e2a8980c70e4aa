"""`raybias doctor`: each line is what this machine has; what is broken is named with its cure."""

from __future__ import annotations

import platform
import resource
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
import torch
from typer.testing import CliRunner

from raybias.cli import app
from raybias.errors import PlanError
from raybias.runtime import ray_session
from raybias.runtime.doctor import Finding, examine
from raybias.runtime.ray_session import check_answering, check_session_folder

#: Ray refuses this address at once, and starts nothing.
NO_CLUSTER = "nowhere"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def found(**options: bool) -> dict[str, Finding]:
    return {each.what: each for each in examine(NO_CLUSTER, hub=options.get("hub", False))}


def test_a_sound_machine_without_its_cluster_fails_in_that_line_alone() -> None:
    result = CliRunner().invoke(app, ["doctor", "--address", NO_CLUSTER, "--no-hub"])
    assert result.exit_code == 2
    states = {line.split()[0] for line in result.stdout.splitlines()[:-1]}
    assert states <= {"ok", "warn"}
    *_, last = result.stdout.splitlines()
    assert last.startswith("fail  ray: no Ray cluster answers")
    assert f"; {NO_CLUSTER}: " in last
    assert f"python: {platform.python_version()} on {platform.system()}" in result.stdout
    for name in ("torch", "ray", "transformers", "peft", "polars"):
        assert f"{name} {version(name)}" in result.stdout
    assert "see the lines marked fail" in result.stderr


@pytest.mark.long
def test_an_address_where_nothing_answers_is_refused_in_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_session, "_ANSWERS_S", 0.5)
    server = grpc.server(ThreadPoolExecutor(1))
    place = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    check_answering(place)
    check_answering(f"ray://{place}")
    server.stop(None).wait()
    for nowhere in (place, place.replace("127.0.0.1", "[::1]"), "127.0.0.1:99999"):
        with pytest.raises(ConnectionError):
            check_answering(nowhere)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for swallowed in ("", "ray://"):
            with pytest.raises(ConnectionError, match="no reply within"):
                check_answering(f"{swallowed}127.0.0.1:{silent.getsockname()[1]}")
        # Behind connections that nobody takes, packets are dropped as by a firewall.
        waiting = [socket.socket() for _ in range(8)]
        silent.listen(0)
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(silent.getsockname())
        with pytest.raises(ConnectionError, match="timed out"):
            check_answering(f"127.0.0.1:{silent.getsockname()[1]}")
        for each in waiting:
            each.close()
    for left_to_ray in ("auto", "local", "nowhere", "ray://nowhere/1"):
        check_answering(left_to_ray)


def test_a_folder_where_ray_would_hang_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "new"))
    check_session_folder()
    full = shutil.disk_usage(tmp_path)._replace(free=20 * 2**20)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: full)
        with pytest.raises(PlanError) as refused:
            check_session_folder()
    assert str(refused.value) == (
        f"{tmp_path / 'new'}: 20.0MiB are free for Ray's sockets and logs, 100.0MiB are needed;"
        " make room there, or set RAY_TMPDIR to another folder"
    )
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(PlanError, match="cannot write its sockets and logs"):
        check_session_folder()


def test_an_installation_that_is_not_what_raybias_needs_is_named_package_by_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "raybias-9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: raybias\nVersion: 9\nRequires-Python: >=9\n"
        "Requires-Dist: polars>=999\nRequires-Dist: raybias-is-not-there\nRequires-Dist: torch\n"
        'Requires-Dist: mlflow>=999; extra == "tracking"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    states = found()
    assert str(states["python"]).startswith("fail  python:")
    assert "use Python >=9" in str(states["python"])
    wrong = str(states["packages"])
    assert wrong.startswith("fail  packages:")
    assert f"polars {version('polars')}, not >=999" in wrong
    assert "raybias-is-not-there is missing" in wrong
    assert "torch" not in wrong
    assert "mlflow" not in wrong, "an extra that was not asked for"


def test_a_machine_that_takes_no_temporary_file_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a process that asks for the first time
    assert found()["temporary files"].state in ("ok", "warn")
    monkeypatch.setattr(tempfile, "tempdir", None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        said = [each for each in examine(NO_CLUSTER, hub=False) if each.what == "temporary files"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.state for each in said] == ["fail"]
    assert "set TMPDIR to another place" in str(said[0])


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_hub_answers_or_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with answering() as place:
        monkeypatch.setenv("HF_ENDPOINT", place)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        assert str(found(hub=True)["model hub"]) == f"ok    model hub: {place} answers"
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "HF_HUB_OFFLINE is set" in str(found(hub=True)["model hub"])
