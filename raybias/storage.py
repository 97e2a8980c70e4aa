"""Atomic files on any `pyarrow.fs` URI: a folder, s3://, gs://, hdfs://.

A reader sees a file whole or not at all: object stores publish an object when its stream
is closed, elsewhere files are written beside their place and renamed. Transient errors of an
object store are retried by its client with exponential backoff; others are one line.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raybias.errors import (
    BadInput,
    DataError,
    MissingFile,
    OutputError,
    StorageError,
    quoting,
    said_by,
)
from raybias.memory_limits import unpacked
from raybias.opening import check_file, check_inside, check_replaceable
from raybias.redaction import holds_secret

#: Attempts of an S3 request where AWS_MAX_ATTEMPTS is not set. The pauses double up to 20 s, so
#: this outlasts an outage of about a minute.
_ATTEMPTS: Final = 10
#: Stores whose objects appear when they are whole, and which have no folders.
_OBJECT_STORES: Final = ("s3", "gcs", "abfs")
#: The name of a file that is being written.
_PARTIAL: Final = re.compile(r"\.[0-9a-f]{32}\.tmp")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_AGAIN: Final = "the same command then goes on with what is there"
#: What a user can do about an error code of S3.
_CURES: Final = {
    "NO_SUCH_BUCKET": "create the bucket or give another URI",
    "ACCESS_DENIED": "check the credentials and their rights",
    "INVALID_ACCESS_KEY_ID": "check the credentials",
    "SIGNATURE_DOES_NOT_MATCH": "check the credentials",
}


class PatientS3(pafs.S3FileSystem):  # type: ignore[misc]
    """S3 whose retries outlast pickling; PyArrow 26 forgets them (apache/arrow#47348)."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _patient, super().__reduce__()[1]


def _patient(options: dict[str, Any]) -> PatientS3:
    attempts = os.environ.get("AWS_MAX_ATTEMPTS", str(_ATTEMPTS))
    if not attempts.isdecimal():
        raise OutputError(f"AWS_MAX_ATTEMPTS is {attempts!r}", cure="give it a whole number")
    chosen = {
        "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=int(attempts)),
        # A file of a few megabytes then takes one request instead of three.
        "allow_delayed_open": True,
    }
    return PatientS3(**(options | chosen))


class Store:
    """One folder, local or remote, addressed by relative paths.

    `uri`: a local path or a URI that `pyarrow.fs.FileSystem.from_uri` reads, options such as
    `?endpoint_override=` included.

    Raises
    ------
    OutputError: the URI is empty, names no known file system, no bucket, or holds a password;
        later, a local place cannot be written.
    DataError: later, a file is missing or cannot be read, whatever is in it.
    StorageError: later, a remote place refuses or does not answer, or a disk is full.
    """

    def __init__(self, uri: str | Path) -> None:
        text = str(uri)
        # A shell variable that is not set, which would otherwise be the working folder.
        if not text.strip():
            raise OutputError("a place has no name", cure="write . for the folder you are in")
        remote = "://" in text
        if remote and holds_secret(text):
            raise OutputError(
                "a password in a URI would be printed and written down",
                where=f"{text.partition('://')[0]}://",
                cure="set the credentials in the environment, such as AWS_SECRET_ACCESS_KEY",
            )
        pipe = False
        with suppress(OSError):
            pipe = not remote and Path(text).is_fifo()
        if pipe:
            raise OutputError("is a pipe", where=text, cure="write what it holds to a file first")
        try:
            # Path finds a loop of links with a RuntimeError.
            self.uri = text if remote else str(Path(text).resolve())
            self.fs, self.root = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            raise OutputError(
                f"cannot open {text!r} ({said_by(error)})",
                cure="give a folder or an s3:// or gs:// URI",
            ) from error
        if "\0" in self.root:
            raise OutputError(f"{text!r} has a NUL in its path", cure="check the path")
        if self.fs.type_name in _OBJECT_STORES and not self.root.strip("/"):
            raise OutputError(f"{text!r} names no bucket", cure="write it behind ://")
        if isinstance(self.fs, pafs.S3FileSystem):
            self.fs = _patient(*self.fs.__reduce__()[1])
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    # A Store is sent to Ray workers; file systems reopen from the URI there.
    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.uri,)

    def path(self, name: str) -> str:
        """Return the path of `name` in `fs`; `OutputError` for one that leaves the folder."""
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise OutputError(f"the name {name!r} leads out of the folder", where=self.uri)
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def uri_of(self, name: str) -> str:
        """Return the full URI or local path of `name`."""
        place, options = _without_options(self.uri)
        return f"{place.rstrip('/')}/{name}{options}"

    def exists(self, name: str) -> bool:
        """Return whether a file or folder `name` exists."""
        with self.translating_errors("look for", name):
            found = self.fs.get_file_info(self.path(name)).type
        return bool(found != pafs.FileType.NotFound)

    def is_file(self, name: str = "") -> bool:
        """Return whether `name` is a file."""
        with self.translating_errors("look for", name):
            return bool(self.fs.get_file_info(self.path(name)).is_file)

    def files(self, folder: str = "", *, suffix: str = "", recursive: bool = False) -> list[str]:
        """List the files below `folder` as sorted relative paths, without hidden names."""
        selector = pafs.FileSelector(self.path(folder), recursive=recursive, allow_not_found=True)
        prefix = self.root.rstrip("/") + "/"
        with self.translating_errors("list", folder):
            infos = self.fs.get_file_info(selector)
        return sorted(
            info.path.removeprefix(prefix)
            for info in infos
            if info.type == pafs.FileType.File
            and info.path.endswith(suffix)
            and not info.base_name.startswith(".")
        )

    def open_file(self, name: str) -> pa.NativeFile:
        """Open one file for reading at any place; see `opening` for what is refused."""
        self._check_file(name)
        return self.fs.open_input_file(self.path(name))

    def read_bytes(self, name: str) -> bytes:
        """Read one file."""
        self._check_file(name)
        with (
            self.translating_errors("read", name),
            self.fs.open_input_stream(self.path(name), compression=None) as stream,
        ):
            return bytes(stream.read())

    def _check_file(self, name: str) -> None:
        if self.is_local:
            check_file(self.path(name))

    def read_text(self, name: str) -> str:
        """Read one UTF-8 file, without its byte order mark."""
        with self.reading(name):
            return self.read_bytes(name).decode("utf-8-sig")

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace `name` by `data` atomically; a pipe or device of that name stays."""
        self._check_replaceable(name)
        with self.translating_errors("write", name):
            self._replace(self.path(name), data)

    def _check_replaceable(self, name: str) -> None:
        if self.is_local:
            check_replaceable(self.path(name), self.root)

    def _replace(self, target: str, data: bytes) -> None:
        if self.fs.type_name in _OBJECT_STORES:
            with self.fs.open_output_stream(target, compression=None) as stream:
                stream.write(data)
            return
        parent = target.rpartition("/")[0]
        self.fs.create_dir(parent, recursive=True)
        partial = f"{parent}/.{uuid.uuid4().hex}.tmp"
        try:
            with self.fs.open_output_stream(partial, compression=None) as stream:
                stream.write(data)
            self.fs.move(partial, target)
        except BaseException:
            with suppress(OSError):
                self.fs.delete_file(partial)
            raise

    def write_text(self, name: str, text: str) -> None:
        """Replace `name` by UTF-8 `text` atomically."""
        self.write_bytes(name, text.encode("utf-8"))

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write one Parquet file atomically."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write_bytes(name, sink.getvalue().to_pybytes())

    def read_table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all or some columns of a Parquet file, whatever they are, without its metadata.

        A table of raybias is read by `table_rules.read_checked`, which checks it.
        """
        with self.reading(name, "as a Parquet table"):
            with self.open_file(name) as stream:
                table = unpacked(pq.ParquetFile(stream), self.uri_of(name), columns=columns)
            table.validate(full=True)
            return table.replace_schema_metadata(None)

    def delete(self, name: str) -> None:
        """Remove one file if it exists."""
        if self.exists(name):
            if self.is_local:
                check_inside(self.path(name), self.root)
            with self.translating_errors("delete", name):
                self.fs.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """Remove an existing folder and its content."""
        if self.is_local:
            check_inside(f"{self.path(name)}/", self.root)
        with self.translating_errors("delete", name):
            self.fs.delete_dir(self.path(name))

    def sweep(self) -> None:
        """Remove the partial files of writers that were killed."""
        if self.fs.type_name in _OBJECT_STORES:
            return
        selector = pafs.FileSelector(self.root, recursive=True, allow_not_found=True)
        with self.translating_errors("sweep", ""):
            for info in self.fs.get_file_info(selector):
                # A writer that lives may have finished it meanwhile.
                if _PARTIAL.fullmatch(info.base_name):
                    with suppress(FileNotFoundError):
                        self.fs.delete_file(info.path)

    @contextmanager
    def translating_errors(self, doing: str, name: str) -> Iterator[None]:
        """Raise errors of places as one line; see the class."""
        try:
            yield
        except OSError as error:
            where = self.uri_of(name)
            if isinstance(error, FileNotFoundError) and doing != "write":
                raise MissingFile("no such file", where=where, cure="check the path") from error
            if not self.is_local or error.errno in _FULL:
                raise storage_error(error, where, doing) from error
            reason = os.strerror(error.errno) if error.errno else error
            cure = "check the place and its rights" if error.errno else "write it again"
            kind: type[BadInput] = OutputError if doing in ("write", "delete") else DataError
            raise kind(f"cannot {doing} ({reason})", where=where, cure=cure) from error

    @contextmanager
    def reading(self, name: str, form: str = "") -> Iterator[None]:
        """Raise whatever a library says of a file's content as one `DataError` ("... {form}")."""
        with reading(self.uri_of(name), form), self.translating_errors("read", name):
            yield


