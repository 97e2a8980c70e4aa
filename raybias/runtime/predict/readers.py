"""Replicas that readings share, as many as the study's graph grants them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, Timer
from typing import Final

from ray import serve

from raybias.runtime.graph import Grant
from raybias.runtime.predict.replica import scale

#: Seconds that replicas wait for another reading.
_LINGERS_S: Final = 2.0


class Readers:
    """A Serve application that is up while readings use it, and a moment longer.

    Parameters
    ----------
    start: `replica.scorers` for so many replicas.
    most: replicas.
    """

    def __init__(
        self, name: str, start: Callable[[int], AbstractContextManager[str]], *, most: int
    ) -> None:
        self.name, self._start, self._most = name, start, most
        self._grants: list[Grant] = []
        self._up: AbstractContextManager[str] | None = None
        self._replicas = 0
        self._changing, self._turn = Lock(), Lock()

    @contextmanager
    def reading(self, grant: Grant) -> Iterator[None]:
        """Hold the replicas up, one reading after another: a replica keeps what one method needs.

        Raises
        ------
        WorkFailed: the replicas do not start.
        """
        grant.on_stop(lambda: serve.delete(self.name))
        with self._changing:
            if self._up is None:
                up = self._start(grant.slots)
                up.__enter__()
                self._up, self._replicas = up, grant.slots
            self._grants.append(grant)
        try:
            with self._turn:
                self.fit()
                yield
        finally:
            with self._changing:
                self._grants.remove(grant)
            timer = Timer(0.0 if grant.stopped.is_set() else _LINGERS_S, self.close)
            timer.daemon = True
            timer.start()

    def fit(self) -> None:
        """Have as many replicas as the readings are granted now."""
        with self._changing:
            replicas = min(self._most, sum(grant.slots for grant in self._grants))
            if replicas != self._replicas:
                scale(self.name, replicas)
                self._replicas = replicas

    def close(self) -> None:
        """End the replicas if no reading uses them."""
        with self._changing:
            if self._up is not None and not self._grants:
                up, self._up = self._up, None
                up.__exit__(None, None, None)
