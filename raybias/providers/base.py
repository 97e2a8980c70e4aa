"""Declare backbones that the built-in engine does not compute, and their registry.

A study names one by its `api`: a `Provider` asks a model served elsewhere, an `Engine` has another
engine load the checkpoint.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, model_validator

from raybias.config import Backbone
from raybias.config.section import Amount, Count, Section
from raybias.engine.answers import Answers
from raybias.engine.encoder import TextEncoder
from raybias.registry import Registry
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext

#: Tokens that prices are of.
_PRICED: Final = 1e6

providers: Final[Registry[type[Backbone]]] = Registry("api", "raybias.providers")
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

    never_change_answers: ClassVar[frozenset[str]] = frozenset(("at_once", "prices", "budget"))
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
    from raybias.providers.memory import RememberedAnswers

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
