"""The options and the output that all commands share, and the help of their own options."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TextIO, get_args, get_origin, get_type_hints

import polars as pl
import typer
from typer.models import ParameterInfo

from raybias.config import Profile, parse_yaml
from raybias.errors import BadInput, ConfigError, RaybiasWarning
from raybias.redaction import redact
from raybias.terminal import debugging, say, say_json, warn

ProfileOption = Annotated[
    Profile | None,
    typer.Option(help="As in the papers, or statistically strict.", show_default="the file's"),
]
#: Names and text of a parameter in a docstring.
_PARAMETER: Final = re.compile(r"^([\w, ]+): (.*(?:\n    .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Output:
    """The output of a command: text for people, rows for programs; each is made when printed."""

    text: Iterable[object]
    rows: pl.DataFrame | Iterable[Mapping[str, Any]]
    exit_code: int = 0

    def print(self, *, as_json: bool, quiet: bool) -> None:
        """Print the text, or the rows as JSON; `quiet`: compute the text, and print nothing."""
        if as_json and isinstance(self.rows, pl.DataFrame):
            for line in self.rows.write_ndjson().split("\n"):
                if line:
                    say_json(line)
        elif as_json:
            for row in self.rows:
                say_json(json.dumps(row, ensure_ascii=False, default=str))
        else:
            for part in self.text:
                if not quiet:
                    say(str(part))


def apart(parts: Iterable[str], *more: str) -> Iterator[str]:
    """Yield texts that are not empty, a blank line between them."""
    for number, part in enumerate(filter(None, (*parts, *more))):
        yield f"\n{part}" if number else part


@contextmanager
def _quietly() -> Iterator[None]:
    os.environ["RAYBIAS_QUIET"] = "1"
    try:
        yield
    finally:
        del os.environ["RAYBIAS_QUIET"]


_Json = Annotated[
    bool, typer.Option("--json", help="Print what was found as JSON, a row a line, and no text.")
]
_Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Print nothing but warnings and errors, and no progress."),
]


def command(
    *functions: Callable[..., Any],
) -> Callable[[Callable[..., Output]], Callable[..., None]]:
    """Make a command of a function that returns its output: it takes --json and --quiet too.

    Options have the text that its docstring or a public function's has of them; one that says its
    own help keeps it.
    """

    def decorate(function: Callable[..., Output]) -> Callable[..., None]:
        texts: dict[str, str] = {}
        for each in (*functions, function):
            _, _, section = str(inspect.getdoc(each)).partition("Parameters\n----------\n")
            for names, text in _PARAMETER.findall(section.partition("\n\nRaises\n")[0]):
                said = f"{text[0].upper()}{' '.join(text.split())[1:]}"
                texts |= dict.fromkeys(map(str.strip, names.split(",")), said)
        hints = get_type_hints(function, include_extras=True)
        for name in {*hints} & {*texts}:
            hint = hints[name]
            of, *extra = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            info = next((each for each in extra if isinstance(each, ParameterInfo)), None)
            if info is None or not info.help:
                described = typer.Option() if info is None else copy(info)
                described.help = texts[name]
                hints[name] = Annotated[of, described]

        @wraps(function)
        def printing(*, as_json: bool = False, quiet: bool = False, **options: Any) -> None:
            with _quietly() if quiet else nullcontext(), shown_warnings():
                output = function(**options)
                output.print(as_json=as_json, quiet=quiet)
            if output.exit_code:
                raise typer.Exit(output.exit_code)

        hints |= {"as_json": _Json, "quiet": _Quiet}
        own = inspect.signature(function).parameters.values()
        shared = inspect.signature(printing, follow_wrapped=False).parameters
        printing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name])
                for each in (*own, shared["as_json"], shared["quiet"])
            ]
        )
        printing.__annotations__ = hints
        return printing

    return decorate


def command_line() -> str:
    """Return what the user typed, for the record: `raybias`, or the script of a job."""
    script = sys.argv[0]
    job = script.endswith(".py") and Path(script).name != "__main__.py"
    return shlex.join([*(("python", script) if job else ("raybias",)), *sys.argv[1:]])


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Print each different warning of ours as one line, when it is given.

    Those of libraries are printed at the end, and not at all if the command refuses its input.
    """
    said: set[str] = set()
    held: list[str] = []

    def show(  # noqa: PLR0917 - as Python calls it
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = redact(" ".join(str(message).split()))
        if not issubclass(category, RaybiasWarning):
            held.append(
                redact(warnings.formatwarning(message, category, filename, lineno)).rstrip()
            )
        elif text not in said:
            said.add(text)
            warn(f"raybias: warning: {text}")

    refused = False
    with warnings.catch_warnings():
        warnings.simplefilter("always", RaybiasWarning)
        warnings.showwarning = show
        try:
            yield
        except BadInput:
            refused = not debugging()
            raise
        finally:
            for text in () if refused else held:
                warn(text)


def parted(option: str, texts: Iterable[str], form: str, cure: str) -> dict[str, str]:
    """Parse texts such as `model=opt-125m`; ConfigError: another form, or a key twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, _, value = (part.strip(" ,") for part in text.partition("="))
        if not (key and value):
            raise ConfigError(f"{option} {text!r} is not {form}", cure=cure)
        if key in found:
            raise ConfigError(f"{option} gives {key!r} twice")
        found[key] = value
    return found


def classes_of_labels(text: str | None) -> dict[str, Any] | None:
    """Parse --labels; ConfigError: no mapping of labels to classes."""
    if text is None:
        return None
    cure = "write --labels '{negative: [LABEL_0], positive: [LABEL_1]}'"
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--labels {text!r} cannot be read ({error})", cure=cure) from error
    if not isinstance(content, dict):
        raise ConfigError(f"--labels {text!r} is no mapping", cure=cure)
    return content
