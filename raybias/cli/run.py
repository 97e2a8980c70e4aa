"""`raybias run`: run a study from its file to its report."""

from __future__ import annotations

import sys
from pathlib import Path
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


def run_beside(script: str) -> None:
    """Run SCRIPT's .yaml twin with the options of `raybias run` that the job was given.

    Parameters
    ----------
    script: the `__file__` of the job. Without `--out`, results go to ~/raybias-out/<its name>,
        since a job's working folder is deleted after it.
    """
    from raybias.cli import main

    study = Path(script).resolve().with_suffix(".yaml")
    options = sys.argv[1:]
    given = any(option.partition("=")[0] == "--out" for option in options)
    place = [] if given else ["--out", str(Path.home() / "raybias-out" / study.stem)]
    main(["run", str(study), *place, *options])
