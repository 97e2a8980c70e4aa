"""`raybias serve` and `doctor`: put a finished study behind HTTP; examine a machine or cluster."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from raybias.api import studies
from raybias.cli.options import Address, Debug, documented_by


def serve(
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or URI of a finished study.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; others need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    token_file: Annotated[
        str | None,
        typer.Option(help="File with the bearer token.", show_default="RAYBIAS_SERVE_TOKEN"),
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Only this backbone; may be repeated.")
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            min=1, help="Replicas of each model; with two, none is missed where one is lost."
        ),
    ] = 1,
    max_queued: Annotated[
        int, typer.Option(min=1, help="Requests that wait for a model; more get a 503.")
    ] = 32,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts of a request.")] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request gets a 504.")
    ] = 30.0,
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Label texts with the runs of OUT over HTTP until SIGINT or SIGTERM.

    `GET /runs` lists them; `POST /label` with {"run": ..., "texts": [...]} gives each text's
    label and probabilities; `GET /healthz` says whether it is up.
    """
    from raybias.runtime.serve.app import TOKEN_VARIABLE
    from raybias.runtime.serve.http import Limits

    limits = Limits(max_queued=max_queued, max_texts=max_texts, timeout_s=timeout)
    with studies.serve(
        out,
        host=host,
        port=port,
        token_file=token_file,
        models=models or (),
        replicas=replicas,
        limits=limits,
        address=address,
    ) as url:
        guarded = "with" if token_file or TOKEN_VARIABLE in os.environ else "without"
        print(f"serving {out} on {url}, {guarded} a token", file=sys.stderr, flush=True)
        threading.Event().wait()


@documented_by(studies.doctor)
def doctor(
    address: Address = None,
    out: str | None = None,
    hub: bool = True,
) -> None:
    """Check Python, packages, processors, memory, disk, Ray, its ports and the model hub.

    Every line is ok, warn or fail, with a cure; security weaknesses are warnings. Exits with 2
    if something that is needed is broken.
    """
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
