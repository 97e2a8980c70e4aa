"""The HTTP side of `raybias serve`: who may ask, how much at once, and what is said.

A plain ASGI application over anything that labels texts; it knows nothing of Ray or models.
Every refusal is one JSON line, `{"error": ...}`, under the status that HTTP has for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from raybias.errors import BadInput

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGI = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Seconds after which a client that was turned away may try again.
RETRY_AFTER_S: Final = 1
_HEALTH: Final = "/healthz"


class Limits(BaseModel):
    """How much one request, and all that wait, may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: int = Field(2**20, ge=1)
    """Bytes of a request."""
    max_texts: int = Field(256, ge=1)
    """Texts of a request."""
    max_characters: int = Field(8192, ge=1)
    """Characters of a text."""
    max_queued: int = Field(32, ge=1)
    """Requests that wait for the replicas of one model; more are turned away."""
    timeout_s: float = Field(30.0, gt=0)
    """Seconds until an answer, or a request's body, is given up."""


class Asked(BaseModel):
    """The body of `POST /label`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    texts: list[str] = Field(min_length=1)


class Overloaded(Exception):
    """As many requests wait as may wait, or no replica is there to take one."""


class Labeller(Protocol):
    """What answers."""

    def runs(self) -> Sequence[Mapping[str, Any]]:
        """The runs, each with its `run` and what is known of it."""

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Per text, its `label`, the labels' `probabilities` and the `answer` that was written.

        Raises
        ------
        Overloaded: ask again later.
        BadInput: texts that the model cannot read.
        """


def token_digest(token: str) -> bytes:
    """What is kept of a token: it can be compared, and not be used."""
    return hashlib.sha256(token.encode("utf-8")).digest()


def web(labeller: Labeller, limits: Limits, digest: bytes | None) -> ASGI:
    """The application.

    Parameters
    ----------
    digest: `token_digest` of the bearer token; None asks for none.
    """
    api = FastAPI(title="raybias", docs_url=None, redoc_url=None, openapi_url=None)
    api.add_exception_handler(RequestValidationError, _malformed)
    api.add_exception_handler(AnyHTTPException, _refused)
    api.add_exception_handler(Exception, _failed)

    @api.get(_HEALTH)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/runs")
    async def runs() -> dict[str, Any]:
        return {"runs": list(labeller.runs())}

    @api.post("/label")
    async def label(request: Request) -> dict[str, Any]:
        asked = _read(await request.body())
        _check(asked, labeller, limits)
        return {"run": asked.run, "results": await _in_time(labeller, asked, limits)}

    return Gate(api, limits, digest)


class Gate:
    """Turns away who has no token and what is too large, before anything is parsed.

    Parameters
    ----------
    inner: the application behind it.
    limits: how large a body may be, and how slow.
    digest: as for `web`.
    """

    def __init__(self, inner: ASGI, limits: Limits, digest: bytes | None) -> None:
        self.inner, self.limits, self.digest = inner, limits, digest

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http" or scope["path"] == _HEALTH:
            return await self.inner(scope, receive, send)
        headers = dict(scope["headers"])
        if not self._knows(headers.get(b"authorization", b"")):
            said = _error(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
            return await said(scope, receive, send)
        try:
            length = int(headers.get(b"content-length", b"0"))
            async with asyncio.timeout(self.limits.timeout_s):
                body = b"" if length > self.limits.max_body_bytes else await self._body(receive)
        except ValueError:
            return await _error(400, "Content-Length is no number")(scope, receive, send)
        except TimeoutError:
            return await _error(408, "the body did not arrive in time")(scope, receive, send)
        if body is None or length > self.limits.max_body_bytes:
            said = _error(413, f"a body may have {self.limits.max_body_bytes} bytes")
            return await said(scope, receive, send)
        return await self.inner(scope, _replayed(body, receive), send)

    def _knows(self, given: bytes) -> bool:
        if self.digest is None:
            return True
        kind, _, token = given.decode("latin-1").partition(" ")
        # Digests have one length, so the comparison tells nothing of the token's.
        same = hmac.compare_digest(token_digest(token.strip()), self.digest)
        return same and kind.lower() == "bearer"

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None where it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.limits.max_body_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What was read already, then what comes after: that the client went away."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _read(body: bytes) -> Asked:
    """Parse a body as JSON whatever its Content-Type says: `curl -d` calls all it sends a form."""
    try:
        return Asked.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _check(asked: Asked, labeller: Labeller, limits: Limits) -> None:
    if len(asked.texts) > limits.max_texts:
        raise HTTPException(413, f"{len(asked.texts)} texts; {limits.max_texts} are the most")
    for place, text in enumerate(asked.texts):
        if len(text) > limits.max_characters:
            raise HTTPException(
                413, f"texts.{place}: {len(text)} characters; {limits.max_characters} are the most"
            )
        if not text.strip():
            raise HTTPException(422, f"texts.{place}: is empty")
    if asked.run not in {run["run"] for run in labeller.runs()}:
        raise HTTPException(404, "no such run; GET /runs lists them")


async def _in_time(labeller: Labeller, asked: Asked, limits: Limits) -> list[dict[str, Any]]:
    later = {"Retry-After": str(RETRY_AFTER_S)}
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await labeller.label(asked.run, asked.texts)
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {limits.timeout_s:g} s", later) from error
    except Overloaded as error:
        raise HTTPException(503, "too many requests wait; try again later", later) from error
    except BadInput as error:
        raise HTTPException(422, error.problem) from error


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    """The first thing wrong; what was sent is not sent back."""
    problems: Sequence[Any] = getattr(error, "errors", list)()
    first = problems[0] if problems else {"loc": (), "msg": "malformed"}
    place = ".".join(str(part) for part in first["loc"])
    return _error(422, ": ".join(part for part in (place, str(first["msg"])) if part))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 500)
    return _error(status, str(getattr(error, "detail", "")), getattr(error, "headers", None))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _error(500, "the work failed; the server's log says why")


def _error(status: int, problem: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    said = {"error": problem or HTTPStatus(status).phrase}
    return JSONResponse(said, status, headers=dict(headers or {}))
