"""`raybias demo`: the embedded calibration, which has a known answer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Annotated

import typer

from raybias.cli.run import Address, Debug, command_line, show
from raybias.config import Study, load_study
from raybias.errors import WorkFailed

if TYPE_CHECKING:
    import polars as pl

    from raybias.probes.planted import Plant


def demo(
    out: Annotated[str, typer.Option(help="Folder or URI of the results.")] = "out/demo",
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Find a bias that was planted in a tiny embedded model; needs no download.

    The groups are invented and the answer is known: this is a calibration of the
    instrument, not a finding. Exits with 1 if the planted group was not found with the
    right sign, or another was flagged.
    """
    from raybias import api
    from raybias.probes.planted import plant
    from raybias.runtime.study import run_study
    from raybias.storage import Store

    if debug:
        os.environ["RAYBIAS_DEBUG"] = "1"
    planted = plant()
    run_study(demo_study(), out, address=address, command=command_line())
    # Now that OUT is known to be the demonstration's; the report tells what it says.
    Store(out).write_text("planted.json", json.dumps(asdict(planted), indent=2) + "\n")
    gaps = api.write_report(out)
    show(gaps, out)
    print(verdict(gaps, planted))


def demo_study() -> Study:
    """The embedded study."""
    with as_file(files("raybias") / "assets" / "demo.yaml") as path:
        return load_study(path)


def verdict(gaps: pl.DataFrame, planted: Plant) -> str:
    """Say how the calibration ended.

    Raises
    ------
    WorkFailed: the planted bias was not found, or another was.
    """
    from raybias.report import calibration

    size = planted.direction * (planted.size or 0)
    what = f"{planted.rate} of {planted.group} ({planted.attribute}) by {size:+.3f}"
    judged = calibration(planted, gaps)
    if judged is None or not judged.detected:
        raise WorkFailed(
            f"the planted bias was not found: {what}", where="demo", cure="see its report.html"
        )
    if judged.flagged:
        raise WorkFailed(
            f"groups without a planted bias were flagged: {', '.join(judged.flagged)}",
            where="demo",
            cure="see its report.html",
        )
    row = judged.rows[0]
    return (
        f"planted: {what}\n"
        f"found:   {row['gap']:+.3f}, interval [{row['low']:+.3f}, {row['high']:+.3f}];"
        " the right group and sign, and no other group is flagged"
    )
