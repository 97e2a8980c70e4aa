"""Label texts with a run as a replica does for a shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raybias.methods.base import Reader, text_items


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
