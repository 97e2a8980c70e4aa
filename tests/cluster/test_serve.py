"""`raybias serve` in a real cluster: answers as the engine's, 503 and not a hang (about 20 s)."""

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
import torch
from ray import serve

from raybias import config, methods
from raybias.engine.adapters.soft_prompt import save_soft_prompt
from raybias.engine.backbone import load_backbone
from raybias.engine.scoring.causal import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.schema import LABELS, RUNS
from raybias.storage import Store
from raybias.study_record import begin, make_record
from support.tiny import save_model, texts

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

RUN_IDS = ("tiny.set.soft_prompt.lr0.001.s1", "tiny.set.soft_prompt.lr0.001.s2")
TOKEN = "0123456789abcdef0123"
#: Of a run that was tuned to its end.
DONE = {"stage": "final", "steps": 10}
TEXTS = texts(8, seed=4)


def finished(folder: Path, model: Path) -> tuple[Store, dict[str, np.ndarray]]:
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
    backbone = load_backbone(spec)
    scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, study.verbalizer.words()))
    rows, expected = [], {}
    for seed, run_id in enumerate(RUN_IDS, start=1):
        prompt_PD = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
        save_soft_prompt(store, f"adapters/{run_id}", prompt_PD, spec=spec, record={})
        logits = scorer.score(backbone.encoder.encode(TEXTS), prompt_PD)
        expected[run_id] = logits.softmax(-1).numpy()
        row = (
            dict.fromkeys(RUNS.names) | DONE | {"run_id": run_id, "model": "tiny", "dataset": "set"}
        )
        rows.append(row | {"method": "soft_prompt", "seed": seed, "selected": True})
    store.write_table("runs.parquet", pa.Table.from_pylist(rows, schema=RUNS))
    return store, expected


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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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


@pytest.mark.slow
def test_serve_answers_refuses_and_stops(tmp_path: Path) -> None:
    _, expected = finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    serve.shutdown()  # what other tests left has no HTTP
    with serving(tmp_path / "out", "--max-queued", "2", "--replicas", "2") as place:
        check(place, expected)
    for _ in range(300):  # its replicas end by themselves
        if not serve.status().applications:
            break
        time.sleep(0.1)
    assert not serve.status().applications
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])))


def titled(process: psutil.Process, title: str) -> bool:
    return title in " ".join(process.info["cmdline"] or ())


def check(place: str, expected: dict[str, np.ndarray]) -> None:
    for run_id, shares in expected.items():
        status, _, content = asyncio.run(asked(place, run_id, TEXTS))
        assert status == 200
        found = [[each["probabilities"][label] for label in LABELS] for each in content["results"]]
        np.testing.assert_allclose(found, shares, atol=2e-5)
        assert [each["label"] for each in content["results"]] == [
            LABELS[n] for n in shares.argmax(1)
        ]
    assert asyncio.run(asked(place, RUN_IDS[0], TEXTS, token="guessed"))[0] == 401
    assert asyncio.run(asked(place, "../../x", TEXTS))[0] == 404
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
