"""`raybias run`: run a study from its file to its report."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import (
    Debug,
    Limit,
    Overrides,
    ProfileOption,
    RunAddress,
    SkipUnfit,
    StudyFile,
    command_line,
)
from raybias.cli.show import show
from raybias.config import load_study


def run(
    study: StudyFile,
    *,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI of the results.", show_default="out/NAME")
    ] = None,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: RunAddress = None,
    skip_unfit: SkipUnfit = False,
    debug: Debug = False,
) -> None:
    """Run a study, or what its OUT still lacks.

    Prints the gaps with their intervals. Running the same command again goes on
    where it was cut off.
    """
    from raybias.api import studies

    chosen = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)
    place = out or f"out/{chosen.name}"
    show(
        studies.run(
            chosen, out=place, address=address, command=command_line(), skip_unfit=skip_unfit
        )
    )
