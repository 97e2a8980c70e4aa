"""The parts of a study: backbones, methods, data sets and styles.

Of a method there are its fields, and what follows from them before any model is read; its work is
in `methods.base.Method`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raybias.config.labels import LabelCodes
from raybias.config.section import (
    Amount,
    Choices,
    Count,
    Location,
    Name,
    Place,
    Profile,
    Registered,
    Section,
    Seed,
    by_profile,
    from_folder,
    name_of,
    path_from_folder,
)
from raybias.registry import registry_of
from raybias.schema import OutputSpec

#: Abilities of a backbone: hand out its weights; write after the messages of a chat or after plain
#: text; tell the likeliest first tokens of an answer; tell how likely a given text follows another.
Ability = Literal["weights", "chat", "text", "first_tokens", "likelihoods", "predict"]
EVERYTHING: Final = frozenset(get_args(Ability)) - {"predict"}
#: The record that `raybias data convert` writes beside the weights.
CONVERTED: Final = "converted.json"
#: The api of a backbone whose weights are loaded.
WEIGHTS: Final = "weights"
#: The api of an endpoint that names none.
DEFAULT_API: Final = "openai"
#: The kind of a method that names none.
DEFAULT_KIND: Final = "soft_prompt"
#: The lists of a study that methods read.
Reads = Literal["probes", "pairs", "questions"]
#: How methods make classifiers of backbones.
Way = Literal["soft_prompt", "tuned", "prompted", ""]


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
    weights_of: str = ""
    """Names the backbone that has the same weights, where this one reads them with another engine
    or in another precision: tables then say what of a gap is the engine's, and claims over models
    count the model once."""

    #: Fields that never change an answer, and so may differ when a study goes on.
    never_change_answers: ClassVar[frozenset[str]] = frozenset(("weights_of",))
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
                how = converted_from(Path(info.context or "", data["id"]))
                name += f"-{how}" if how.lower() not in name.lower() else ""
            data = {**data, "name": name}
        return data


def converted_from(folder: str | Path) -> str:
    """Return the quantisation of the GGUF file that a folder was converted from, or nothing."""
    with suppress(OSError, ValueError, AttributeError):
        return str(json.loads(Path(folder, CONVERTED).read_text()).get("quantisation", ""))
    return ""


def _api_of(data: Any) -> str:
    """Return the api of a backbone that names none, by its other keys."""
    if not isinstance(data, dict):
        return WEIGHTS
    if "predict" in data:
        return "predict"
    return DEFAULT_API if "endpoint" in data else WEIGHTS


#: Any backbone that a study can name.
AnyBackbone = Annotated[
    Backbone,
    Choices(
        "api",
        "api",
        _api_of,
        "unknown api of an endpoint; known: %s",
        {WEIGHTS: Backbone},
    ),
]


class MethodFields(Section):
    """How labels or scores are got from a backbone, as a study says it."""

    kind: str = ""
    """Names the kind of method."""
    name: Name = ""
    """Names the method in tables and run ids; its kind by default."""
    backbones: tuple[str, ...] = ()
    """Names of the backbones it is used on; all by default."""
    training: tuple[str, ...] = ()
    """Names of the training sets that it is tuned on, or takes demonstrations from, each
    separately; all by default."""

    trains: ClassVar[bool] = False
    """Whether its runs are tuned on a training set before they read a probe."""
    needs_training_set: ClassVar[bool] = False
    """Whether it has runs for each training set: it tunes on it or takes demonstrations from it."""
    reads: ClassVar[Reads] = "probes"
    """Which list of the study it reads."""
    way: ClassVar[Way] = ""
    """How it makes a classifier of sentences: by soft prompts, tuning of other weights, or prompts;
    empty if it makes none. The figures of the papers are of one way each."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            kind = cls.model_fields["kind"].default
            data = {"kind": kind, **data, "name": data.get("name") or kind}
        return data

    @property
    def uses_training_set(self) -> bool:
        """Whether a training set changes what it does, also if it works without one."""
        return self.needs_training_set

    def needs(self, offered: frozenset[Ability]) -> Mapping[Ability, str]:
        """List what a backbone must be able to do, each with the options that need it less.

        Where one ability or another will do, it is what the backbone has `offered`.
        """
        return {"weights": ""}

    @property
    def judged_by(self) -> str:
        """What labels the texts that it has a backbone write; empty where the backbone labels."""
        return ""

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        """Models that it loads beside the backbone, by what they are to it."""
        return {}

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the method with the revision of each of its `checkpoints` replaced."""
        return self

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with what depends on the backbone filled in; no weights are read.

        labels: the study's, in order.
        Raises ConfigError or ModelError: options that the backbone or the labels cannot have.
        """
        return self

    @property
    def n_runs(self) -> int:
        """Runs that read the probes, for each training set where it needs one."""
        return 1

    def count_shots(self, labels: int) -> int:
        """Count the demonstrations in a prompt, given the number of labels."""
        return 0

    @property
    def selection(self) -> str | None:
        """The split by whose accuracy runs are kept; None where all of them are."""
        return None

    @abstractmethod
    def output(self) -> OutputSpec:
        """Say where rows are stored, and in which columns."""


