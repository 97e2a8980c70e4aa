"""Parse published text files of one labelled sentence per line."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from raybias.errors import DataError
from raybias.probes.readers import polars_schema, read_lines
from raybias.schema import SENTENCES
from raybias.storage import Store


def parse_sentences(
    store: Store, path: str, parse: Callable[[str], tuple[str, int] | None], *, header: int = 0
) -> pl.DataFrame:
    """Read the sentences of one file (schema.SENTENCES).

    Parameters
    ----------
    parse: makes text and label of a line, or None where it cannot.
    header: lines to pass over.

    Raises
    ------
    DataError: no rows, or a line that cannot be read.
    """
    rows: list[tuple[str, int]] = []
    for number, line in enumerate(read_lines(store, path)[header:], start=1):
        parsed = parse(line)
        if parsed is None or not parsed[0].strip():
            raise DataError(
                f"cannot read a label and a sentence from {line[:60]!r}",
                where=f"{store.uri_of(path)} row {number}",
            )
        rows.append(parsed)
    if not rows:
        raise DataError("holds no rows", where=store.uri_of(path))
    return pl.DataFrame(rows, schema=polars_schema(SENTENCES), orient="row")
