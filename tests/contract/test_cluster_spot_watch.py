"""cluster/spot_watch.py against servers that speak as the clouds' metadata servers do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.documents import CLUSTER

LEFT_S = 100
LOOKS = 2


class Metadata(BaseHTTPRequestHandler):
    """Says at the third look that the node goes; refuses whoever leaves out a cloud's header."""

    looks: dict[str, int]

    def do_PUT(self) -> None:
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self.answer(200 if self.path == "/latest/api/token" and ttl else 400, "a token")

    def do_GET(self) -> None:
        self.looks[self.path] = self.looks.get(self.path, 0) + 1
        goes = self.looks[self.path] > LOOKS
        end = datetime.now(UTC) + timedelta(seconds=LEFT_S)
        if self.path == "/latest/meta-data/spot/instance-action":
            told = {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
            known = self.headers.get("X-aws-ec2-metadata-token") == "a token"
            self.answer(401 if not known else 200 if goes else 404, json.dumps(told))
        elif self.path == "/computeMetadata/v1/instance/preempted":
            known = self.headers.get("Metadata-Flavor") == "Google"
            self.answer(200 if known else 403, "TRUE\n" if goes else "FALSE\n")
        elif self.path == "/metadata/scheduledevents?api-version=2020-07-01":
            when = end.strftime("%a, %d %b %Y %H:%M:%S GMT")
            events = [{"EventType": "Freeze", "NotBefore": when}]
            events += [{"EventType": "Preempt", "NotBefore": when}] * goes
            known = self.headers.get("Metadata") == "true"
            self.answer(200 if known else 400, json.dumps({"Events": events}))
        else:
            self.answer(404, "")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    handler = type("Handler", (Metadata,), {"looks": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def drained(folder: Path, *arguments: str, fails: int = 0) -> list[list[str]]:
    """Run the file beside a `ray` that writes down how it is called, and fails at first."""
    calls, ray = folder / "calls", folder / "ray"
    ray.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n[ $(wc -l < {calls}) -gt {fails} ]\n')
    ray.chmod(0o755)
    source = (CLUSTER / "spot_watch.py").read_text().replace("POLL_S = 2.0", "POLL_S = 0.01")
    (folder / "spot_watch.py").write_text(source)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "http_proxy": "http://127.0.0.1:9"}
    subprocess.run(
        [sys.executable, folder / "spot_watch.py", *arguments],
        env=environment, check=True, timeout=30,
    )  # fmt: skip
    return [line.split() for line in calls.read_text().splitlines()]


@pytest.mark.parametrize(("cloud", "left"), [("aws", LEFT_S), ("gcp", 30), ("azure", LEFT_S)])
def test_a_notice_drains_the_node(cloud: str, left: int, server: str, tmp_path: Path) -> None:
    # Ray refuses the first call, as it does until it is up.
    calls = drained(tmp_path, cloud, "--server", server, fails=1)
    assert len(calls) == 2
    for call in calls:
        assert call[0] == "drain-node"
        assert call[call.index("--reason") + 1] == "DRAIN_NODE_REASON_PREEMPTION"
        seconds = int(call[call.index("--deadline-remaining-seconds") + 1])
        assert left - 10 <= seconds <= left


def test_a_pod_that_ends_drains_its_node_and_waits(tmp_path: Path) -> None:
    begun = time.monotonic()
    (call,) = drained(tmp_path, "--now", "2")
    assert call[-2:] == ["--deadline-remaining-seconds", "2"]
    assert time.monotonic() - begun >= 2
