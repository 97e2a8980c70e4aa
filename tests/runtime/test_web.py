"""Who may ask `raybias serve`, how much, and what is said otherwise; without Ray."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from raybias.cli import app
from raybias.config import Study
from raybias.errors import ConfigError, ModelError, OutputError
from raybias.runtime.serve.http import Limits, Overloaded, token_digest, web
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


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_json_is_read_whatever_it_is_called(client: TestClient, kind: str | None) -> None:
    """`curl -d` calls it a form."""
    headers = TOKEN if kind is None else TOKEN | {"Content-Type": kind}
    answer = client.post("/label", content=b'{"run": "a", "texts": ["one"]}', headers=headers)
    assert answer.status_code == 200, answer.text


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


def test_too_much(client: TestClient) -> None:
    assert ask(client, "a", "b", "c", "d").status_code == 413
    assert client.post("/label", content=b"x" * 2001, headers=TOKEN).status_code == 413
    pieces = (b"x" * 500 for _ in range(9))  # sent without a Content-Length
    assert client.post("/label", content=pieces, headers=TOKEN).status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        "{", "[]", '{"run": "a", "texts": []}', '{"run": 1, "texts": ["a"]}',
        '{"run": "a", "texts": "a"}', '{"run": "a", "texts": ["\\ud800"]}',
        '{"run": "a", "texts": ["a"], "more": 1}', "\xff",
    ],
)  # fmt: skip
def test_what_is_malformed(client: TestClient, body: str) -> None:
    answer = client.post("/label", content=body.encode("latin-1"), headers=TOKEN)
    assert answer.status_code in (400, 422)
    assert "\n" not in answer.json()["error"]


def test_an_unknown_run_is_no_path(client: TestClient) -> None:
    answer = client.post("/label", json={"run": "../../etc", "texts": ["a"]}, headers=TOKEN)
    assert answer.status_code == 404
    assert "etc" not in answer.text
    assert client.get("/nowhere", headers=TOKEN).json() == {"error": "Not Found"}


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
    from raybias.runtime.serve.app import Serving
    from raybias.runtime.serve.app import app as build

    with pytest.raises(OutputError, match=r"holds no study\.yaml"):
        build(Serving(out=str(tmp_path), anyone=True))
    study = Study(name="s", backbones=({"id": "planted"},), probes=({"source": "planted"},),
                  training=({"source": "planted"},))  # fmt: skip
    begin(Store(tmp_path), make_record(study, {}, command=""))
    with pytest.raises(OutputError, match="no run that labels texts"):
        build(Serving(out=str(tmp_path), anyone=True))
    with pytest.raises(ConfigError, match="no model 'opt'; the study has planted"):
        build(Serving(out=str(tmp_path), anyone=True, models=("opt",)))
    with pytest.raises(ConfigError, match="RAYBIAS_SERVE_TOKEN"):
        build(Serving(out=str(tmp_path)))
