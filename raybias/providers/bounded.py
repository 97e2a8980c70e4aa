"""An HTTP client that bounds a whole reply: the `openai` package bounds each read alone."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any, Final

from openai import DefaultAsyncHttpxClient

from raybias.errors import WorkFailed

#: Bytes of one reply; with the log-probabilities of a long text it has some.
MOST: Final = 64 * 2**20
#: The package that sends: httpx for openai 2, httpx2 for openai 3.
_HTTP: Final = import_module(DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])


class BoundedClient(DefaultAsyncHttpxClient):  # type: ignore[misc]
    """Sends a request and reads its whole reply within a time and size.

    Parameters
    ----------
    seconds: from the request to the last byte of its reply.
    """

    def __init__(self, seconds: float) -> None:
        # Of a compressed reply a few bytes can be gigabytes.
        super().__init__(timeout=seconds, headers={"Accept-Encoding": "identity"})
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request; returns a reply that is read.

        Raises
        ------
        WorkFailed: the reply is compressed, or larger than `MOST`.
        httpx.ReadTimeout: it is not there in time, as where the client itself notices.
        """
        request.headers["Accept-Encoding"] = "identity"
        try:
            async with asyncio.timeout(self._seconds):
                reply = await super().send(request, **{**options, "stream": True})
                try:
                    content = await self._content(reply)
                finally:
                    await reply.aclose()
        except TimeoutError as error:
            raise _HTTP.ReadTimeout("the whole reply", request=request) from error
        return type(reply)(
            reply.status_code, headers=reply.headers, content=content, request=request
        )

    async def _content(self, reply: Any) -> bytes:
        if reply.headers.get("Content-Encoding", "identity") != "identity":
            problem, cure = "a compressed reply", "have the server, or a proxy before it, send"
            raise WorkFailed(problem, where=str(reply.url.host), cure=f"{cure} plain replies")
        content = bytearray()
        async for part in reply.aiter_raw():
            content += part
            if len(content) > MOST:
                raise WorkFailed(
                    f"a reply of more than {MOST // 2**20} MiB",
                    where=str(reply.url.host),
                    cure="check that the URL is that of a completions API",
                )
        return bytes(content)
