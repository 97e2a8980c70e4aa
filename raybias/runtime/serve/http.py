"""The HTTP application of `raybias serve`: authorisation, limits, routes and errors.

It works over anything that labels texts and knows nothing of Ray or models. Every error is one
JSON line, `{"error": ...}`, under its HTTP status.
"""

# Without postponed annotations: FastAPI could not evaluate those that name local functions.
import asyncio
import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Protocol
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from raybias.errors import BadInput
from raybias.network import is_loopback

#: Seconds after which a refused client may try again.
RETRY_AFTER_S: Final = 1
#: Fewest requests that are looked at; the models' queues turn away what is too much for them.
_UNDER_WAY: Final = 256
_LATER: Final = {"Retry-After": str(RETRY_AFTER_S)}
#: Longest that a body takes.
_BODY_S: Final = 10.0


class Limits(BaseModel):
    """Limits of one request, and of all that wait."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_body_bytes: int = Field(2**20, ge=1)
    """Bytes of a request."""
    max_texts: int = Field(256, ge=1)
    """Texts of a request."""
    max_characters: int = Field(8192, ge=1)
    """Characters of a text."""
    max_queued: int = Field(32, ge=1)
    """Requests that wait for the replicas of one model; more are refused."""
    timeout_s: float = Field(30.0, gt=0)
    """Seconds to wait for a request's body, ten at most, and for its answer."""

    @property
    def under_way(self) -> int:
        """Requests, or connections, at one time; uvicorn or Serve refuses more."""
        return max(_UNDER_WAY, 2 * self.max_queued)


class Asked(BaseModel):
    """The body of `POST /label`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    texts: list[str] = Field(min_length=1)


class Overloaded(Exception):
    """The queue is full, or there is no replica."""


class Labeller(Protocol):
    """Labels texts with runs of a study."""

    def runs(self) -> Sequence[Mapping[str, Any]]:
        """List the runs: their id as `run`, and their model, method, data set and seed."""

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Give each text's `label`, the labels' `probabilities` and the generated `answer`.

        Raises Overloaded where it can be tried again, and BadInput for unreadable texts.
        """


def token_digest(token: str) -> bytes:
    """Hash a token: a digest can be compared, and not be used."""
    return hashlib.sha256(token.encode("utf-8")).digest()


def refuse_other_sites(request: Request, names: Collection[str]) -> None:
    """Refuse what a web page of another site can have a browser send to a server without a token.

    The page's own name can lead to this machine (DNS rebinding), so `Host` must be a loopback name
    or one of `names`. A browser tells the page's site in `Origin`, which must be this one; a form
    of a page cannot send JSON.

    Raises HTTPException: 403 another Host or Origin, 415 a body that is not declared to be JSON.
    """
    host = request.headers.get("host", "")
    name = _name_in(host)
    if not is_loopback(name.rstrip(".")) and name not in {each.lower() for each in names}:
        raise HTTPException(403, "another Host than is served; --allowed-host NAME adds one")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise HTTPException(403, "requests from the pages of another site need a token")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise HTTPException(415, "send it with Content-Type: application/json")


def _name_in(host: str) -> str:
    """Return the name in a `Host`, without its port; empty if it has none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def web(
    labeller: Labeller, limits: Limits, digest: bytes | None, names: Collection[str] = ()
) -> FastAPI:
    """Build the application.

    digest: `token_digest` of the bearer token; None asks for none.
    names: what `Host` may be without a token, besides loopback names.
    """
    bearer = HTTPBearer(auto_error=False)

    async def own_site(request: Request) -> None:
        if digest is None:
            refuse_other_sites(request, names)

    async def authorised(request: Request) -> None:
        given = await bearer(request)
        token = given.credentials.strip() if given else ""
        # Digests have one length, so the comparison tells nothing of the token's.
        if digest is not None and not hmac.compare_digest(token_digest(token), digest):
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})

    async def asked(request: Request) -> Asked:
        body = await _body(request, limits)
        try:
            # With a token it is JSON whatever its Content-Type is: `curl -d` calls it a form.
            content = Asked.model_validate_json(body)
        except ValidationError as error:
            # The first thing wrong, without sending back what was sent.
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            problem = ": ".join(filter(None, (place, str(first["msg"]))))
            raise HTTPException(422, problem) from error
        _check(content, labeller, limits)
        return content

    api = FastAPI(
        title="raybias",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(own_site)],
    )
    for kind in (AnyHTTPException, Exception):
        api.add_exception_handler(kind, _refused)

    @api.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    guarded = APIRouter(dependencies=[Depends(authorised)])

    @guarded.get("/runs")
    async def runs() -> dict[str, Any]:
        return {"runs": list(labeller.runs())}

    @guarded.post("/label")
    async def label(question: Annotated[Asked, Depends(asked)]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(limits.timeout_s):
                results = await labeller.label(question.run, question.texts)
        except TimeoutError as error:
            raise HTTPException(504, f"no answer within {limits.timeout_s:g} s", _LATER) from error
        except Overloaded as error:
            raise HTTPException(503, "too many requests wait; try again later", _LATER) from error
        except BadInput as error:
            raise HTTPException(422, error.problem) from error
        return {"run": question.run, "results": results}

    # Without the token, not even which paths there are is told.
    @guarded.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
    async def nowhere() -> None:
        raise HTTPException(404)

    api.include_router(guarded)
    return api


async def _body(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(min(_BODY_S, limits.timeout_s)):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.max_body_bytes:
                    raise HTTPException(413, f"a body may have {limits.max_body_bytes} bytes")
    except TimeoutError as error:
        raise HTTPException(408, "the body did not arrive in time") from error
    return bytes(body)


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


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, AnyHTTPException):
        return _error(error.status_code, str(error.detail), error.headers)
    return _error(500, "the work failed; the server's log says why")


def _error(status: int, problem: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    content = {"error": problem or HTTPStatus(status).phrase}
    return JSONResponse(content, status, headers=dict(headers or {}))
