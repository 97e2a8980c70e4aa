"""The interface of providers: what answers for a backbone in the built-in engine's place.

A provider is a backbone with options of its own, one file of `raybias.providers`; a study names it
by its `api`. It asks a model that is served elsewhere (`Provider`), or has another engine load the
checkpoint where the built-in one would (`Engine`). Methods ask every backbone through `Answers`, of
which the built-in engine (`engine.answering`) is the reference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    runtime_checkable,
)

from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from raybias.config.data import Backbone
from raybias.config.section import Amount, Choices, Count, Section

if TYPE_CHECKING:
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.context import ModelContext
    from raybias.storage import Store

#: What stands for the kind of a backbone whose weights are loaded.
WEIGHTS: Final = "weights"
#: The kind of an endpoint that names none.
DEFAULT_API: Final = "openai"
#: Tokens that prices are of.
_PRICED: Final = 1e6
#: What decides the draws of one answer.
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Writing:
    """How answers are written.

    Attributes
    ----------
    most: tokens of an answer; 0 where only the labels' probabilities are asked for.
    temperature: of sampling; 0 takes the likeliest token.
    chat: whether prompts are messages, as `TextEncoder.chat` writes them.
    labels: by label, the tokens that may begin its word, or the word where tokens are not known
        (`Asking.label_ids`).
    """

    most: int
    temperature: float = 0.0
    chat: bool = False
    labels: tuple[tuple[int, ...], ...] | tuple[str, ...] = ()

    @property
    def label_ids(self) -> list[int]:
        """The tokens of all labels, one label after the other."""
        return [int(token) for tokens in self.labels for token in tokens]


class Written(NamedTuple):
    """What was written after one prompt.

    `label_scores` are natural log-probabilities that the answer begins with each label's word;
    none where a provider tells none. `tokens` is how many were read and written.
    """

    text: str
    label_scores: tuple[float, ...]
    tokens: int


@dataclass(frozen=True)
class Second:
    """A second prompt for each row, made of its number and of what was written after the first."""

    prompt: Callable[[int, str], str]
    keys: Sequence[Key]
    most: int


class Answers(Protocol):
    """What answers for one backbone."""

    @property
    def encoder(self) -> TextEncoder:
        """What writes prompts as the backbone reads them."""

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Write an answer after each prompt, in their order; what is sampled is keyed."""

    def write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> tuple[list[Written], list[Written]]:
        """Write after each prompt, and then after the second prompt made of that."""

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute the natural log-likelihood of each second text behind its first.

        Parameters
        ----------
        chat: whether the first texts are messages, as `TextEncoder.chat` writes them.

        Returns these, and how many tokens were read.
        """


@runtime_checkable
class PreparingAnswers(Protocol):
    """Answers of which a part can be done before a device is free, such as tokenising.

    Each method does that part of one of `Answers`, and returns what does the rest.
    """

    def prepare_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        """Begin `write`."""

    def prepare_write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> Callable[[], tuple[list[Written], list[Written]]]:
        """Begin `write_twice`."""

    def prepare_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        """Begin `likelihoods`."""


@dataclass(frozen=True)
class _Whole:
    """Answers that are given as one, so that nothing is done beforehand."""

    answers: Answers

    def prepare_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        return partial(self.answers.write, prompts, keys, how)

    def prepare_write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> Callable[[], tuple[list[Written], list[Written]]]:
        return partial(self.answers.write_twice, prompts, keys, how, then)

    def prepare_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        return partial(self.answers.likelihoods, texts, chat=chat)


def preparing(answers: Answers) -> PreparingAnswers:
    """Return answers in two parts: those of the engine; of others the second is all."""
    return answers if isinstance(answers, PreparingAnswers) else _Whole(answers)


def write_after(
    answers: Answers, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
) -> tuple[list[Written], list[Written]]:
    """Write twice by two calls of `Answers.write`, the second for what the first wrote."""
    first = answers.write(prompts, keys, how)
    second = [then.prompt(number, each.text) for number, each in enumerate(first)]
    return first, answers.write(second, then.keys, replace(how, most=then.most))


class Prices(Section):
    """What tokens cost, in any currency, for a million of them."""

    read: float = Field(0.0, ge=0)
    """Tokens of prompts."""
    written: float = Field(0.0, ge=0)
    """Tokens of answers."""

    def of(self, read: float, written: float) -> float:
        """Return what so many tokens cost."""
        return (self.read * read + self.written * written) / _PRICED


class Budget(Section):
    """What may be asked of an endpoint for one OUT, over all commands."""

    requests: Amount | None = Field(None, ge=1)
    """Most requests."""
    tokens: Amount | None = Field(None, ge=1)
    """Most tokens, read and written."""
    money: float | None = Field(None, gt=0)
    """Most money, in the currency of the prices."""


class _Named(Backbone):
    """A backbone that is told from others by its `api`."""

    @classmethod
    def describes(cls, data: object) -> bool:
        """Return whether a mapping has the `api` of this one."""
        return bool(cls.model_fields["api"].default == _api(data))


class Engine(_Named):
    """A checkpoint that another engine than the built-in one loads, on the same workers."""

    version: str = ""
    """The engine's version; the installed one by default, and then that with which OUT began."""

    can_shard: ClassVar[bool] = False

    @abstractmethod
    def as_installed(self) -> Self:
        """Return the backbone with the installed engine's version.

        Raises
        ------
        ConfigError: it is not installed, or in another version.
        """

    @abstractmethod
    def answers(self, context: ModelContext) -> Answers:
        """Load the checkpoint on the devices of a context, once for all that ask, and answer."""


class Provider(_Named):
    """A backbone that something else than an engine on the study's workers answers for."""

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
        """Return what writes prompts, and counts their tokens roughly for the plan."""

    @abstractmethod
    def answers(self, store: Store) -> Answers:
        """Return what asks; called in the process that asks, and nothing is asked yet.

        Parameters
        ----------
        store: the study's OUT, where what was asked is noted.
        """

    def located(self, local: Callable[[str], str]) -> Self:
        """Return itself: a model's name elsewhere is no path here."""
        return self


class _Registered(Choices):
    """Validates a backbone as weights, or by its `api` among all registered providers."""

    def types(self) -> list[type[Section]]:
        """Return what a backbone can be."""
        from raybias.registry import providers

        return [Backbone, *providers.values()]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from raybias.registry import providers

        return core_schema.tagged_union_schema(
            {
                WEIGHTS: handler.generate_schema(Backbone),
                **{api: handler.generate_schema(each) for api, each in providers.items()},
            },
            discriminator=_api,
            custom_error_type="api",
            custom_error_message=f"unknown api of an endpoint; known: {', '.join(providers)}",
        )


def _api(data: Any) -> str:
    """Return the `api` of a provider, or of a mapping that will be one; `WEIGHTS` of others."""
    if not isinstance(data, dict):
        return str(getattr(data, "api", WEIGHTS))
    return WEIGHTS if Backbone.describes(data) else str(data.get("api", DEFAULT_API))


#: Any backbone that a study can name.
AnyBackbone = Annotated[Backbone, _Registered()]
