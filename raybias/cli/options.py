"""The help of options, the command line and warnings of several commands."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from raybias.config import Profile

ProfileOption = Annotated[
    Profile | None,
    typer.Option(help="As in the papers, or statistically strict.", show_default="the file's"),
]
#: Names and text of a parameter in a docstring.
_PARAMETER: Final = re.compile(r"^([\w, ]+): (.*(?:\n    .*)*)", re.MULTILINE)
Command = TypeVar("Command", bound=Callable[..., Any])


def documented_by(*functions: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command's parameters the text that its docstring or a public function's has of them.

    A parameter that says its own help keeps it.
    """

    def decorate(command: Command) -> Command:
        texts: dict[str, str] = {}
        for each in (*functions, command):
            _, _, section = str(inspect.getdoc(each)).partition("Parameters\n----------\n")
            for names, text in _PARAMETER.findall(section.partition("\n\nRaises\n")[0]):
                said = f"{text[0].upper()}{' '.join(text.split())[1:]}"
                texts |= dict.fromkeys(map(str.strip, names.split(",")), said)
        hints = get_type_hints(command, include_extras=True)
        for name in {*hints} & {*texts}:
            hint = hints[name]
            of, *extra = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            info = next((each for each in extra if isinstance(each, ParameterInfo)), None)
            if info is None or not info.help:
                described = typer.Option() if info is None else copy(info)
                described.help = texts[name]
                hints[name] = Annotated[of, described]
        command.__annotations__ = hints
        return command

    return decorate


def command_line() -> str:
    """Return what the user typed, for the record: `raybias`, or the script of a job."""
    script = sys.argv[0]
    job = script.endswith(".py") and Path(script).name != "__main__.py"
    return shlex.join([*(("python", script) if job else ("raybias",)), *sys.argv[1:]])


@contextmanager
def printed_warnings(category: type[Warning]) -> Iterator[None]:
    """Print each different warning of a category as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"raybias: warning: {message}", file=sys.stderr)