def default_methods() -> tuple[MethodFields, ...]:
    """Return the methods of a study that names none: soft-prompt tuning."""
    return (registry_of("method")[DEFAULT_KIND].model_validate({}),)


#: Any registered method; a study file names it by its `kind`.
AnyMethod = Annotated[
    MethodFields,
    Choices(
        "method",
        "kind",
        lambda data: DEFAULT_KIND if isinstance(data, dict) else "",
        "unknown kind of method; known kinds: %s, each in a section such as {kind: lora}",
    ),
]


class _Sourced(Section):
    """A data set that is named after its source unless the study says otherwise."""

    source: str
    name: Name = ""
    """Short name in tables and file names; the source by default."""
    data: str | None = None
    """The published file or folder of them, your own file, or a card that says what its columns
    are (`raybias probes new`)."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("source"), str):
            data = {**data, "name": data["source"]}
        return data

    @field_validator("data")
    @classmethod
    def _from_folder(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is None:
            return None
        of_hub = info.data.get("source") == "hub"
        return from_folder(text, info) if of_hub else path_from_folder(text, info)


class TrainingSet(_Sourced):
    """Labelled sentences that adapters are tuned on."""

    source: Annotated[str, Registered("training set")]
    """Which published set, `file` for your own CSV or Parquet, or `hub` for a `datasets` id."""
    data: str | None = None
    """Folder with the published files, a folder of train/validation/test files, one file (a pool
    that demonstrations are drawn from), or a hub id."""
    revision: str | None = None
    """Revision of a hub data set."""
    labels: LabelCodes | None = Field(None, min_length=1)
    """For `file` and `hub`: how the label column's values map to the study's labels; by default the
    labels themselves, or their numbers from 0. Of sentiment, 0 and 1 alone need it, for in some
    files 0 is negative, in others neutral; a 2 or a -1 among them decides."""
    text_column: str = "text"
    """For `file` and `hub`: the column of sentences."""
    label_column: str = "label"
    """For `file` and `hub`: the column of labels."""


class Probe(_Sourced):
    """Labelled sentences about protected groups."""

    source: Annotated[str, Registered("probe")]
    """Which probe, or `file` for your own CSV or Parquet (text, label, attribute, group), whose
    labels are the study's or their numbers from 0."""
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
    kinds: tuple[str, ...] | None = Field(None, min_length=1)
    """Bias types (or WinoBias types); all by default."""


class QuestionProbe(_Sourced):
    """Questions with options, triples of sentences, or decisions about people."""

    source: Annotated[str, Registered("question probe")]
    """Which probe, or your own: `options`, `triples` or `decisions`."""


class StyleOptions(Section):
    """What the rule styles leave open (Zhao2025 prints examples that differ)."""

    evidential: Literal["Apparently", "Evidently"] = "Apparently"
    """The word that the evidential style puts first, on all sides of a pair."""
    evidential_comma: bool = True
    """Whether a comma follows it."""
    evidential_case: Literal["keep", "lower"] = "keep"
    """Leave the sentence's own capital, or take it away where all sides of a pair begin with a
    word like `the` or `she`."""
    question: Literal["first", "second", "seeded"] = "first"
    """The opening of question_answer: "Know what?", "Want to hear something?", or one of them
    drawn per pair."""


