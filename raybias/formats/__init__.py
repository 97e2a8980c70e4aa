"""Parse published files that both probes and measures read: one parser for each format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from raybias.errors import DataError

Content = TypeVar("Content")


def lines_of(data: bytes, uri: str) -> Iterator[tuple[bytes, str]]:
    """Yield each line that is not blank, and where it is."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield line, f"{uri}, line {number}"


def parsed(kind: TypeAdapter[Content], data: bytes, where: str, cure: str) -> Content:
    """Parse JSON of a known form; `DataError` names the first key that is missing or wrong."""
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{key}: {first['msg']}" if key else first["msg"], where=where, cure=cure
        ) from error
