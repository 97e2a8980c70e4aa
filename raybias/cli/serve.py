"""`raybias serve`: ask the runs of a finished study over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Annotated

import typer

from raybias.cli.run import Address, Debug


def serve(
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or URI of a finished study.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; others need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    token_file: Annotated[
        str | None,
        typer.Option(help="File with the bearer token.", show_default="RAYBIAS_SERVE_TOKEN"),
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Only this backbone; may be given again.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, help="Replicas that each model may scale to.")
    ] = 1,
    max_queued: Annotated[
        int, typer.Option(min=1, help="Requests that wait for a model; more are turned away.")
    ] = 32,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a 504.")] = 30.0,
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Answer texts with the runs of OUT until SIGINT or SIGTERM.

    `GET /runs` lists them; `POST /label` with {"run": ..., "texts": [...]} gives each text's
    label and probabilities; `GET /healthz` says whether it is up.
    """
    from raybias.errors import ConfigError
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.ray_session import connected
    from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving, read_token, served
    from raybias.runtime.serve.http import Limits
    from raybias.runtime.serve.security_audit import is_loopback

    if debug:
        os.environ["RAYBIAS_DEBUG"] = "1"
    anyone = token_file is None and TOKEN_VARIABLE not in os.environ
    if anyone and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is open to others, and there is no token",
            cure=f"give --token-file or {TOKEN_VARIABLE}",
        )
    if not anyone:
        read_token(token_file)
    if address is None and "RAY_ADDRESS" not in os.environ:
        _check_free(host, port)
    ended = threading.Event()
    with connected(address):
        gpus = int(read_inventory().gpus > 0)
        serving = Serving(
            out=out,
            models=tuple(models or ()),
            replicas=replicas,
            gpus=gpus,
            limits=Limits(max_queued=max_queued, max_texts=max_texts, timeout_s=timeout),
            token_file=token_file,
            anyone=anyone,
        )
        with served(serving, host=host, port=port):
            # Until here a signal breaks off what is started; Ray has handlers of its own.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: ended.set())
            say(f"serving {out} on http://{host}:{port}, {'without' if anyone else 'with'} a token")
            ended.wait()
            say("stopping")


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


def _check_free(host: str, port: int) -> None:
    """Serve's proxy would try again and again."""
    from raybias.errors import ConfigError

    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen ({error.strerror or error})",
            where=f"{host}:{port}",
            cure="give another --port or --host",
        ) from error