def reading(where: str, form: str) -> AbstractContextManager[None]:
    """Raise whatever a library says of a table in memory as one `DataError` ("... {form}")."""

    def refusal(said: str) -> DataError:
        return DataError(f"cannot be read {form} ({said})", where=where, cure="write it again")

    return quoting(refusal)


class Draft(Store):
    """A store that keeps its files in memory until `flush`, so that an error leaves none of them.

    As a context manager it writes them at the end of the block, and nothing after an error.
    """

    def __init__(self, uri: str | Path) -> None:
        super().__init__(uri)
        self.held: dict[str, bytes] = {}

    def write_bytes(self, name: str, data: bytes) -> None:
        # Refused now, before any of the files is written.
        self._check_replaceable(name)
        self.held[name] = data

    def flush(self) -> None:
        """Write the files that are kept in memory, each atomically."""
        for name, data in self.held.items():
            super().write_bytes(name, data)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()


def shortest_path(path: str) -> str:
    """Write an absolute path from the working folder, if that is shorter."""
    own = os.path.relpath(path)
    return min(path, own, key=len)


def split_uri(uri: str) -> tuple[Store, str]:
    """Split the URI of a file into its folder and its name."""
    place, options = _without_options(uri)
    folder, slash, name = place.rstrip("/").rpartition("/")
    return Store((folder or ("/" if slash else ".")) + options), name


def is_storage_error(error: BaseException) -> bool:
    """Return whether an error that came through Ray or a library is one of storage."""
    return isinstance(error, OSError) and (error.errno in _FULL or "AWS Error" in str(error))


def storage_error(error: OSError, where: str, doing: str = "go on") -> StorageError:
    """Translate an error of a place into one line with its cure."""
    if error.errno in _FULL:
        problem = f"cannot {doing} ({os.strerror(error.errno)})"
        return StorageError(problem, where=where, cure=f"make room; {_AGAIN}")
    # Of PyArrow's message, the service's answer; curl's details and ids help nobody.
    answer = re.sub(r"^.*?(?=AWS Error )|; Details:.*|\(Request ID.*", "", str(error), flags=re.S)
    code = re.match(r"AWS Error (\w+)", answer)
    cure = _CURES.get(code[1] if code else "", f"check that it answers; {_AGAIN}")
    return StorageError(f"cannot {doing} ({answer.strip(' :')})", where=where, cure=cure)


def _without_options(uri: str) -> tuple[str, str]:
    """Split a URI into place and `?options`; a local path has none."""
    if "://" not in uri:
        return uri, ""
    place, mark, options = uri.partition("?")
    return place, mark + options
