"""The command line: one Typer app over the public API.

Results go to standard output, errors and progress to standard error; exit
codes are 0 done, 2 bad input or impossible plan, 1 the work failed, 130 and 143 stopped by SIGINT
and SIGTERM.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, NoReturn

import typer

from raybias.cli import (
    annotate,
    audit,
    compare,
    corpus,
    data,
    demo,
    doctor,
    judge,
    measure,
    plan,
    probes,
    report,
    run,
    serve,
)
from raybias.errors import RaybiasError, WorkFailed, of_library
from raybias.redaction import redact
from raybias.runtime.ending import ending_on_signals

app = typer.Typer(
    name="raybias",
    help="Measure social bias of language models, on a laptop or a Ray cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(probes.app, name="probes")
app.add_typer(data.app, name="data")
app.add_typer(annotate.app, name="annotate")
app.add_typer(judge.app, name="judge")
app.command()(audit.audit)
app.command()(audit.init)
app.command()(run.run)
app.command()(plan.plan)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(data.convert)
app.command()(measure.measure)
app.command()(compare.compare)
app.command()(compare.design)
app.command()(report.samples)
app.command()(report.report)
app.command()(corpus.corpus)
app.command()(serve.serve)
app.command()(plan.schema)


def _unwrap(group: typer.Typer) -> None:
    """Give commands their docstrings as help, a line for each paragraph, as terminals differ."""
    for command in group.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        paragraphs = text.split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance is not None:
            _unwrap(each.typer_instance)


_unwrap(app)

#: Libraries that warn, when transformers imports them, of what a user cannot act on.
_TALKATIVE: Final = ("torchao", "torch.utils._pytree")


def _version(asked: bool) -> None:
    if asked:
        print(f"raybias {version('raybias')}")
        raise typer.Exit


@app.callback()
def program(
    *,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Measure social bias of language models, on a laptop or a Ray cluster."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error becomes one line and an exit code.

    Parameters
    ----------
    arguments: what follows the program's name; `sys.argv[1:]` by default.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Looking for cycles among all that torch made takes an ending process two seconds.
    atexit.register(gc.freeze)
    try:
        with ending_on_signals():
            app(arguments)
    except RaybiasError as error:
        _end(error)
    except BaseException as error:
        if _lacks_memory(error):
            cure = "free some, or ask for less; `ulimit -v` shows a limit of the process's own"
            _end(WorkFailed("this machine's memory is not enough", cure=cure))
        if not of_library(error):
            raise
        _end(
            WorkFailed(
                f"{type(error).__name__}: {error}",
                cure="this is a bug of raybias: please report it with the traceback that"
                " RAYBIAS_DEBUG=1 shows",
            )
        )


def _lacks_memory(error: BaseException) -> bool:
    """Tell whether an error says that there is no memory, as each loader and library puts it."""
    said = ("failed to map segment", "Cannot allocate memory", "error return without exception set")
    return isinstance(error, MemoryError) or any(part in str(error) for part in said)


def _end(error: RaybiasError) -> NoReturn:
    if os.environ.get("RAYBIAS_DEBUG", "0") not in ("", "0"):
        print(redact(traceback.format_exc()), file=sys.stderr)
    print(f"raybias: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
