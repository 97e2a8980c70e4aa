"""Open the local files that a user names: what is no file is refused before it is read.

A named pipe that nobody writes is waited on for ever, and a device such as /dev/zero never ends.
The end of a pipe that a shell made (`<(command)`, /dev/stdin) is read, up to a limit.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from raybias.errors import DataError, OutputError

#: Bytes of a text that a person writes: a study, a policy, a token.
MOST_WRITTEN: Final = 16 * 2**20
#: Where the ends of pipes are that this process was given.
_GIVEN: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
#: Files of the kernel: some wait, and none holds a user's data.
_OF_KERNEL: Final = ("/proc/", "/sys/")


def _mode(path: str | Path) -> int | None:
    """Return the type and rights of what is at a path.

    None if nothing is there, or it must not be looked at: whoever opens or writes it says so.
    """
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return None


def is_given_pipe(path: str | Path) -> bool:
    """Return whether a path is the end of a pipe that this process was started with."""
    mode = _mode(path)
    return mode is not None and stat.S_ISFIFO(mode) and str(path).startswith(_GIVEN)


def check_file(path: str | Path) -> None:
    """Refuse a pipe, device, socket or file of the kernel; folders and missing files pass.

    Raises DataError: a path that is there and holds no data of a user's.
    """
    mode = _mode(path)
    if mode is None or stat.S_ISDIR(mode):
        return
    if stat.S_ISREG(mode) and not os.path.realpath(path).startswith(_OF_KERNEL):
        return
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a device, socket or file of the kernel"
    raise DataError(
        f"is {kind}, which need not end",
        where=str(path),
        cure="write what it holds to a file first",
    )


def check_replaceable(path: str | Path, folder: str | Path) -> None:
    """Refuse to put a file of a folder into the place of a pipe, device or socket, or elsewhere.

    folder: that is written to; a folder in it can be a link to another folder, which holds files of
        something else.

    Raises OutputError: a path that exists and is no file, or that a link leads out of the folder.
    """
    check_inside(path, folder)
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, device or socket"
        raise OutputError(
            f"is {kind}, and a file is to be written there",
            where=str(path),
            cure="name another file",
        )


def check_inside(path: str | Path, folder: str | Path) -> None:
    """Refuse a path that links within a folder lead out of it (`OutputError`)."""
    root, parent = os.path.realpath(folder), os.path.realpath(Path(path).parent)
    if parent != root and not parent.startswith(f"{root.rstrip('/')}/"):
        raise OutputError(
            f"is in a folder that is a link to {parent}, which is not in {root}",
            where=str(path),
            cure="replace the link by a folder, or name its target as the place to write to",
        )


def read_written(path: str | Path) -> str:
    """Read a UTF-8 text that a person wrote, without its byte order mark.

    Raises
    ------
    DataError: as `check_file`, or more than `MOST_WRITTEN` bytes.
    OSError, UnicodeDecodeError: as `open`.
    """
    if not is_given_pipe(path):
        check_file(path)
    with Path(path).open("rb") as file:
        data = file.read(MOST_WRITTEN + 1)
    if len(data) > MOST_WRITTEN:
        raise DataError(
            f"has more than {MOST_WRITTEN >> 20} MiB",
            where=str(path),
            cure="check that it is the file that you meant",
        )
    return data.decode("utf-8-sig")
