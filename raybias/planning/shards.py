"""Fixed row ranges of a probe, each read by one run.

They are named by probe, run and first row, so a rerun of a study computes missing shards only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from raybias.methods.base import Shard
from raybias.schema import PAIRS, REWRITTEN_PAIRS, OutputSpec

#: Most items of a shard, and the seconds that one takes on a replica, from least to most.
ROWS: Final = 8_192
SECONDS: Final = (0.5, 5.0)
#: Pairs of one chunk. It names files, so it is no resource that a study may change.
CHUNK_ROWS: Final = 64


#: Where pairs that a model rewrote are stored.
STYLED: Final = OutputSpec("styled", REWRITTEN_PAIRS, items=PAIRS)
#: What stands for a method's name in the shards of pairs to be rewritten.
REWRITING: Final = "rewriting"


def chunks_of(style: str, pairs: Mapping[str, int]) -> list[Shard]:
    """List every shard of probes with `pairs` originals, for a model to put into a style."""
    run = {"run_id": style, "model": "", "method": REWRITING, "dataset": ""}
    return shards_of([run], pairs, CHUNK_ROWS, STYLED)


def shards_of(
    runs: Iterable[Mapping[str, Any]],
    items: Mapping[str, int],
    rows_per_shard: int,
    output: OutputSpec,
) -> list[Shard]:
    """List every shard of `runs` (rows of `schema.RUNS`) on probes of so many `items`."""
    return [
        Shard(
            probe=probe,
            run_id=run["run_id"],
            model=run["model"],
            method=run["method"],
            dataset=run["dataset"],
            first_row=first,
            rows=min(rows_per_shard, count - first),
            folder=output.folder,
            total=count,
        )
        for run in runs
        for probe, count in items.items()
        for first in range(0, count, rows_per_shard)
    ]


def rows_in(seconds: float, each: float) -> int:
    """Return the power of two of items, up to `ROWS`, that take so long if one takes `each`."""
    if each * ROWS <= seconds:
        return ROWS
    return int(2 ** max(0, math.floor(math.log2(seconds / each))))
