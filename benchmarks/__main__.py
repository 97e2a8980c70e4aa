"""Every comparison with a peer, one after another on this machine: one table, one page.

    python -m benchmarks                                    # minutes; `make bench`
    python -m benchmarks --size full --data data --out docs/results/speed.md
    python -m benchmarks --only lora --only gaps --shape 1.3b --device cuda

A module of this folder that has a peer has a function `comparisons`; each runs in a process of its
own, so that what one leaves in memory, or its death, is not the next one's. What cannot run here is
a line with the reason. `benchmarks/gpu.py` has the engine's parts on a GPU.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # Where the modules find one another, as when each is run alone.
from harness import PROCESSOR, Comparison, Size, compare, markdown, publish  # noqa: E402

#: In the order of a study: tuning, reading, statistics; what starts Ray comes last.
MODULES = (
    "tuning", "lora", "scoring", "classifying", "prompting", "pairs", "options", "endpoint", "gaps",
    "pipeline",
)  # fmt: skip
SIZES = {
    "small": Size(rounds=3, seeds=6, items=128),
    "full": Size(rounds=9, seeds=15, items=512),
}


@dataclass(frozen=True)
class Outcome:
    """What became of one module: its comparisons, or why there are none; and its wall seconds."""

    module: str
    found: tuple[Comparison, ...]
    reason: str
    seconds: float


def apart(module: str, size: Size) -> Outcome:
    """Run one module in a process of its own."""
    begun = time.perf_counter()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            found, reason = pool.submit(compare, module, size).result()
        except BrokenProcessPool:
            found, reason = (), "its process died, of memory perhaps"
    return Outcome(module, found, reason, time.perf_counter() - begun)


def table(outcomes: Sequence[Outcome]) -> str:
    """Make the Markdown table of all ratios, and of what could not run."""
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        for each in outcome.found:
            middle, low, high = each.interval()
            between = "one round" if math.isnan(low) else f"{low:.2f} to {high:.2f}"
            rows.append(
                (each.work, each.ours, each.peer, f"{middle:.2f}x", between,
                 f"{len(each.ratios)}", each.alike, each.cost, f"`{outcome.module}.py`")
            )  # fmt: skip
        if outcome.reason:
            rows.append((*[""] * 3, "not run", *[""] * 3, outcome.reason, f"`{outcome.module}.py`"))
    headers = (
        "work", "ours", "against", "ratio", "95% interval over rounds", "rounds", "alike", "of",
        "benchmark",
    )  # fmt: skip
    return markdown(rows, headers)


def main(
    size: Annotated[str, typer.Option(help=f"How much: {' or '.join(SIZES)}.")] = "small",
    only: Annotated[list[str] | None, typer.Option(help=f"Of: {', '.join(MODULES)}.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Instead of the size's own.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of a pack.")] = None,
    items: Annotated[int | None, typer.Option(help="Sentences of a request.")] = None,
    shape: Annotated[str | None, typer.Option(help="125m, 1.3b or tiny.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Of ours; peers have the first.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads of either side.")] = 2,
    data: Annotated[Path | None, typer.Option(help="Has sst5, amazon, ..., tokenizer.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the page to this file.")] = None,
) -> None:
    """Run every comparison with a peer and print one table of ratios."""
    if unknown := {size, *(only or ())} - {*SIZES, *MODULES}:
        raise typer.BadParameter(f"{', '.join(unknown)}: none of {', '.join((*SIZES, *MODULES))}")
    if data is not None and not (data / "tokenizer" / "merges.txt").is_file():
        why = "holds no tokenizer/merges.txt with its vocab.json (OPT's), which the texts need"
        raise typer.BadParameter(f"{data} {why}", param_hint="--data")
    given: dict[str, Any] = {"rounds": rounds, "seeds": seeds, "items": items, "shape": shape}
    given = {name: value for name, value in given.items() if value}
    given |= {"dtypes": tuple(dtype)} if dtype else {}
    how = replace(SIZES[size], device=device, threads=threads, data=data, **given)
    outcomes = []
    for module in MODULES:
        if not only or module in only:
            outcomes.append(apart(module, how))
    meaning = (
        "A ratio is the peer's cost over ours in the same round, in turn on the same machine: above"
        " one, ours is the cheaper. Given are the geometric mean over rounds and its t interval,"
        " which says what other rounds on this machine would show, and nothing of other machines."
        f" {PROCESSOR.capitalize()} is what a CPU's other users do not change much. Models have an"
        f" OPT's shape ({how.shape}) and random weights. Texts are those of the data sets in"
        " --data, and made of words in their lengths where a set is not there. Alike are the"
        " largest difference between both sides' results, and the share of equal decisions or"
        " texts."
    )
    spent = ", ".join(f"{each.module} {each.seconds:.0f} s" for each in outcomes)
    minutes = sum(each.seconds for each in outcomes) / 60
    publish(
        f"What raybias costs, against its peers, on {'CPUs' if device == 'cpu' else 'a GPU'}",
        [table(outcomes), meaning, f"All of it took {minutes:.0f} minutes: {spent}."],
        device=device, threads=threads, out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
