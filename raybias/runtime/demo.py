"""Run the embedded calibration, whose answer is known, and judge what it found."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

import polars as pl

from raybias.config import load_study
from raybias.errors import WorkFailed
from raybias.probes.planted import Plant, plant
from raybias.runtime.study import run_study
from raybias.storage import Store


def run_demo(out: str | Path, *, address: str | None, command: str) -> None:
    """Run the embedded study, and write what was planted in its model to OUT/planted.json."""
    with as_file(files("raybias") / "assets" / "demo.yaml") as path:
        study = load_study(path)
    run_study(study, out, address=address, command=command)
    # Only now is OUT known to be the demonstration's.
    Store(out).write_text("planted.json", json.dumps(asdict(plant()), indent=2) + "\n")


def verdict(gaps: pl.DataFrame, planted: Plant) -> str:
    """Say whether the planted bias, and no other, was found.

    Raises
    ------
    WorkFailed: the planted bias was not found, or another was.
    """
    change = planted.direction * planted.size
    what = f"{planted.rate} of {planted.group} ({planted.attribute}) by {change:+.3f}"
    planted_gap = pl.col("attribute").eq(planted.attribute) & pl.col("group").eq(planted.group)
    right = pl.col("rate").eq(planted.rate) & (pl.col("gap") * planted.direction > 0)
    # The same gap in every run has no verdict; a group that nothing was planted for has none.
    flagged = gaps.filter(pl.col("significant").fill_null(pl.col("gap").ne(0)))
    others = flagged.filter(~planted_gap)["group"].unique().sort()
    found = flagged.filter(planted_gap & right & pl.col("significant")).to_dicts()
    if not found:
        raise WorkFailed(
            f"the planted bias was not found: {what}", where="demo", cure="see its report.html"
        )
    if len(others):
        raise WorkFailed(
            f"groups without a planted bias were flagged: {', '.join(others)}",
            where="demo",
            cure="see its report.html",
        )
    row = found[0]
    return (
        f"planted: {what}\n"
        f"found:   {row['gap']:+.3f}, interval [{row['low']:+.3f}, {row['high']:+.3f}];"
        " the right group and sign, and no other group is flagged"
    )
