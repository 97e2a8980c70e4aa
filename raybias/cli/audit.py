"""`raybias audit`: from a model's name to a report, by a study that fits a budget of time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raybias.cli.options import Debug, RunAddress, command_line
from raybias.cli.show import show


def audit(
    model: Annotated[str, typer.Argument(help="Hugging Face id or local folder of a model.")],
    *,
    probe: Annotated[
        str,
        typer.Option(
            help="Attribute of the Amazon templates: race, age, gender, religion, nationality, "
            "disability or sexuality."
        ),
    ] = "race",
    method: Annotated[
        str | None,
        typer.Option(
            help="Kind of method, such as zero_shot or lora.",
            show_default="by a pilot and the budget",
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(help="Folder of the public data sets; what it lacks is fetched there."),
    ] = Path("data"),
    budget: Annotated[
        str, typer.Option(help="Time that the study may take here: 90s, 10m or 2h.")
    ] = "10m",
    out: Annotated[
        str | None,
        typer.Option(help="Folder or URI of the results.", show_default="out/audit-MODEL-PROBE"),
    ] = None,
    address: RunAddress = None,
    debug: Debug = False,
) -> None:
    """Ask whether a model treats groups differently: the most telling study that fits a budget.

    Says what is chosen and how small a gap it can show before it starts. The study stands in
    OUT/study.yaml, and the same command goes on where it was cut off.
    """
    from raybias.api import studies

    results = studies.audit(
        model,
        probe=probe,
        method=method,
        data=data,
        budget=budget,
        out=out,
        address=address,
        command=command_line(),
    )
    show(results)
