"""Run the embedded calibration, whose answer is known."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

from raybias.config import load_study
from raybias.probes.published.planted import plant
from raybias.runtime.progress import Reporter
from raybias.runtime.study import run_study
from raybias.storage import Store


def run_demo(out: str | Path, *, address: str | None, command: str, reporter: Reporter) -> None:
    """Run the embedded study, and write what was planted in its model to OUT/planted.json."""
    with as_file(files("raybias") / "assets" / "demo.yaml") as path:
        study = load_study(path)
    run_study(study, out, address=address, command=command, reporter=reporter)
    # Only now is OUT known to be the demonstration's.
    Store(out).write_text("planted.json", json.dumps(asdict(plant()), indent=2) + "\n")
