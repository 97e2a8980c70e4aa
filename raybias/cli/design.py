"""`raybias design`: say what to add to a study so that its intervals become narrow enough."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import ScopeOption, printed_warnings
from raybias.config import Profile


def design(
    files: Annotated[
        list[str],
        typer.Argument(
            help="A study's output, or prediction files as for `raybias measure`. A study that was "
            "tuned is priced in device-hours, others in items read."
        ),
    ],
    *,
    target: Annotated[
        float | None,
        typer.Option(
            help="Half width of an interval that is wanted.",
            min=0.0001,
            max=1,
            show_default="the study's margin, else 0.02",
        ),
    ] = None,
    profile: Annotated[
        Profile | None,
        typer.Option(help="State the statistics by this profile.", show_default="the study's"),
    ] = None,
    scope: ScopeOption = None,
) -> None:
    """Predict what more seeds, templates or words would do, and which design is the cheapest.

    Reads files alone. The prediction rests on the variance components of the gaps at hand.
    """
    from raybias import report, stats

    with printed_warnings(stats.StatisticsWarning):
        found = report.design_of_files(files, target=target, profile=profile, scope=scope)
    said = report.design_sentences(*found)
    typer.echo("\n".join([*said, "", str(report.designs_table(*found)), "", report.ASSUMED]))
