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
from contextlib import nullcontext
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
import torch
from typer.testing import CliRunner

from raybias.cli import app
from raybias.errors import PlanError
from raybias.runtime import doctor, inventory, ray_session
from raybias.runtime.doctor import Finding, examine
from raybias.runtime.ray_session import check_answering, check_session_folder
from raybias.storage import Store

#: Ray refuses this address at once, and starts nothing.
NO_CLUSTER = "nowhere"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def found() -> dict[str, Finding]:
    return {each.what: each for each in examine(NO_CLUSTER, hub=False)}


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
        with pytest.raises(PlanError, match=r"20.0MiB are free .*, 100.0MiB are needed; make room"):
            check_session_folder()
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
        said = found()["temporary files"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.state == "fail"
    assert "set TMPDIR to another place" in str(said)


def test_the_hub_answers_or_is_not_tried_and_its_password_is_not_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def said(place: str, offline: str = "0") -> str:
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:s3cret@{place}")
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        (one,) = doctor._reachable()
        assert "s3cret" not in str(one)
        return str(one)

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"127.0.0.1:{server.server_port}"
        answers = said(place)
        server.shutdown()
        thread.join()
    assert answers.startswith("ok    model hub: http://")
    assert f"{place} answers" in answers
    assert said(place).startswith("warn  model hub: http://")
    assert f"{place} does not answer" in said(place)
    assert "HF_HUB_OFFLINE is set" in said(place, offline="1")


def test_nodes_whose_gpus_do_not_multiply_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    node = inventory.Node(cpus=2, memory=2**33, gpus=1, gpu="A100")
    have = inventory.Inventory((node,), "made up")
    monkeypatch.setattr(doctor, "read_inventory", lambda *_, **__: have)
    monkeypatch.setattr(doctor, "connected", lambda _: nullcontext())
    monkeypatch.setattr(doctor, "_weaknesses", lambda: ())
    monkeypatch.setattr(doctor.ray_internals, "left_behind", dict)
    for sick, state in (({}, "ok"), ({"10.0.0.2": inventory.multiply_on_gpu()}, "fail")):
        monkeypatch.setattr(doctor, "sick_gpus", lambda sick=sick: sick)
        (gpus,) = (each for each in doctor._ray(None) if each.what == "GPUs")
        assert gpus.state == state
        if sick and not torch.cuda.is_available():
            assert gpus.detail == "10.0.0.2: torch sees no GPU"


def test_ports_beyond_loopback_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for hosts, state in (
        (["127.0.0.1", "::1", "::ffff:127.0.0.1"], "ok"),
        (["127.0.0.1", "0.0.0.0", "::"], "warn"),
    ):
        listening = [(f"raylet {host}:{port}", host) for port, host in enumerate(hosts)]
        monkeypatch.setattr(doctor, "_listening", lambda listening=listening: iter(listening))
        token, ports = doctor._weaknesses()
        assert ports.state == state, "a token closes no port"
        assert token.what == "Ray's token"
    assert str(ports).startswith("warn  open ports: raylet 0.0.0.0:1, raylet :::2; ")
    monkeypatch.undo()
    list(doctor._listening())  # whatever runs here, it can be read


def test_pickles_in_an_out_are_named(tmp_path: Path) -> None:
    def said() -> str:
        return "\n".join(map(str, doctor._pickles(store.uri)))

    store = Store(tmp_path / "out")
    assert "is not there; give the OUT" in said()
    store.write_text("report.html", "")
    assert said().startswith("ok ")
    store.write_bytes("adapters/a/adapter.pkl", b"")
    assert "adapter.pkl" in said()
