"""A server that speaks OpenAI's API on this machine, as well or as badly as a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support import studies

KEY = "sk-a-key-that-nobody-may-see-0123456789"
#: What a server does instead of answering.
Fault = str | None
#: From the body of a request to the answer's text, or its whole `choices[0]`.
Answer = Callable[[dict[str, Any]], str | dict[str, Any]]


def says_positive(body: dict[str, Any]) -> str:
    return "It is positive."


@dataclass
class Endpoint:
    """What the server does, and what it was asked.

    `fault` is called with the number of the request, from 1 on.
    """

    answer: Answer = says_positive
    fault: Callable[[int], Fault] = lambda number: None
    #: Status and body of the reply to a request and its path, in place of `answer`.
    respond: Callable[[dict[str, Any], str], tuple[int, dict[str, Any]]] | None = None
    model: str = "tiny-2026"
    fingerprint: str = "fp_1"
    key: str | None = KEY
    delay_s: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    under_way: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def reply(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self.asked.append(body)
            number = len(self.asked)
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        time.sleep(self.delay_s)
        with self._lock:
            self.under_way -= 1
        given = handler.headers.get("Authorization", "")
        if self.key is not None and given != f"Bearer {self.key}":
            return _send(handler, 401, json.dumps({"error": {"message": f"wrong key: {given}"}}))
        fault = self.fault(number)
        if fault == "never":
            time.sleep(3)
        if fault == "echoes the key":
            said = {"error": {"message": f"internal error at {given}"}}
            return _send(handler, 500, json.dumps(said))
        if fault in ("401", "404", "429", "500"):
            return _send(handler, int(fault), json.dumps({"error": {"message": f"it is {fault}"}}),
                         {"Retry-After": "0.1"} if fault == "429" else {})  # fmt: skip
        if fault == "garbage":
            return _send(handler, 200, "<html>welcome to the proxy</html>", kind="text/html")
        if fault == "no choices":
            return _send(handler, 200, json.dumps({"model": self.model}))
        if self.respond is not None:
            status, content = self.respond(body, handler.path)
            return _send(handler, status, json.dumps(content))
        text = json.dumps(self.completion(body, handler.path))
        if fault == "drips":
            return _drip(handler, text)
        if fault == "endless":
            return _drip(handler, " " * 2**20, pause_s=0, times=10_000)
        if fault == "compressed":
            return _send(handler, 200, text, {"Content-Encoding": "gzip"})
        return _send(handler, 200, text, half=fault == "half a body")

    def completion(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        made = self.answer(body)
        chat = path.endswith("/chat/completions")
        if isinstance(made, str):
            message = {"role": "assistant", "content": made}
            made = {"message": message} if chat else {"text": made}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return {
            "id": "1",
            "object": "chat.completion" if chat else "text_completion",
            "created": 1,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, **made}],
            "usage": usage,
        }


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    text: str,
    headers: dict[str, str] | None = None,
    *,
    kind: str = "application/json",
    half: bool = False,
) -> None:
    content = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(content)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2] if half else content)
    handler.close_connection = half


def _drip(
    handler: BaseHTTPRequestHandler, text: str, *, pause_s: float = 0.1, times: int = 1
) -> None:
    """Send a reply of unknown length: a byte at a time, or the whole text again and again."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True
    for part in text if times == 1 else [text] * times:
        handler.wfile.write(part.encode())
        time.sleep(pause_s)


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Answer as `endpoint` does, in threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.reply(self)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *args: object) -> None:
            """A client that gives up is part of the test."""

    server = Server(("127.0.0.1", endpoint.port), Handler)
    endpoint.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


def label_of(body: dict[str, Any]) -> str:
    """An answer that depends on the question alone."""
    said = body["messages"][-1]["content"]
    return f"It is {('negative', 'neutral', 'positive')[len(said) % 3]}."


def save_study(folder: Path, server: Endpoint, **backbone: object) -> Path:
    """A study of two methods on an endpoint, whose key is in a file."""
    (folder / "key").write_text(f"{KEY}\n")
    studies.write_probe(folder)
    asked = {
        "endpoint": server.url, "model": "tiny", "key_file": "key", "at_once": 4, "retries": 1,
        "timeout_s": 20, "repeat": 0.2, "prices": {"read": 1, "written": 2}, **backbone,
    }  # fmt: skip
    return studies.write(
        folder, "endpoint", backbones=[asked], probes=[studies.MINE],
        methods=[
            {"kind": "zero_shot", "seeds": [1, 2], "temperature": 0, "unparsed": "invalid"},
            {"kind": "cot", "seeds": [1], "unparsed": "invalid"},
        ],
        resources={"rows_per_shard": 10}, answers=str(folder / "answers"),
    )  # fmt: skip
