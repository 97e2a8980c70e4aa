"""`raybias calibrate`: how often the rules of gaps are right."""

from __future__ import annotations

from typing import Annotated, Final

import typer

#: What a column of the table says.
_COLUMNS: Final = {
    "coverage": "share of intervals that hold the true gap",
    "flagged": "share of gaps called significant where no group differs: at best 1 - level",
    "with_survivor": "share of such studies in which one is left after correction for many tests",
    "half_width": "what an interval typically reaches to either side",
    "power_05": "share of studies that find a true gap of 0.05; power_08: one of 0.08",
}


def calibrate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Predictions as `raybias gaps` takes them, whose words are shuffled; without "
            "files, studies are simulated."
        ),
    ] = None,
    *,
    studies: Annotated[
        int, typer.Option(min=1, help="Simulated studies of a design, or shuffles of a classifier.")
    ] = 200,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the simulation or the shuffles.")] = 0,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for calibration.csv and calibration.md.")
    ] = None,
) -> None:
    """Find out how often each scope and interval is right, where the truth is known.

    Simulated: how often intervals hold the true gap, how often a gap is called significant where
    there is none, and how often one is found. Of files: how often something is found in
    meaningless labels.
    """
    from raybias.api import statistics
    from raybias.report.tables import markdown

    if not 0 < level < 1:
        raise typer.BadParameter("is not between 0 and 1", param_hint="--level")
    found = statistics.calibrate(files or (), studies=studies, level=level, seed=seed, out=out)
    print(markdown(found))
    print("\n".join(f"{name}: {said}" for name, said in _COLUMNS.items() if name in found.columns))
