"""Who may ask `raybias serve`, how much, what is said otherwise, and where replicas are lost."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from ray.exceptions import RayActorError
from typer.testing import CliRunner

from raybias.cli import app
from raybias.config import Study
from raybias.errors import ConfigError, ModelError, OutputError, WorkFailed
from raybias.runtime.serve import app as serve_app
from raybias.runtime.serve.app import Ingress, Offer, Serving
from raybias.runtime.serve.http import Limits, Overloaded, token_digest, web
from raybias.schema import LABELS
from raybias.storage import Store
from raybias.study_record import begin, make_record

TOKEN = {"Authorization": "Bearer secret"}
LIMITS = Limits(max_body_bytes=2000, max_texts=3, max_characters=400, timeout_s=0.2)


class Fake:
    """Says `positive`, or does what a text names."""

    def runs(self) -> list[dict[str, Any]]:
        return [{"run": "a", "model": "m"}]

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        match texts[0]:
            case "wait":
                await asyncio.sleep(60)
            case "full":
                raise Overloaded
            case "long":
                raise ModelError("text of 99 tokens is longer than 64")
            case "broken":
                raise ZeroDivisionError("secret path /root")
        return [{"label": "positive", "probabilities": {"positive": 1.0}} for _ in texts]


@pytest.fixture
def client() -> TestClient:
    return TestClient(web(Fake(), LIMITS, token_digest("secret")), raise_server_exceptions=False)


def ask(client: TestClient, *texts: str) -> Any:
    return client.post("/label", json={"run": "a", "texts": texts}, headers=TOKEN)


def test_labels_and_runs(client: TestClient) -> None:
    answer = ask(client, "one", "two")
    assert answer.status_code == 200
    assert [each["label"] for each in answer.json()["results"]] == ["positive"] * 2
    assert client.get("/runs", headers=TOKEN).json()["runs"][0]["run"] == "a"
    assert client.get("/healthz").json() == {"status": "ok"}
    # JSON whatever it is called: `curl -d` calls it a form.
    form = TOKEN | {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (TOKEN, form):
        answer = client.post("/label", content=b'{"run": "a", "texts": ["one"]}', headers=headers)
        assert answer.status_code == 200, answer.text
    # An unknown run is no path.
    answer = client.post("/label", json={"run": "../../etc", "texts": ["a"]}, headers=TOKEN)
    assert answer.status_code == 404
    assert "etc" not in answer.text
    assert client.get("/nowhere", headers=TOKEN).json() == {"error": "Not Found"}


@pytest.mark.parametrize("given", [None, "Bearer ", "Bearer secret2", "Basic secret", "Bearer é"])
def test_without_the_token_nothing_is_said(client: TestClient, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("utf-8")}
    for answer in (
        client.get("/runs", headers=headers),
        client.get("/nowhere", headers=headers),
        client.post("/label", content=b"x" * 5000, headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("wait", 504, "no answer within 0.2 s"),
        ("full", 503, "try again later"),
        ("long", 422, "99 tokens"),
        ("broken", 500, "the work failed"),
        (" ", 422, "texts.0"),
        ("x" * 401, 413, "401 characters"),
    ],
)
def test_what_cannot_be_answered(client: TestClient, text: str, status: int, said: str) -> None:
    answer = ask(client, text)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert "/root" not in answer.text
    assert ("Retry-After" in answer.headers) == (status in (503, 504))


def test_too_much_or_malformed(client: TestClient) -> None:
    assert ask(client, "a", "b", "c", "d").status_code == 413
    assert client.post("/label", content=b"x" * 2001, headers=TOKEN).status_code == 413
    pieces = (b"x" * 500 for _ in range(9))  # sent without a Content-Length
    assert client.post("/label", content=pieces, headers=TOKEN).status_code == 413
    for body in (
        b"{", b"[]", b'{"run": "a", "texts": []}', b'{"run": 1, "texts": ["a"]}', b"\xff",
        b'{"run": "a", "texts": "a"}', b'{"run": "a", "texts": ["\\ud800"]}',
        b'{"run": "a", "texts": ["a"], "more": 1}',
    ):  # fmt: skip
        answer = client.post("/label", content=body, headers=TOKEN)
        assert answer.status_code in (400, 422), body
        assert "\n" not in answer.json()["error"]


OPEN = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "Bias.Example"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:8000", "Content-Type": "application/json; charset=utf-8"}, 200),
        # A page's own name that leads here, and names that look like this machine's.
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        # A page's script, and its form, which needs no answer to do harm.
        ({"Host": "localhost:8000", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:8000", "Origin": "null"}, 403),
        ({"Host": "localhost:8000", "Content-Type": "text/plain"}, 415),
        ({"Host": "localhost:8000", "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_without_a_token_no_other_site_is_answered(headers: dict[str, str], status: int) -> None:
    client = TestClient(web(Fake(), LIMITS, None, ["bias.example"]))
    body = b'{"run": "a", "texts": ["one"]}'
    answer = client.post("/label", content=body, headers=OPEN | headers)
    assert answer.status_code == status, answer.text
    asked = client.get("/runs", headers={n: v for n, v in headers.items() if n != "Content-Type"})
    assert asked.status_code == (200 if status == 415 else status)
    if status == 403:
        assert asked.json().keys() == {"error"}
    # Nobody but who knows the token can send it.
    known = TestClient(web(Fake(), LIMITS, token_digest("secret")))
    answer = known.post("/label", content=body, headers=OPEN | headers | TOKEN)
    assert answer.status_code == 200


def refused(*options: str) -> str:
    """What `raybias serve` says before it starts anything."""
    with pytest.raises(ConfigError) as raised:
        CliRunner().invoke(app, ["serve", "out", *options], catch_exceptions=False)
    return str(raised.value)


def test_other_addresses_need_a_token_that_cannot_be_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAYBIAS_SERVE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        assert "there is no token" in refused("--host", host)
    (tmp_path / "short").write_text("secret\n")
    assert "6 characters" in refused("--token-file", str(tmp_path / "short"))
    assert "cannot read" in refused("--token-file", str(tmp_path / "none"))
    monkeypatch.setenv("RAYBIAS_SERVE_TOKEN", "")
    assert "no bearer token" in refused()
    monkeypatch.delenv("RAYBIAS_SERVE_TOKEN")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: cannot listen" in refused("--port", str(port))


def test_an_out_without_runs_cannot_be_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAYBIAS_SERVE_TOKEN", raising=False)
    with pytest.raises(OutputError, match=r"holds no study\.yaml"):
        serve_app.app(Serving(out=str(tmp_path), anyone=True))
    study = Study(name="s", backbones=({"id": "planted"},), probes=({"source": "planted"},),
                  training=({"source": "planted"},))  # fmt: skip
    begin(Store(tmp_path), make_record(study, {}, command=""))
    with pytest.raises(OutputError, match="no run that labels texts"):
        serve_app.app(Serving(out=str(tmp_path), anyone=True))
    with pytest.raises(ConfigError, match="no model 'opt'; the study has planted"):
        serve_app.app(Serving(out=str(tmp_path), anyone=True, models=("opt",)))
    with pytest.raises(ConfigError, match="RAYBIAS_SERVE_TOKEN"):
        serve_app.app(Serving(out=str(tmp_path)))


ANSWER = [{"pred": 2, "scores": [0.0, 0.0, 5.0], "answer": None}]
NAME = "m-zero_shot"


class Replies:
    """A handle whose requests end as listed: an answer, an error, or never (None)."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.label = self

    def options(self, **_: str) -> Replies:
        return self

    def remote(self, method: str, run: str, texts: Sequence[str]) -> asyncio.Future[Any]:
        end, reply = self.ends.pop(0), asyncio.get_running_loop().create_future()
        if isinstance(end, Exception):
            reply.set_exception(end)
        elif end is not None:
            reply.set_result(end)
        return reply


