"""The study file: what is measured, on which models, with which rules.

Every field has a line of documentation; every class checks itself where it is
built. Options that differ between the `paper` and `strict` profiles are None
here until `resolve` fills them in, so that a written study names every value.
It knows nothing of torch, Ray or the data itself.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from raybias.errors import ConfigError
from raybias.schema import LABELS

Profile = Literal["paper", "strict"]
Interval = Literal["normal", "t", "bootstrap"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$")]


class Section(BaseModel):
    """Base of all study sections: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in cls.model_fields:
                    near = difflib.get_close_matches(str(name), cls.model_fields, n=1, cutoff=0.5)
                    hint = (
                        f"did you mean {near[0]!r}?"
                        if near
                        else (f"known keys: {', '.join(cls.model_fields)}")
                    )
                    raise ValueError(f"unknown key {name!r}; {hint}")
        return data


class Backbone(Section):
    """A frozen pretrained causal language model."""

    id: str
    """Hugging Face id or local path; `planted` is the embedded demonstration model."""
    name: Name = ""
    """Short name in tables and file names; the last part of `id` by default."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of the frozen weights; prompts, label logits and losses stay float32."""
    bos: Literal["tokenizer", "prepend", "none"] = "tokenizer"
    """Begin-of-sequence token before a text: as the tokenizer adds it, exactly one, or none."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"id": data}
        if isinstance(data, dict) and isinstance(data.get("id"), str) and not data.get("name"):
            data = {**data, "name": data["id"].rstrip("/").rpartition("/")[2]}
        return data


class _Sourced(Section):
    """A data set that is named after its source unless the study says otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("source"), str):
            data = {**data, "name": data["source"]}
        return data


class TrainingSet(_Sourced):
    """Labelled sentences that adapters are tuned on."""

    source: Literal["sst5", "semeval2018", "planted", "file", "hub"]
    """Which published set, `file` for your own CSV or Parquet, or `hub` for a `datasets` id."""
    name: Name = ""
    """Short name in tables and file names; the source by default."""
    data: str | None = None
    """Folder with the published files, a folder of train/validation/test files, or a hub id."""
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

    source: Literal["amazon", "planted", "file"]
    """Which probe, or `file` for your own CSV or Parquet (text, label, attribute, group)."""
    name: Name = ""
    """Short name in tables and file names; the source by default."""
    data: str | None = None
    """Folder with the published files, or your own file."""
    attributes: tuple[str, ...] | None = None
    """Which protected attributes; all by default."""
    reference_groups: dict[str, tuple[str, ...]] = {}
    """Per attribute, the groups whose mean a gap is taken from; the papers' by default."""


class EarlyStop(Section):
    """Stop when an evaluation loss exceeds every one of the last few (001, section 3)."""

    after_step: int = Field(2500, ge=0)
    """Nothing stops at or before this step."""
    window: int = Field(5, ge=1)
    """How many previous evaluation losses the newest must exceed, strictly."""
    count_early: bool = True
    """Whether losses seen before `after_step` belong to the window."""


