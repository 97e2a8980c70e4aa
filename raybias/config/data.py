"""What is measured, and what it is measured on: backbones, training sets, probes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raybias.config.section import (
    Choices,
    Location,
    Name,
    Registered,
    Section,
    from_folder,
    name_of,
)
from raybias.schema import LABELS

#: What a backbone can do: hand out its weights; write after the messages of a chat or after plain
#: text; tell the likeliest first tokens of an answer; tell how likely a given text follows another.
Ability = Literal["weights", "chat", "text", "first_tokens", "likelihoods"]
EVERYTHING: Final = frozenset(get_args(Ability))
#: The record that `raybias data convert` writes beside the weights.
CONVERTED: Final = "converted.json"
#: What stands for the api of a backbone whose weights are loaded.
WEIGHTS: Final = "weights"
#: The api of an endpoint that names none.
DEFAULT_API: Final = "openai"


class Backbone(Section):
    """A frozen pretrained causal language model."""

    id: str
    """Hugging Face id or local path; `planted` is the embedded demonstration model."""
    name: Name = ""
    """Short name in tables and file names; by default the last part of `id`, with a hyphen in place
    of what no name may have, and the quantisation of a folder that was converted from GGUF, such as
    `smollm2-Q4_1`."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the frozen weights; prompts, label logits and losses stay float32. auto is
    decided once per OUT: bfloat16 where the hardware multiplies in it, float32 elsewhere."""
    bos: str = Field("tokenizer", min_length=1)
    """Begin-of-sequence token before a text: as the tokenizer adds it (`tokenizer`), exactly one
    (`prepend`), `none`, or exactly one that is named, such as `<|endoftext|>`. Pair scores,
    sentence likelihoods and soft prompts begin with the same token in any case: the named one, or
    else the tokenizer's BOS (without one, its EOS); where that marks the turns of a chat, the token
    that separates documents. OUT/study.yaml records it."""

    #: Fields that never change an answer, and so may differ when a study goes on.
    never_change_answers: ClassVar[frozenset[str]] = frozenset()
    #: Whether it is a checkpoint that workers load, by whatever engine.
    is_checkpoint: ClassVar[bool] = True
    #: Whether several workers can share its weights.
    can_shard: ClassVar[bool] = True

    @property
    def abilities(self) -> frozenset[Ability]:
        """What methods can ask of it."""
        return EVERYTHING

    @property
    def gpu_share(self) -> float:
        """The share of a GPU that its engine takes, however little it needs; 1: what it needs."""
        return 1.0

    def as_installed(self) -> Self:
        """Return the backbone with its engine's installed version; the built-in engine has none."""
        return self

    def check_device(self, gpus: int) -> None:
        """Refuse devices that its engine does not run on (0 GPUs: CPUs); ours runs on all."""

    def text_encoder(self) -> Any:
        """Return what writes prompts in a tokenizer's place; nothing where there is one."""
        return None

    @field_validator("id")
    @classmethod
    def _from_folder(cls, text: str, info: ValidationInfo) -> str:
        return from_folder(text, info) if cls.is_checkpoint else text

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, str):
            data = {"id": data}
        if isinstance(data, dict) and isinstance(data.get("id"), str) and not data.get("name"):
            name = name_of(data["id"].rstrip("/").rpartition("/")[2])
            if cls.is_checkpoint:
                # A study file's paths are relative to its folder.
                how = _quantisation(Path(info.context or "", data["id"]))
                name += f"-{how}" if how.lower() not in name.lower() else ""
            data = {**data, "name": name}
        return data


def _quantisation(folder: Path) -> str:
    """Return the quantisation of the GGUF file that a folder was converted from, or nothing."""
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads((folder / CONVERTED).read_text()).get("quantisation", ""))
    return ""


def _api(data: Any) -> str:
    """Return the `api` of a backbone, or of a mapping that will be one; `WEIGHTS` without any."""
    if not isinstance(data, dict):
        return str(getattr(data, "api", WEIGHTS))
    named = "api" in data or "endpoint" in data
    return str(data.get("api", DEFAULT_API)) if named else WEIGHTS


#: Any backbone that a study can name.
AnyBackbone = Annotated[
    Backbone,
    Choices("api", "api", _api, "unknown api of an endpoint; known: %s", {WEIGHTS: Backbone}),
]


class _Sourced(Section):
    """A data set that is named after its source unless the study says otherwise."""

    source: str
    name: Name = ""
    """Short name in tables and file names; the source by default."""
    data: Location | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("source"), str):
            data = {**data, "name": data["source"]}
        return data


class TrainingSet(_Sourced):
    """Labelled sentences that adapters are tuned on."""

    source: Annotated[str, Registered("training set")]
    """Which published set, `file` for your own CSV or Parquet, or `hub` for a `datasets` id."""
    data: Location | None = None
    """Folder with the published files, a folder of train/validation/test files, one file (a pool
    that demonstrations are drawn from), or a hub id."""
    revision: str | None = None
    """Revision of a hub data set."""
    labels: dict[str, Literal["negative", "neutral", "positive"]] | None = None
    """For `file` and `hub`: how the label column's values map; 0, 1, 2 or the names by default."""
    text_column: str = "text"
    """For `file` and `hub`: the column of sentences."""
    label_column: str = "label"
    """For `file` and `hub`: the column of labels."""


class Probe(_Sourced):
    """Labelled sentences about protected groups."""

    source: Annotated[str, Registered("probe")]
    """Which probe, or `file` for your own CSV or Parquet (text, label, attribute, group)."""
    data: Location | None = None
    """Folder with the published files, your own file, or a card that says what its columns are
    (`raybias probes new`)."""
    attributes: tuple[str, ...] | None = Field(None, min_length=1)
    """Which protected attributes; all by default."""
    reference_groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Per attribute, the groups whose mean a gap is taken from; the papers' by default."""
    unmarked: bool = False
    """Add each template without its group term and with a neutral placeholder, as extra groups
    outside the mean, so that the effect of being marked at all is measured."""
    placeholders: tuple[str, ...] = ("local", "particular")
    """The neutral words, which say nothing of a group."""


class PairProbe(_Sourced):
    """Sentences in pairs, for the preference between their sides or for coreference (Zhao2025)."""

    source: Annotated[str, Registered("pair probe")]
    """Which probe, or your own file: `pairs` (sent_more, sent_less, bias_type) for pair_score,
    `coreferences` (pair_id, condition, text, pronoun, referent) for coreference."""
    data: Location | None = None
    """Folder with the published files, your own file, or a card that says what its columns are
    (`raybias probes new`)."""
    kinds: tuple[str, ...] | None = Field(None, min_length=1)
    """Bias types (or WinoBias types); all by default."""


class QuestionProbe(_Sourced):
    """Questions with options, triples of sentences, or decisions about people."""

    source: Annotated[str, Registered("question probe")]
    """Which probe, or your own: `options`, `triples` or `decisions`."""
    data: Location | None = None
    """The published file or folder of them, your own file, or a card that says what its columns
    are (`raybias probes new`)."""


class Verbalizer(Section):
    """Label -> word whose first token's LM-head row gives that label's logit."""

    negative: str = "negative"
    """Word for label 0."""
    neutral: str = "neutral"
    """Word for label 1."""
    positive: str = "positive"
    """Word for label 2."""

    def words(self) -> tuple[str, ...]:
        """Return the words in label order."""
        return tuple(getattr(self, label) for label in LABELS)
