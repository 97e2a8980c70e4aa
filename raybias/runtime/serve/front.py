"""Listen for HTTP in this process, so that slow or greedy clients hold up no other."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from raybias.errors import ConfigError
from raybias.runtime.ending import undoing

#: Seconds for the headers of a request, and for what is sent after its answer.
_HEADERS_S: Final = 10.0
#: Bytes of a request's headers.
_HEADERS_MOST: Final = 16 * 2**10
#: Seconds that requests under way have when the server ends.
_DRAINS_S: Final = 2
#: Connections of all addresses together, in those of one.
_ADDRESSES: Final = 4
#: Of connections, as they come.
_NUMBERS: Final = itertools.count()


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections without a request: late ones, and the oldest of too many.

    `most` is how many connections one address may have; where all of them are being answered, a
    further one is closed.
    """

    most: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, and close another where there are too many."""
        super().connection_made(transport)
        self.number = next(_NUMBERS)
        self.deadline: asyncio.TimerHandle | None = None
        self._time()
        everyone = [
            each
            for each in self.connections
            if isinstance(each, BoundedProtocol) and not each.transport.is_closing()
        ]
        same = [each for each in everyone if each.host == self.host]
        if len(same) > self.most:
            self._close_oldest(same)
        elif len(everyone) > _ADDRESSES * self.most:
            self._close_oldest(everyone)

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request."""
        super().data_received(data)
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    @property
    def host(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Tell whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _time(self) -> None:
        if self.idle and self.deadline is None:
            self.deadline = self.loop.call_later(_HEADERS_S, self._late)
        elif not self.idle and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _late(self) -> None:
        if self.idle:
            self.transport.abort()

    def _close_oldest(self, among: list[BoundedProtocol]) -> None:
        idle = [each for each in among if each.idle and each is not self]
        min(idle, key=lambda each: each.number, default=self).transport.abort()


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve a place to listen on; nobody is answered there yet.

    Raises
    ------
    ConfigError: the place is taken, or not this machine's.
    """
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            taken = stack.enter_context(socket.socket(family, kind, protocol))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(place)
        except OSError as error:
            raise ConfigError(
                f"cannot listen ({error.strerror or error})",
                where=f"{host}:{port}",
                cure="give another --port or --host",
            ) from error
        yield taken


@contextmanager
def answering(application: FastAPI, place: socket.socket, *, most: int) -> Iterator[None]:
    """Answer HTTP requests with an application while the context is open.

    Parameters
    ----------
    place: of `bound`.
    most: connections of one address.
    """
    config = uvicorn.Config(
        application,
        http=type("Protocol", (BoundedProtocol,), {"most": most}),
        h11_max_incomplete_event_size=_HEADERS_MOST,
        timeout_graceful_shutdown=_DRAINS_S,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()

    try:
        with undoing(stop):
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            yield
    finally:
        stop()
