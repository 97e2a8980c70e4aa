"""`raybias serve` and `doctor`: answer over HTTP, and look at what everything rests on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybias.api import studies
from raybias.cli.options import Output, command
from raybias.cli.start import Address, Debug
from raybias.terminal import warn

if TYPE_CHECKING:
    from raybias.runtime.doctor import Finding


@command()
def serve(
    out: Annotated[str, typer.Argument(metavar="OUT")],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    token_file: Annotated[str | None, typer.Option(show_default="RAYBIAS_SERVE_TOKEN")] = None,
    allowed_hosts: Annotated[list[str] | None, typer.Option("--allowed-host")] = None,
    models: Annotated[list[str] | None, typer.Option("--model")] = None,
    replicas: Annotated[int, typer.Option(min=1)] = 1,
    max_queued: Annotated[int, typer.Option(min=1)] = 32,
    max_texts: Annotated[int, typer.Option(min=1)] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400.0)] = 30.0,
    address: Address = None,
    debug: Debug = False,
) -> Output:
    """Label texts with the runs of OUT over HTTP until SIGINT or SIGTERM.

    `GET /runs` lists them; `POST /label` with {"run": ..., "texts": [...]} gives each text's
    label and probabilities; `GET /healthz` says whether it is up.

    Parameters
    ----------
    out: folder or URI of a finished study.
    host: address to listen on; others need a token.
    port: port to listen on.
    token_file: file with the bearer token. Without one, requests must be for a loopback name, be
        declared as JSON, and not come from a web page of another site.
    allowed_hosts: another name that requests without a token may be for; may be repeated.
    models: only this backbone; may be repeated.
    replicas: replicas of each model; with two, none is missed where one is lost.
    max_queued: requests that wait for a model; more get a 503.
    max_texts: most texts of a request.
    timeout: seconds until a request gets a 504.
    """
    from raybias.runtime.serve.app import TOKEN_VARIABLE
    from raybias.runtime.serve.http import Limits

    limits = Limits(max_queued=max_queued, max_texts=max_texts, timeout_s=timeout)

    def serving() -> Iterator[dict[str, Any]]:
        with studies.serve(
            out, host=host, port=port, token_file=token_file, models=models or (),
            replicas=replicas, limits=limits, address=address, allowed_hosts=allowed_hosts or (),
        ) as url:  # fmt: skip
            yield {
                "out": out,
                "url": url,
                "token": bool(token_file or TOKEN_VARIABLE in os.environ),
            }
            threading.Event().wait()

    started = serving()
    text = "serving {out} on {url}, {guarded} a token"
    said = (text.format(**row, guarded="with" if row["token"] else "without") for row in started)
    return Output(said, started)


@command(studies.doctor)
def doctor(
    address: Address = None,
    out: str | None = None,
    hub: bool = True,
) -> Output:
    """Check Python, packages, processors, memory, disk, Ray, its ports and the model hub.

    Every line is ok, warn or fail, with a cure; security weaknesses are warnings. Exits with 2
    if something that is needed is broken.
    """

    def examined() -> Iterator[Finding]:
        broken = False
        for finding in studies.doctor(address, out=out, hub=hub):
            broken = broken or finding.state == "fail"
            if finding.state != "ok" and "RAYBIAS_QUIET" in os.environ:
                warn(str(finding))
            yield finding
        if broken:
            warn("raybias: something that is needed is broken; see the lines marked fail")
            raise typer.Exit(2)

    findings = examined()
    return Output(findings, map(asdict, findings))
