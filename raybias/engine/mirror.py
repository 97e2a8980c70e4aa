"""Take models of the hub from a bucket: a copy of the hub's cache that RAYBIAS_MODELS names.

`hf download ID` and `aws s3 sync ~/.cache/huggingface/hub s3://BUCKET/models` make one. What a
machine needs of it is copied once into its own cache of the hub, where all that reads the model
finds it; the hub is not asked.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from pyarrow import fs

from raybias.errors import ModelError
from raybias.storage import Store

#: The environment variable that names the mirror, on every node.
VARIABLE: Final = "RAYBIAS_MODELS"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_WEIGHTS: Final = ".safetensors"
#: Bytes that are copied at a time.
_CHUNK: Final = 16 * 2**20


@dataclass(frozen=True)
class Mirror:
    """A copy of the hub's cache in a folder or bucket."""

    store: Store

    def commit(self, name: str, revision: str | None) -> str:
        """Return the commit of a model's branch, tag or commit.

        Raises
        ------
        ModelError: the mirror does not have it.
        """
        wanted = revision or "main"
        ref = f"{_folder(name)}/refs/{wanted}"
        found = self.store.read_text(ref).strip() if self.store.is_file(ref) else wanted
        if not _COMMIT.fullmatch(found):
            raise ModelError(
                f"is not in the mirror {self.store.uri}, which {VARIABLE} names",
                where=name if revision is None else f"{name}@{revision}",
                cure="copy the hub's cache with it there, or unset the variable",
            )
        return found

    def fetch(self, name: str, commit: str, patterns: tuple[str, ...], *, weights: bool) -> Path:
        """Copy a model's files into this machine's cache of the hub; return their folder there.

        Parameters
        ----------
        patterns: of the files that are wanted.
        weights: whether safetensors are wanted too; they can be large.

        Raises
        ------
        ModelError: the mirror has no such model.
        """
        from huggingface_hub import constants

        snapshot = f"{_folder(name)}/snapshots/{commit}"
        here = Path(constants.HF_HUB_CACHE) / snapshot
        for file in self._wanted(snapshot, patterns):
            place = here / file
            if place.exists() or (file.endswith(_WEIGHTS) and not weights):
                continue
            self._copy(f"{snapshot}/{file}", place)
        if not here.is_dir():
            raise ModelError(
                f"has no files of commit {commit} in the mirror {self.store.uri}",
                where=name,
                cure="copy the hub's cache with it there",
            )
        return here

    def _wanted(self, snapshot: str, patterns: tuple[str, ...]) -> Iterator[str]:
        for path in self.store.files(snapshot, recursive=True):
            file = path.removeprefix(f"{snapshot}/")
            # Folders of a model hold its weights again, in other formats.
            again = file.endswith(_WEIGHTS) and ("/" in file or file.startswith("consolidated"))
            if not again and any(fnmatch(file, pattern) for pattern in patterns):
                yield file

    def _copy(self, name: str, place: Path) -> None:
        """Copy one file; it is there whole or not at all, whoever else copies it."""
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self.store.translating_errors("read", name):
                fs.copy_files(
                    self.store.path(name),
                    str(partial),
                    source_filesystem=self.store.fs,
                    destination_filesystem=fs.LocalFileSystem(),
                    chunk_size=_CHUNK,
                )
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)


def mirror() -> Mirror | None:
    """Return the mirror that the environment names; None where models are the hub's."""
    uri = os.environ.get(VARIABLE)
    return Mirror(Store(uri)) if uri else None


def _folder(name: str) -> str:
    """Return the folder of a model in a cache of the hub."""
    return f"models--{name.replace('/', '--')}"
