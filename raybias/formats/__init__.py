"""Parse published files that both probes and measures read: one parser for each format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from raybias.errors import DataError

Content = TypeVar("Content")
#: Missing keys that a message names after the first.
_NAMED: Final = 8


def lines_of(data: bytes, uri: str) -> Iterator[tuple[bytes, str]]:
    """Yield each line that is not blank, and where it is."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield line, f"{uri}, line {number}"


def keys_of(data: bytes) -> frozenset[str] | None:
    """Return the keys of a JSON object; empty for other JSON, None for what is not JSON."""
    try:
        content = from_json(data)
    except ValueError:
        return None
    return frozenset(content) if isinstance(content, dict) else frozenset()


def first_keys(data: bytes) -> frozenset[str]:
    """Return the keys of the object in the first line of JSON Lines; empty if there is none."""
    line = next((line for line in data.split(b"\n", 64) if line.strip()), b"")
    return keys_of(line) or frozenset()


def has_keys(data: bytes, *keys: str) -> bool:
    """Return whether a JSON file is an object with these keys, or damaged and names all of them.

    A damaged file of a format is then refused by its reader instead of passed over.
    """
    if not all(f'"{key}"'.encode() in data for key in keys):
        return False
    present = keys_of(data)
    return present is None or present.issuperset(keys)


def parsed(kind: TypeAdapter[Content], data: bytes, where: str, cure: str) -> Content:
    """Parse JSON of a known form; `DataError` names the first key that is missing or wrong."""
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        first, key = errors[0], _key_of(errors[0])
        problem = f"{key}: {first['msg']}" if key else first["msg"]
        lacking = [_key_of(each) for each in errors[1:] if each["type"] == "missing"]
        if first["type"] == "missing" and lacking:
            problem += f", and so are {', '.join(lacking[:_NAMED])}"
        raise DataError(problem, where=where, cure=cure) from error


def _key_of(error: ErrorDetails) -> str:
    return ".".join(map(str, error["loc"]))
