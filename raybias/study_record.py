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
from dataclasses import field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from raybias.config import Study, parse_study, parse_yaml
from raybias.errors import OutputError, StorageError
from raybias.redaction import redact_command
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.table_rules import read_checked

NAME: Final = "study.yaml"
_RUNS: Final = "runs.parquet"
_PACKAGES: Final = ("raybias", "torch", "transformers", "ray", "peft", "polars", "pyarrow")
_SHOWN: Final = 3
#: A commit, or the sha256 of a file.
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGITS: Final = 12

#: Per model in a local folder, the sha256 of each file that decides what it computes.
Models = Mapping[str, Mapping[str, str]]
Counts = Mapping[str, Annotated[int, Field(strict=True, ge=1)]]


# Methods of other packages are registered by modules that import this one.
@dataclass(frozen=True, config=ConfigDict(coerce_numbers_to_str=True, defer_build=True))
class Record:
    """The content of OUT/study.yaml, in its order but for the study."""

    study: Study
    """A run's study names the commit of every model from the hub."""
    hash: str = ""
    """Fingerprint of the study, its data and its models, without resources and tracking."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of every probe and training set."""
    models: Models = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    """With which work in OUT began."""
    parameters: Counts = field(default_factory=dict)
    """Of each backbone, counted from its config; not known before the study is planned."""
    begin_tokens: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each causal backbone, the token that sentences begin with and soft prompts start from, and
    the other that could be, if there is one."""
    rows_per_shard: Mapping[str, Counts] = field(default_factory=dict)
    """Items of a shard, by backbone and method, as they were first planned."""
    begun: str = ""
    """When work in OUT began, in UTC."""

    def with_study(self, study: Study) -> Record:
        """Replace the study, and the fingerprint with it."""
        changed = replace(self, study=study)
        return replace(changed, hash=_fingerprint(yaml.safe_dump(_identity(changed))))


_RECORD: Final = TypeAdapter(Record)


def make_record(
    study: Study, data: Mapping[str, str], *, command: str, models: Models | None = None
) -> Record:
    """Make the record of a study with the installed versions."""
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in _PACKAGES}
    record = Record(study, data=data, models=models or {}, versions=versions, command=command)
    return record.with_study(study)


def read_record(store: Store) -> Record:
    """Read OUT/study.yaml.

    OutputError: no folder, no raybias output in it, or a wrong value; ConfigError: a wrong study.
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
    study = parse_study(content["study"], where=where)
    try:
        record = _RECORD.validate_python({**content, "study": study})
    except ValidationError as error:
        first = error.errors()[0]
        raise OutputError(
            f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}",
            where=where,
            cure="mend it, or run the study's command again, which writes it anew",
        ) from error
    # Another version, or another hand, may have written a key down.
    return replace(record, command=redact_command(record.command))


def study_place(place: str | Path) -> str:
    """Return the OUT that a user means: `place`, or the last look that an audit in it finished."""
    text, store = str(place), Store(place)
    if store.exists(NAME):
        return text
    begun = [look for look in _looks(store) if store.exists(f"{look}/{NAME}")]
    ended = [look for look in begun if store.exists(f"{look}/results.json")]
    if not begun:
        return text
    look = (ended or begun)[-1]
    return store.uri_of(look) if "://" in text else f"{text.rstrip('/')}/{look}"


def is_study(place: str | Path) -> bool:
    """Return whether a folder or URI is the OUT of a study, or of an audit with looks."""
    return Store(study_place(place)).exists(NAME)


def refuse_study(store: Store) -> None:
    """Refuse to write other files into the OUT of a study, or a folder in it (`OutputError`)."""
    place, mark, options = store.uri.partition("?") if "://" in store.uri else (store.uri, "", "")
    folders = [place]
    while (above := folders[-1].rpartition("/")[0]) and not above.endswith("/"):
        folders.append(above)
    for folder in folders:
        if Store(f"{folder}{mark}{options}").exists(NAME):
            raise OutputError(
                f"holds a study, or is in its folder: {folder}",
                where=store.uri,
                cure="give another --out",
            )


def look_name(number: int) -> str:
    """Name the folder of one of an audit's looks, which are counted from 1."""
    return f"look-{number}"


def _looks(store: Store) -> Iterator[str]:
    """Yield the folders of an audit's looks in OUT, in their order."""
    names = map(look_name, count(1))
    return takewhile(store.exists, names)


@contextmanager
def before_work() -> Iterator[None]:
    """Raise `StorageError` as `OutputError`: before any work, the place was given wrongly."""
    try:
        yield
    except StorageError as error:
        raise OutputError(error.problem, where=error.where, cure=error.cure) from error


