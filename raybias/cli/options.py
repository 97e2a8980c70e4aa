"""Options that several commands have in common."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from raybias.config import Profile, Scope

StudyFile = Annotated[str, typer.Argument(metavar="STUDY.yaml", help="The study file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as methods.0.keep=3."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Only a fixed sample of at most N items of each attribute or bias type: whole"
        " templates, in equal parts over labels; at least one template of each label.",
    ),
]
ProfileOption = Annotated[
    Profile | None,
    typer.Option(help="As in the papers, or statistically strict.", show_default="the file's"),
]
ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        help="What an interval covers as if drawn anew, instead of the profile's or study's: runs"
        " (other seeds), sentences (and other sentences), wording (and other words for the"
        " groups), or the widest of these that the data allow.",
        show_default="the study's, else widest; paper: runs",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use: an address, or `auto` for the one of this machine."
        " By default RAY_ADDRESS, or a Ray that is started for this command."
    ),
]

RunAddress = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use: an address, `auto` for the one of this machine, `local` to start"
        " one here, or `none` to compute in this process. By default RAY_ADDRESS, else this"
        " process for a study of seconds, or a Ray that is started for this command."
    ),
]


def _debug(chosen: bool) -> bool:
    if chosen:
        os.environ["RAYBIAS_DEBUG"] = "1"
    return chosen


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_debug, help="Show Ray's output and the traceback of a failure."
    ),
]

SkipUnfit = Annotated[
    bool,
    typer.Option(
        "--skip-unfit",
        help="Leave out backbones and methods that do not fit, instead of refusing the study.",
    ),
]

#: Of commands that read pairs in styles.
Styled = Annotated[
    list[str] | None,
    typer.Option(
        help="File with the formal and informal pairs: pair_id, style, sent_more, sent_less;"
        " may be repeated."
    ),
]
Evidential = Annotated[
    Literal["Apparently", "Evidently"], typer.Option(help="The word of the style evidential.")
]
Question = Annotated[
    Literal["first", "second", "seeded"],
    typer.Option(help="The opening of question_answer: the same for all, or drawn per pair."),
]
Seed = Annotated[int, typer.Option(help="Seed of random draws.")]


#: Names and text of a parameter in a docstring.
_PARAMETER: Final = re.compile(r"^([\w, ]+): (.*(?:\n    .*)*)", re.MULTILINE)
Command = TypeVar("Command", bound=Callable[..., Any])


def documented_by(function: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command's parameters the text that its public function's docstring has of them.

    A parameter that says its own help keeps it.
    """
    _, _, section = str(inspect.getdoc(function)).partition("Parameters\n----------\n")
    texts = {
        name.strip(): f"{text[0].upper()}{' '.join(text.split())[1:]}"
        for names, text in _PARAMETER.findall(section.partition("\n\nRaises\n")[0])
        for name in names.split(",")
    }

    def decorate(command: Command) -> Command:
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
