"""An S3 service on loopback, moto's server, behind a relay that can fail on purpose.

moto has pins of its own, so it is not installed beside raybias: `make slow` gives it an
environment, and its server is found through RAYBIAS_MOTO or on PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import socketserver
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import pyarrow.fs as pafs
import pytest

from support.commands import free_port

BUCKET = "bucket"
Mode = Literal["open", "busy", "gone"]
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_STARTS_S = 60


class _Relay(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    mode: Mode = "open"
    upstream: int


class _Handler(socketserver.BaseRequestHandler):
    server: _Relay

    def handle(self) -> None:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream,
        ):
            threading.Thread(target=self._answers, args=(upstream,), daemon=True).start()
            while data := self.request.recv(1 << 16):
                if self.server.mode == "busy":
                    self.request.sendall(_BUSY)
                if self.server.mode != "open":
                    return
                upstream.sendall(data)

    def _answers(self, upstream: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(1 << 16):
                self.request.sendall(data)


class S3:
    """The service as its clients see it."""

    def __init__(self, relay: _Relay) -> None:
        self.relay = relay
        self.endpoint = f"http://127.0.0.1:{relay.server_address[1]}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @contextmanager
    def being(self, mode: Mode, seconds: float | None = None) -> Iterator[None]:
        """Fail while the body runs, or for some seconds of it."""
        self.fail(mode)
        timer = threading.Timer(seconds or 0, self.fail, ["open"]) if seconds else None
        if timer:
            timer.start()
        try:
            yield
        finally:
            if timer:
                timer.join()
            self.fail("open")

    def fail(self, mode: Mode) -> None:
        """Answer ("open"), answer 503 ("busy"), or nothing ("gone") from now on."""
        self.relay.mode = mode


@contextmanager
def served() -> Iterator[S3]:
    """The service with one bucket; skips where moto is not installed."""
    program = os.environ.get("RAYBIAS_MOTO") or shutil.which("moto_server")
    if program is None:
        pytest.skip("moto_server is not on PATH; `make slow` installs it, or set RAYBIAS_MOTO")
    port = free_port()
    server = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    )
    try:
        _wait(server, port)
        with _Relay(("127.0.0.1", 0), _Handler) as relay:
            relay.upstream = port
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            s3 = S3(relay)
            pafs.S3FileSystem(
                endpoint_override=s3.endpoint, access_key="testing", secret_key="testing",
                allow_bucket_creation=True, region="us-east-1",
            ).create_dir(BUCKET)  # fmt: skip
            yield s3
            relay.shutdown()
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + _STARTS_S
    while time.monotonic() < ends:
        if server.poll() is not None:
            pytest.skip(f"moto_server ended with {server.returncode}")
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
            return
        time.sleep(0.1)
    pytest.skip(f"moto_server did not answer in {_STARTS_S} s")
