"""Clients that are slow, greedy or rude hold up no other one; without Ray."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.request import Request, urlopen

import pytest
from test_web import TOKEN, Fake

from raybias.errors import ConfigError
from raybias.runtime.serve import front
from raybias.runtime.serve.front import answering, bound
from raybias.runtime.serve.http import Limits, token_digest, web

MOST = 8


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, int]]:
    limits = Limits(timeout_s=0.5)
    with (
        bound("127.0.0.1", 0) as taken,
        answering(web(Fake(), limits, token_digest("secret")), taken, most=MOST),
    ):
        yield taken.getsockname()


@contextmanager
def connections(place: tuple[str, int], count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(place, 10)) for _ in range(count)]
        for each in made:
            each.sendall(sent)
        yield made


def asked(place: tuple[str, int]) -> int:
    body = b'{"run": "a", "texts": ["one"]}'
    asking = Request(f"http://{place[0]}:{place[1]}/label", body, TOKEN)
    with urlopen(asking, timeout=10) as answer:
        return int(answer.status)


def drip(connection: socket.socket) -> None:
    for _ in range(200):
        connection.sendall(b"x")
        time.sleep(0.05)


def closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection within seconds, whatever it says before."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("sent", [b"", b"POST /label HTTP/1.1\r\nHost: a\r\n"])
def test_good_requests_are_answered_beside_a_hundred_slow_connections(
    place: tuple[str, int], sent: bytes
) -> None:
    with connections(place, 100, sent) as slow:
        assert asked(place) == 200
        assert all(closed(each) for each in slow[: 100 - MOST])


def test_good_requests_are_answered_beside_slow_bodies(place: tuple[str, int]) -> None:
    headers = b"Host: a\r\nAuthorization: Bearer secret\r\nContent-Length: 9\r\n"
    with connections(place, MOST - 1, b"POST /label HTTP/1.1\r\n" + headers + b"\r\n{") as slow:
        assert asked(place) == 200
        assert all(b" 408 " in each.recv(65536) for each in slow)


def test_slow_headers_and_what_drips_after_an_answer_are_cut_off(
    place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_HEADERS_S", 0.3)
    with connections(place, 1, b"GET /healthz HTTP/1.1\r\n") as (slow,):
        assert closed(slow)
    refused = b"POST /label HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n"
    with connections(place, 1, refused) as (dripping,):
        assert b" 401 " in dripping.recv(65536)
        with pytest.raises(ConnectionError):
            drip(dripping)
    assert asked(place) == 200


def test_large_headers_are_refused_before_they_are_held(place: tuple[str, int]) -> None:
    with connections(place, 1, b"GET /runs HTTP/1.1\r\nX: " + b"x" * 2**17) as (greedy,):
        assert b" 400 " in greedy.recv(65536)
        assert closed(greedy)


def test_a_place_that_is_taken_or_elsewhere_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("192.0.2.77", 0)):
            with pytest.raises(ConfigError, match="cannot listen"), bound(host, port):
                pass