@before_work()
def resumed(store: Store, record: Record) -> Record:
    """Return the record to run in `store`; a used OUT keeps its command, shards and dtypes.

    OutputError: OUT cannot be read or holds another study. DataError: its runs cannot be read.
    """
    if not store.exists(NAME):
        return record
    recorded = read_record(store)
    study = _with_dtypes_of(recorded.study, record.study)
    rows = recorded.study.resources.rows_per_shard
    resources = study.resources.model_copy(update={"rows_per_shard": rows})
    record = record.with_study(study.model_copy(update={"resources": resources}))
    record = replace(
        record,
        rows_per_shard=recorded.rows_per_shard,
        begun=recorded.begun,
        command=recorded.command or record.command,
    )
    refuse_other(store, _identity(recorded), _identity(record))
    read_runs(store)
    return record


def recorded_dtypes(store: Store, study: Study) -> Study:
    """Return the study with the dtypes that an OUT was begun with, where the study has `auto`."""
    return _with_dtypes_of(read_record(store).study, study) if store.exists(NAME) else study


def refuse_other(store: Store, recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a study or input that differs from the recorded one, naming the first keys that do."""
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


def of_finished(store: Store, record: Record) -> Record:
    """Return the record of an OUT in which all is computed: as it is, but for words on the page.

    Versions, resources and tracking of a later command made none of its results.
    """
    if not store.exists(NAME):
        return record
    recorded = read_record(store)
    statistics = {"statistics": record.study.statistics}
    return replace(recorded, study=recorded.study.model_copy(update=statistics))


@before_work()
def begin(store: Store, record: Record) -> None:
    """Write OUT/study.yaml; `OutputError` where OUT cannot be written."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    written = replace(record, command=redact_command(record.command), begun=record.begun or now)
    # The study by itself, whose methods may have been registered after this module was imported.
    content = {
        "study": record.study.model_dump(mode="json"),
        **_RECORD.dump_python(written, mode="json", exclude={"study"}),
    }
    store.write_text(NAME, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read_runs(store: Store) -> pl.DataFrame:
    """Read OUT/runs.parquet (schema.RUNS), if there is one; `DataError` for another table."""
    if not store.exists(_RUNS):
        return pl.DataFrame(RUNS.empty_table())
    return read_checked(store, _RUNS, RUNS)


def fingerprint(frame: pl.DataFrame) -> str:
    """Return a fingerprint of a table's content and order."""
    # A CSV has no lists; a cell of theirs keeps its parts apart.
    flat = frame.with_columns(pl.col(pl.List(pl.String)).list.join("\0"))
    return _fingerprint(flat.write_csv())


def _fingerprint(content: str) -> str:
    return hashlib.blake2b(content.encode("utf-8"), digest_size=8).hexdigest()


def _identity(record: Record) -> dict[str, Any]:
    study = record.study.model_dump(mode="json", exclude={"resources", "tracking", "answers"})
    for content, backbone in zip(study["backbones"], record.study.backbones, strict=True):
        for name in backbone.never_change_answers:
            del content[name]
    # It changes words and no number.
    study["statistics"].pop("favourable", None)
    if not record.study.is_sentiment:
        # Their order too: a mapping with its keys sorted loses it.
        study["labels"] = [*record.study.labels]
    models = {name: dict(files) for name, files in record.models.items()}
    return {**study, "data": dict(record.data), "models": models}


def _with_dtypes_of(recorded: Study, study: Study) -> Study:
    return study.with_dtypes({backbone.name: backbone.dtype for backbone in recorded.backbones})


def _differences(recorded: object, given: object, key: str = "") -> list[str]:
    """Return `key is recorded, now given` for each leaf that differs, and parts on one side."""
    if isinstance(recorded, list) and isinstance(given, list) and len(recorded) != len(given):
        recorded, given = _by_name(recorded), _by_name(given)
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        names = list(dict.fromkeys([*recorded, *given]))
        pairs = [(name, recorded.get(name), given.get(name)) for name in names]
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        pairs = [(index, *pair) for index, pair in enumerate(zip(recorded, given, strict=True))]
    elif given is None and isinstance(recorded, Mapping):
        return [f"{key} is no longer in the study"]
    elif recorded is None and isinstance(given, Mapping):
        return [f"{key} was not in the study"]
    else:
        return [] if recorded == given else [f"{key} is {_shown(recorded)}, now {_shown(given)}"]
    prefix = f"{key}." if key else ""
    return [text for name, a, b in pairs for text in _differences(a, b, f"{prefix}{name}")]


def _by_name(parts: list[Any]) -> object:
    """Key the parts of a study by their names, where they have any."""
    named = all(isinstance(part, Mapping) and "name" in part for part in parts)
    return {part["name"]: part for part in parts} if named else parts


def _shown(value: object) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:_DIGITS]}.."
    return repr(value)
