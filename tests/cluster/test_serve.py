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
import psutil
import pyarrow as pa
import pytest
import ray
from ray import serve
from scipy.special import softmax

from raybias import config, methods
from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving, app
from raybias.schema import LABELS, RUNS
from raybias.storage import Store
from raybias.study_record import begin, make_record
from support.commands import free_port
from support.tiny import Logits, save_model, save_prompts, texts

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

RUN_IDS = ("tiny.set.soft_prompt.lr0.001.s1", "tiny.set.soft_prompt.lr0.001.s2")
TOKEN = "0123456789abcdef0123"
#: Of a run that was tuned to its end.
DONE = {"stage": "final", "steps": 10}
TEXTS = texts(8, seed=4)


def finished(folder: Path, model: Path) -> Logits:
    """An OUT with two random adapters, and what the engine makes of `TEXTS` with each."""
    spec = config.Backbone(id=str(model), name="tiny", dtype="float32", bos="prepend")
    method = methods.SoftPrompt(prompt_length=4, seeds=(1, 2), keep=2)
    training = config.TrainingSet(source="file", name="set", data="set")
    probe = config.Probe(source="planted")
    study = config.Study(
        name="served", backbones=(spec,), methods=(method,), training=(training,), probes=(probe,)
    )
    store = Store(folder)
    begin(store, make_record(study, {}, command="test"))
    logits = save_prompts(store, spec, RUN_IDS, TEXTS)
    row = {**dict.fromkeys(RUNS.names), **DONE, "model": "tiny", "dataset": "set"}
    row |= {"method": "soft_prompt", "selected": True}
    rows = [{**row, "run_id": name, "seed": n} for n, name in enumerate(RUN_IDS, start=1)]
    store.write_table("runs.parquet", pa.Table.from_pylist(rows, schema=RUNS))
    return {name: softmax(each, -1) for name, each in logits.items()}


async def asked(place: str, run: str, sent: Any, token: str = TOKEN) -> tuple[int, Any, Any]:
    """Status, headers and content of one POST /label; 15 s are a hang."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(15), headers=headers) as session,
        session.post(f"{place}/label", json={"run": run, "texts": sent}) as answer,
    ):
        return answer.status, answer.headers, json.loads(await answer.read())


async def load(place: str, count: int) -> list[tuple[int, Any, Any]]:
    calls = (asked(place, RUN_IDS[n % 2], TEXTS * 30) for n in range(count))
    return list(await asyncio.gather(*calls))


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


def test_serve_answers_refuses_and_stops(tmp_path: Path) -> None:
    expected = finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    serve.shutdown()  # what other tests left has no HTTP
    with serving(tmp_path / "out", "--max-queued", "2", "--replicas", "2") as place:
        for run_id, shares in expected.items():
            status, _, content = asyncio.run(asked(place, run_id, TEXTS))
            assert status == 200
            found = [
                [each["probabilities"][label] for label in LABELS] for each in content["results"]
            ]
            np.testing.assert_allclose(found, shares, atol=2e-5)
            assert [each["label"] for each in content["results"]] == [
                LABELS[n] for n in shares.argmax(1)
            ]
        assert asyncio.run(asked(place, RUN_IDS[0], TEXTS, token="guessed"))[0] == 401
        status, _, content = asyncio.run(asked(place, RUN_IDS[0], [" ".join(["w1"] * 70)]))
        assert status == 422, content
        assert "text 0" in content["error"]
        answers = asyncio.run(load(place, 40))
        counts = Counter(status for status, _, _ in answers)
        assert set(counts) == {200, 503}, counts
        refused = [headers for status, headers, _ in answers if status == 503]
        assert all(headers["Retry-After"] == "1" for headers in refused)
        shares = np.concatenate([expected[RUN_IDS[0]]] * 30)
        for n, (status, _, content) in enumerate(answers):
            if status == 200 and n % 2 == 0:
                found = [list(each["probabilities"].values()) for each in content["results"]]
                np.testing.assert_allclose(found, shares, atol=2e-5)
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


async def seen(place: str, title: str) -> list[tuple[int | str, str | None]]:
    """Code and Retry-After of what clients got after a kill, until all was well."""
    answers: list[tuple[int | str, str | None]] = []

    async def caller() -> None:
        while True:
            try:
                status, headers, _ = await asked(place, RUN_IDS[0], TEXTS[:1])
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


def lost(place: str, title: str) -> set[int | str]:
    """Kill a process; the codes that clients get then."""
    answers = asyncio.run(seen(place, title))
    assert all(retry == "1" for code, retry in answers if code == 503)
    return {code for code, _ in answers}


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_raybias_serve_are_lost(tmp_path: Path, replicas: int) -> None:
    """Its ingress is the command itself, and there is no proxy."""
    finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    with serving(tmp_path / "out", "--replicas", str(replicas)) as place:
        codes = lost(place, "ServeReplica:raybias-serve")
        assert codes == ({200} if replicas == 2 else {200, 503})
        # Another controller first asks the replicas whether they live, and there may be one alone.
        assert lost(place, "ServeController") <= {200, 503}


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_the_application_are_lost(
    tmp_path: Path, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve run` and KubeRay have it: proxy, ingress and replicas are processes."""
    finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    port = free_port()
    serve.shutdown()  # what other tests left has no HTTP
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    place = f"http://127.0.0.1:{port}"
    try:
        arguments = Serving(out=str(tmp_path / "out"), replicas=replicas)
        serve.run(app(arguments), name="raybias", route_prefix="/")
        codes = lost(place, "ServeReplica:raybias:tiny")
        assert codes == ({200} if replicas == 2 else {200, 503})
        # Serve answers what was lost with an ingress by 500.
        assert lost(place, "ServeReplica:raybias:Ingress") <= {200, 500, 503}
        # Nobody listens until there is another, and answers that were on their way break off.
        refused = {"ClientConnectorError", "ServerDisconnectedError", "ClientOSError"}
        broken = {"ClientPayloadError"}
        assert lost(place, "ProxyActor") <= {200, 503} | refused | broken
    finally:
        serve.shutdown()