def ingress_of(replies: Replies, replicas: int) -> Ingress:
    study: Any = SimpleNamespace(name="s", labels=LABELS)
    facts: Any = {"r": {"model": "m", "method": "zero_shot"}}
    offer = Offer(Serving(out="out", replicas=replicas), study, facts, None, {})
    return Ingress(offer, {NAME: replies})


def asked(replies: Replies, *, replicas: int, running: int | None = None) -> list[dict[str, Any]]:
    ingress = ingress_of(replies, replicas)
    if running is not None:
        ingress.seen[NAME] = running
    return asyncio.run(ingress.label("r", ["text"]))


def test_a_request_whose_replica_is_lost_is_asked_of_another() -> None:
    (answer,) = asked(Replies(RayActorError(), ANSWER), replicas=2)
    assert answer["label"] == "positive"


@pytest.mark.parametrize(
    ("replies", "replicas", "running"),
    [
        (Replies(RayActorError()), 1, None),
        (Replies(RayActorError(), RayActorError()), 3, None),
        (Replies(RayActorError()), 2, 1),
        (Replies(), 2, 0),
    ],
)
def test_where_none_is_left_it_is_told_to_come_again(
    replies: Replies, replicas: int, running: int | None
) -> None:
    with pytest.raises(Overloaded):
        asked(replies, replicas=replicas, running=running)
    assert not replies.ends


def test_a_request_does_not_wait_for_a_replica_that_is_lost_and_work_that_fails_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(WorkFailed, match="ZeroDivisionError"):
        asked(Replies(ZeroDivisionError("x")), replicas=2)
    monkeypatch.setattr(serve_app, "_LOOK_S", 0.01)
    seen = iter((1, 1, 0))
    monkeypatch.setattr(Ingress, "running", lambda self, _: next(seen))
    with pytest.raises(Overloaded):
        asked(Replies(None), replicas=1)


def test_replicas_are_looked_at_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, looked = threading.Event(), threading.Event()

    def status() -> SimpleNamespace:
        if looked.is_set():
            raise ConnectionError("the controller is away")
        looked.set()
        found = SimpleNamespace(replica_states={"STARTING": 1})
        application = SimpleNamespace(deployments={NAME: found})
        return SimpleNamespace(applications={"served": application})

    monkeypatch.setattr(serve_app, "_HEALTH_CHECK_S", 0.01)
    monkeypatch.setattr("ray.serve.status", status)
    ingress = ingress_of(Replies(), 2)
    assert ingress.running(NAME) == 2
    ingress.watch({NAME: "served"}, ended)
    assert looked.wait(30)
    while ingress.running(NAME):
        time.sleep(0.01)
    ended.set()
