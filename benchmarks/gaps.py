"""Predictions to gaps: 4.8 million predictions, 10,000 template-bootstrap draws.

Makes ten classifiers x 15 runs x 32,000 items in the shape of the Amazon probe (eight
attributes, 60 templates each), one Parquet file a run, and times files -> cells -> gaps in fresh
processes. On a busy machine processor time says most. `python -m benchmarks` sets it against
resampling rows with NumPy, one draw after another, for a few draws of one classifier, scaled up;
its point estimates are checked against ours first.

    python benchmarks/gaps.py --repeats 5
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq
import typer

from raybias import schema
from raybias.stats.counts import read_counts
from raybias.stats.gaps import gap_analysis
from raybias.stats.intervals import Rules
from raybias.stats.null_check import null_check
from raybias.stats.predictions import join_pieces, sources

if TYPE_CHECKING:  # It imports torch, which would count as memory of what is timed.
    from harness import Comparison, Size

ATTRIBUTES = {
    "race": 6, "age": 3, "sexuality": 5, "gender": 8, "religion": 10, "disability": 13,
    "country": 6, "names": 2,
}  # fmt: skip
TEMPLATES = 60
CLASSIFIERS = 10
RUNS = 15
ITEMS = 32_000
DRAWS = 10_000


def make(folder: Path) -> int:
    """Write the predictions; returns how many."""
    random = np.random.default_rng(0)
    names = list(ATTRIBUTES)
    attribute = np.repeat(np.arange(len(names)), ITEMS // len(names))
    template = np.tile(np.arange(TEMPLATES), ITEMS // TEMPLATES + 1)[:ITEMS]
    group = random.integers(0, np.array(list(ATTRIBUTES.values()))[attribute])
    label = (template % 3).astype(np.int8)
    own = template >= TEMPLATES // 2
    items = pl.DataFrame(
        {
            "item_id": [f"amazon.{i:06d}" for i in range(ITEMS)],
            "label": label,
            "attribute": np.array(names)[attribute],
            "group": [f"{names[a]}_group_{g}" for a, g in zip(attribute, group, strict=True)],
            "template_id": [
                f"{names[a] if mine else 'generic'}_templates.{t:03d}"
                for a, mine, t in zip(attribute, own, template, strict=True)
            ],
        }
    )
    unknown = dict.fromkeys(("answer", "unread", "term", "family"), pl.lit(None, pl.String))
    for classifier in range(CLASSIFIERS):
        model, dataset = f"opt-{classifier // 2}", ("sst5", "semeval2018")[classifier % 2]
        for seed in range(RUNS):
            right = random.random(ITEMS) < 0.7
            scores = random.standard_normal((ITEMS, 3)).astype(np.float32)
            run_id = f"{model}.{dataset}.soft_prompt.lr0.001.s{1001 + seed}"
            frame = items.with_columns(
                model=pl.lit(model), method=pl.lit("soft_prompt"), dataset=pl.lit(dataset),
                run_id=pl.lit(run_id), probe=pl.lit("amazon"), style=pl.lit("original"),
                pred=pl.Series(np.where(right, label, random.integers(0, 3, ITEMS)), dtype=pl.Int8),
                scores=pl.Series(scores).cast(pl.List(pl.Float32)),
                parsed=pl.lit(True), **unknown,
            )  # fmt: skip
            run = folder / "predictions" / "amazon" / run_id
            run.mkdir(parents=True)
            table = frame.select(schema.PREDICTIONS.names).to_arrow().cast(schema.PREDICTIONS)
            pq.write_table(table, run / "00000000.parquet", compression="zstd")
    return CLASSIFIERS * RUNS * ITEMS


def once(folder: Path) -> None:
    """Print wall and processor seconds of each half, peak MiB of this process, and counts."""
    clocks = [(time.perf_counter(), time.process_time())]
    counts = read_counts([folder])
    cells = counts.cells
    clocks.append((time.perf_counter(), time.process_time()))
    rules = Rules.under("strict", bootstrap_draws=DRAWS)
    found = gap_analysis(counts, rules)
    null_check(found.tables, counts.words, rules)
    *_, table = found.scopes, found.components, found.drawn.spans, found.gaps
    clocks.append((time.perf_counter(), time.process_time()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(*np.diff(clocks, axis=0).ravel(), peak, table.height, cells.height)


def reference(folder: Path, draws: int) -> float:
    """Processor seconds of `draws` row resamplings of one classifier's race items."""
    files = sorted((folder / "predictions" / "amazon").glob("opt-0.sst5.*"))
    every = join_pieces(sources(files), where=str(folder)).cast({pl.Categorical: pl.String})
    rows = every.filter(attribute="race").sort("template_id")
    groups = sorted(rows["group"].unique())
    columns = {
        "run": rows["run_id"].rank("dense").to_numpy().astype(int) - 1,
        "group": rows["group"].rank("dense").to_numpy().astype(int) - 1,
        "label": rows["label"].to_numpy(),
        "pred": rows["pred"].to_numpy(),
    }
    template = rows["template_id"].rle_id().to_numpy()
    of_template = [np.flatnonzero(template == t) for t in range(template.max() + 1)]
    random = np.random.default_rng(0)
    point = _row_gaps(columns, np.arange(rows.height), len(files), len(groups))
    rules = Rules.under("strict", scope="runs")
    found = gap_analysis(read_counts(files), rules).gaps.filter(attribute="race")
    ours = found.sort("score", "group")["value"].to_numpy()
    if not np.allclose(point.ravel(), ours):
        sys.exit("the reference and raybias disagree")
    before = time.process_time()
    for _ in range(draws):
        drawn = random.integers(0, len(of_template), len(of_template))
        picked = np.concatenate([of_template[t] for t in drawn])
        _row_gaps(columns, picked, len(files), len(groups))
    return time.process_time() - before


