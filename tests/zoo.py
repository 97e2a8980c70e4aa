"""Hold every architecture that transformers can build to plain transformers and PEFT: `make zoo`.

Each runs in a process of its own, and what is wrong is printed. With --write the table of
docs/models.md is written too. The exit code is 1 if any value is wrong or any attempt crashes.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
PAGE = ROOT / "docs" / "models.md"
DTYPES = ("float32", "bfloat16")
CLASSIFIERS = "classifier"
FAMILIES = ("causal", "masked", CLASSIFIERS)
TIMEOUT_S = 120
#: The table of each family: its title and ways of using a model.
TABLES = {
    "causal": (
        "Causal models",
        (
            "likelihoods",
            "prompted",
            "soft prompt",
            "prefix",
            "LoRA, label words",
            "LoRA, classifier",
        ),
    ),
    "masked": ("Masked models", ("masked scores", "LoRA, classifier")),
    CLASSIFIERS: (
        "Finished classifiers",
        ("2 classes", "3 classes", "5 classes", "sigmoid", "number", "PEFT adapter"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="model types; all by default")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="float32 and bfloat16")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="all by default")
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    options = parser.parse_args()

    results: dict[tuple[str, str], dict[str, Any]] = {}
    for name, kind in architectures():
        if options.family and name not in options.family:
            continue
        if options.kinds and kind not in options.kinds:
            continue
        # The pipeline that classifiers are held to computes in float32.
        dtypes = DTYPES[:1] if name == CLASSIFIERS else options.dtype or DTYPES
        by_dtype = {dtype: in_a_process(try_architecture, name, kind, dtype) for dtype in dtypes}
        results[name, kind] = by_dtype
        print_faults(f"{name} {kind}", by_dtype)

    counts = count_verdicts(results)
    print("\n".join(f"{dtype}: {describe(count)}" for dtype, count in counts.items()))
    if options.write:
        write_page(results)
    return int(any(count["wrong"] or count["crash"] for count in counts.values()))


def architectures() -> Iterator[tuple[str, str]]:
    """Every family of models with every model type that it has."""
    from support import zoo

    yield from (("causal", kind) for kind in zoo.causal_kinds())
    yield from (("masked", kind) for kind in zoo.masked_kinds())
    yield from ((CLASSIFIERS, kind) for kind in zoo.classifier_kinds())


def in_a_process(work: Callable[..., Any], *args: Any) -> Any:
    """Call `work` in a forked process; its result, or a line that says how it ended."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def call() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sender.send_bytes(pickle.dumps(work(*args)))

    process = context.Process(target=call)
    process.start()
    sender.close()
    try:
        if receiver.poll(TIMEOUT_S):
            return pickle.loads(receiver.recv_bytes())
        return f"took more than {TIMEOUT_S} s"
    except EOFError:
        return "its process ended"
    finally:
        process.kill()
        process.join()


def try_architecture(family: str, kind: str, dtype: str) -> Any:
    """The outcome of each way of using a small random checkpoint; a line if there is none."""
    import torch

    from support import classifiers, zoo
    from support.classifier_checks import HEADS, check_classifiers
    from support.zoo_checks import check_architecture

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, kind)
        try:
            if family == CLASSIFIERS:
                # The base of the others; an architecture that cannot be built fails here.
                classifiers.save(kind, folder / "2-classes", HEADS["2 classes"][0])
                classifiers.of_pipeline(folder / "2-classes", classifiers.texts(2))
            else:
                zoo.save(kind, folder, masked=family == "masked", dtype=getattr(torch, dtype))
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        if family == CLASSIFIERS:
            outcomes = check_classifiers(kind, folder)
        else:
            masked = family == "masked"
            outcomes = check_architecture(kind, folder, masked=masked, dtype=dtype)
        return {
            name: (outcome.verdict, without_folder(outcome.detail, folder))
            for name, outcome in outcomes.items()
        }


def without_folder(detail: str, folder: Path) -> str:
    """An outcome without the temporary folder of its checkpoint."""
    begin = re.compile(rf"^{re.escape(str(folder))}[^:]*: ")
    return begin.sub("", detail).replace(f"{folder.parent}/", "")


