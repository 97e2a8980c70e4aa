"""`raybias serve` in a real cluster: answers as the engine's, 503 and not a hang, whatever dies."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import polars as pl
import psutil
import pytest
import ray
from ray import serve
from scipy.special import softmax

from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving, app
from raybias.schema import LABELS
from support import studies
from support.commands import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OUT of a study that kept two prompts."""
    study = studies.save(tmp_path_factory.mktemp("served"), "soft_prompt")
    studies.run(study, study.parent / "out", "--set", "methods.0.keep=2", *studies.NO_RAY)
    return study.parent / "out"


@pytest.fixture(scope="module")
def expected(out: Path) -> dict[str, np.ndarray]:
    """The shares of labels of the items' texts, by run."""
    found = pl.read_parquet(out / "predictions/mine/*.parquet").sort("item_id")
    parts = found.partition_by("run_id", as_dict=True)
    return {run: softmax(part["scores"].to_list(), -1) for (run,), part in parts.items()}


@pytest.fixture(scope="module")
def texts(out: Path) -> list[str]:
    return pl.read_parquet(out / "items/mine.parquet").sort("item_id")["text"].to_list()


async def asked(place: str, run: str, sent: Any, token: str = TOKEN) -> tuple[int, Any, Any]:
    """Status, headers and content of one POST /label; 15 s are a hang."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(15), headers=headers) as session,
        session.post(f"{place}/label", json={"run": run, "texts": sent}) as answer,
    ):
        return answer.status, answer.headers, json.loads(await answer.read())


async def load(place: str, runs: list[str], texts: list[str]) -> list[tuple[int, Any, Any]]:
    return list(await asyncio.gather(*(asked(place, runs[n % 2], texts) for n in range(40))))


@contextmanager
def serving(out: Path, *options: str) -> Iterator[str]:
    """`raybias serve` on the session's cluster, until it is told to end; gives its URL."""
    port = free_port()
    token = out.parent / "token"
    token.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-c", "from raybias.cli import main; main()", "serve", str(out)]
    command += ["--port", str(port), "--token-file", str(token), *options]
    command += ["--address", ray.get_runtime_context().gcs_address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            assert line.startswith("serving"), line
            yield f"http://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 128 + signal.SIGTERM


def test_serve_answers_refuses_and_stops(
    out: Path, expected: dict[str, np.ndarray], texts: list[str]
) -> None:
    serve.shutdown()  # what other tests left has no HTTP
    with serving(out, "--max-queued", "2", "--replicas", "2") as place:
        for run_id, shares in expected.items():
            status, _, content = asyncio.run(asked(place, run_id, texts))
            assert status == 200
            found = [
                [each["probabilities"][label] for label in LABELS] for each in content["results"]
            ]
            np.testing.assert_allclose(found, shares, atol=2e-5)
            assert [each["label"] for each in content["results"]] == [
                LABELS[n] for n in shares.argmax(1)
            ]
        run_id, shares = next(iter(expected.items()))
        assert asyncio.run(asked(place, run_id, texts, token="guessed"))[0] == 401
        status, _, content = asyncio.run(asked(place, run_id, [" ".join(["the"] * 600)]))
        assert status == 422, content
        assert "text 0" in content["error"]
        answers = asyncio.run(load(place, [*expected], texts * 8))
        counts = Counter(status for status, _, _ in answers)
        assert set(counts) == {200, 503}, counts
        refused = [headers for status, headers, _ in answers if status == 503]
        assert all(headers["Retry-After"] == "1" for headers in refused)
        for n, (status, _, content) in enumerate(answers):
            if status == 200 and n % 2 == 0:
                found = [list(each["probabilities"].values()) for each in content["results"]]
                np.testing.assert_allclose(found, np.concatenate([shares] * 8), atol=2e-5)
    for _ in range(300):  # its replicas end by themselves
        if not serve.status().applications:
            break
        time.sleep(0.1)
    assert not serve.status().applications
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])))


#: Requests that are under way at a time.
CALLERS = 4
#: Answers in a row after which all is well again, and the fewest seconds until then.
GOOD, SETTLED_S = 20, 4.0


def killed(title: str) -> None:
    """Kill one process of Ray's by its title."""
    every = psutil.process_iter(["cmdline"])
    found = [each for each in every if title in " ".join(each.info["cmdline"] or ())]
    assert found, title
    found[0].kill()


async def seen(place: str, run: str, title: str) -> list[tuple[int | str, str | None]]:
    """Code and Retry-After of what clients got after a kill, until all was well."""
    answers: list[tuple[int | str, str | None]] = []

    async def caller() -> None:
        while True:
            try:
                status, headers, _ = await asked(place, run, ["the man sang"])
                answers.append((status, headers.get("Retry-After")))
            except (aiohttp.ClientError, TimeoutError) as error:
                answers.append((type(error).__name__, None))
            await asyncio.sleep(0.05)

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    while len(answers) < GOOD:
        await asyncio.sleep(0.05)
    answers.clear()
    killed(title)
    await asyncio.sleep(SETTLED_S)
    async with asyncio.timeout(180):
        while {code for code, _ in answers[-GOOD:]} != {200}:
            await asyncio.sleep(0.05)
    for each in callers:
        each.cancel()
    return answers


def lost(place: str, run: str, title: str) -> set[int | str]:
    """Kill a process; the codes that clients get then."""
    answers = asyncio.run(seen(place, run, title))
    assert all(retry == "1" for code, retry in answers if code == 503)
    return {code for code, _ in answers}


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_raybias_serve_are_lost(
    out: Path, expected: dict[str, np.ndarray], replicas: int
) -> None:
    """Its ingress is the command itself, and there is no proxy."""
    run = min(expected)
    with serving(out, "--replicas", str(replicas)) as place:
        codes = lost(place, run, "ServeReplica:raybias-serve")
        assert codes == ({200} if replicas == 2 else {200, 503})
        # Another controller first asks the replicas whether they live, and there may be one alone.
        assert lost(place, run, "ServeController") <= {200, 503}


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_the_application_are_lost(
    out: Path, expected: dict[str, np.ndarray], replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve run` and KubeRay have it: proxy, ingress and replicas are processes."""
    run = min(expected)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    port = free_port()
    serve.shutdown()  # what other tests left has no HTTP
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    place = f"http://127.0.0.1:{port}"
    try:
        arguments = Serving(out=str(out), replicas=replicas)
        serve.run(app(arguments), name="raybias", route_prefix="/")
        codes = lost(place, run, "ServeReplica:raybias:tiny")
        assert codes == ({200} if replicas == 2 else {200, 503})
        # Serve answers what was lost with an ingress by 500.
        assert lost(place, run, "ServeReplica:raybias:Ingress") <= {200, 500, 503}
        # Nobody listens until there is another, and answers that were on their way break off.
        refused = {"ClientConnectorError", "ServerDisconnectedError", "ClientOSError"}
        broken = {"ClientPayloadError"}
        assert lost(place, run, "ProxyActor") <= {200, 503} | refused | broken
    finally:
        serve.shutdown()