def _row_gaps(
    columns: dict[str, npt.NDArray[np.int64]], rows: npt.NDArray[np.int64], runs: int, groups: int
) -> npt.NDArray[np.float64]:
    run, group, label, pred = (columns[name][rows] for name in ("run", "group", "label", "pred"))
    cell = run * groups + group
    result = []
    for k in (0, 2):
        other = label != k
        negatives = np.bincount(cell[other], minlength=runs * groups)
        false = np.bincount(cell[other & (pred == k)], minlength=runs * groups)
        rates = (false / negatives).reshape(runs, groups)
        result.append((rates - rates.mean(axis=1, keepdims=True)).mean(axis=0))
    return np.array(result)


def timed(folder: str) -> list[float]:
    """Run `once` in a fresh process; what it printed."""
    words = subprocess.check_output([sys.executable, __file__, "--folder", folder]).split()
    return [float(number) for number in words]


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare cells to gaps with resampling rows in NumPy, of which a few draws are done."""
    from harness import PROCESSOR, Comparison

    few = 5
    with tempfile.TemporaryDirectory() as temporary:
        predictions = make(Path(temporary))
        ratios = []
        for _ in range(size.rounds):
            scaled = reference(Path(temporary), few) / few * DRAWS * CLASSIFIERS * len(ATTRIBUTES)
            ratios.append(scaled / timed(temporary)[3])
    yield Comparison(
        f"{predictions / 1e6:.1f} million predictions, {DRAWS:,} draws", "ours, cells to gaps",
        f"NumPy resampling rows, {few} draws of one block scaled", PROCESSOR, tuple(ratios),
    )  # fmt: skip


def main(
    repeats: Annotated[int, typer.Option(help="Fresh processes to time.")] = 5,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Time files -> cells -> gaps."""
    if folder is not None:
        once(folder)
        return
    from harness import markdown, publish

    with tempfile.TemporaryDirectory() as temporary:
        predictions = make(Path(temporary))
        runs = np.array([timed(temporary) for _ in range(repeats)])
    *_, peak, gaps, cells = np.median(runs, axis=0)
    halves = runs[:, :4].reshape(repeats, 2, 2)
    seconds = np.concatenate([halves, halves.sum(axis=1, keepdims=True)], axis=1)
    names = ("files -> cells", "cells -> gaps", "in all")
    table = [(name, *each) for name, each in zip(names, np.median(seconds, axis=0), strict=True)]
    publish(
        f"{predictions:,} predictions, {cells:,.0f} cells, {gaps:,.0f} gaps, {DRAWS:,} draws",
        [
            markdown(table, (f"medians of {repeats}", "s", "processor s")),
            f"Peak memory: {peak:,.0f} MiB; goals: 2 s on two quiet cores, and 1,024 MiB.",
        ],
        device="cpu",
        out=None,
    )


if __name__ == "__main__":
    typer.run(main)