class SoftPrompt(Section):
    """Packed soft-prompt tuning of a frozen backbone (001)."""

    kind: Literal["soft_prompt"] = "soft_prompt"
    """Names the method."""
    prompt_length: int = Field(8, ge=1)
    """Number P of prompt vectors."""
    init: Literal["normal", "zeros"] = "normal"
    """Initial delta: Normal(0, init_std), keyed by the seed, or zeros."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial delta."""
    learning_rates: tuple[float, ...] = Field((1e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    sweep_seeds: int = Field(1, ge=1)
    """How many of the seeds, from the first, the sweep runs."""
    weight_decay: float = Field(1e-2, ge=0)
    """AdamW decay; it acts on the delta."""
    batch_size: int = Field(8, ge=1)
    """Rows of one seed's step."""
    eval_every: int = Field(125, ge=1)
    """Steps between evaluations on the whole validation set."""
    early_stop: EarlyStop = EarlyStop()
    """The stopping rule."""
    max_steps: int | None = Field(None, ge=1)
    """A guard; without it a slowly falling loss can run for ever."""
    restore_best: bool | None = None
    """Keep the weights of the lowest evaluation loss instead of the last (paper no, strict yes)."""
    append_eos: bool = False
    """Put EOS after the text, so that the label is read there."""
    seeds: tuple[int, ...] = Field(tuple(range(1001, 1016)), min_length=1)
    """One run per seed; a seed rules the initial delta and the data order."""
    keep: int = Field(5, ge=1)
    """How many runs, best by validation accuracy, are probed."""
    allow_failed: bool = False
    """Go on when fewer runs than seeds finish, as long as `keep` do."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        repeated = sorted({s for s in self.seeds if self.seeds.count(s) > 1})
        if repeated:
            raise ValueError(f"seeds repeat: {', '.join(map(str, repeated))}; list each once")
        if self.keep > len(self.seeds):
            raise ValueError(f"keep is {self.keep} but there are {len(self.seeds)} seeds")
        if self.sweep_seeds > len(self.seeds):
            raise ValueError(f"sweep_seeds is {self.sweep_seeds}, seeds are {len(self.seeds)}")
        if len(set(self.learning_rates)) < len(self.learning_rates):
            raise ValueError("learning_rates repeat; list each once")
        return self


class Verbalizer(Section):
    """Label -> word whose first token's LM-head row gives that label's logit."""

    negative: str = "negative"
    """Word for label 0."""
    neutral: str = "neutral"
    """Word for label 1."""
    positive: str = "positive"
    """Word for label 2."""

    def words(self) -> tuple[str, ...]:
        """The words in label order."""
        return tuple(getattr(self, label) for label in LABELS)


class Statistics(Section):
    """How gaps, intervals and significance are computed."""

    interval: Interval | None = None
    """normal: 1.96 sd/sqrt(n); t: Student; bootstrap: over templates (paper normal, strict t)."""
    level: float = Field(0.95, gt=0, lt=1)
    """Confidence level of the intervals."""
    adjust: Literal["none", "benjamini_hochberg"] | None = None
    """Correction for many tests within a table (paper none, strict Benjamini-Hochberg)."""
    bootstrap_draws: int = Field(10_000, ge=100)
    """Draws of the template-cluster bootstrap."""
    bootstrap_seed: int = 0
    """Seed of the bootstrap."""

    def resolve(self, profile: Profile) -> Self:
        """The same rules with what the profile decides filled in."""
        strict = profile == "strict"
        chosen = {
            "interval": self.interval or ("t" if strict else "normal"),
            "adjust": self.adjust or ("benjamini_hochberg" if strict else "none"),
        }
        return self.model_copy(update=chosen)


class Resources(Section):
    """Where the work runs; never changes what it computes."""

    train_workers: int | None = Field(None, ge=1)
    """Ray Train workers; as many as the cluster holds by default."""
    cpus_per_worker: int = Field(1, ge=1)
    """CPUs (and torch threads) of one worker or replica."""
    gpus_per_worker: int | None = Field(None, ge=0, le=1)
    """GPUs of one worker or replica; one where the cluster has any."""
    shard: Literal["auto", "never", "zero3"] = "auto"
    """Shard a backbone over the workers with ZeRO-3; auto: when it does not fit one device."""
    replicas_min: int = Field(1, ge=1)
    """Ray Serve replicas to start with."""
    replicas_max: int | None = Field(None, ge=1)
    """Ray Serve replicas to scale to; as many as the cluster holds by default."""
    rows_per_shard: int = Field(512, ge=1)
    """Items of one request and one predictions file."""
    tokens_per_batch: int = Field(4096, ge=16)
    """Token budget of one forward pass."""
    max_failures: int = Field(3, ge=0)
    """Worker failures that Ray Train recovers from."""
    memory_per_device: str | None = None
    """Memory of one device, such as `80GiB`, where it cannot be read from the cluster."""


class Study(Section):
    """One study: backbones x methods x training sets x probes."""

    name: Name
    """Names the study in its report."""
    profile: Profile = "strict"
    """`paper` reproduces the papers, quirks included; `strict` is statistically right."""
    backbones: tuple[Backbone, ...] = Field(min_length=1)
    """The frozen models."""
    methods: tuple[SoftPrompt, ...] = Field((SoftPrompt(),), min_length=1)
    """How a backbone is made to classify."""
    training: tuple[TrainingSet, ...] = Field(min_length=1)
    """What adapters are tuned on; each set separately."""
    probes: tuple[Probe, ...] = Field(min_length=1)
    """What the tuned classifiers are run on."""
    verbalizer: Verbalizer = Verbalizer()
    """The label words."""
    statistics: Statistics = Statistics()
    """How gaps are judged."""
    resources: Resources = Resources()
    """Where the work runs."""
    limit: int | None = Field(None, ge=1)
    """Only the first N items of each attribute, to try a study out."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for part in ("backbones", "training", "probes"):
            names = [section.name for section in getattr(self, part)]
            repeated = sorted({n for n in names if names.count(n) > 1})
            if repeated:
                raise ValueError(f"{part} share the name {repeated[0]!r}; give each its own `name`")
        return self

    def resolve(self) -> Study:
        """The same study with every option that the profile decides filled in."""
        strict = self.profile == "strict"
        methods = tuple(
            m if m.restore_best is not None else m.model_copy(update={"restore_best": strict})
            for m in self.methods
        )
        return self.model_copy(
            update={"methods": methods, "statistics": self.statistics.resolve(self.profile)}
        )


def load_study(
    path: str | Path,
    *,
    overrides: tuple[str, ...] = (),
    profile: Profile | None = None,
    limit: int | None = None,
) -> Study:
    """Read and resolve a study file.

    Parameters
    ----------
    path: the YAML file; relative data and model paths in it are taken from its folder.
    overrides: `key=value` pairs, dotted into sections and list positions
        (`methods.0.max_steps=200`); values are YAML.
    profile, limit: override the file's.

    Raises
    ------
    ConfigError: unreadable, not YAML, unknown or wrong keys.
    """
    source = Path(path)
    try:
        data = yaml.safe_load(source.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read ({error.strerror})", where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"not YAML ({error})", where=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("holds no keys", where=str(path), cure="see jobs/ for examples")
    for text in overrides:
        _override(data, text)
    if profile is not None:
        data["profile"] = profile
    if limit is not None:
        data["limit"] = limit
    return _rebased(parse_study(data, where=str(path)), source.parent).resolve()


def parse_study(data: dict[str, Any], *, where: str = "study") -> Study:
    """Check a mapping against `Study`; one `ConfigError` line for the first thing wrong."""
    try:
        return Study.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] in ("value_error", "missing") else f" (got {first['input']!r})"
        # A wrong entry also makes the list around it too short; that is no second fault.
        more = sum(each["loc"] != first["loc"][: len(each["loc"])] for each in error.errors()[1:])
        rest = f" (and {more} more)" if more else ""
        raise ConfigError(
            f"{place + ': ' if place else ''}{message}{given}{rest}", where=where
        ) from error


def _override(data: dict[str, Any], text: str) -> None:
    dotted, equals, raw = text.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {text!r} is not key=value", cure="such as methods.0.keep=3")
    *parents, last = dotted.split(".")
    node: Any = data
    try:
        value = yaml.safe_load(raw)
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value
    except (yaml.YAMLError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--set {text!r} does not fit the study ({error})",
            cure="dots go into sections, numbers into lists: methods.0.keep=3",
        ) from error


def _rebased(study: Study, folder: Path) -> Study:
    """Paths in a study file are relative to that file, wherever it is run from."""

    def local(text: str | None) -> str | None:
        # The embedded model keeps its name, even beside a folder that bears it.
        if text is None or text == "planted" or "://" in text or Path(text).is_absolute():
            return text
        candidate = folder / text
        return str(candidate.resolve()) if candidate.exists() else text

    def each(sections: tuple[Any, ...], field: str) -> tuple[Any, ...]:
        return tuple(s.model_copy(update={field: local(getattr(s, field))}) for s in sections)

    return study.model_copy(
        update={
            "backbones": each(study.backbones, "id"),
            "training": each(study.training, "data"),
            "probes": each(study.probes, "data"),
        }
    )
