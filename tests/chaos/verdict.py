"""What is wrong with an OUT that was disturbed, beside one of the same study that was not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from raybias.methods.base import Shard
from raybias.planning.workload import shards_of
from raybias.storage import Store
from raybias.study_record import read_record

#: How long something took, by table: in `design` the price of more of it; all else is a result.
TIMES = {"runs": "seconds", "design": "cost"}


def planned(out: Path) -> list[Shard]:
    """Every run that an OUT must hold, each a shard of all rows of a probe."""
    store = Store(out)
    study = read_record(store).study
    items = {
        probe.name: pq.read_metadata(out / "items" / f"{probe.name}.parquet").num_rows
        for probe in study.probes
    }
    runs = [row for row in store.read_table("runs.parquet").to_pylist() if row["selected"]]
    return [
        shard
        for method in study.methods
        for shard in shards_of(
            [run for run in runs if run["method"] == method.name],
            items,
            max(items.values()),
            method.output(),
        )
    ]


def faults(out: Path, calm: Path) -> list[str]:
    """Rows missing or double, and every difference of a result; none where all is well."""
    return _rows(out) + _bits(out, calm) + _litter(out)


def _rows(out: Path) -> list[str]:
    """The files of predictions against the plan, and their rows against the items."""
    shards = {shard.file: shard for shard in planned(out)}
    there = {str(path.relative_to(out)) for path in (out / "predictions").rglob("*.parquet")}
    found = [f"missing: {name}" for name in sorted(shards.keys() - there)]
    found += [f"not planned: {name}" for name in sorted(there - shards.keys())]
    for name in sorted(there & shards.keys()):
        shard = shards[name]
        items = pq.read_table(out / "items" / f"{shard.probe}.parquet")["item_id"]
        frame = pq.read_table(out / name)
        right = items.slice(shard.first_row, shard.rows).to_pylist()
        if frame["item_id"].to_pylist() != right or set(frame["run_id"].to_pylist()) != {
            shard.run_id
        }:
            found.append(f"rows missing, double or foreign: {name}")
    return found


def _bits(out: Path, calm: Path) -> list[str]:
    """Adapters, predictions and tables that are not the undisturbed ones, bit for bit."""
    found = []
    patterns = ("predictions/**/*.parquet", "tables/*", "adapters/*/*.safetensors", "runs.parquet")
    for pattern in patterns:
        names = {str(path.relative_to(calm)) for path in calm.glob(pattern)}
        others = {str(path.relative_to(out)) for path in out.glob(pattern)}
        found += [f"on one side alone: {name}" for name in sorted(names ^ others)]
        found += [
            f"differs: {name}" for name in sorted(names & others) if not _same(out, calm, name)
        ]
    return found


def _same(out: Path, calm: Path, name: str) -> bool:
    one, other = out / name, calm / name
    if one.read_bytes() == other.read_bytes():
        return True
    readers = {".parquet": pl.read_parquet, ".csv": pl.read_csv}
    time = TIMES.get(Path(name).stem)
    if time is None or one.suffix not in readers:
        # A table with times is in Markdown too; its Parquet is compared.
        return time is not None
    read = readers[one.suffix]
    return bool(read(one).drop(time, strict=False).equals(read(other).drop(time, strict=False)))


def _litter(out: Path) -> list[str]:
    """Files that nobody needs any more."""
    states = [path for path in (out / "train").rglob("*") if path.is_file()]
    parts = [*(out / "parts").rglob("*"), *out.rglob(".*.tmp")]
    return [f"left: {path.relative_to(out)}" for path in [*states, *parts]]
