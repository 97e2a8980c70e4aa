"""Declare backbones that the built-in engine does not compute, and their registry.

A study names one by its `api`: a `Provider` asks a model served elsewhere, an `Engine` has another
engine load the checkpoint. With a memory of answers another study asks new questions only. The key
of an answer hashes all that decides it: weights or endpoint, packages, prompt tokens, sampling and
its seed. Parquet files hold answers in any folder or URI, a folder for each model.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

import pyarrow as pa
from pydantic import Field, model_validator

from raybias.config import Backbone
from raybias.config.section import Amount, Count, Section
from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.engine.checkpoint import folder_of, model_hashes
from raybias.engine.encoder import TextEncoder
from raybias.registry import Registry
from raybias.schema import REMEMBERED
from raybias.storage import Store
from raybias.table_rules import is_log_probability, read_checked

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext

#: Tokens that prices are of.
_PRICED: Final = 1e6

#: `asking` is no entry: it imports openai, which only a study of an endpoint needs.
providers: Final[Registry[type[Backbone]]] = Registry(
    "api", "raybias.providers.openai", "raybias.providers.predict", "raybias.providers.vllm"
)
_AnyProvider = TypeVar("_AnyProvider", bound=Backbone)


def provider(registered: type[_AnyProvider]) -> type[_AnyProvider]:
    """Register a subclass of `Provider` or `Engine` under its `api`; ConfigError if it is taken."""
    api = str(registered.model_fields["api"].default)
    providers.add(api, registered, origin=(registered.__module__, registered.__qualname__))
    return registered


class Prices(Section):
    """Prices of a million tokens, in any currency."""

    read: float = Field(0.0, ge=0)
    """Tokens of prompts."""
    written: float = Field(0.0, ge=0)
    """Tokens of answers."""

    def of(self, read: float, written: float) -> float:
        """Return the price of tokens."""
        return (self.read * read + self.written * written) / _PRICED


class Budget(Section):
    """Limits for an endpoint in one OUT, over all commands."""

    requests: Amount | None = Field(None, ge=1)
    """Most requests."""
    tokens: Amount | None = Field(None, ge=1)
    """Most tokens, read and written."""
    money: float | None = Field(None, gt=0)
    """Most money, in the currency of the prices."""


class Engine(Backbone):
    """A checkpoint that another engine loads, on the same workers."""

    version: str = ""
    """The engine's version; the installed one by default, and then that with which OUT began."""

    can_shard: ClassVar[bool] = False

    @abstractmethod
    def as_installed(self) -> Self:
        """Return the backbone with the installed version; ConfigError: none, or another."""

    @abstractmethod
    def answers(self, context: ModelContext) -> Answers:
        """Load the checkpoint on the devices of a context, once for all callers."""


