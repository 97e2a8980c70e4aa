"""A request finds a replica that lives, or is told to come again; without a cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from raybias.errors import WorkFailed
from raybias.runtime.serve import app
from raybias.runtime.serve.app import Ingress, Offer, Serving
from raybias.runtime.serve.http import Overloaded

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


def ingress_of(replies: Replies, replicas: int, facts: Any) -> Ingress:
    study: Any = SimpleNamespace(name="s")
    return Ingress(
        Offer(Serving(out="out", replicas=replicas), study, facts, None, {}), {NAME: replies}
    )


def asked(replies: Replies, *, replicas: int, running: int | None = None) -> list[dict[str, Any]]:
    facts = {"r": {"model": "m", "method": "zero_shot"}}
    ingress = ingress_of(replies, replicas, facts)
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


def test_a_request_does_not_wait_for_a_replica_that_is_seen_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_LOOK_S", 0.01)
    seen = iter((1, 1, 0))
    monkeypatch.setattr(Ingress, "running", lambda self, _: next(seen))
    with pytest.raises(Overloaded):
        asked(Replies(None), replicas=1)


def test_work_that_fails_is_no_lost_replica() -> None:
    with pytest.raises(WorkFailed, match="ZeroDivisionError"):
        asked(Replies(ZeroDivisionError("x")), replicas=2)


def test_replicas_are_looked_at_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, looked = threading.Event(), threading.Event()

    def status() -> SimpleNamespace:
        if looked.is_set():
            raise ConnectionError("the controller is away")
        looked.set()
        found = SimpleNamespace(replica_states={"STARTING": 1})
        application = SimpleNamespace(deployments={NAME: found})
        return SimpleNamespace(applications={"served": application})

    monkeypatch.setattr(app, "_HEALTH_CHECK_S", 0.01)
    monkeypatch.setattr("ray.serve.status", status)
    ingress = ingress_of(Replies(), 2, {})
    assert ingress.running(NAME) == 2
    ingress.watch({NAME: "served"}, ended)
    assert looked.wait(30)
    while ingress.running(NAME):
        time.sleep(0.01)
    ended.set()
