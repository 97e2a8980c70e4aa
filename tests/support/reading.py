"""Label texts and answer questions as a replica does for a shard."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raybias.engine.answers import Answers
from raybias.methods.asking import ItemMethod
from raybias.methods.base import Reader, RowReader, Shard, shard_of, text_items


def labelled(reader: Reader, run: Any, ids: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """What a reader answers to texts, by column."""
    table, tokens = reader.prepare(run, text_items(ids, texts))()
    found = {name: table[name].to_pylist() for name in ("parsed", "unread")}
    return {
        **found,
        "labels": table["pred"].to_pylist(),
        "logits": np.array(table["scores"].to_pylist(), np.float32),
        "texts": table["answer"].to_pylist(),
        "tokens": tokens,
    }


def answered(
    answers: Answers, method: ItemMethod, items: Sequence[dict[str, Any]], at_once: int = 100
) -> list[dict[str, Any]]:
    """The rows of a method's answers to so many items at a time."""
    schema = method.output().schema
    reader = RowReader(partial(method.begin, answers), schema)
    shard, found = Shard("p", "r", "m", "m", "none", 0, 1, "options"), []
    for first in range(0, len(items), at_once):
        part = pa.Table.from_pylist(list(items[first : first + at_once]))
        found += shard_of(reader, None, shard, part, schema)().table.to_pylist()
    return found
