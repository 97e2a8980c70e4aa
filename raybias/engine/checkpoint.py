"""Find the files that a model's id names, bring them to this machine and read its configuration.

An id names a folder or a hub model, whose commit one short request finds, so that without a network
it fails in seconds. RAYBIAS_MODELS may name a mirror, a folder or bucket in the form of the hub's
cache, as `hf download ID` and `aws s3 sync ~/.cache/huggingface/hub s3://BUCKET/models` make one;
it replaces the hub. Quantised checkpoints, loaded with their package (torchao and its like),
compute in the dtype that they were saved for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from platformdirs import user_cache_path
from pyarrow import fs

from raybias.config import Backbone
from raybias.engine.adapter_folder import ADAPTER_CONFIG, RAYBIAS, PeftAdapter, adapter_in
from raybias.errors import ModelError, RaybiasError, quoting, said_by
from raybias.storage import Store
from raybias.terminal import debugging

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PretrainedConfig

#: The environment variable that names the mirror of the hub, on every node.
MIRROR: Final = "RAYBIAS_MODELS"
#: The model that the id `planted` names.
PLANTED: Final = Path(__file__).parents[1] / "assets" / "planted"
_WEIGHTS: Final = "*.safetensors"
#: Files that decide what a model computes; others in its folder may change.
DECIDING: Final = (
    *(_WEIGHTS, "*.safetensors.index.json", "config.json", "generation_config.json"),
    *(ADAPTER_CONFIG, RAYBIAS, "processor_config.json", "preprocessor_config.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("additional_chat_templates/*", "vocab*", "merges.txt", "*.model", "*.spm", "*.codes"),
)
#: Second copies of a model's weights, in other formats.
_AGAIN: Final = (f"*/{_WEIGHTS}", "consolidated*")
#: Weights that may be in a checkpoint instead of safetensors, whole or in parts.
PICKLED: Final = "pytorch_model.bin"
PICKLED_PARTS: Final = "pytorch_model-*.bin"
CONFIG: Final = "config.json"
MODEL_CURE: Final = "give a hub id or a folder of a model with config.json and *.safetensors"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S: Final = 5
#: Problem and cure by the name of the hub's error; the first match counts.
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
    "EntryNotFoundError": (f"has no {CONFIG}", "give a model that transformers can load"),
}
#: Hashes of files by path, size and times of change, in the user's cache folder.
_HASHES: Final = "sha256.json"
_CHUNK: Final = 16 * 2**20


def reading_model(spec: Backbone, what: str) -> AbstractContextManager[None]:
    """Raise whatever transformers says of `what`, a model's file or part, as one `ModelError`."""
    where = spec.id if spec.revision is None else f"{spec.id}@{spec.revision}"
    problem = f"cannot load the backbone ({what}: {{}})"
    return as_model_error(problem, where=where, cure=MODEL_CURE)


@contextmanager
def as_model_error(problem: str, *, where: str, cure: str) -> Iterator[None]:
    """Raise whatever a library says inside the body, `{}` in the problem, as one `ModelError`.

    Warnings of transformers are not shown: what they are about is refused or reported by raybias.
    """
    from transformers.utils import logging

    def refusal(said: str) -> ModelError:
        return ModelError(problem.replace("{}", said), where=where, cure=cure)

    level = logging.get_verbosity()
    if not debugging():
        logging.set_verbosity_error()
    try:
        with quoting(refusal):
            yield
    finally:
        logging.set_verbosity(level)


class Located(NamedTuple):
    """A model on the hub, with its folder in this machine's cache where the hub is not used."""

    commit: str
    snapshot: Path | None = None


def folder_of(name: str) -> Path | None:
    """Return the folder that a model's id names, None for the hub's; ModelError: unusable."""
    if name.lower().endswith(".gguf") and not Path(name).is_dir():
        raise ModelError(
            "is a GGUF file, and a study loads safetensors",
            where=name,
            cure=f"convert it once with `raybias data convert {name} --out FOLDER`, and name that"
            " folder",
        )
    folder = PLANTED if name == "planted" else Path(name)
    try:
        if not folder.is_dir():
            return None
        endless = next((path for path in _files(folder) if not path.is_file()), None)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot be read ({said_by(error)})", where=name, cure="check the path"
        ) from error
    if endless is not None:
        raise ModelError(
            f"{endless.name} is a pipe or device, not a file", where=name, cure="copy what it holds"
        )
    return folder


