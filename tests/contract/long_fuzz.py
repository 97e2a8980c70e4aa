"""Try thousands of bad files of every class, and count what became of them.

    python tests/contract/long_fuzz.py --cases 10000

Prints a row per class: cases, taken, refused in one line, and failures, which it names.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import resource
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from tabulate import tabulate

from raybias.seeding import key

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import test_fuzz as fuzz  # noqa: E402

#: What a command may take of memory beside what its imports do.
_MEMORY = 12 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[*fuzz.CLASSES])
    parser.add_argument("--keep", type=Path, help="Folder for the first case of each failure.")
    given_ = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    chosen = {
        name: each for name, each in fuzz.CLASSES.items() if name in (given_.kind or fuzz.CLASSES)
    }
    shares = sum(each.share for each in chosen.values())
    rows, failures = [], 0
    for name, each in chosen.items():
        counts, examples, took = tried(each, -(-given_.cases * each.share // shares), given_.seed)
        wrong = sum(counts.values()) - counts["taken"] - counts["refused"]
        rows.append((name, sum(counts.values()), counts["taken"], counts["refused"], wrong, took))
        failures += wrong
        print(*rows[-1], flush=True)
        for what, found in sorted(examples.items(), key=lambda item: -len(item[1])):
            print(f"  {len(found)} x {what}\n    {found[0]!r:.300}", flush=True)
            if given_.keep:
                file = given_.keep / f"{key(name, what):016x}.pickle"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(pickle.dumps((name, what, found[0])))
    print(tabulate(rows, headers=("class", "cases", "taken", "refused", "failures", "seconds")))
    return int(failures > 0)


def tried(
    kind: fuzz.Class, cases: int, start: int
) -> tuple[Counter[str], dict[str, list[Any]], float]:
    """Try as many cases; their counts, those that failed by what they showed, and the seconds."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[Any]] = defaultdict(list)

    def case(drawn: Any) -> None:
        try:
            counts["taken" if kind.check(drawn) else "refused"] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)
            ours = [f for f in where if "/raybias/" in f.filename] or where
            place = f"{Path(ours[-1].filename).name}:{ours[-1].name}"
            counts["wrong"] += 1
            said = repr(str(error).strip()[:160])
            examples[f"{type(error).__name__} in {place}: {said}"[:110]].append(drawn)

    begun = time.perf_counter()
    run = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )(seed(start)(given(kind.cases)(case)))
    run()
    return counts, examples, round(time.perf_counter() - begun, 1)


if __name__ == "__main__":
    sys.exit(main())