StyleName = Annotated[str, Registered("style")]


class Checkpoint(Section):
    """A model from a hub id or a local folder, with safetensors weights."""

    model: Location
    """Hugging Face id or local path."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of its weights."""

    def spec(self) -> Backbone:
        """Return the checkpoint as a backbone that the engine loads."""
        return Backbone(id=self.model, revision=self.revision, dtype=self.dtype)


class Adequacy(Checkpoint):
    """The judge of whether a rewritten sentence still means the same."""

    kind: Literal["classifier", "embedding"] = "classifier"
    """A sequence classifier of (sentence, rewritten) whose label 1 says yes, or an encoder whose
    mean-pooled embeddings are compared by their cosine."""
    threshold: float = Field(0.95, ge=-1, le=1)
    """The least probability or cosine; the paper's for a classifier."""


class Rewriting(Checkpoint):
    """A checkpoint of T5's kind that rewrites sentences."""

    instruction: str | None = None
    """Text before each sentence; by default Styleformer's words for the style."""
    candidates: Count = Field(5, ge=1)
    """How many are drawn for each sentence."""
    temperature: float = Field(1.0, gt=0)
    """Of the draw."""
    top_k: Amount = Field(50, ge=0)
    """How many tokens may be drawn; 0 for all."""
    top_p: float = Field(0.95, gt=0, le=1)
    """The share of probability that may be drawn."""
    max_length: Count = Field(128, ge=2)
    """Tokens of a sentence and of what is made of it. A longer sentence is left as it is, and
    what does not end within it is dropped; nothing is cut."""
    adequacy: Adequacy
    """The judge of rewritten sentences."""
    paired: Literal["separate", "mirror"] = by_profile(paper="separate", strict="mirror")
    """Rewrite both sides of a pair, or one and transfer the edit to the other."""

    @property
    def specs(self) -> tuple[Backbone, Backbone]:
        """The checkpoint and its judge as backbones that the engine loads."""
        return self.spec(), self.adequacy.spec()


class Styles(Section):
    """Which styles pairs come in, and how they are made."""

    names: tuple[StyleName, ...] = Field(("original",), min_length=1)
    """original, prefix_1 to prefix_3, punctuation, evidential, question_answer, lowercase,
    contractions and typos by rule; formal and informal from `files` or by `rewriting`. A probe
    takes those that it has."""
    options: StyleOptions = StyleOptions()
    """What the rules leave open."""
    files: tuple[Place, ...] = ()
    """Styled pairs of your own: pair_id, style, sent_more, sent_less."""
    rewriting: dict[StyleName, Rewriting] = Field(default_factory=dict)
    """For formal, informal or both: the checkpoint that makes the style, and its judge."""
    seed: Seed = 0
    """Seeds the random draws of each pair."""
    repeats: int = Field(1, ge=1, le=100)
    """How often each pair of sentences is put into every style, with draws of its own: scores are
    means over the repeats (Zhao2025 averages three), and intervals take a pair's repeats to be
    alike. Only rewritten and seeded styles differ between repeats."""

    @model_validator(mode="after")
    def _each_is_made(self) -> Self:
        styles = registry_of("style")
        for style in self.rewriting:
            if styles[style].rule is not None:
                raise ValueError(f"rewriting makes {style!r}, which a rule makes; take it out")
            if style not in self.names:
                raise ValueError(f"rewriting makes {style!r}, which `names` lacks; add it there")
        for style in self.names:
            if styles[style].rule is None and style not in self.rewriting and not self.files:
                raise ValueError(
                    f"no rule makes {style!r}; give a file of such pairs in `files`, or a"
                    " checkpoint in `rewriting`"
                )
        return self

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the styles with the revisions of their models replaced; see `Study.pinned`."""
        made = {
            style: options.model_copy(
                update={
                    "revision": revisions[f"rewriting {style}"],
                    "adequacy": options.adequacy.model_copy(
                        update={"revision": revisions[f"adequacy {style}"]}
                    ),
                }
            )
            for style, options in self.rewriting.items()
        }
        return self.model_copy(update={"rewriting": made})
