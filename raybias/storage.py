"""Atomic files on any `pyarrow.fs` URI: a folder, s3://, gs://, hdfs://.

A reader sees a file whole or not at all: local files are written beside their
place and renamed, object stores publish an object when its stream is closed.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raybias.errors import OutputError


class Store:
    """One folder, local or remote, addressed by relative paths.

    Parameters
    ----------
    uri: a local path or a URI that `pyarrow.fs.FileSystem.from_uri` reads.

    Raises
    ------
    OutputError: the URI names no known file system.
    """

    def __init__(self, uri: str | Path) -> None:
        text = str(uri)
        self.uri = text if "://" in text else str(Path(text).resolve())
        try:
            self.fs, self.root = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise OutputError(
                f"cannot open {text!r} ({error})", cure="give a folder or an s3:// or gs:// URI"
            ) from error
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    # A Store is sent to Ray workers; file systems reopen from the URI there.
    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.uri,)

    def path(self, name: str) -> str:
        """The file-system path of `name`, for calls that take (path, filesystem)."""
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def uri_of(self, name: str) -> str:
        """The full URI or local path of `name`."""
        return f"{self.uri.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether a file or folder `name` is there."""
        return bool(self.fs.get_file_info(self.path(name)).type != pafs.FileType.NotFound)

    def files(self, folder: str = "", *, suffix: str = "", recursive: bool = False) -> list[str]:
        """Sorted relative paths of the files below `folder`; hidden names are left out."""
        selector = pafs.FileSelector(self.path(folder), recursive=recursive, allow_not_found=True)
        prefix = self.root.rstrip("/") + "/"
        return sorted(
            info.path.removeprefix(prefix)
            for info in self.fs.get_file_info(selector)
            if info.type == pafs.FileType.File
            and info.path.endswith(suffix)
            and not info.base_name.startswith(".")
        )

    def read_bytes(self, name: str) -> bytes:
        """The content of one file."""
        with self.fs.open_input_stream(self.path(name), compression=None) as stream:
            return bytes(stream.read())

    def read_text(self, name: str) -> str:
        """The content of one UTF-8 file."""
        return self.read_bytes(name).decode("utf-8")

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace `name` by `data` atomically."""
        parent = self.path(name).rpartition("/")[0]
        try:
            self.fs.create_dir(parent, recursive=True)
            target = self.path(name)
            if not self.is_local:
                with self.fs.open_output_stream(target, compression=None) as stream:
                    stream.write(data)
                return
            partial = f"{parent}/.{uuid.uuid4().hex}.tmp"
            with self.fs.open_output_stream(partial, compression=None) as stream:
                stream.write(data)
            self.fs.move(partial, target)
        except OSError as error:
            raise OutputError(
                f"cannot write ({error})",
                where=self.uri_of(name),
                cure="check the place and its rights",
            ) from error

    def write_text(self, name: str, text: str) -> None:
        """Replace `name` by UTF-8 `text` atomically."""
        self.write_bytes(name, text.encode("utf-8"))

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write one Parquet file atomically."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write_bytes(name, sink.getvalue().to_pybytes())

    def read_table(self, name: str, *, columns: list[str] | None = None) -> pa.Table:
        """Read one Parquet file."""
        return pq.read_table(self.path(name), filesystem=self.fs, columns=columns)

    def delete(self, name: str) -> None:
        """Remove one file if it is there."""
        if self.exists(name):
            self.fs.delete_file(self.path(name))
