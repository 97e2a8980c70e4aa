"""Every comparison with a peer, one after another on this machine: one table, one page.

    python -m benchmarks                                    # minutes; `make bench`
    python -m benchmarks --size full --data data --out docs/results/speed.md
    python -m benchmarks --only lora --only gaps --shape 1.3b --device cuda --profile

A module of this folder that has a peer has a function `comparisons`; each runs in a process of its
own, so that what one leaves in memory, or its death, is not the next one's. What cannot run here is
a line with the reason. `benchmarks/gpu.py` has the engine's parts on a GPU.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # Where the modules find one another, as when each is run alone.
from comparison import PROCESSOR, Comparison, Size, compare, processor  # noqa: E402

#: In the order of a study: tuning, reading, statistics; what starts Ray comes last.
MODULES = (
    "tuning", "lora", "scoring", "prompting", "pairs", "options", "endpoint", "gaps", "pipeline",
)  # fmt: skip
SIZES = {
    "small": Size(rounds=3, seeds=6, items=128),
    "full": Size(rounds=9, seeds=15, items=512),
}
PACKAGES = ("torch", "transformers", "peft", "lm_eval", "minicons", "openai", "ray", "numpy")


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
                 f"{len(each.ratios)}", "" if each.share is None else f"{each.share:.0%}",
                 each.alike, each.cost, f"`{outcome.module}.py`")
            )  # fmt: skip
        if outcome.reason:
            rows.append((*[""] * 3, "not run", *[""] * 4, outcome.reason, f"`{outcome.module}.py`"))
    headers = (
        "work", "ours", "against", "ratio", "95% interval over rounds", "rounds", "of the peak",
        "alike", "of", "benchmark",
    )  # fmt: skip
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def machine(size: Size) -> str:
    """Say what all of it ran on."""
    name = processor()
    if size.device.startswith("cuda"):
        import torch

        name = f"{torch.cuda.get_device_name()}, {name}"
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return (
        f"{name}, {os.cpu_count()} CPUs, {size.threads} threads a side, load"
        f" {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {', '.join(versions)}."
    )


def page(outcomes: Sequence[Outcome], size: Size, command: str) -> str:
    """Make the results page."""
    device = "a GPU" if size.device.startswith("cuda") else "CPUs"
    texts = (
        "Texts are those of the data sets in --data, and made of words in their lengths where a set"
        " is not there."
    )
    return "\n\n".join(
        [
            f"# What raybias costs, against its peers, on {device}",
            f"    {command}",
            machine(size),
            table(outcomes),
            "A ratio is the peer's cost over ours in the same round, in turn on the same machine:"
            " above one, ours is the cheaper. Given are the geometric mean over rounds and its t"
            " interval, which says what other rounds on this machine would show, and nothing of"
            f" other machines. {PROCESSOR.capitalize()} is what a CPU's other users do not change"
            f" much. Models have an OPT's shape ({size.shape}) and random weights. {texts} The peak"
            " is what a large matrix product reaches here in the same precision; counted against it"
            " are the operations that no method can leave out, so shared openings can carry ours"
            " past it. Alike are the largest difference between both sides' results, and the share"
            " of equal decisions or texts.",
            f"All of it took {sum(each.seconds for each in outcomes) / 60:.0f} minutes: "
            + ", ".join(f"{each.module} {each.seconds:.0f} s" for each in outcomes) + ".",
        ]
    ) + "\n"  # fmt: skip


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
    profile: Annotated[bool, typer.Option(help="Also print where the time of ours goes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the page to this file.")] = None,
) -> None:
    """Run every comparison with a peer and print one table of ratios."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} is none of {', '.join(SIZES)}", param_hint="--size")
    if unknown := set(only or ()) - set(MODULES):
        wrong = ", ".join(sorted(unknown))
        raise typer.BadParameter(f"{wrong}: none of {', '.join(MODULES)}", param_hint="--only")
    if data is not None and not (data / "tokenizer" / "merges.txt").is_file():
        why = "holds no tokenizer/merges.txt with its vocab.json (OPT's), which the texts need"
        raise typer.BadParameter(f"{data} {why}", param_hint="--data")
    how = replace(SIZES[size], device=device, threads=threads, data=data, profile=profile)
    given: dict[str, Any] = {
        "rounds": rounds,
        "seeds": seeds,
        "items": items,
        "shape": shape,
        "dtypes": tuple(dtype or ()),
    }
    how = replace(how, **{name: value for name, value in given.items() if value})
    outcomes = []
    for module in MODULES:
        if not only or module in only:
            print(f"{module} ...", file=sys.stderr)
            outcomes.append(apart(module, how))
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    text = page(outcomes, how, f"python -m benchmarks {shlex.join(words)}".rstrip())
    print(text)
    if out is not None:
        out.write_text(text, "utf-8")


if __name__ == "__main__":
    typer.run(main)