class Provider(Backbone):
    """A backbone that is served elsewhere."""

    revision: None = None
    """There is none."""
    dtype: Literal["served"] = "served"  # type: ignore[assignment]
    """As it is served."""
    bos: Literal["served"] = "served"
    """As it is served."""
    at_once: Count = Field(32, ge=1)
    """Requests under way at a time."""
    repeat: float = Field(0.02, ge=0, le=1)
    """Share of the prompts that are asked twice, to tell how often answers are the same."""
    prices: Prices = Prices()
    """What tokens cost."""
    budget: Budget = Budget()
    """Where it stops; the same command goes on after it is raised."""

    never_change_answers: ClassVar[frozenset[str]] = frozenset(
        (*Backbone.never_change_answers, "at_once", "prices", "budget")
    )
    is_checkpoint: ClassVar[bool] = False

    @model_validator(mode="after")
    def _money_has_prices(self) -> Self:
        if self.budget.money is not None and not (self.prices.read or self.prices.written):
            raise ValueError("budget.money needs prices")
        return self

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it answers, for people."""

    @abstractmethod
    def text_encoder(self) -> TextEncoder:
        """Return the writer of prompts, which counts their tokens roughly for the plan."""

    @abstractmethod
    def answers(self, store: Store) -> Answers:
        """Return its answers, in the process that asks; requests are noted in `store` (OUT)."""


def answers_of(context: ModelContext, store: Store) -> Answers:
    """Return a backbone's answers, with or without a memory; `store` is the study's OUT."""
    from raybias.engine.answering import EngineAnswers
    from raybias.engine.backbone import load_backbone

    spec = context.spec
    found: Answers
    match spec:
        case Provider():
            found = spec.answers(store)
        case Engine():
            found = spec.answers(context)
        case _:
            found = EngineAnswers(context.kept(load_backbone))
    return RememberedAnswers(found, Store(context.memory), spec) if context.memory else found


#: Prompts that are asked before their answers are written down.
_AT_A_TIME: Final = 512
#: Bytes of an address.
_SIZE: Final = 16
_PACKAGES: Final = ("raybias", "torch", "transformers")


class RememberedAnswers(Answers):
    """Answers from the memory `store`, else from the source `inner`; see `Answers`."""

    def __init__(self, inner: Answers, store: Store, spec: Backbone) -> None:
        self.inner, self.store, self.encoder = inner, store, inner.encoder
        self.folder = _address(_identity(spec)).hex()

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        encoder = self.encoder.for_chat if how.chat else self.encoder
        # A greedy answer has no key: whoever asks gets the same.
        drawn = keys if how.temperature else [()] * len(prompts)
        rows = self._tokens(encoder, prompts)
        addresses = [
            _address(["write", vars(how), *each]) for each in zip(rows, drawn, strict=True)
        ]

        def ask(numbers: Sequence[int]) -> list[Written]:
            return self.inner.write([prompts[n] for n in numbers], [keys[n] for n in numbers], how)

        return self._recalled(addresses, ask)

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        encoder = self.encoder.for_chat if chat else self.encoder
        heads, wholes = (
            self._tokens(encoder, each)
            for each in ([text for text, _ in texts], [text + after for text, after in texts])
        )
        both = zip(heads, wholes, texts, strict=True)
        # Where what follows begins is a matter of the text, too.
        addresses = [_address(["follows", *rows, len(text)]) for *rows, (text, _) in both]

        def ask(numbers: Sequence[int]) -> list[Written]:
            found, tokens = self.inner.likelihoods([texts[n] for n in numbers], chat=chat)
            # The first stands for the tokens of all.
            counts = [tokens, *[0] * (len(found) - 1)]
            return [Written("", (each,), count) for each, count in zip(found, counts, strict=True)]

        replies = self._recalled(addresses, ask)
        return [each.label_scores[0] for each in replies], sum(each.tokens for each in replies)

    @staticmethod
    def _tokens(encoder: TextEncoder, texts: Sequence[str]) -> list[Any]:
        return encoder.encode([t or " " for t in texts]) if encoder.knows_tokens else [*texts]

    def _recalled(
        self, addresses: Sequence[bytes], ask: Callable[[Sequence[int]], list[Written]]
    ) -> list[Written]:
        """Return an answer for each address; ask for unknown ones and write them down."""
        # One of several that are the same is asked.
        first_of = {address: n for n, address in reversed([*enumerate(addresses)])}
        waiting = sorted(n for address, n in first_of.items() if address not in self._known)
        fresh: dict[bytes, Written] = {}
        for first in range(0, len(waiting), _AT_A_TIME):
            numbers = waiting[first : first + _AT_A_TIME]
            made = dict(zip((addresses[n] for n in numbers), ask(numbers), strict=True))
            fresh |= made
            # Other scores are faults, which must not be remembered.
            if sound := {
                key: one
                for key, one in made.items()
                if all(map(is_log_probability, one.label_scores))
            }:
                columns = {
                    "address": [*sound],
                    "text": [each.text for each in sound.values()],
                    "scores": [each.label_scores for each in sound.values()],
                    "bounds": [each.bounds for each in sound.values()],
                    "finish_reason": [each.finish_reason for each in sound.values()],
                }
                name = f"{self.folder}/{_address([each.hex() for each in sound]).hex()}.parquet"
                self.store.write_table(name, pa.table(columns, schema=REMEMBERED))
                self._known.update({key: each._replace(tokens=0) for key, each in sound.items()})
        # What is remembered costs no tokens, also where one prompt stands twice.
        known = ChainMap({key: each._replace(tokens=0) for key, each in fresh.items()}, self._known)
        return [fresh.pop(a) if a in fresh else known[a] for a in addresses]

    @cached_property
    def _known(self) -> dict[bytes, Written]:
        known: dict[bytes, Written] = {}
        for name in self.store.files(self.folder, suffix=".parquet"):
            table = read_checked(self.store, name, REMEMBERED)
            for address, text, scores, bounds, finish in table.iter_rows():
                known[address] = Written(text, tuple(scores), 0, tuple(bounds), finish)
        return known


def _identity(spec: Backbone) -> Any:
    """Return all that decides a backbone's answers beside the question."""
    # Files of other columns than these are not looked at.
    told = {"columns": REMEMBERED.names}
    told |= spec.model_dump(mode="json", exclude={"name", *spec.never_change_answers})
    if isinstance(spec, Provider):
        return [told, version("raybias")]
    if folder_of(spec.id) is not None:
        told |= {"id": model_hashes(spec), "revision": None}
    return [told, {package: version(package) for package in _PACKAGES}]


def _address(content: Any) -> bytes:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=_SIZE).digest()
