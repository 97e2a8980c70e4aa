"""Print to a terminal: no other module of the package calls `print`.

Text from data (names of groups and models, labels, file names, an endpoint's messages) can hold
characters that a terminal obeys: escape sequences, which move the cursor, retitle the window or set
the clipboard, and marks that turn the direction of text. They are shown as `\\x1b` or `\\u202e`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from threading import Lock
from typing import Final

#: Control characters but for tab and newline, marks of direction, separators of lines, marks that
#: show nothing, and halves of surrogate pairs, which no encoding can write.
_HIDDEN: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
)
_UNPRINTED: Final = re.compile(f"[{_HIDDEN}]")
_UNPRINTED_IN_LINE: Final = re.compile(rf"[\t\n{_HIDDEN}]")
#: A quoted value; an apostrophe within a word is no quote.
_QUOTED: Final = re.compile(r"(?<!\w)(['\"])(.*?)\1(?!\w)", re.DOTALL)
#: Characters of a quoted value that are shown.
_LONGEST: Final = 80
#: Characters at either end of a message in which quotes are looked for.
_SEARCHED: Final = 10_000

_STDERR: Final = 2
#: Taken by the thread that holds standard error.
_holding: Final = Lock()


def visible(text: str) -> str:
    """Replace what a terminal would obey or not show by its escape; tabs and newlines stay."""
    return _UNPRINTED.sub(_escaped, text)


def visible_line(text: str) -> str:
    """Replace, as `visible` does, in what must stay in one line, such as a cell of a table."""
    return _UNPRINTED_IN_LINE.sub(_escaped, text)


def shortened(text: str) -> str:
    """Cut every quoted value of more than 80 characters in a message."""
    if len(text) > 2 * _SEARCHED:
        text = f"{text[:_SEARCHED]}..{text[-_SEARCHED:]}"
    return _QUOTED.sub(_cut, text)


def _cut(found: re.Match[str]) -> str:
    quote, value = found.groups()
    if len(value) <= _LONGEST:
        return found[0]
    return f"{quote}{value[: _LONGEST - 2]}..{quote}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def say(text: str) -> None:
    """Print lines of text to standard output."""
    print(visible(text), flush=True)


def say_json(line: str) -> None:
    """Print a line of JSON; what `visible` would replace is escaped as JSON has it."""
    print(_UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", line), flush=True)


def warn(text: str) -> None:
    """Print lines of text to standard error."""
    print(visible(text), file=sys.stderr, flush=True)


def debugging() -> bool:
    """Return whether RAYBIAS_DEBUG asks for tracebacks and for all that libraries write."""
    return os.environ.get("RAYBIAS_DEBUG", "0") not in ("", "0")


@contextmanager
def holding_stderr() -> Iterator[None]:
    """Hold what libraries write to standard error in the body, and show it if nothing is raised.

    Rust prints a panic and its backtrace by itself, C libraries and loggers their warnings: before
    the one line of a refusal they are noise. Within the body, other threads' lines wait too.
    """
    if debugging() or not _holding.acquire(blocking=False):
        yield
        return
    try:
        with TemporaryFile() as held:
            sys.stderr.flush()
            real = os.dup(_STDERR)
            os.dup2(held.fileno(), _STDERR)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(real, _STDERR)
                os.close(real)
            held.seek(0)
            if said := held.read():
                os.write(_STDERR, said)
    finally:
        _holding.release()
