"""Read a model's configuration, and raise whatever is wrong in its files as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Backbone
from raybias.engine.checkpoint import DECIDING, cure_of, folder_of, has_safetensors, locate
from raybias.engine.mirror import mirror
from raybias.errors import ModelError, of_library

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig

_CONFIG: Final = "config.json"
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: What else counts something in the configurations of transformers, by its names in them.
_SIZES: Final = (
    *("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "head_dim", "vocab_size"),
    *("intermediate_size", "ffn_dim", "d_ff", "n_inner", "max_position_embeddings", "n_positions"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"),
)
_MOST: Final = {**dict.fromkeys(_SIZES, 1 << 31), **dict.fromkeys(_LAYERS, 10_000)}
_MODEL: Final = "give a hub id or a folder of a model with config.json and *.safetensors"
#: Characters of what a library says.
_SAID: Final = 300


@contextmanager
def reading_model(spec: Backbone, what: str) -> Iterator[None]:
    """Raise whatever transformers says of a model's files as one `ModelError`.

    Parameters
    ----------
    what: the file or part that is read.
    """
    where = spec.id if spec.revision is None else f"{spec.id}@{spec.revision}"
    with as_model_error(f"cannot load the backbone ({what}: {{}})", where=where, cure=_MODEL):
        yield


@contextmanager
def as_model_error(problem: str, *, where: str, cure: str) -> Iterator[None]:
    """Raise whatever a library says inside the body as one `ModelError`.

    Parameters
    ----------
    problem: the message; `{}` stands for what the library says.
    """
    try:
        yield
    except BaseException as error:
        if not of_library(error):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(problem.replace("{}", said[:_SAID]), where=where, cure=cure) from error


def read_config(spec: Backbone) -> PretrainedConfig:
    """Read a model's config.json.

    Raises
    ------
    ModelError: no such file, another model type than transformers has, or a wrong value.
    """
    from transformers import AutoConfig, PretrainedConfig

    place: Any = {"revision": revision_of(spec)}
    folder = folder_of(spec.id)
    with reading_model(spec, _CONFIG):
        if folder is not None and not (folder / _CONFIG).is_file():
            raise ModelError(f"the folder has no {_CONFIG}", where=spec.id, cure=_MODEL)
        # Before a million layers are made.
        _check_sizes(PretrainedConfig.get_config_dict(source_of(spec), **place)[0])
        config: PretrainedConfig = AutoConfig.from_pretrained(
            source_of(spec), trust_remote_code=False, **place
        )
    return config


def read_generation(spec: Backbone) -> GenerationConfig | None:
    """Read a model's generation_config.json; None where it has none, as many models.

    Raises
    ------
    ModelError: a wrong value.
    """
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
        most = _MOST.get(name)
        if most is None or value is None:
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {most}")


def source_of(spec: Backbone) -> str:
    """Return a folder, in the hub's cache where the hub does not answer, or else a hub id."""
    folder = folder_of(spec.id) or _located(spec.id, spec.revision).snapshot
    return str(folder or spec.id)


def weights_of(spec: Backbone) -> str:
    """Return what `source_of` does; from a mirror the weights come too, if no one fetched them."""
    mirrored = folder_of(spec.id) is None and mirror() is not None
    return fetched(spec) if mirrored else source_of(spec)


def revision_of(spec: Backbone) -> str | None:
    """Return the commit of a model of the hub; None for a folder."""
    return None if folder_of(spec.id) else _located(spec.id, spec.revision).commit


def fetched(spec: Backbone) -> str:
    """Bring a model of the hub into this machine's cache; return its folder there.

    Raises
    ------
    ModelError: it is not there, and the hub does not answer, or it has no safetensors.
    """
    from huggingface_hub import snapshot_download

    if (held := mirror()) is not None:
        commit = held.commit(spec.id, spec.revision)
        return str(held.fetch(spec.id, commit, DECIDING, weights=True))

    with reading_model(spec, "weights"):
        # Folders of a model hold its weights again, in other formats.
        folder = snapshot_download(
            spec.id,
            revision=spec.revision,
            allow_patterns=[*DECIDING],
            ignore_patterns=["*/*.safetensors", "consolidated*"],
        )
    if not has_safetensors(Path(folder)):
        raise ModelError(
            "has no safetensors, and a study unpickles nothing",
            where=spec.id,
            cure=cure_of(spec.id),
        )
    return folder


#: A process asks the hub once for each model.
_located = lru_cache(maxsize=64)(locate)