def adapter_of(spec: Backbone) -> PeftAdapter | None:
    """Return the PEFT adapter that a model is, if its folder holds one; errors of `adapter_in`."""
    folder = folder_of(spec.id)
    return None if folder is None else adapter_in(folder)


def base_of(spec: Backbone) -> Backbone:
    """Return the base model of a PEFT adapter, and any other model as it is.

    A folder that the adapter names is sought from the working directory, then from the adapter's.
    Raises ModelError: as `adapter_in`, a folder that is not there, or an engine that reads no
    adapters.
    """
    adapter = adapter_of(spec)
    if adapter is None:
        return spec
    if type(spec) is not Backbone:
        raise ModelError(
            f"is a PEFT adapter, which a backbone with `api: {getattr(spec, 'api', '')}` cannot"
            " load",
            where=spec.id,
            cure="leave `api` out, or merge it into its base (`merge_and_unload`, then"
            " `save_pretrained`) and name that folder",
        )
    places = (adapter.base, str(adapter.folder / adapter.base))
    found = next((place for place in places if folder_of(place) is not None), adapter.base)
    if folder_of(found) is None and Path(adapter.base).is_absolute():
        raise ModelError(
            f"its base model {adapter.base} is not on this machine",
            where=spec.id,
            cure=f"write where it is in {ADAPTER_CONFIG} as base_model_name_or_path, as a folder or"
            " a hub id",
        )
    return spec.model_copy(update={"id": found, "revision": adapter.revision})


def model_hashes(spec: Backbone) -> dict[str, str]:
    """Return the sha256 of each deciding file of a local model, and of a local adapter's base.

    Raises ModelError: unreadable.
    """
    folder = folder_of(spec.id)
    hashes = {} if folder is None else file_hashes(folder)
    base = base_of(spec)
    if base is spec:
        return hashes
    of_base = folder_of(base.id)
    if of_base is None:
        return hashes | {"base": locate(base.id, base.revision).commit}
    return hashes | {f"base/{name}": digest for name, digest in file_hashes(of_base).items()}


def _files(folder: Path) -> Iterator[Path]:
    for path in (*folder.glob("*"), *folder.glob("additional_chat_templates/*")):
        if path.exists() and not path.is_dir():
            yield path


def mirror() -> Store | None:
    """Return the copy of the hub's cache that the environment names; None without one."""
    uri = os.environ.get(MIRROR)
    return Store(uri) if uri else None


def locate(name: str, revision: str | None) -> Located:
    """Find the commit of a hub model's branch, tag or commit, at the mirror or hub or in the cache.

    From a mirror the model's small files are copied too.
    Raises ModelError: no such model or revision, no access, or neither network nor cache.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_url,
        is_offline_mode,
        try_to_load_from_cache,
    )

    where = name if revision is None else f"{name}@{revision}"
    if (held := mirror()) is not None:
        return _mirrored(held, name, revision, weights=False)
    why = "HF_HUB_OFFLINE is set"
    try:
        url = hf_hub_url(name, CONFIG, revision=revision)
        if not is_offline_mode():
            commit = get_hf_file_metadata(url, timeout=_TIMEOUT_S).commit_hash
            if commit is not None:
                return Located(commit)
            why = f"no hub is at {url}"
    # Any error: those of the hub's HTTP client change with its version.
    except Exception as error:
        for kind, (problem, cure) in _REFUSALS.items():
            if isinstance(error, getattr(hub, kind)):
                raise ModelError(problem, where=where, cure=cure) from error
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        why = f"the hub does not answer ({said})"
    path = try_to_load_from_cache(name, CONFIG, revision=revision)
    if not isinstance(path, str):
        raise ModelError(
            f"is no folder here, {why}, and this machine's cache does not have it",
            where=where,
            cure="download it where there is a network (`hf download`), or give a folder",
        )
    snapshot = Path(path).parent
    return Located(snapshot.name, snapshot)


def _mirrored(
    held: Store,
    name: str,
    revision: str | None,
    *,
    weights: bool,
    also: Sequence[str] = (),
) -> Located:
    """Find a model's commit in a mirror, and copy its files that are missing here.

    also: patterns of further files to copy.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    wanted, stem = revision or "main", f"models--{name.replace('/', '--')}"
    ref = f"{stem}/refs/{wanted}"
    commit = held.read_text(ref).strip() if held.is_file(ref) else wanted
    if not _COMMIT.fullmatch(commit):
        raise ModelError(
            f"is not in the mirror {held.uri}, which {MIRROR} names",
            where=name if revision is None else f"{name}@{revision}",
            cure="copy the hub's cache with it there, or unset the variable",
        )
    snapshot = f"{stem}/snapshots/{commit}"
    here = Path(constants.HF_HUB_CACHE) / snapshot
    without = _AGAIN if weights else (*_AGAIN, _WEIGHTS)
    there = (path.removeprefix(f"{snapshot}/") for path in held.files(snapshot, recursive=True))
    wanted_files = [*DECIDING, *also]
    for file in filter_repo_objects(there, allow_patterns=wanted_files, ignore_patterns=[*without]):
        if not (here / file).exists():
            _copy(held, f"{snapshot}/{file}", here / file)
    if not here.is_dir():
        raise ModelError(
            f"has no files of commit {commit} in the mirror {held.uri}",
            where=name,
            cure="copy the hub's cache with it there",
        )
    return Located(commit, here)