def print_faults(name: str, by_dtype: dict[str, Any]) -> None:
    """Print what is wrong, and what could not be built."""
    for dtype, outcomes in by_dtype.items():
        if isinstance(outcomes, str):
            print(f"{name} {dtype}: not built: {outcomes}", flush=True)
            continue
        for way, (verdict, detail) in outcomes.items():
            if verdict in ("wrong", "crash"):
                print(f"{name} {dtype} {way}: {verdict}: {detail}", flush=True)


def count_verdicts(results: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Counter[str]]:
    """Count attempts by verdict, and architectures that are not built, of each dtype."""
    counts: dict[str, Counter[str]] = {}
    for by_dtype in results.values():
        for dtype, outcomes in by_dtype.items():
            count = counts.setdefault(dtype, Counter())
            if isinstance(outcomes, str):
                count["not built"] += 1
            else:
                count["architectures"] += 1
                count.update(verdict for verdict, _ in outcomes.values())
    return counts


def describe(count: Counter[str]) -> str:
    """Counts in words."""
    return (
        f"{count['architectures']} architectures: {count['right']} ways right,"
        f" {count['refused']} refused, {count['wrong']} wrong, {count['crash']} crashed;"
        f" {count['not built']} architectures not built"
    )


def write_page(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Write the table of each family that was tried between its marks of docs/models.md."""
    page = PAGE.read_text("utf-8")
    for family in dict.fromkeys(family for family, _ in results):
        own = {key: by_dtype for key, by_dtype in results.items() if key[0] == family}
        begin, end = (f"<!-- zoo {family}: {mark} -->" for mark in ("begin", "end"))
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = f"{before}{begin}\n" + "\n".join(table_of(family, own)) + f"\n{end}{after}"
    PAGE.write_text(page, "utf-8")


def table_of(family: str, results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """The lines about one family: counts, a row for each model type, and refusals."""
    title, ways = TABLES[family]
    reasons: dict[str, int] = {}
    counts = count_verdicts(results)
    lines = [f"### {title}", ""]
    lines += [f"- {dtype}: {describe(count)}." for dtype, count in counts.items()]
    lines += ["", "| model type | " + " | ".join(ways) + " |", "| --- |" + " --- |" * len(ways)]
    for (_, kind), by_dtype in sorted(results.items()):
        built = [outcomes for outcomes in by_dtype.values() if not isinstance(outcomes, str)]
        if built:
            cells = [cell(way, kind, built, reasons) for way in ways]
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    if reasons:
        lines += ["", "Refusals:", ""]
        lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    unbuilt = {
        f"{kind}: {outcomes}"
        for (_, kind), by_dtype in results.items()
        for outcomes in by_dtype.values()
        if isinstance(outcomes, str)
    }
    if unbuilt:
        lines += ["", "Not built small, so not tried:", ""]
        lines += [f"- {line}" for line in sorted(unbuilt)]
    return lines


def cell(way: str, kind: str, built: list[dict[str, Any]], reasons: dict[str, int]) -> str:
    """One table cell: right, or the number of the refusal."""
    verdicts = {outcomes[way] for outcomes in built if way in outcomes}
    words = []
    for verdict, detail in sorted(verdicts):
        if verdict == "refused":
            words.append(f"[{reasons.setdefault(plain_reason(detail, kind), len(reasons) + 1)}]")
        else:
            words.append(verdict)
    return ", ".join(dict.fromkeys(words)) or "-"


def plain_reason(detail: str, kind: str) -> str:
    """A refusal with the model type, which differs, left out."""
    return re.sub(rf"(?<![\w-]){re.escape(kind)}(?![\w-])", "...", detail)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ["DS_ACCELERATOR"] = "cpu"  # or each process says so
    import transformers

    transformers.logging.set_verbosity_error()
    from support import zoo, zoo_checks

    # Loaded once, before processes fork.
    zoo.build("llama", masked=False)
    del zoo_checks
    sys.exit(main())
