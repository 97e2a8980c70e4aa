"""What clients of a served study see while its parts are killed; prints the seconds (minutes)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from itertools import count
from pathlib import Path

import aiohttp
import psutil
import pytest
from ray import serve
from test_serve import RUN_IDS, TEXTS, TOKEN, asked, finished, serving, titled

from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving, app
from support.tiny import save_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.usefixtures("ray_cluster"),
]
#: Requests that are under way at a time.
CALLERS = 4
#: Answers in a row after which all is well again, and the fewest seconds until then.
GOOD, SETTLED_S = 20, 4.0


def killed(title: str) -> None:
    """Kill one process of Ray's by its title."""
    found = [each for each in psutil.process_iter(["cmdline"]) if titled(each, title)]
    assert found, title
    found[0].kill()


async def seen(place: str, title: str) -> list[tuple[float, int | str, str | None]]:
    """Seconds after a kill, code and Retry-After of what clients got until all was well."""
    answers: list[tuple[float, int | str, str | None]] = []
    begun = time.monotonic()

    async def caller() -> None:
        while True:
            try:
                status, headers, _ = await asked(place, RUN_IDS[0], TEXTS[:1])
                answer = status, headers.get("Retry-After")
            except (aiohttp.ClientError, TimeoutError) as error:
                answer = type(error).__name__, None
            answers.append((time.monotonic() - begun, *answer))
            await asyncio.sleep(0.05)

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    while len(answers) < GOOD:
        await asyncio.sleep(0.05)
    answers.clear()
    begun = time.monotonic()
    killed(title)
    for _ in count():
        await asyncio.sleep(0.05)
        late = time.monotonic() - begun
        assert late < 180, Counter(code for _, code, _ in answers)
        if late > SETTLED_S and {code for _, code, _ in answers[-GOOD:]} == {200}:
            break
    for each in callers:
        each.cancel()
    return answers


def lost(place: str, title: str, replicas: int) -> set[int | str]:
    """Kill a process and print what clients see; the codes that they got."""
    answers = asyncio.run(seen(place, title))
    bad = [at for at, code, _ in answers if code != 200]
    again = next(at for at, code, _ in answers if code == 200 and at > max(bad, default=0.0))
    codes = dict(Counter(code for _, code, _ in answers))
    first = f"{again:.1f} s to the first answer" if bad else "no request missed"
    print(f"\n{replicas} replicas, {title} killed: {first}; {codes}")
    assert all(retry == "1" for _, code, retry in answers if code == 503)
    assert 500 not in codes
    return set(codes)


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_raybias_serve_are_lost(tmp_path: Path, replicas: int) -> None:
    """Its ingress is the command itself, and there is no proxy."""
    finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    with serving(tmp_path / "out", "--replicas", str(replicas)) as place:
        codes = lost(place, "ServeReplica:raybias-serve", replicas)
        assert codes == ({200} if replicas == 2 else {200, 503})
        # Another controller first asks the replicas whether they live, and there may be one alone.
        assert lost(place, "ServeController", replicas) <= {200, 503}


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_the_application_are_lost(
    tmp_path: Path, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve run` and KubeRay have it: proxy, ingress and replicas are processes."""
    finished(tmp_path / "out", save_model(tmp_path / "tiny"))
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.shutdown()  # what other tests left has no HTTP
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    place = f"http://127.0.0.1:{port}"
    try:
        arguments = Serving(out=str(tmp_path / "out"), replicas=replicas)
        serve.run(app(arguments), name="raybias", route_prefix="/")
        codes = lost(place, "ServeReplica:raybias:tiny", replicas)
        assert codes == ({200} if replicas == 2 else {200, 503})
        assert lost(place, "ServeReplica:raybias:Ingress", replicas) <= {200, 503}
        # Nobody listens until there is another, and answers that were on their way break off.
        refused = {"ClientConnectorError", "ServerDisconnectedError", "ClientOSError"}
        broken = {"ClientPayloadError"}
        assert lost(place, "ProxyActor", replicas) <= {200, 503} | refused | broken
    finally:
        serve.shutdown()
