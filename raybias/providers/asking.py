"""Send the prompts of a study to an endpoint concurrently, and note their cost.

The `openai` package retries, as `Retry-After` says, but bounds each read alone; the client here
bounds a whole reply.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.providers.openai import FOLDER, Asked, Continued, OpenAI, Prompt, read_asked
from raybias.redaction import without_secrets
from raybias.storage import Store

#: Bytes of one reply; with the log-probabilities of a long text it has some.
MOST: Final = 64 * 2**20
#: The package that sends: httpx for openai 2, httpx2 for openai 3.
_HTTP: Final = import_module(DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])


class BoundedClient(DefaultAsyncHttpxClient):  # type: ignore[misc]
    """Send a request and read its whole reply within a time, in seconds, and size."""

    def __init__(self, seconds: float) -> None:
        # Of a compressed reply a few bytes can be gigabytes.
        super().__init__(timeout=seconds, headers={"Accept-Encoding": "identity"})
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request; return a reply that is read; WorkFailed: compressed or too large."""
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


#: Seconds between notes of what was asked.
_SAVED_EVERY_S: Final = 2.0
#: Likelihoods of one text that differ by less are the same.
_SAME: Final = 1e-3
#: Characters of a server's message that are shown.
_SHOWN: Final = 200
_AGAIN: Final = "the same command then goes on with what is there"


