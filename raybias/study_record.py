"""Read and write OUT/study.yaml: which study a folder holds, on which data and weights.

OUT/runs.parquet is read here too. Resources and tracking are recorded but never change results, so
a study with others is the same study. The exceptions are the shards' sizes, which name files, and a
dtype that was chosen for the hardware: a resumed run takes the first ones. It imports neither torch
nor Ray, so that a report can be made from files alone.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Final

import polars as pl
import pyarrow as pa
import yaml

from raybias.config import Study, parse_study, parse_yaml
from raybias.errors import DataError, OutputError, StorageError
from raybias.redaction import redact
from raybias.schema import RUNS
from raybias.storage import Store

NAME: Final = "study.yaml"
_RUNS: Final = "runs.parquet"
#: Columns of schema.RUNS that an older OUT lacks, and those that no run does.
_NEWER: Final = ("weight_decay", "stop_window", "untuned_accuracy")
_NEEDED: Final = ("run_id", "model", "method", "dataset", "stage", "steps", "selected")
_PACKAGES: Final = ("raybias", "torch", "transformers", "ray", "peft", "polars", "pyarrow")
_SHOWN: Final = 3
#: A commit, or the sha256 of a file.
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGITS: Final = 12

#: Per model in a local folder, the sha256 of each file that decides what it computes.
Models = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Record:
    """The content of OUT/study.yaml; an older one lacks some of it."""

    study: Study
    """A run's study names the commit of every model from the hub."""
    hash: str = ""
    """Fingerprint of the study, its data and its models, without resources and tracking."""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of every probe and training set."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Of each backbone, counted from its config; not known before the study is planned."""
    begin_tokens: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each causal backbone, the token that sentences begin with and soft prompts start from, and
    the other that could be, if there is one."""
    rows_per_shard: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Items of a shard, by backbone and method, as they were first planned."""
    models: Models | None = None
    """None in an OUT from before weights were recorded."""

    def with_study(self, study: Study) -> Record:
        """Replace the study, and the fingerprint with it."""
        changed = replace(self, study=study)
        content = yaml.safe_dump(_identity(changed)).encode("utf-8")
        return replace(changed, hash=_fingerprint(content))


def make_record(
    study: Study, data: Mapping[str, str], *, command: str, models: Models | None = None
) -> Record:
    """Make the record of a study with the installed versions."""
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in _PACKAGES}
    record = Record(
        study, data=dict(data), versions=versions, command=command, models=dict(models or {})
    )
    return record.with_study(study)


def read_record(store: Store) -> Record:
    """Read OUT/study.yaml.

    Raises
    ------
    OutputError: no such folder, or no raybias output in it.
    ConfigError: the study in it is wrong.
    """
    cure = "give the OUT of a study that was run"
    if not store.exists(NAME):
        missing = f"holds no {NAME}" if store.exists("") else "is not there"
        raise OutputError(missing, where=store.uri or ".", cure=cure)
    where = store.uri_of(NAME)
    with store.reading(NAME, "as the record of a study"):
        content = parse_yaml(store.read_text(NAME))
    if not isinstance(content, dict) or not isinstance(content.get("study"), dict):
        raise OutputError("has no key `study`", where=where)
    models = content.get("models")
    return Record(
        study=parse_study(content["study"], where=where),
        hash=str(content.get("hash") or ""),
        command=str(content.get("command") or ""),
        versions=_texts(content.get("versions")),
        data=_texts(content.get("data")),
        parameters=_counts(content.get("parameters"), "parameters", where),
        begin_tokens={
            str(name): [str(token) for token in tokens]
            for name, tokens in _mapping(content.get("begin_tokens")).items()
            if isinstance(tokens, list)
        },
        rows_per_shard={
            str(name): _counts(rows, f"rows_per_shard.{name}", where)
            for name, rows in _mapping(content.get("rows_per_shard")).items()
        },
        models={str(k): _texts(v) for k, v in models.items()} if isinstance(models, dict) else None,
    )


@contextmanager
def before_work() -> Iterator[None]:
    """Raise `StorageError` as `OutputError`: before any work, the place was given wrongly."""
    try:
        yield
    except StorageError as error:
        raise OutputError(error.problem, where=error.where, cure=error.cure) from error


@before_work()
def resumed(store: Store, record: Record) -> Record:
    """Return the record to run in `store`.

    In a new OUT it is as given; in a used one it takes the first run's shards and dtypes.

    Raises
    ------
    OutputError: OUT cannot be read, does not say which weights it was made with, or holds
        another study; the first differing keys are shown.
    DataError: its runs cannot be read.
    """
    if not store.exists(NAME):
        return record
    recorded = read_record(store)
    if recorded.models is None:
        raise OutputError(
            "does not say which weights it was made with; an older raybias wrote it",
            where=store.uri,
            cure="give another --out; `raybias report` and `raybias serve` still read this one",
        )
    study = _with_dtypes_of(recorded.study, record.study)
    rows = recorded.study.resources.rows_per_shard
    resources = study.resources.model_copy(update={"rows_per_shard": rows})
    record = record.with_study(study.model_copy(update={"resources": resources}))
    record = replace(record, rows_per_shard=recorded.rows_per_shard)
    refuse_other(store, _identity(recorded), _identity(record))
    read_runs(store)
    return record


