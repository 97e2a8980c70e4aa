"""`raybias plan` and `schema`: what a study would do, and what its file may say."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from raybias.cli.options import Limit, Overrides, ProfileOption, SkipUnfit, StudyFile
from raybias.config import load_study
from raybias.errors import ConfigError


def plan(
    study: StudyFile,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI that results will go to; checked too.")
    ] = None,
    *,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; by default this machine is planned for."),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="nodes=4,cpus=32,memory=256GiB,gpus=8,gpu_memory=80GiB,gpu=A100",
            help="Plan for nodes like this, which need not exist; again for each kind of node.",
        ),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            "--peak-tflops",
            min=0.001,
            help="Peak TFLOP/s of one device.",
            show_default="the GPU's published peak",
        ),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            help="Fraction of the peak that long passes reach.",
            show_default="as the kind of device does",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="1,4,8", help="Also bound the wall time on so many times the nodes."),
    ] = None,
    skip_unfit: SkipUnfit = False,
) -> None:
    """Show workers, packs, memory, costs and bounds of the wall time, without model or Ray.

    Exits with 2 and one line for what `raybias run` would refuse before any work.
    """
    from raybias.api import studies

    loaded = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)
    planned = studies.plan(
        loaded,
        out=out,
        address=address,
        assume=assume or (),
        peak_tflops=peak,
        utilisation=utilisation,
        scale=_sizes(scale),
        skip_unfit=skip_unfit,
    )
    typer.echo(planned)


def _sizes(text: str | None) -> list[int]:
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{text!r} are no whole numbers", where="--scale", cure="write 1,4,8")
    return list(map(int, parts))


def schema(
    out: Annotated[
        str | None,
        typer.Option(help="File or URI to write.", show_default="standard output"),
    ] = None,
) -> None:
    """Write the JSON Schema of the study file, by which editors complete and check it."""
    from raybias.config import study_schema
    from raybias.storage import split_uri

    text = json.dumps(study_schema(), indent=2) + "\n"
    if out is None:
        print(text, end="")
        return
    store, name = split_uri(out)
    store.write_text(name, text)
