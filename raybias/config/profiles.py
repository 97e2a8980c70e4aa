"""Give fields a default for each profile, so that a study needs no second pass to be complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pydantic import Field

from raybias.errors import ConfigError

Profile = Literal["paper", "strict"]

_current: Final[ContextVar[Profile]] = ContextVar("profile", default="strict")


@contextmanager
def defaults_of(profile: Profile) -> Iterator[None]:
    """Build sections with the defaults of a profile inside the body; outside it is `strict`.

    Raises
    ------
    ConfigError: no such profile.
    """
    if profile not in get_args(Profile):
        raise ConfigError(f"no profile {profile!r}", cure="choose from paper, strict")
    token = _current.set(profile)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class ByProfile:
    """The default of a field under each profile: a value, or a function of the fields before it."""

    paper: Any
    strict: Any

    def __call__(self, fields: Mapping[str, Any]) -> Any:
        """Return the default under the current profile."""
        value = getattr(self, _current.get())
        return value(fields) if callable(value) else value


def by_profile(*, paper: Any, strict: Any, shown: str = "", **constraints: Any) -> Any:
    """Declare a field whose default depends on the study's profile.

    Parameters
    ----------
    paper, strict: the defaults; a function of the section's fields before this one computes it.
    shown: the defaults in words, for the JSON schema; by default as they are.
    constraints: of `pydantic.Field`.
    """
    words = shown or f"paper {_text(paper)}, strict {_text(strict)}"

    def describe(schema: dict[str, Any]) -> None:
        schema["description"] = f"{schema.get('description', '')} Default: {words}.".strip()

    return Field(
        default_factory=ByProfile(paper, strict), json_schema_extra=describe, **constraints
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
