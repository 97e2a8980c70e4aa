"""Find out which weights a model's id stands for: a commit of the hub, or files of a folder.

One short request says which commit a branch or tag is, so that a machine without network is
fails in seconds. It loads nothing and knows no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from raybias.engine.mirror import mirror
from raybias.errors import ModelError, RaybiasError
from raybias.storage import Store

#: The model that the id `planted` names.
PLANTED: Final = Path(__file__).parents[1] / "assets" / "planted"
#: Files that decide what a model computes; others in its folder may change.
DECIDING: Final = (
    *("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("additional_chat_templates/*", "vocab*", "merges.txt", "*.model", "*.spm", "*.codes"),
)
#: Weights that may be in a checkpoint instead of safetensors, and are not read.
PICKLED: Final = "pytorch_model.bin"
_CONFIG: Final = "config.json"
_TIMEOUT_S: Final = 5
#: What the hub's errors mean, and how to mend it; the first that fits counts.
_REFUSALS: Final = {
    "HFValidationError": (
        "cannot load (neither a folder here nor an id of the hub)",
        "check the path",
    ),
    "GatedRepoError": (
        "is gated, and this machine has no access",
        "accept its terms on its page, then set HF_TOKEN or run `hf auth login`",
    ),
    "RepositoryNotFoundError": (
        "is neither a folder here nor a model that the hub shows to this machine",
        "check the id; a private model needs HF_TOKEN",
    ),
    "RevisionNotFoundError": ("the model has no such revision", "give a branch, tag or commit"),
    "EntryNotFoundError": (f"has no {_CONFIG}", "give a model that transformers can load"),
}
#: Hashes of files by path, size and times of change, in the user's cache folder.
_HASHES: Final = "sha256.json"


@dataclass(frozen=True)
class Located:
    """A model on the hub."""

    commit: str
    snapshot: Path | None = None
    """Its folder in this machine's cache, where the hub is not asked or does not answer."""


def folder_of(name: str) -> Path | None:
    """Return the folder that a model's id names, or None where it is an id of the hub.

    Raises
    ------
    ModelError: it cannot be read, is a GGUF file, or holds a pipe or device, which has no end.
    """
    if name.lower().endswith(".gguf") and not Path(name).is_dir():
        raise ModelError(
            "is a GGUF file, and a study loads safetensors",
            where=name,
            cure=f"convert it once with `raybias convert {name} --out FOLDER` and name that folder",
        )
    folder = PLANTED if name == "planted" else Path(name)
    try:
        if not folder.is_dir():
            return None
        endless = next((path for path in _files(folder) if not path.is_file()), None)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read ({error})", where=name, cure="check the path") from error
    if endless is not None:
        raise ModelError(
            f"{endless.name} is a pipe or device, not a file", where=name, cure="copy what it holds"
        )
    return folder


def _files(folder: Path) -> Iterator[Path]:
    """Yield what is in a model's folders, and no folder."""
    for path in (*folder.glob("*"), *folder.glob("additional_chat_templates/*")):
        if path.exists() and not path.is_dir():
            yield path