class OpenAIAnswers(Answers):
    """Ask an endpoint for one study; see `Answers`."""

    def __init__(self, spec: OpenAI, store: Store) -> None:
        self.spec, self.encoder = spec, spec.text_encoder()
        # What other processes asked before, and this one.
        self.store, self.before, self.own = store, read_asked(store, spec.name), Asked()
        self._file = f"{FOLDER}/{spec.name}/{uuid.uuid4().hex}.json"

    def save(self) -> None:
        """Note the requests of this process in its file."""
        if self.own.requests:
            self.store.write_text(self._file, json.dumps(vars(self.own), indent=1))

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Ask; WorkFailed: no completion, or no budget left; ConfigError: a wrong key or model."""
        asked = [Prompt(self.spec, *each, how) for each in zip(prompts, keys, strict=True)]
        return self._all(asked, most=how.most)

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        replies = self._all([Continued(self.spec, *each) for each in texts], most=1)
        return [each.label_scores[0] for each in replies], sum(each.tokens for each in replies)

    def _all(self, asked: Sequence[Prompt | Continued], *, most: int) -> list[Written]:
        again = [n for n, each in enumerate(asked) if each.share < self.spec.repeat]
        self._afford([*asked, *(asked[n] for n in again)], most)
        try:
            return asyncio.run(self._gather(asked, again))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.save()

    def _afford(self, asked: Sequence[Prompt | Continued], most: int) -> None:
        """Refuse (WorkFailed) requests that would exceed the budget midway, losing answers."""
        read = sum(map(len, self.encoder.encode([each.prompt for each in asked])))
        more = Asked(len(asked), read, len(asked) * most)
        spent, would = (
            {
                "requests": each.requests,
                "tokens": each.tokens,
                "money": self.spec.prices.of(each.read, each.written),
            }
            for each in (self.before + self.own, self.before + self.own + more)
        )
        for name, needs in would.items():
            has, limit = spent[name], getattr(self.spec.budget, name)
            if limit is not None and needs > limit:
                raise WorkFailed(
                    f"budget.{name} of {limit:,g} is reached: {has:,.6g} spent, and the next"
                    f" {len(asked):,} requests could make it {needs:,.6g}",
                    where=self.spec.name,
                    cure=f"raise budget.{name}; {_AGAIN}",
                )

    async def _gather(
        self, asked: Sequence[Prompt | Continued], again: Sequence[int]
    ) -> list[Written]:
        """Send all requests, `at_once` at a time; repetitions of a prompt come last."""
        replies: dict[int, Written] = {}
        waiting = iter([*enumerate(asked), *((len(asked) + n, asked[n]) for n in again)])

        async def work(client: AsyncOpenAI) -> None:
            for place, each in waiting:
                try:
                    reply = await each.ask(client)
                    read = each.read(reply)
                    if wrong := [v for v in read.label_scores if not math.isfinite(v)]:
                        raise WorkFailed(
                            f"the endpoint gives a log-probability of {wrong[0]}",
                            where=f"{self.spec.name} at {self.spec.place}",
                            cure=f"mend the server; {_AGAIN}",
                        )
                    self._note(reply)
                except RaybiasError:
                    raise
                # A client's errors, and those of reading a reply that is no completion.
                except Exception as error:
                    raise self._translated(error) from None
                # A server can repeat the key that it was sent.
                replies[place] = read._replace(text=without_secrets(read.text))

        async def save() -> None:
            while True:
                await asyncio.sleep(_SAVED_EVERY_S)
                await asyncio.to_thread(self.save)

        opened = AsyncOpenAI(
            api_key=self.spec.key() or "none",
            base_url=self.spec.endpoint,
            max_retries=self.spec.retries,
            http_client=BoundedClient(self.spec.timeout_s),
        )
        async with opened as client, asyncio.TaskGroup() as group:
            saving = group.create_task(save())
            workers = [group.create_task(work(client)) for _ in range(self.spec.at_once)]
            await asyncio.wait(workers)
            saving.cancel()
        for one, other in ((replies[n], replies[len(asked) + n]) for n in again):
            pairs = zip(one.label_scores, other.label_scores, strict=True)
            gap = max((abs(a - b) for a, b in pairs), default=0.0)
            self.own.twice += 1
            self.own.furthest = max(self.own.furthest, gap)
            self.own.same += one.text == other.text and gap < _SAME
        return [replies[n] for n in range(len(asked))]

    def _note(self, reply: Any) -> None:
        """Count a reply, and refuse (WorkFailed) one of another model than those before it."""
        own, usage = self.own, reply.usage
        own.requests += 1
        # A server cannot give back what was spent.
        own.read += max(0, int(usage.prompt_tokens)) if usage else 0
        own.written += max(0, int(usage.completion_tokens)) if usage else 0
        if reply.system_fingerprint:
            own.fingerprints[_named(reply.system_fingerprint)] += 1
        said = _named(reply.model)
        known = next(iter(self.before.models or own.models), said)
        if said != known:
            # Not counted, or a later command could take it for the one before.
            raise WorkFailed(
                f"the endpoint answers as model {said!r}, and before as {known!r}",
                where=self.spec.name,
                cure="name a model that stays the same, and give another --out",
            )
        own.models[said] += 1

    def _translated(self, error: Exception) -> RaybiasError:
        import openai

        if isinstance(error.__cause__, RaybiasError):
            return error.__cause__
        said = without_secrets(" ".join(str(getattr(error, "message", error)).split()))[:_SHOWN]
        kind: type[RaybiasError] = WorkFailed
        problem, cure = f"answers what is no completion ({said})", "check the URL"
        match error:
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                kind, problem = ConfigError, f"refuses the key ({said})"
                cure = "check what key_variable or key_file names"
            case openai.NotFoundError():
                kind, problem = ConfigError, f"has no model {self.spec.id!r} ({said})"
                cure = "check the model's name and the URL"
            case openai.BadRequestError() | openai.UnprocessableEntityError():
                problem, cure = f"refuses a request ({said})", "check what `offers` says it can"
            case openai.RateLimitError():
                problem, cure = f"asks to wait ({said})", "lower at_once, or come later"
            case openai.APITimeoutError():
                problem = f"does not answer within {self.spec.timeout_s:g} s"
                cure = "raise timeout_s, or come later"
            case openai.APIStatusError():
                problem, cure = f"fails ({said})", "come later"
            case openai.APIConnectionError():
                problem = f"breaks off or cannot be reached ({type(error.__cause__).__name__})"
        cure = cure if kind is ConfigError else f"{cure}; {_AGAIN}"
        return kind(problem, where=f"{self.spec.name} at {self.spec.place}", cure=cure)


def _named(said: object) -> str:
    return without_secrets(str(said))[:_SHOWN]
