"""The command line: one Typer app over the public API.

Results go to standard output, errors and progress to standard error; the table of exit codes
stands in docs/reference.md.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, NoReturn

import typer

from raybias.cli import data, judge, start
from raybias.errors import RaybiasError, WorkFailed, of_library
from raybias.redaction import redact
from raybias.runtime.ending import ending_on_signals

#: The groups of `raybias --help`, and what stands in each.
_GROUPS: Final = {
    "Start": (start.demo, start.audit, start.run, start.plan),
    "Judge": (judge.measure, judge.compare, judge.report),
    "Operate": (start.serve, start.doctor),
    "Data": (data.probe_app, data.app, data.annotate),
}


app = typer.Typer(
    name="raybias",
    help="Measure social bias of language models, on a laptop or a Ray cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _title, _commands in _GROUPS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_title)
        else:
            app.command(rich_help_panel=_title)(_command)


def _unwrap(group: typer.Typer) -> None:
    """Give commands their docstrings as help, a line for each paragraph, as terminals differ."""
    for command in group.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        paragraphs = text.partition("\n\nParameters\n")[0].split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance is not None:
            _unwrap(each.typer_instance)


_unwrap(app)


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

    `arguments`: what follows the program's name; `sys.argv[1:]` by default.
    """
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
