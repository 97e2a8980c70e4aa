"""Check YAML against a section; whatever is wrong is one line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from raybias.config.section import Section
from raybias.config.yaml_text import parse_yaml
from raybias.errors import ConfigError

#: By pydantic's type of error, what it says in Python's words.
_MESSAGES: Final = {
    "tuple_type": "needs a list",
    "model_type": "needs keys with values",
    "dict_type": "needs keys with values",
}
AnySection = TypeVar("AnySection", bound=Section)


def yaml_mapping(text: str, *, where: str, cure: str) -> dict[str, Any]:
    """Parse YAML that holds keys with values.

    Raises
    ------
    ConfigError: not YAML, or something else.
    """
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(str(error), where=where) from error
    if not isinstance(data, dict):
        raise ConfigError("holds no keys", where=where, cure=cure)
    return data


def parse_section(
    kind: type[AnySection],
    data: dict[str, Any],
    *,
    where: str,
    hidden: Collection[str] = (),
    folder: Path | None = None,
) -> AnySection:
    """Check a mapping against a section; one `ConfigError` line for the first thing wrong.

    Parameters
    ----------
    hidden: parts of pydantic's places that no file has.
    folder: that relative paths in the mapping start from; the working directory by default.
    """
    try:
        return kind.model_validate(data, context=folder)
    except ValidationError as error:
        # Defaults that follow from a wrong value are no faults of their own.
        first, *others = (e for e in error.errors() if e["type"] != "default_factory_not_called")
        place = ".".join(str(part) for part in first["loc"] if part not in hidden)
        message = _MESSAGES.get(first["type"], first["msg"].removeprefix("Value error, "))
        given = "" if first["type"] in ("value_error", "missing") else f" (got {first['input']!r})"
        # A wrong entry also makes the list around it too short; that is no second fault.
        more = sum(each["loc"] != first["loc"][: len(each["loc"])] for each in others)
        rest = f" (and {more} more)" if more else ""
        raise ConfigError(
            f"{place + ': ' if place else ''}{message}{given}{rest}", where=where
        ) from error
