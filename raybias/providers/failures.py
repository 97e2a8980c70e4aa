"""Say in one line what an endpoint did instead of answering, and what helps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import openai

from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.network import is_loopback
from raybias.providers.negotiation import SHOWN, read_refusal, status_of
from raybias.redaction import without_secrets

if TYPE_CHECKING:
    from raybias.providers.openai import OpenAI

AGAIN: Final = "the same command then goes on with what is there"
_OK: Final = 200
_DIRECT: Final = "set NO_PROXY=127.0.0.1,localhost for an endpoint on this machine"


def unwrap_error(status: int, content: bytes) -> tuple[int, bytes]:
    """Return the HTTP status that a reply means, and the reply.

    Gateways answer 200 and put the error of the server behind them into the reply, or into its
    choice; the reply is then that error alone.
    """
    if status != _OK or b'"error"' not in content:
        return status, content
    try:
        body = json.loads(content)
    except ValueError:
        return status, content
    parts = [body, *(body.get("choices") or [])] if isinstance(body, dict) else []
    errors = [part["error"] for part in parts if isinstance(part, dict) and part.get("error")]
    if not errors:
        return status, content
    return status_of(errors[0]), json.dumps({"error": errors[0]}).encode()


def translate_error(error: Exception, spec: OpenAI) -> RaybiasError:
    """Return the error that a command ends with; of a client's, or of reading a reply."""
    if isinstance(error.__cause__, RaybiasError):
        return error.__cause__
    words = _describe(error)
    kind: type[RaybiasError] = WorkFailed
    problem, cure = f"answers what is no completion ({words})", "check the URL"
    match error:
        case openai.AuthenticationError() | openai.PermissionDeniedError():
            kind, problem = ConfigError, f"refuses the key ({words})"
            cure = "check what key_variable or key_file names"
        case openai.NotFoundError():
            kind, problem = ConfigError, f"has no model {spec.id!r} ({words})"
            cure = "check the model's name and the URL"
        case openai.BadRequestError() | openai.UnprocessableEntityError():
            problem, cure = f"refuses a request ({words})", "check what `offers` says it can"
        case openai.RateLimitError():
            problem, cure = f"asks to wait ({words})", "lower at_once, or come later"
        case openai.APITimeoutError():
            problem = f"does not answer within {spec.timeout_s:g} s"
            cure = "raise timeout_s, or come later"
        case openai.APIStatusError():
            problem, cure = f"fails ({words})", "come later"
        case openai.APIConnectionError():
            problem = f"breaks off or cannot be reached ({type(error.__cause__).__name__})"
    where, proxy = f"{spec.name} at {spec.place}", find_proxy(spec.endpoint)
    if proxy:
        where = f"{where} through the proxy {proxy}"
        host = urlsplit(spec.endpoint).hostname or ""
        cure = _DIRECT if is_loopback(host) else f"{cure}, and the proxy"
    return kind(problem, where=where, cure=cure if kind is ConfigError else f"{cure}; {AGAIN}")


def _describe(error: Exception) -> str:
    """Return a server's words, FastAPI's `detail` among them; of other errors their message."""
    if isinstance(error, openai.APIStatusError):
        words = read_refusal(error.body).words if error.body else ""
        return f"Error code: {error.status_code}" + (f" - {words}" if words else "")
    message = str(getattr(error, "message", error))
    return without_secrets(" ".join(message.split()))[:SHOWN]


def find_proxy(url: str) -> str:
    """Return the proxy that the environment names for a URL, and the variable; empty if none."""
    parts, proxies = urlsplit(url), getproxies()
    name = next((each for each in (parts.scheme, "all") if proxies.get(each)), "")
    if not name or proxy_bypass(parts.hostname or ""):
        return ""
    return f"{proxies[name]} ({name.upper()}_PROXY)"
