"""A model behind an endpoint that speaks OpenAI's API: chats, completions, likelihoods."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from raybias.config.data import Ability
from raybias.errors import ConfigError
from raybias.providers.base import Provider, provider
from raybias.redaction import secret

if TYPE_CHECKING:
    from raybias.engine.answers import Answers
    from raybias.engine.backbone import TextEncoder
    from raybias.storage import Store

#: What is surely no key.
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


@provider
class OpenAI(Provider):
    """A model behind an endpoint that speaks OpenAI's API."""

    api: Literal["openai"] = "openai"
    """Names the kind of endpoint."""
    endpoint: str = Field(pattern=r"^https?://[^/?#]+")
    """Its base URL, such as https://api.openai.com/v1."""
    model: str
    """The model's name there."""
    id: str = ""
    """The same."""
    offers: tuple[Literal["chat", "text", "first_tokens", "likelihoods"], ...] = ("chat",)
    """What it can: chats, completions of plain text, the log-probabilities of an answer's first
    tokens, and those of a prompt's tokens (completions with `echo`)."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Names the environment variable that holds the key, on the machine that asks; null where no
    key is wanted."""
    key_file: str | None = None
    """A file that holds the key, on the machine that asks; it goes before the variable."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(5, ge=0, le=100)
    """How often a request is tried again where the endpoint fails or asks to wait."""
    never_change_answers: ClassVar[frozenset[str]] = frozenset(
        (*Provider.never_change_answers, "key_variable", "key_file", "timeout_s", "retries")
    )

    @model_validator(mode="before")
    @classmethod
    def _model_is_its_id(cls, data: Any) -> Any:
        return {**data, "id": data["model"]} if isinstance(data, dict) and "model" in data else data

    @field_validator("key_variable")
    @classmethod
    def _is_no_key(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "names an environment variable, of capitals, digits and _; the key itself must not"
                " stand in a study"
            )
        return name

    def located(self, local: Callable[[str], str]) -> Self:
        """Return the endpoint with the path of its key file made absolute."""
        if self.key_file is None:
            return self
        return self.model_copy(update={"key_file": local(self.key_file)})

    @property
    def place(self) -> str:
        """Where it answers, for people."""
        return self.endpoint

    @property
    def abilities(self) -> frozenset[Ability]:
        """What methods can ask of it."""
        return frozenset(self.offers)

    def text_encoder(self) -> TextEncoder:
        """Return what writes prompts, and counts their tokens roughly for the plan.

        Raises
        ------
        ConfigError: the `openai` package is not installed.
        """
        from raybias.engine.rough_text import RoughEncoder

        if find_spec("openai") is None:
            raise ConfigError(
                "the openai package, which asks endpoints, is not installed",
                where=self.name,
                cure="`pip install raybias[endpoints]` on every machine",
            )
        return RoughEncoder(self, None, context=None)

    def answers(self, store: Store) -> Answers:
        """Return what asks."""
        from raybias.providers.asking import OpenAIAnswers

        return OpenAIAnswers(self, store)

    def key(self) -> str:
        """Read the key on this machine; empty where none is wanted.

        Raises
        ------
        ConfigError: neither the file nor the variable holds one.
        """
        if self.key_file is None and self.key_variable is None:
            return ""
        if self.key_file is None:
            if found := os.environ.get(str(self.key_variable), "").strip():
                return secret(found)
            problem = f"the environment variable {self.key_variable} is not set on this machine"
        else:
            with suppress(OSError, ValueError):
                if found := Path(self.key_file).expanduser().read_text("utf-8").strip():
                    return secret(found)
            problem = f"the key file {self.key_file} cannot be read on this machine, or is empty"
        raise ConfigError(
            problem,
            where=self.name,
            cure="set it where raybias or Ray's node was started, or name another by key_variable"
            " or key_file",
        )
