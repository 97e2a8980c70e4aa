"""`raybias doctor`: check whether this machine or a cluster can run studies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from raybias.cli.options import Address


def doctor(
    address: Address = None,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI of a study, to be examined too.")
    ] = None,
    hub: Annotated[
        bool, typer.Option("--hub/--no-hub", help="Whether to try to reach the model hub.")
    ] = True,
) -> None:
    """Check Python, packages, processors, memory, disk, Ray, its ports and the model hub.

    Every line is ok, warn or fail, with a cure; security weaknesses are warnings. Exits with 2
    if something that is needed is broken.
    """
    from raybias.api import studies

    broken = False
    for finding in studies.doctor(address, out=out, hub=hub):
        print(finding, flush=True)
        broken = broken or finding.state == "fail"
    if broken:
        print(
            "raybias: something that is needed is broken; see the lines marked fail",
            file=sys.stderr,
        )
        raise typer.Exit(2)
