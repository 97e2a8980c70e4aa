"""The exceptions that raybias raises.

Every message says what is wrong, where, and how to mend it, in one line. `exit_code` is that of the
command line: 2 where the user can mend it before any work, 1 where work failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from raybias.redaction import redact
from raybias.terminal import holding_stderr, shortened, visible

#: Characters of a message; what a user's file holds can be of any length.
_LONGEST: Final = 2000
#: Characters of what a library said that a message quotes.
_QUOTED: Final = 200
#: Ends a sentence: a mark before a blank and a capital, but not behind an initial or a number.
_SENTENCE_END: Final = re.compile(r"(?<=[a-z)\]'\"`]{2})[.!?](?=\s+[A-Z`'\"])")


class RaybiasError(Exception):
    """Root of all errors that raybias raises on purpose.

    Parameters
    ----------
    problem: what is wrong, with the offending value.
    where: the file, row, key or item that holds it.
    cure: what the user can do about it.
    """

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", cure: str = "") -> None:
        self.problem = problem
        self.where = where
        self.cure = cure
        super().__init__(problem)

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        text = f"{text}; {self.cure}" if self.cure else text
        text = shortened(visible(redact(" ".join(text.split()))))
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} .. ({len(text):,} characters)"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between Ray actors, and default pickling loses keyword-only fields.
        options = {"where": self.where, "cure": self.cure}
        return partial(type(self), self.problem, **options), ()


def of_library(error: BaseException) -> bool:
    """Return whether an error is one that a library raised: any but ours, or a panic of Rust."""
    if isinstance(error, Exception):
        return not isinstance(error, RaybiasError)
    return type(error).__name__ == "PanicException"


def said_by(error: BaseException) -> str:
    """Return the first sentence of what a library's error says, in one line of 200 characters.

    It is the name of the error's class if the error says nothing.
    """
    paragraph = str(error).strip().partition("\n\n")[0]
    said = " ".join(paragraph.split()) or type(error).__name__
    said = _SENTENCE_END.split(said, maxsplit=1)[0]
    return said if len(said) <= _QUOTED else f"{said[: _QUOTED - 2]}.."


@contextmanager
def quoting(make: Callable[[str], RaybiasError]) -> Iterator[None]:
    """Raise whatever a library raises in the body as one error of ours, which quotes it.

    make: makes the error of what `said_by` returns. What the library writes to standard error by
    itself is held back with it.
    """
    with holding_stderr():
        try:
            yield
        # Libraries raise anything of damaged files.
        except BaseException as error:
            if not of_library(error):
                raise
            raise make(said_by(error)) from error


class RaybiasWarning(UserWarning):
    """Root of all warnings that raybias gives."""


class BadInput(RaybiasError):
    """The user's input cannot be worked on; nothing was done."""

    exit_code = 2


class ConfigError(BadInput):
    """A study file, a key in it, or a command-line option is wrong."""


class DataError(BadInput):
    """A probe, training set or prediction file is missing or malformed."""


class MissingFile(DataError):
    """A file that is to be read is not there."""


class ModelError(BadInput):
    """A backbone, tokenizer, verbalizer or adapter cannot be used."""


class OutputError(BadInput):
    """The output place cannot be written or holds another study."""


class PlanError(BadInput):
    """The plan needs more than the machine or cluster has."""


class WorkFailed(RaybiasError):
    """Work was started and failed."""


class StorageError(WorkFailed):
    """The place that holds the work filled up, refused or stopped answering."""
