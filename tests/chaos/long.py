"""Kill parts of small studies, again and again, and write down what came of it.

    python tests/chaos/long.py --kills 100 --seed 1 --out chaos.md

Exits with 1 if any bout lost, doubled or changed something, or repeated more work than one shard an
actor.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from arena import arena
from bout import EVERY, PACK, STAGES, Bout, drawn, fight, undisturbed, write_study
from tabulate import tabulate

KINDS = ("driver", "replica", "worker", "node")


def report(bouts: list[Bout], *, command: str) -> str:
    """The bouts in Markdown."""
    kills = [kill for bout in bouts for kill in bout.kills]
    rows = []
    for kind in KINDS:
        mine = [kill for kill in kills if kill.kind == kind]
        by_stage = [sum(kill.stage == stage for kill in mine) for stage in STAGES]
        died = sum(sum(kill.actors.values()) for kill in mine)
        again = [kill.repeated for kill in mine]
        rows.append((kind, len(mine), *by_stage, died, sum(again), max(again, default=0)))
    headers = ("killed", "kills", *STAGES, "actors", "shards again", "most at once")
    packs = sum(bout.packs for bout in bouts)
    steps = sum((bout.steps_again for bout in bouts), Counter[str]())
    wrong = [f"bout {bout.number}: {fault}" for bout in bouts for fault in bout.faults]
    beyond = [f"bout {bout.number}: {text}" for bout in bouts for text in bout.beyond()]
    lines = [
        f"# {len(kills)} random kills over {len(bouts)} runs of a study of two backbones, two"
        " training sets and three methods",
        f"    {command}",
        f"{platform.machine()}, Python {platform.python_version()}, ray {version('ray')},"
        f" torch {version('torch')}; a run took"
        f" {sum(b.seconds for b in bouts) / max(1, len(bouts)):.0f} s.",
        tabulate(rows, headers=headers, tablefmt="github"),
        f"Tuning: {packs} packs lost their worker. Steps done twice, in evaluation intervals of a"
        " pack: "
        + ", ".join(f"{steps[each] / (EVERY * PACK):.1f} of {each}" for each in sorted(steps))
        + ".",
        f"Rows missing or double, results that differ in a bit, files left: {len(wrong)}.",
        f"Repeated work over its bound: {len(beyond)}.",
        *wrong,
        *beyond,
    ]
    return "\n\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of small studies.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("chaos.md"))
    options = parser.parse_args()
    bouts: list[Bout] = []
    command = f"python tests/chaos/long.py --kills {options.kills} --seed {options.seed}"
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    study, calm = write_study(folder), folder / "calm"
    undisturbed(study, calm)
    with arena() as place:
        while (made := sum(len(bout.kills) for bout in bouts)) < options.kills:
            number = len(bouts) + 1
            bout = fight(
                place, study, folder / f"bout{number}", calm,
                number=number, seed=options.seed, kills=drawn(options.seed, number),
            )  # fmt: skip
            bouts.append(bout)
            options.out.write_text(report(bouts, command=command), "utf-8")
            said = f"{made + len(bout.kills)}/{options.kills} kills, bout {number}"
            print(said, *(bout.faults + bout.beyond()), sep="; ", file=sys.stderr, flush=True)
        left = place.left()
    if left:
        with options.out.open("a") as stream:
            stream.write(f"\nLeft in the cluster: {', '.join(left)}\n")
    print(options.out.read_text("utf-8"))
    return int(bool(left) or any(bout.faults or bout.beyond() for bout in bouts))


if __name__ == "__main__":
    sys.exit(main())
