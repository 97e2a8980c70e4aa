"""Read published files, gzipped or plain, and check JSON against a model of it."""

from __future__ import annotations

import gzip
import zlib
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from raybias.errors import DataError

Content = TypeVar("Content")


def unzipped(data: bytes, name: str, where: str) -> bytes:
    """Return a file's content, gzipped where its name ends in .gz.

    Raises
    ------
    DataError: not a whole gzip file, or nothing in it.
    """
    if name.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"is not a whole gzip file ({error})", where=where, cure="fetch it again"
            ) from error
    if not data.strip():
        raise DataError("is empty", where=where, cure="leave it out")
    return data


def parsed(kind: TypeAdapter[Content], data: bytes, where: str, cure: str) -> Content:
    """Parse JSON of a known form.

    Raises
    ------
    DataError: names the first key that is missing or wrong.
    """
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{key}: {first['msg']}" if key else first["msg"], where=where, cure=cure
        ) from error