def _copy(held: Store, name: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with held.translating_errors("read", name):
            fs.copy_files(
                held.path(name),
                str(partial),
                source_filesystem=held.fs,
                destination_filesystem=fs.LocalFileSystem(),
                chunk_size=_CHUNK,
            )
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


#: A process asks the hub once for each model.
_located = lru_cache(maxsize=64)(locate)


def source_of(spec: Backbone, *, weights: bool = False) -> str:
    """Return a folder or hub id to load from.

    weights: bring the weights to this machine too, if they are a mirror's or pickled: these are
        converted once, in this machine's cache.

    Of a PEFT adapter, this is the source of its base.
    """
    spec = base_of(spec)
    folder = folder_of(spec.id)
    if weights and folder is not None:
        return str(safe_weights(folder, spec.id))
    if weights and (mirror() is not None or is_pickled(spec)):
        return fetched(spec)
    return str(folder or _located(spec.id, spec.revision).snapshot or spec.id)


def safe_weights(folder: Path, where: str) -> Path:
    """Return a checkpoint's folder, or that of its converted weights if they are pickled."""
    if has_safetensors(folder) or not pickled_files(folder):
        return folder
    from raybias.engine.convert_alone import converted_weights

    return converted_weights(folder, where)


def is_pickled(spec: Backbone) -> bool:
    """Check whether a model has pickled weights only, by its folder or the hub's list of files."""
    spec = base_of(spec)
    if (folder := folder_of(spec.id)) is not None:
        return not has_safetensors(folder) and bool(pickled_files(folder))
    names = [name for name in _files_of(spec.id, spec.revision) if "/" not in name]
    pickled = any(fnmatch(name, pattern) for name in names for pattern in (PICKLED, PICKLED_PARTS))
    return pickled and not any(fnmatch(name, _WEIGHTS) for name in names)


@lru_cache(maxsize=64)
def _files_of(name: str, revision: str | None) -> tuple[str, ...]:
    """List the files of a hub model by the mirror, the hub, or this machine's cache."""
    located = _located(name, revision)
    if (held := mirror()) is not None:
        snapshot = f"models--{name.replace('/', '--')}/snapshots/{located.commit}"
        paths = held.files(snapshot, recursive=True)
        return tuple(path.removeprefix(f"{snapshot}/") for path in paths)
    if located.snapshot is None:
        from huggingface_hub import list_repo_files

        # Any error: those of the hub's HTTP client change with its version.
        with suppress(Exception):
            return tuple(list_repo_files(name, revision=located.commit))
        return ()
    return tuple(path.name for path in located.snapshot.iterdir())


def revision_of(spec: Backbone) -> str | None:
    """Return the commit of a model of the hub, or of an adapter's base; None for a folder."""
    spec = base_of(spec)
    return None if folder_of(spec.id) else _located(spec.id, spec.revision).commit


def fetched(spec: Backbone) -> str:
    """Bring a hub model's weights to this machine; return their folder. ModelError: none there."""
    spec = base_of(spec)
    pickled = (PICKLED, PICKLED_PARTS) if is_pickled(spec) else ()
    if (held := mirror()) is not None:
        mirrored = _mirrored(held, spec.id, spec.revision, weights=True, also=pickled).snapshot
        return str(safe_weights(Path(str(mirrored)), spec.id))
    folder = downloaded(spec, (*DECIDING, *pickled), _AGAIN)
    if not has_safetensors(folder) and not pickled_files(folder):
        raise ModelError(
            f"has neither safetensors nor {PICKLED}",
            where=spec.id,
            cure="give a revision that has safetensors",
        )
    return str(safe_weights(folder, spec.id))


def downloaded(spec: Backbone, files: tuple[str, ...], without: tuple[str, ...]) -> Path:
    """Download files of a model of the hub by patterns, and none `without`."""
    from huggingface_hub import snapshot_download

    with reading_model(spec, "weights"):
        folder = snapshot_download(
            spec.id,
            revision=spec.revision,
            allow_patterns=[*files],
            ignore_patterns=[*without],
        )
    return Path(folder)


def file_hashes(folder: Path) -> dict[str, str]:
    """Return each deciding file's sha256 by relative path, cached; ModelError: unreadable.

    Pickled weights are among them if the folder has no others.
    """
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    cache, known = Store(user_cache_path("raybias")), dict[str, dict[str, Any]]()
    with suppress(OSError, ValueError, RaybiasError):
        known = json.loads(cache.read_text(_HASHES))
    try:
        names = sorted(path.relative_to(folder).as_posix() for path in _files(folder))
        pickled = () if has_safetensors(folder) else (PICKLED, PICKLED_PARTS)
        deciding = filter_repo_objects(names, allow_patterns=[*DECIDING, *pickled])
        files = {name: (folder / name).resolve() for name in deciding}
        stats = ((str(path), path.stat()) for path in files.values())
        # A program can set the first time back, but not the second.
        marks = {path: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for path, s in stats}
        new = [path for path, mark in marks.items() if known.get(path, {}).get("mark") != mark]
        with ThreadPoolExecutor() as pool:
            fresh = dict(zip(new, pool.map(file_digest, new), strict=True))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"cannot be read ({said_by(error)})", where=str(folder)) from error
    if fresh:
        known |= {path: {"mark": marks[path], "sha256": sha} for path, sha in fresh.items()}
        there = {path: each for path, each in known.items() if Path(path).exists()}
        # Without a writable home the hashes are computed again.
        with suppress(RaybiasError):
            cache.write_text(_HASHES, json.dumps(there, indent=1))
    return {name: str(known[str(path)]["sha256"]) for name, path in files.items()}


