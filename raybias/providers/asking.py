"""Send the prompts of a study to an endpoint concurrently, and note their cost.

The `openai` package retries, as `Retry-After` says, but bounds each read alone; the client here
bounds a whole reply.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

from openai import (
    APIStatusError,
    AsyncOpenAI,
    BadRequestError,
    DefaultAsyncHttpxClient,
    UnprocessableEntityError,
)

from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.errors import RaybiasError, WorkFailed
from raybias.providers.consistency import NEEDED, TEXTS, GreedyRequest, count_agreeing
from raybias.providers.failures import AGAIN, translate_error, unwrap_error
from raybias.providers.negotiation import SHOWN, Terms, read_refusal
from raybias.providers.openai import FOLDER, Asked, OpenAI, read_asked
from raybias.providers.requests import AnswerRequest, LikelihoodRequest, Reply, Request
from raybias.providers.token_alignment import ServerFault, check_log_probability
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
        # An error in a reply of status 200 is retried and described as what it is.
        status, content = unwrap_error(reply.status_code, content)
        return type(reply)(status, headers=reply.headers, content=content, request=request)

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


_Result = TypeVar("_Result")
#: Seconds between notes of what was asked.
_SAVED_EVERY_S: Final = 2.0
#: Likelihoods of one text that differ by less are the same.
_SAME: Final = 1e-3


class OpenAIAnswers(Answers):
    """Ask an endpoint for one study; see `Answers`."""

    def __init__(self, spec: OpenAI, store: Store) -> None:
        self.spec, self.encoder = spec, spec.text_encoder()
        # What other processes asked before, and this one.
        self.store, self.before, self.own = store, read_asked(store, spec.name), Asked()
        self.terms = Terms.parse(self.before.terms)
        # The names of the parameters that it has answered to.
        self._accepted: set[frozenset[str]] = set()
        self._file = f"{FOLDER}/{spec.name}/{uuid.uuid4().hex}.json"

    def save(self) -> None:
        """Note the requests of this process in its file."""
        if self.own.requests:
            self.own.terms = Counter(self.terms.describe())
            self.store.write_text(self._file, json.dumps(vars(self.own), indent=1))

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Ask; WorkFailed: no completion, or no budget left; ConfigError: a wrong key or model."""
        pairs = zip(prompts, keys, strict=True)
        return self._all([AnswerRequest(self.spec, prompt, key, how) for prompt, key in pairs])

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Ask, after one check of what the endpoint echoes; ConfigError: the check fails."""
        if texts and not read_asked(self.store, self.spec.name).checked and not self.own.checked:
            checks = [GreedyRequest(self.spec, text) for text in TEXTS[:NEEDED]]
            self._afford([*checks, *checks])
            self._run(self._check_echo())
        replies = self._all([LikelihoodRequest(self.spec, *pair) for pair in texts])
        return [each.label_scores[0] for each in replies], sum(each.tokens for each in replies)

    def _all(self, requests: Sequence[Request]) -> list[Written]:
        again = [n for n, each in enumerate(requests) if each.share < self.spec.repeat]
        self._afford([*requests, *(requests[n] for n in again)])
        return self._run(self._gather(requests, again))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do work of this class to its end, and note what was asked."""
        try:
            return asyncio.run(work)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.save()

    def _afford(self, requests: Sequence[Request]) -> None:
        """Refuse (WorkFailed) requests that would exceed the budget midway, losing answers."""
        read = sum(map(self._estimate, (each.prompt for each in requests)))
        more = Asked(len(requests), read, sum(each.max_tokens for each in requests))
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
                    f" {len(requests):,} requests could make it {needs:,.6g}",
                    where=self.spec.name,
                    cure=f"raise budget.{name}; {AGAIN}",
                )

    def _estimate(self, text: str) -> int:
        """Estimate the tokens of a text: one for four bytes."""
        return len(self.encoder.encode([text])[0])

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncOpenAI]:
        opened = AsyncOpenAI(
            api_key=self.spec.key() or "none",
            base_url=self.spec.endpoint,
            max_retries=self.spec.retries,
            http_client=BoundedClient(self.spec.timeout_s),
        )
        async with opened as client:
            yield client

    async def _gather(self, requests: Sequence[Request], again: Sequence[int]) -> list[Written]:
        """Send all requests, `at_once` at a time; repetitions of a prompt come last."""
        replies: dict[int, Written] = {}
        waiting = iter([*enumerate(requests), *((len(requests) + n, requests[n]) for n in again)])

        async def work(client: AsyncOpenAI) -> None:
            for index, request in waiting:
                _, replies[index] = await self._send(client, request)

        async def save() -> None:
            while True:
                await asyncio.sleep(_SAVED_EVERY_S)
                await asyncio.to_thread(self.save)

        async with self._client() as client, asyncio.TaskGroup() as group:
            saving = group.create_task(save())
            if requests and self._parameters(requests[0]) not in self._accepted:
                # One request finds out which parameters the endpoint takes.
                index, request = next(waiting)
                _, replies[index] = await self._send(client, request)
                self._accepted.add(self._parameters(request))
            workers = [group.create_task(work(client)) for _ in range(self.spec.at_once)]
            await asyncio.wait(workers)
            saving.cancel()
        for one, other in ((replies[n], replies[len(requests) + n]) for n in again):
            pairs = zip(one.label_scores, other.label_scores, strict=True)
            gap = max((abs(a - b) for a, b in pairs), default=0.0)
            self.own.twice += 1
            self.own.furthest = max(self.own.furthest, gap)
            self.own.same += one.text == other.text and gap < _SAME
        return [replies[n] for n in range(len(requests))]

    def _parameters(self, request: Request) -> frozenset[str]:
        return frozenset(request.options(self.terms))

    async def _check_echo(self) -> None:
        """Refuse (ConfigError) a server whose echoed log-probabilities are not its own."""
        agreeing = 0
        async with self._client() as client:
            for text in TEXTS:
                greedy = GreedyRequest(self.spec, text)
                generated, written = await self._send(client, greedy)
                if not written.text.strip():
                    continue
                echo = LikelihoodRequest(self.spec, text, written.text)
                echoed, _ = await self._send(client, echo)
                agreeing += count_agreeing(greedy, generated, echo, echoed) > 0
                if agreeing == NEEDED:
                    self.own.checked = agreeing
                    return
        fault = ServerFault(
            f"continues only {agreeing} of {len(TEXTS)} texts by tokens that it also echoes, so its"
            " log-probabilities of prompts cannot be checked"
        )
        raise greedy.refuse(fault, "likelihoods")

    async def _send(self, client: AsyncOpenAI, request: Request) -> tuple[Reply, Written]:
        """Send a request and read its reply, which is {} if a filter of contents refused it."""
        try:
            reply = await self._negotiate(client, request)
            written = request.read(reply)
            for value in written.label_scores:
                check_log_probability(value)
            return reply, self._note(reply, request, written)
        except RaybiasError:
            raise
        except ServerFault as fault:
            raise WorkFailed(
                f"the endpoint {fault}",
                where=f"{self.spec.name} at {self.spec.place}",
                cure=f"fix the server; {AGAIN}",
            ) from None
        except APIStatusError as error:
            if isinstance(request, AnswerRequest) and read_refusal(error.body).filtered:
                return {}, self._note({}, request, request.withheld())
            raise translate_error(error, self.spec) from None
        # Other errors of a client, and those of reading a reply that is no completion.
        except Exception as error:
            raise translate_error(error, self.spec) from None

    async def _negotiate(self, client: AsyncOpenAI, request: Request) -> Reply:
        """Send a request by the terms of the endpoint, which its refusals narrow."""
        while True:
            terms = self.terms
            try:
                return await request.ask(client, terms)
            except (BadRequestError, UnprocessableEntityError) as error:
                refusal = read_refusal(error.body)
                if terms == self.terms:
                    # Otherwise another request has narrowed them since.
                    narrower = terms.after(refusal, chat=request.chat)
                    if refusal.filtered or narrower is None:
                        raise
                    self.terms = narrower

    def _note(self, reply: Reply, request: Request, written: Written) -> Written:
        """Count a reply; return its answer with its tokens; WorkFailed: of another model."""
        own = self.own
        own.requests += 1
        usage = reply.get("usage")
        read, wrote = (
            _positive(usage.get(name)) if isinstance(usage, dict) else 0
            for name in ("prompt_tokens", "completion_tokens")
        )
        if not read or (not wrote and written.text):
            # A server that does not count, or counts nothing, must not go round a budget.
            own.estimated += 1
            read = read or self._estimate(request.prompt)
            wrote = wrote or (self._estimate(written.text) if written.text else 0)
        own.read += read
        own.written += wrote
        if fingerprint := reply.get("system_fingerprint"):
            own.fingerprints[_named(fingerprint)] += 1
        own.cut += written.finish_reason == "length" and request.chat
        own.cut_empty += written.finish_reason == "length" and not written.answer.strip()
        own.filtered += written.finish_reason == "content_filter"
        if reply:
            self._note_model(_named(reply.get("model")))
        # A server can repeat the key that it was sent.
        return written._replace(text=without_secrets(written.text), tokens=read + wrote)

    def _note_model(self, name: str) -> None:
        """Refuse (WorkFailed) a reply of another model than those before it."""
        first = next(iter(self.before.models or self.own.models), name)
        if name != first:
            # Not counted, or a later command could take it for the one before.
            raise WorkFailed(
                f"the endpoint answers as model {name!r}, and before as {first!r}",
                where=self.spec.name,
                cure="name a model that stays the same, and give another --out",
            )
        self.own.models[name] += 1


def _positive(count: object) -> int:
    """Return a count of tokens; 0 if it is none. A server cannot give back what was spent."""
    return max(0, int(count)) if isinstance(count, int | float) else 0


def _named(name: object) -> str:
    return without_secrets(str(name))[:SHOWN]
