"""OUT/study.yaml: which study an output folder holds, and whether it may go on.

It is read without Ray or torch, so that a report can be made from files alone.
Resources and tracking are written down but do not make another study: they never change
results. The exception is the shard size, which names files; the first run's is kept.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Final

import polars as pl
import yaml

from raybias.config import Study, parse_study, parse_yaml
from raybias.errors import OutputError, StorageError
from raybias.storage import Store

NAME: Final = "study.yaml"
_PACKAGES: Final = ("raybias", "torch", "transformers", "ray", "peft", "polars", "pyarrow")
_SHOWN: Final = 3


@dataclass(frozen=True)
class Record:
    """What OUT/study.yaml says."""

    study: Study
    data: dict[str, str]
    """Fingerprint of every probe and training set."""
    versions: dict[str, str]
    command: str
    parameters: dict[str, int] = field(default_factory=dict)
    """Of each backbone, counted from its config; not known before the study is planned."""

    @property
    def hash(self) -> str:
        """Fingerprint of the study and its data, resources and tracking left out."""
        return _digest(yaml.safe_dump(_identity(self.study, self.data)).encode("utf-8"))


def make_record(study: Study, data: Mapping[str, str], *, command: str) -> Record:
    """The record of a study that runs now, with the versions it runs on."""
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in _PACKAGES}
    return Record(study=study, data=dict(data), versions=versions, command=command)


def read_record(store: Store) -> Record:
    """The record of an OUT.

    Raises
    ------
    OutputError: OUT holds no study, or a file that raybias did not write.
    """
    if not store.exists(NAME):
        raise OutputError(
            f"holds no {NAME}",
            where=store.uri or ".",
            cure="give the OUT of a study that was run",
        )
    where = store.uri_of(NAME)
    try:
        content = parse_yaml(store.read_text(NAME))
        return Record(
            study=parse_study(content["study"], where=where),
            data=dict(content["data"]),
            versions=dict(content["versions"]),
            command=str(content["command"]),
            parameters=dict(content.get("parameters") or {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(f"is no record of a study ({error})", where=where) from error


@contextmanager
def _before_work() -> Iterator[None]:
    """A place that fails before anything was done was given wrongly."""
    try:
        yield
    except StorageError as error:
        raise OutputError(error.problem, where=error.where, cure=error.cure) from error


@_before_work()
def resumed(store: Store, record: Record) -> Record:
    """The record to run in `store`: as given in a new OUT, with the first shard size in a used one.

    Raises
    ------
    OutputError: OUT cannot be read or holds another study; the first differing keys are shown.
    """
    if not store.exists(NAME):
        return record
    held = read_record(store)
    differing = _differences(_identity(held.study, held.data), _identity(record.study, record.data))
    if differing:
        more = len(differing) - _SHOWN
        shown = "; ".join(differing[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise OutputError(
            f"holds another study ({shown})",
            where=store.uri,
            cure="give another --out, or the study that it holds",
        )
    rows = held.study.resources.rows_per_shard
    resources = record.study.resources.model_copy(update={"rows_per_shard": rows})
    return replace(record, study=record.study.model_copy(update={"resources": resources}))


@_before_work()
def begin(store: Store, record: Record) -> None:
    """Write OUT/study.yaml; `OutputError` where OUT cannot be written."""
    content = {
        "study": record.study.model_dump(mode="json"),
        "hash": record.hash,
        "data": record.data,
        "versions": record.versions,
        "command": record.command,
        "parameters": record.parameters,
    }
    store.write_text(NAME, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def fingerprint(frame: pl.DataFrame) -> str:
    """Of a table's content and order."""
    return _digest(frame.write_csv().encode("utf-8"))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _identity(study: Study, data: Mapping[str, str]) -> dict[str, Any]:
    held = study.model_dump(mode="json", exclude={"resources", "tracking"})
    return {**held, "data": dict(data)}


def _differences(held: object, given: object, key: str = "") -> list[str]:
    """`key: held, now given` for every leaf that differs."""
    if isinstance(held, dict) and isinstance(given, dict):
        names = list(dict.fromkeys([*held, *given]))
        pairs = [(name, held.get(name), given.get(name)) for name in names]
    elif isinstance(held, list) and isinstance(given, list) and len(held) == len(given):
        pairs = [(index, *pair) for index, pair in enumerate(zip(held, given, strict=True))]
    else:
        return [] if held == given else [f"{key} is {held!r}, now {given!r}"]
    prefix = f"{key}." if key else ""
    return [text for name, a, b in pairs for text in _differences(a, b, f"{prefix}{name}")]