def has_safetensors(folder: Path) -> bool:
    """Check whether a folder holds safetensors."""
    return any(folder.glob(_WEIGHTS))


def pickled_files(folder: Path) -> list[Path]:
    """List the files of a folder's pickled weights, whole or in parts."""
    if (whole := folder / PICKLED).is_file():
        return [whole]
    return sorted(path for path in folder.glob(PICKLED_PARTS) if path.is_file())


def refuse_pickled(spec: Backbone) -> None:
    """Refuse a checkpoint with pickled weights only, by a ModelError that names the cures."""
    if is_pickled(spec):
        raise ModelError(
            f"its weights are pickled ({PICKLED}), and --no-convert is set",
            where=spec.id,
            cure=f"leave --no-convert out, convert them once with `raybias data convert {spec.id}"
            " --out FOLDER` and name that folder, or give a revision that has safetensors",
        )


def converted_hashes(spec: Backbone) -> dict[str, str]:
    """Return the sha256 of the files that a pickled model's weights were converted to, by name."""
    if not is_pickled(spec):
        return {}
    hashes = file_hashes(Path(source_of(spec, weights=True)))
    return {name: digest for name, digest in hashes.items() if fnmatch(name, _WEIGHTS)}


def file_digest(path: str | Path) -> str:
    """Compute the sha256 of a file."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Names of sizes in the configurations of transformers.
_SIZES: Final = (
    *("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "head_dim", "vocab_size"),
    *("intermediate_size", "ffn_dim", "d_ff", "n_inner", "max_position_embeddings", "n_positions"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"),
)
#: Names of probabilities there.
_PROBABILITY: Final = re.compile(r"(dropout|pdrop|layerdrop)(_prob|_p)?$")
_MOST: Final = {**dict.fromkeys(_SIZES, 1 << 31), **dict.fromkeys(_LAYERS, 10_000)}


def read_config(spec: Backbone) -> PretrainedConfig:
    """Load a model's config.json; ModelError: missing, an unknown type, or a wrong value."""
    from transformers import AutoConfig, PretrainedConfig

    adapter = adapter_of(spec)
    if adapter is not None:
        return _config_of_adapter(spec, adapter)
    place: Any = {"revision": revision_of(spec)}
    folder = folder_of(spec.id)
    with reading_model(spec, CONFIG):
        if folder is not None and not (folder / CONFIG).is_file():
            raise ModelError(f"the folder has no {CONFIG}", where=spec.id, cure=MODEL_CURE)
        # Sizes are checked first: transformers would build whatever config.json says.
        _check_sizes(PretrainedConfig.get_config_dict(source_of(spec), **place)[0])
        config: PretrainedConfig = AutoConfig.from_pretrained(
            source_of(spec), trust_remote_code=False, **place
        )
    return config


