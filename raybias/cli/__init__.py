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
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from raybias.cli import data, judge, operate, start
from raybias.errors import RaybiasError, WorkFailed, of_library
from raybias.redaction import redact
from raybias.runtime.ending import ending_on_signals
from raybias.terminal import debugging, say, warn

_PACKAGE: Final = Path(__file__).parents[1]
#: What `raybias --help` lists under each title: commands, or groups of them with their help.
_COMMANDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Start": {"demo": start.demo, "audit": start.audit, "run": start.run, "plan": start.plan},
    "Judge": {"measure": judge.measure, "compare": judge.compare, "report": judge.report},
    "Operate": {"serve": operate.serve, "doctor": operate.doctor},
    "Data": {
        "probes": (
            "List probes, write one to a file, make and check your own.",
            {"list": data.list_probes, "new": data.new, "check": data.check, "write": data.write},
        ),
        "data": (
            "List, check and download the public data sets; convert weights.",
            {
                "list": data.list_sets,
                "check": data.check_folder,
                "download": data.download,
                "convert": data.convert,
            },
        ),
        "annotate": (
            "Let people judge styled pairs, or label texts of a study that a judge labelled.",
            {"export": data.export, "import": data.import_},
        ),
    },
}


app = typer.Typer(
    name="raybias",
    help="Measure social bias of language models, on a laptop or a Ray cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _add(program: typer.Typer, commands: Mapping[str, Any], title: str | None = None) -> None:
    """Add commands, whose help is their docstring, a line for each paragraph, and groups."""
    for name, command in commands.items():
        if isinstance(command, tuple):
            about, own = command
            group = typer.Typer(help=about, no_args_is_help=True)
            _add(group, own)
            program.add_typer(group, name=name, rich_help_panel=title)
        else:
            paragraphs = str(inspect.getdoc(command)).partition("\n\nParameters\n")[0].split("\n\n")
            about = "\n\n".join(" ".join(each.split()) for each in paragraphs)
            program.command(name, help=about, rich_help_panel=title)(command)


for _title, _commands in _COMMANDS.items():
    _add(app, _commands, _title)


def _version(asked: bool) -> None:
    if asked:
        say(f"raybias {version('raybias')}")
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
    except BaseException as error:
        line = as_one_line(error)
        if line is None:
            raise
        _end(line)


def as_one_line(error: BaseException) -> RaybiasError | None:
    """Return what a command says of an error; None for an end that is no error of a library."""
    if isinstance(error, RaybiasError):
        return error
    if _lacks_memory(error):
        cure = "free some, or ask for less; `ulimit -v` shows a limit of the process's own"
        return WorkFailed("this machine's memory is not enough", cure=cure)
    if own := _own_file(error):
        cure = "let this user read that folder, or install raybias where this user may read"
        return WorkFailed(f"its own {own} cannot be read", where=str(_PACKAGE), cure=cure)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return WorkFailed(
            f"cannot be used ({error.strerror})",
            where=os.fsdecode(error.filename),
            cure="check the path, its rights, and the space of its disk",
        )
    if not of_library(error):
        return None
    return WorkFailed(
        f"{type(error).__name__}: {error}",
        cure="this is a bug of raybias: please report it with the traceback that RAYBIAS_DEBUG=1"
        " shows",
    )


def _lacks_memory(error: BaseException) -> bool:
    """Tell whether an error says that there is no memory, as each loader and library puts it."""
    said = ("failed to map segment", "Cannot allocate memory", "error return without exception set")
    return isinstance(error, MemoryError) or any(part in str(error) for part in said)


def _own_file(error: BaseException) -> str:
    """Name the file of this package that an error says cannot be read; empty if it says no such."""
    if type(error).__name__ == "TemplateNotFound":
        return f"template {error}"
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("raybias."):
        return f"module {error.name}"
    if not isinstance(error, PermissionError | FileNotFoundError):
        return ""
    file = Path(str(error.filename))
    return f"file {file.relative_to(_PACKAGE)}" if file.is_relative_to(_PACKAGE) else ""


def _end(error: RaybiasError) -> NoReturn:
    if debugging():
        warn(redact(traceback.format_exc()))
    warn(f"raybias: {error}")
    sys.exit(error.exit_code)
