"""`raybias serve` under more load than it can take, from a bounded client.

One replica of one thread holds a random-weight model and two soft prompts. Its capacity is
measured with a few requests always under way; then requests arrive at even distances at a
share or a multiple of that rate, whether earlier ones are answered or not. Latencies are of
answered requests; a request that gets nothing within the client's limit is a hang.

    python benchmarks/serving.py --seconds 15
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import pyarrow as pa
import torch
import typer
import workload

from raybias.config import Backbone, Probe, Study, TrainingSet
from raybias.engine.adapters import base
from raybias.methods import SoftPrompt
from raybias.runtime.serve.app import TOKEN_VARIABLE, serve_out
from raybias.runtime.serve.http import Limits
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import begin, make_record

PROMPT, RUN_IDS, TOKEN = 8, ("r1", "r2"), "a token for this run alone"
#: Of a run that was tuned to its end.
DONE = {"stage": "final", "steps": 10}
#: Seconds after which the client calls a request a hang; the server's own limit is below.
HANG_S, TIMEOUT_S = 20.0, 10.0


@dataclass(frozen=True)
class Reply:
    """Status (0 for a hang, -1 for a broken connection) and seconds of one request."""

    status: int
    seconds: float


class Client:
    """Asks for labels, at most so many requests at a time."""

    def __init__(self, place: str, texts: list[str], per_request: int) -> None:
        self.place, self.texts, self.size = place, texts, per_request
        self.sent = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Open a session with the right token."""
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=aiohttp.ClientTimeout(HANG_S),
            connector=aiohttp.TCPConnector(limit=2000),
        ) as session:
            yield session

    async def ask(self, session: aiohttp.ClientSession, **headers: str) -> Reply:
        """One request for the next texts."""
        self.sent += 1
        first = self.sent * self.size % (len(self.texts) - self.size)
        body = {"run": RUN_IDS[self.sent % 2], "texts": self.texts[first : first + self.size]}
        begun = time.perf_counter()
        try:
            async with session.post(f"{self.place}/label", json=body, headers=headers) as answer:
                await answer.read()
                return Reply(answer.status, time.perf_counter() - begun)
        except TimeoutError:
            return Reply(0, time.perf_counter() - begun)
        except aiohttp.ClientError:
            return Reply(-1, time.perf_counter() - begun)

    async def steady(self, seconds: float, under_way: int) -> list[Reply]:
        """As fast as it answers, with so many requests under way."""
        ends, replies = time.perf_counter() + seconds, list[Reply]()

        async def one(session: aiohttp.ClientSession) -> None:
            while time.perf_counter() < ends:
                replies.append(await self.ask(session))

        async with self.session() as session:
            await asyncio.gather(*(one(session) for _ in range(under_way)))
        return replies

    async def arriving(self, rate: float, seconds: float) -> tuple[list[Reply], Reply]:
        """Send requests at even distances, and in their midst one with a wrong token."""
        async with self.session() as session:
            begun, calls = time.perf_counter(), []
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
                calls.append(asyncio.create_task(self.ask(session)))
            wrong = await self.ask(session, Authorization="Bearer guessed")
            return list(await asyncio.gather(*calls)), wrong


def fill(store: Store, folder: Path, dtype: str, width: int) -> None:
    """Make an OUT with two runs."""
    spec = Backbone.model_validate({"id": str(folder), "name": "m", "dtype": dtype})
    study = Study(
        name="serving",
        backbones=(spec,),
        methods=(SoftPrompt(prompt_length=PROMPT, seeds=(1, 2), keep=2),),
        training=(TrainingSet(source="planted"),),
        probes=(Probe(source="planted"),),
    )
    begin(store, make_record(study, {}, command="benchmark"))
    rows: list[dict[str, Any]] = []
    for seed, run_id in enumerate(RUN_IDS):
        prompt_PD = torch.randn(PROMPT, width, generator=torch.Generator().manual_seed(seed)) * 0.02
        tensors = {base.PROMPT: prompt_PD}
        base.write_folder(
            store, f"adapters/{run_id}", tensors, file=base.ADAPTER, parts=[], record={}
        )
        row = (
            dict.fromkeys(RUNS.names)
            | DONE
            | {"run_id": run_id, "model": "m", "dataset": "planted"}
        )
        rows.append({**row, "method": study.methods[0].name, "seed": seed, "selected": True})
    store.write_table("runs.parquet", pa.Table.from_pylist(rows, schema=RUNS))


def row_of(factor: float, rate: float, seconds: float, replies: list[Reply]) -> tuple[object, ...]:
    """Format a line of the table."""
    answered = sorted(reply.seconds for reply in replies if reply.status == 200)
    refused = [reply.seconds for reply in replies if reply.status == 503]
    others = Counter(reply.status for reply in replies if reply.status not in (200, 503))
    cuts = statistics.quantiles(answered, n=100) if len(answered) > 1 else [0.0] * 99
    return (
        f"{factor:g}x", rate, len(answered) / seconds, *(1000 * cuts[n - 1] for n in (50, 95, 99)),
        100 * len(refused) / len(replies), 1000 * max(refused, default=0.0),
        others.pop(0, 0), ", ".join(f"{n} x {s}" for s, n in others.items()) or "none",
    )  # fmt: skip


async def measure(client: Client, seconds: float) -> tuple[list[tuple[object, ...]], float, int]:
    """Return the table's lines, the capacity in requests per second, and what a wrong token got."""
    await client.steady(3, 4)
    begun = time.perf_counter()
    steady = await client.steady(seconds, 4)
    capacity = sum(r.status == 200 for r in steady) / (time.perf_counter() - begun)
    rows, refused = [], Reply(0, 0)
    for factor in (0.5, 1.0, 2.0, 4.0):
        begun = time.perf_counter()
        replies, refused = await client.arriving(capacity * factor, seconds)
        rows.append(row_of(factor, capacity * factor, time.perf_counter() - begun, replies))
    return rows, capacity, refused.status


def main(
    *,
    shape: workload.ShapeOption = "125m",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    seconds: Annotated[float, typer.Option(help="Of each load.")] = 15.0,
    texts: Annotated[int, typer.Option(help="Texts of a request.")] = 4,
    max_queued: Annotated[int, typer.Option(help="Requests that may wait.")] = 16,
    out: workload.OutOption = None,
) -> None:
    """Serve a model, measure its capacity, and ask for up to four times that."""
    place = Path(tempfile.mkdtemp())
    folder = workload.save_model(
        place / "model", shape=shape, dtype="float32", device="cpu", merges=None
    )
    store = Store(place / "out")
    fill(store, folder, dtype, workload.SHAPES[shape][0])
    os.environ[TOKEN_VARIABLE] = TOKEN
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    limits = Limits(max_queued=max_queued, timeout_s=TIMEOUT_S)
    with serve_out(store.uri, port=port, limits=limits) as url:
        client = Client(url, workload.items(None, 1800), texts)
        rows, capacity, wrong = asyncio.run(measure(client, seconds))
    headers = ("load", "asked/s", "answered/s", "p50 ms", "p95 ms", "p99 ms", "503 %",
               "slowest 503 ms", "hangs", "other")  # fmt: skip
    workload.publish(
        f"raybias serve under load, OPT-{shape} shape, {dtype}, {texts} texts a request",
        [
            f"Capacity with four requests under way: {capacity:.1f} requests/s. One replica of one"
            f" thread, {max_queued} requests may wait, {TIMEOUT_S:g} s until a 504. A wrong token"
            f" under the highest load: {wrong}. Client and server share the machine.",
            workload.markdown(rows, headers),
        ],
        device="cpu", peer="ray", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