def _config_of_adapter(spec: Backbone, adapter: PeftAdapter) -> PretrainedConfig:
    """Load the config of an adapter's base, with as many classes as its own head has.

    Their names are those of a config.json beside the adapter, or of the base if they are as many.
    """
    config = read_config(base_of(spec))
    if not adapter.is_classifier:
        return config
    from transformers import PretrainedConfig

    if (adapter.folder / CONFIG).is_file():
        with reading_model(spec, CONFIG):
            beside = PretrainedConfig.get_config_dict(adapter.folder)[0]
        names = {int(place): name for place, name in (beside.get("id2label") or {}).items()}
        if names:
            config.id2label, config.label2id = names, {name: n for n, name in names.items()}
        config.problem_type = beside.get("problem_type")
    count = adapter.count_classes()
    if count is not None and count != config.num_labels:
        config.num_labels = count
    return config


def context_of(config: PretrainedConfig) -> int | None:
    """Return the longest input in tokens that a config tells; None without a limit."""
    for name in ("max_position_embeddings", "max_seq_len"):
        if limit := getattr(config, name, None):
            return int(limit)
    return None


def read_generation(spec: Backbone) -> GenerationConfig | None:
    """Load a model's generation_config.json, None without one; ModelError for a wrong value."""
    from transformers import GenerationConfig

    with reading_model(spec, "generation_config.json"), suppress(OSError):
        own: GenerationConfig = GenerationConfig.from_pretrained(
            source_of(spec), revision=revision_of(spec)
        )
        return own
    return None


def _check_sizes(content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        # Quantisation has sizes of its own, such as the axis -1.
        if isinstance(value, dict) and name != "quantization_config":
            _check_sizes(value)
        is_number = isinstance(value, int | float)
        if _PROBABILITY.search(name) and is_number and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}, not a probability from 0 to 1")
        most = _MOST.get(name)
        if most is None or value is None:
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {most}")


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint is quantised.

    `method`: transformers' name, with the kinds of its weights; `dtype`: of other weights and of
    activations; `stored`: bytes of all weights; None where they are not on this machine.
    """

    method: str
    dtype: str
    stored: int | None


def quantisation(spec: Backbone) -> Quantisation | None:
    """Find how a checkpoint is quantised, if at all; ModelError for a dtype that it cannot have."""
    config = read_config(spec)
    found: dict[str, Any] | None = getattr(config, "quantization_config", None)
    if not found:
        return None
    dtype = str(config.dtype or "float32").removeprefix("torch.")
    kinds = found.get("quant_type") or {}
    named = [each["_type"] for each in kinds.values()] if isinstance(kinds, dict) else [kinds]
    method = " ".join([str(found.get("quant_method", "unknown")), *map(str, named)])
    if spec.dtype not in ("auto", dtype):
        raise ModelError(
            f"is quantised ({method}) and computes in {dtype}, not in {spec.dtype}",
            where=spec.id,
            cure="leave its dtype to auto",
        )
    files = [*Path(source_of(spec)).glob("*.safetensors")]
    return Quantisation(method, dtype, sum(file.stat().st_size for file in files) or None)


def dtype_of(spec: Backbone, name: str | None = None) -> torch.dtype:
    """Return torch's dtype of a name or of the backbone; `auto` is float32 outside a study."""
    import torch

    how = quantisation(spec)
    chosen = how.dtype if how is not None else name or spec.dtype
    dtype: torch.dtype = torch.float32 if chosen == "auto" else getattr(torch, chosen)
    return dtype