def recorded_dtypes(store: Store, study: Study) -> Study:
    """Return the study with the dtypes that an OUT was begun with, where the study has `auto`."""
    return _with_dtypes_of(read_record(store).study, study) if store.exists(NAME) else study


def refuse_other(store: Store, recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a study or input that differs from the recorded one, naming the first keys that do.

    Raises
    ------
    OutputError: something differs.
    """
    differing = _differences(recorded, given)
    if not differing:
        return
    more = len(differing) - _SHOWN
    shown = "; ".join(differing[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    moved = any(".revision is " in text for text in differing)
    raise OutputError(
        f"holds another study ({shown})",
        where=store.uri,
        cure="give another --out, or "
        + (f"set each revision as {NAME} has it" if moved else "the study that it holds"),
    )


@before_work()
def begin(store: Store, record: Record) -> None:
    """Write OUT/study.yaml; `OutputError` where OUT cannot be written."""
    content = {
        "study": record.study.model_dump(mode="json"),
        "hash": record.hash,
        "data": dict(record.data),
        "models": {name: dict(files) for name, files in (record.models or {}).items()},
        "versions": dict(record.versions),
        "command": redact(record.command),
        "parameters": dict(record.parameters),
        "begin_tokens": {name: list(tokens) for name, tokens in record.begin_tokens.items()},
        "rows_per_shard": {name: dict(rows) for name, rows in record.rows_per_shard.items()},
    }
    store.write_text(NAME, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read_runs(store: Store) -> pl.DataFrame:
    """Read OUT/runs.parquet (schema.RUNS); no rows where there is none.

    Raises
    ------
    DataError: not a table of runs.
    """
    if not store.exists(_RUNS):
        return pl.DataFrame(RUNS.empty_table())
    table = store.read_table(_RUNS)
    with store.reading(_RUNS, "as a table of runs"):
        for name in _NEWER:
            if name not in table.column_names:
                table = table.append_column(
                    RUNS.field(name), pa.nulls(len(table), RUNS.field(name).type)
                )
        runs = pl.DataFrame(table.select(RUNS.names).cast(RUNS))
    for name in _NEEDED:
        if runs[name].null_count():
            raise DataError(
                f"a run has no {name}", where=store.uri_of(_RUNS), cure="write it again"
            )
    return runs


def fingerprint(frame: pl.DataFrame) -> str:
    """Return a fingerprint of a table's content and order."""
    # A CSV has no lists; a cell of theirs keeps its parts apart.
    flat = frame.with_columns(pl.col(pl.List(pl.String)).list.join("\0"))
    return _fingerprint(flat.write_csv().encode("utf-8"))


def _fingerprint(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _identity(record: Record) -> dict[str, Any]:
    study = record.study.model_dump(mode="json", exclude={"resources", "tracking", "answers"})
    for content, backbone in zip(study["backbones"], record.study.backbones, strict=True):
        for name in backbone.never_change_answers:
            del content[name]
    models = {name: dict(files) for name, files in (record.models or {}).items()}
    return {**study, "data": dict(record.data), "models": models}


def _with_dtypes_of(recorded: Study, study: Study) -> Study:
    return study.with_dtypes({backbone.name: backbone.dtype for backbone in recorded.backbones})


def _differences(recorded: object, given: object, key: str = "") -> list[str]:
    """Return `key is recorded, now given` for every leaf that differs."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        names = list(dict.fromkeys([*recorded, *given]))
        pairs = [(name, recorded.get(name), given.get(name)) for name in names]
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        pairs = [(index, *pair) for index, pair in enumerate(zip(recorded, given, strict=True))]
    else:
        return [] if recorded == given else [f"{key} is {_shown(recorded)}, now {_shown(given)}"]
    prefix = f"{key}." if key else ""
    return [text for name, a, b in pairs for text in _differences(a, b, f"{prefix}{name}")]


def _shown(value: object) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:_DIGITS]}.."
    return repr(value)


def _texts(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in _mapping(value).items()}


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _counts(value: Any, what: str, where: str) -> dict[str, int]:
    counts = _mapping(value)
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise OutputError(
                f"{what} of {name!r} are {count!r}, not a number of them",
                where=where,
                cure="mend it, or run the study's command again, which counts them",
            )
    return {str(name): count for name, count in counts.items()}