def locate(name: str, revision: str | None) -> Located:
    """Find the commit of a hub model's branch, tag or commit, with one short request.

    Without an answer it is the commit in this machine's cache. Where there is a mirror
    (`engine.mirror`), it is asked instead, and what is small of the model is copied.

    Raises
    ------
    ModelError: no such model or revision, no access, or neither network nor cache.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode

    where = name if revision is None else f"{name}@{revision}"
    if (held := mirror()) is not None:
        commit = held.commit(name, revision)
        return Located(commit, held.fetch(name, commit, DECIDING, weights=False))
    try:
        if is_offline_mode():
            return _cached(name, revision, where, "HF_HUB_OFFLINE is set")
        url = hf_hub_url(name, _CONFIG, revision=revision)
        metadata = get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    except ModelError:
        raise
    except Exception as error:
        for kind, (problem, cure) in _REFUSALS.items():
            if isinstance(error, getattr(hub, kind)):
                raise ModelError(problem, where=where, cure=cure) from error
        # No answer: the errors of the hub's HTTP client change with its version.
        return _cached(name, revision, where, f"the hub does not answer ({_first_line(error)})")
    if metadata.commit_hash is None:
        return _cached(name, revision, where, f"no hub is at {url}")
    return Located(metadata.commit_hash)


def _cached(name: str, revision: str | None, where: str, why: str) -> Located:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, _CONFIG, revision=revision)
    if not isinstance(path, str):
        raise ModelError(
            f"is no folder here, {why}, and this machine's cache does not have it",
            where=where,
            cure="download it where there is a network (`hf download`), or give a folder",
        )
    snapshot = Path(path).parent
    return Located(snapshot.name, snapshot)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def file_hashes(folder: Path) -> dict[str, str]:
    """Compute the sha256 of each file that decides what a model computes, by relative path.

    A file whose path, size and times of change are known is not read again.

    Raises
    ------
    ModelError: a file cannot be read.
    """
    known = _read_known()
    try:
        names = sorted(
            path.relative_to(folder).as_posix() for path in _files(folder) if path.is_file()
        )
        deciding = [name for name in names if any(fnmatch(name, each) for each in DECIDING)]
        files = {name: (folder / name).resolve() for name in deciding}
        marks = {str(path): _mark(path) for path in files.values()}
        new = [path for path, mark in marks.items() if known.get(path, {}).get("mark") != mark]
        with ThreadPoolExecutor() as pool:
            fresh = dict(zip(new, pool.map(file_digest, new), strict=True))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"cannot be read ({error})", where=str(folder)) from error
    known |= {path: {"mark": marks[path], "sha256": sha} for path, sha in fresh.items()}
    if fresh:
        _write_known(known)
    return {name: str(known[str(path)]["sha256"]) for name, path in files.items()}


def has_safetensors(folder: Path) -> bool:
    """Tell whether a folder holds weights that can be read."""
    return any(folder.glob("*.safetensors"))


def pickled_files(folder: Path) -> list[Path]:
    """List the files of a folder's pickled weights, whole or in parts; none where it has none."""
    if (whole := folder / PICKLED).is_file():
        return [whole]
    return sorted(path for path in folder.glob("pytorch_model-*.bin") if path.is_file())


def refuse_pickled(folder: Path, name: str) -> None:
    """Refuse a checkpoint whose only weights are pickled.

    Raises
    ------
    ModelError: says how to convert them.
    """
    if not has_safetensors(folder) and (files := pickled_files(folder)):
        raise ModelError(
            f"its weights are pickled ({files[0].name}), and a study unpickles nothing",
            where=name,
            cure=cure_of(name),
        )


def cure_of(name: str) -> str:
    """Say what mends a checkpoint without safetensors."""
    return (
        f"convert its weights once with `raybias convert {name} --out FOLDER` and name that folder,"
        " or give a revision that has safetensors"
    )


def file_digest(path: str | Path) -> str:
    """Compute the sha256 of a file."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _mark(path: Path) -> list[int]:
    """Size and times of change; a program can set the first time back, but not the second."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _cache() -> Store:
    import pooch

    return Store(pooch.os_cache("raybias"))


def _read_known() -> dict[str, Any]:
    try:
        known = json.loads(_cache().read_text(_HASHES))
    except (OSError, ValueError, RaybiasError):
        return {}
    whole = isinstance(known, dict) and all(isinstance(each, dict) for each in known.values())
    return known if whole else {}


def _write_known(known: Mapping[str, Any]) -> None:
    there = {path: each for path, each in known.items() if Path(path).exists()}
    # A home that cannot be written costs time and nothing else.
    with suppress(RaybiasError):
        _cache().write_text(_HASHES, json.dumps(there, indent=1))
