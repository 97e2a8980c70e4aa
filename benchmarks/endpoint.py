"""Requests per second of a study's prompts against the same client in a bare asyncio loop.

Both ask one server on this machine, which answers after a pause, in turns within one run:

    python -m benchmarks --only endpoint --items 1024
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from aiohttp import web
from harness import CLOCK, Comparison, Size, timed
from openai import AsyncOpenAI

from raybias.methods import ZeroShot
from raybias.methods.base import Run, Shard, shard_of
from raybias.methods.label_prompts import PromptedReader
from raybias.providers.openai import OpenAI
from raybias.schema import ITEMS, LABELS, PREDICTIONS
from raybias.storage import Store

AT_ONCE = 32
PAUSE_S = 0.05
_KEY = "OPENAI_API_KEY"
_SHARD = Shard("probe", "run", "model", "zero_shot", "none", 0, 0, "predictions")


def serve(port: multiprocessing.Queue[int]) -> None:
    """Answer every chat after a pause."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(PAUSE_S)
        message = {"role": "assistant", "content": "It is neutral."}
        usage = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "message": message}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "bench",
             "choices": [choice], "usage": usage}
        )  # fmt: skip

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def bare(spec: OpenAI, prompts: list[str]) -> None:
    """Ask with the client alone, as many at a time."""
    waiting = iter(prompts)
    async with AsyncOpenAI(base_url=spec.endpoint, api_key=os.environ[_KEY]) as client:

        async def work() -> None:
            for prompt in waiting:
                await client.chat.completions.create(
                    model=spec.model,
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=3,
                    temperature=0,
                )

        await asyncio.gather(*(work() for _ in range(spec.at_once)))


def shard(reader: PromptedReader, texts: list[str]) -> None:
    """Ask as a replica does for one shard, rows of predictions included."""
    columns = dict.fromkeys(ITEMS.names, ["a"] * len(texts))
    names = [str(number) for number in range(len(texts))]
    items = pa.table(columns | {"item_id": names, "text": texts, "label": [1] * len(texts)})
    work = shard_of(reader, Run("run", seed=1), _SHARD, items, PREDICTIONS)
    if work().table.num_rows != len(texts):
        raise RuntimeError("rows are missing")


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a study's requests with the bare client's, at a server that pauses."""
    os.environ[_KEY] = "none"
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(port,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port.get()}/v1"
    spec = OpenAI(endpoint=url, model="bench", name="bench", at_once=AT_ONCE, repeat=0)
    texts = [f"the film number {number} was long" for number in range(size.items)]
    method = ZeroShot(prompt_format="chat", unparsed="invalid", temperature=0)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        reader = PromptedReader(method, spec.answers(store), LABELS, store)
        prompts = [reader.form.first(text, LABELS) for text in texts]
        asyncio.run(bare(spec, prompts[:AT_ONCE]))
        ratios = tuple(
            timed(lambda: asyncio.run(bare(spec, prompts)), "cpu")
            / timed(lambda: shard(reader, texts), "cpu")
            for _ in range(size.rounds)
        )
    server.terminate()
    work = f"{size.items} prompts at an endpoint, {AT_ONCE} at once"
    yield Comparison(work, "ours, a shard of a study", "the client in a bare loop", CLOCK, ratios)
