"""Keep the sha256 of an OUT's results beside them, so that a later change shows.

OUT/seal.json names each file of predictions, scores and answers, the items and the table of runs
once its study has written them, and each table of the last report. It shows what was lost, replaced
or added by mistake; who means to deceive can write the seal anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from raybias.errors import DataError, RaybiasWarning
from raybias.storage import Store

NAME: Final = "seal.json"
_RUNS: Final = "runs.parquet"
#: What a study writes whole each time it is run.
_REWRITTEN: Final = ("items/", _RUNS)
_READERS: Final = 8
_SHOWN: Final = 3


class ChangedWarning(RaybiasWarning):
    """Results of an OUT are not as its study wrote them."""


def digest(content: bytes) -> str:
    """Return the sha256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def read_seal(store: Store) -> dict[str, str]:
    """Read the sha256 of each sealed file; none where OUT has no seal."""
    if not store.exists(NAME):
        return {}
    with store.reading(NAME, "as a seal"):
        return {str(name): str(sha) for name, sha in json.loads(store.read_text(NAME)).items()}


def write_seal(store: Store, files: Mapping[str, str]) -> None:
    """Write OUT/seal.json."""
    store.write_text(NAME, json.dumps(dict(sorted(files.items())), indent=0))


def still_valid(store: Store) -> dict[str, str]:
    """Return the part of the seal that a study goes on with: without files that it writes again.

    One that was changed keeps its old entry, so that it is still reported.
    """
    sealed = read_seal(store)
    now = _digests(store, [name for name in sealed if name.startswith(_REWRITTEN)])
    return {
        name: sha for name, sha in sealed.items() if store.is_file(name) and now.get(name) != sha
    }


def seal(store: Store, valid: Mapping[str, str], folders: Iterable[str]) -> None:
    """Seal the results in some folders; `valid` is `still_valid` from before the study wrote."""
    names = [name for name in _results(store, folders) if name not in valid]
    write_seal(store, {**valid, **_digests(store, names)})


def changes(store: Store, *, tables: bool = False) -> list[str]:
    """Say which files are not as they were written, with the report's `tables` or without."""
    sealed = {name: sha for name, sha in read_seal(store).items()
              if tables or not name.startswith("tables/")}  # fmt: skip
    if not sealed:
        return []
    there = set(_results(store, {name.partition("/")[0] for name in sealed} - {_RUNS}))
    now = _digests(store, there & sealed.keys())
    found = [(name, "is missing") for name in sealed.keys() - there]
    found += [(name, "was changed") for name, sha in now.items() if sealed[name] != sha]
    found += [(name, "was added") for name in there - sealed.keys()]
    # The parts of a run's predictions are that run.
    return sorted({
        f"{name.removesuffix('.parquet') if name.count('/') > 1 else name} {what}"
        for name, what in found
    })  # fmt: skip


def in_words(found: list[str]) -> str:
    """Put the findings of `changes` in one sentence."""
    more = len(found) - _SHOWN
    listed = ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"OUT changed since its study wrote it: {listed}."


def verify(store: Store) -> None:
    """Refuse an OUT without a seal, or whose results are not as they were written (`DataError`)."""
    if not read_seal(store):
        raise DataError(
            f"has no {NAME}, so nothing shows whether it changed",
            where=store.uri,
            cure="run its study again, which seals what is there",
        )
    if found := changes(store, tables=True):
        raise DataError(
            in_words(found).removesuffix("."),
            where=store.uri,
            cure="delete what was changed or added, and run its study again",
        )


def _results(store: Store, folders: Iterable[str]) -> list[str]:
    listed = (store.files(each, suffix=".parquet", recursive=True) for each in folders)
    found = [name for names in listed for name in names]
    return [*found, _RUNS] if store.is_file(_RUNS) else found


def _digests(store: Store, names: Iterable[str]) -> dict[str, str]:
    listed = list(names)
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda name: digest(store.read_bytes(name)), listed)
        return dict(zip(listed, found, strict=True))
