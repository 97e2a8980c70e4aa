"""`raybias demo`: run the embedded calibration, which has a known answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raybias.cli.options import Debug, RunAddress, command_line
from raybias.cli.show import show
from raybias.errors import WorkFailed

if TYPE_CHECKING:
    import polars as pl

    from raybias.probes.planted import Plant


def demo(
    out: Annotated[str, typer.Option(help="Folder or URI of the results.")] = "out/demo",
    address: RunAddress = None,
    debug: Debug = False,
) -> None:
    """Find a bias that was planted in a tiny embedded model; needs no download.

    The groups are invented and the answer is known: this is a calibration of the
    instrument, not a finding. Exits with 1 if the planted group was not found with the
    right sign, or another was flagged.
    """
    from raybias.api import studies
    from raybias.probes.planted import plant

    results = studies.demo(out, address=address, command=command_line())
    show(results)
    print(verdict(results.estimates.collect(), plant()))


def verdict(estimates: pl.DataFrame, planted: Plant) -> str:
    """Say how the calibration ended.

    Raises
    ------
    WorkFailed: the planted bias was not found, or another was.
    """
    from raybias.report import calibration

    judged = calibration(planted, estimates)
    if judged is None or not judged.detected:
        what = f"{planted.rate} of {planted.group} ({planted.attribute}) by {planted.size:+.3f}"
        raise WorkFailed(
            f"the planted bias was not found: {what}", where="demo", cure="see its report.html"
        )
    if judged.flagged:
        raise WorkFailed(
            f"groups without a planted bias were flagged: {', '.join(judged.flagged)}",
            where="demo",
            cure="see its report.html",
        )
    return "\n".join(("", str(judged.comparison), "", *judged.said))
