"""The study file as a whole: its statistics and resources, how it is read, its JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from raybias.config.labels import LabelWords
from raybias.config.parts import (
    DEFAULT_API,
    DEFAULT_KIND,
    WEIGHTS,
    AnyBackbone,
    AnyMethod,
    Backbone,
    MethodFields,
    PairProbe,
    Probe,
    QuestionProbe,
    Styles,
    TrainingSet,
    default_methods,
)
from raybias.config.reading import override, parse_section, read_mapping, to_yaml
from raybias.config.section import (
    Amount,
    Count,
    Name,
    Profile,
    Section,
    Seed,
    Size,
    by_profile,
    defaults_of,
)
from raybias.registry import registry_of
from raybias.schema import ALL, LABELS


class Tracking(Section):
    """Trackers that runs and tables are also logged to; results do not depend on them."""

    mlflow: str | None = None
    """Tracking URI of MLflow, such as http://server:5000 or sqlite:///mlflow.db; off without it.
    It holds no password: MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or
    MLFLOW_TRACKING_TOKEN."""
    wandb: str | None = None
    """Project of Weights & Biases; off without it."""


#: The keys that tell sections of a union apart, with the value that a file may leave out.
_TOLD_BY: Final = {"kind": DEFAULT_KIND, "api": DEFAULT_API}
_SCALARS: Final = ("string", "integer", "number")
#: How the part of a run id behind the names of model, training set and method can begin.
_RUN_PART: Final = re.compile(r"\.(?=(lr|wd|t|s)[0-9])")

Interval = Literal["normal", "t", "bootstrap"]
Scope = Literal["runs", "sentences", "wording", "widest"]


class Statistics(Section):
    """How gaps, intervals and significance are computed."""

    scope: Scope = by_profile(paper="runs", strict="widest")
    """What the interval of a gap covers as if drawn anew. runs: seeds, on these very sentences.
    sentences: runs and templates. wording: runs, templates and the words that name the groups.
    widest: the widest of these that the data allow."""
    interval: Interval = by_profile(paper="normal", strict="t")
    """normal: 1.96 standard errors; t: Student's, with Satterthwaite's degrees of freedom where
    several sources vary; bootstrap: runs, or runs and templates, drawn anew (product weights)."""
    level: float = Field(0.95, gt=0.5, le=0.9999)
    """Confidence level of the intervals."""
    looks: int = Field(1, ge=1, le=5)
    """Looks at growing samples that were planned before the first (`raybias audit --looks`), each
    judged at `level`; it is told on the page."""
    adjust: Literal["none", "benjamini_hochberg"] = by_profile(
        paper="none", strict="benjamini_hochberg"
    )
    """Correction for many tests within a table."""
    margin: float | None = Field(None, gt=0, lt=1)
    """The largest gap that does not matter, such as 0.02: a gap whose 90% interval (at level 0.95)
    lies within it on either side is `equivalent`, if the sampled templates leave no room for more
    in others: 149 without a difference for 0.02. Without it none is called so."""
    bootstrap_draws: int = Field(10_000, ge=100, le=1_000_000)
    """Draws of the bootstrap."""
    bootstrap_seed: Seed = 0
    """Seed of the bootstrap."""
    metrics: tuple[str, ...] = Field(("negative_fpr", "positive_fpr"), min_length=1)
    """What gaps are taken of: `negative_fpr`, `positive_fpr`, `accuracy`, or another metric of
    counts (`raybias measure --list`); those that are one number for all groups stand beside
    them. By default, of two other labels `fpr`, `tpr`, `selection_rate` and `accuracy`, and of more
    `accuracy`, with `tpr` and `fpr` if `positive` names a label."""
    positive: str | None = None
    """The label that metrics of one class, such as `tpr` and `fpr`, are about; by default
    `positive`, or the last of a study's two labels."""
    favourable: str | None = None
    """The label that is good for a person to be given; by default the one that all probes declare.
    Without it nothing says who gains or loses by a gap."""

    @model_serializer(mode="wrap")
    def _without_unset_labels(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `positive` and `favourable` if they are None."""
        fields: dict[str, Any] = handler(self)
        unset = [n for n in ("positive", "favourable") if fields.get(n) is None]
        return {name: value for name, value in fields.items() if name not in unset}

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        if self.interval == "bootstrap" and self.scope == "wording":
            raise ValueError(
                "a bootstrap draws no words, since groups may have one; choose interval t, or"
                " scope sentences"
            )
        return self


class NodeKind(Section):
    """A kind of node that an autoscaling cluster brings when work waits for it."""

    count: int = Field(1, ge=1, le=1000)
    """Most nodes of this kind; those that are there already count."""
    cpus: int = Field(1, ge=1, le=1024)
    """CPUs of one node."""
    memory: Size
    """Memory of one node, such as `192GiB`."""
    gpus: int = Field(0, ge=0, le=64)
    """GPUs of one node."""
    gpu_memory: Size | None = None
    """Memory of one GPU, such as `24GB`."""
    gpu: str | None = None
    """Kind of GPU as Ray names it: A100, H100, A10G, L4."""

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.gpus and self.gpu_memory is None:
            raise ValueError("a node with GPUs needs gpu_memory, such as 24GB")
        return self


class Resources(Section):
    """Where the work runs; never changes what it computes."""

    train_workers: Count | None = Field(None, ge=1)
    """Most packs of one tuning side by side; as many as the cluster holds by default."""
    share: float = Field(1.0, gt=0, le=1)
    """Part of the cluster's GPUs, or CPUs without them, that the study holds at most, so that
    others can run beside it."""
    cpus_per_worker: Count = Field(1, ge=1)
    """CPUs (and torch threads) of one worker or replica."""
    gpus_per_worker: int | None = Field(None, ge=0, le=8)
    """GPUs of one worker or replica, over which a backbone's layers are split; by default one where
    the cluster has any, and up to 8 for a backbone that needs them."""
    shard: Literal["auto", "never", "zero3"] = "auto"
    """Shard a backbone over the workers with ZeRO-3; auto: where nothing else fits, or the study
    is estimated to end a tenth sooner for it."""
    replicas_min: Count = Field(1, ge=1)
    """Fewest Ray Serve replicas of a model that reads."""
    replicas_max: Count | None = Field(None, ge=1)
    """Most Ray Serve replicas of a model that reads; as many as the cluster holds by default."""
    rows_per_shard: Amount | None = Field(None, ge=1)
    """Items of one request and one predictions file; by default, for each backbone and method, as
    many as a replica is planned to read in a few seconds. An OUT keeps those it was begun with."""
    tokens_per_batch: Amount = Field(4096, ge=16)
    """Token budget of one forward pass."""
    deterministic: bool = False
    """Have one kind of GPU tune and read the same bits again, which is slower and has each run's
    passes apart from those of others; on CPUs it changes nothing."""
    convert: bool = True
    """Whether a checkpoint with pickled weights only is converted to safetensors, once, in each
    machine's cache; false refuses it."""
    max_failures: Count = Field(3, ge=0)
    """Failures that a pack of runs, or a shard, recovers from."""
    max_preemptions: Count | None = Field(None, ge=0)
    """Preempted nodes that it recovers from beside these; any number by default."""
    memory_per_device: Size | None = None
    """Memory of one device, such as `80GiB`, where it cannot be read from the cluster."""
    nodes: tuple[NodeKind, ...] = ()
    """Nodes that the cluster's autoscaler can bring; the plan counts them too."""


class Study(Section):
    """One study: backbones x methods x training sets x probes."""

    # Methods are registered by modules that import this one.
    model_config = ConfigDict(defer_build=True)

    name: Name
    """Names the study in its report."""
    profile: Profile = "strict"
    """`paper` reproduces the papers, quirks included; `strict` is statistically right."""
    backbones: tuple[AnyBackbone, ...] = Field(min_length=1)
    """The frozen models, or endpoints that answer for them."""
    methods: tuple[AnyMethod, ...] = Field(default_factory=default_methods, min_length=1)
    """How a backbone is made to classify."""
    training: tuple[TrainingSet, ...] = ()
    """What is tuned on, and where demonstrations come from; each set separately."""
    probes: tuple[Probe, ...] = ()
    """What classifiers are run on."""
    pairs: tuple[PairProbe, ...] = ()
    """What pair_score and coreference are run on."""
    questions: tuple[QuestionProbe, ...] = ()
    """What option_likelihood, triple_likelihood and decision_likelihood are run on."""
    styles: Styles = Field(default_factory=Styles)
    """The styles of the pairs."""
    verbalizer: LabelWords = Field(default_factory=lambda: dict(zip(LABELS, LABELS, strict=True)))
    """The labels of its sentences, in order, each with the word that a model says for it, such as
    `{harmless: fine, toxic: toxic}`; or a list of words that are the labels too. By default the
    labels that the first probe declares."""
    statistics: Statistics = Field(default_factory=Statistics)
    """How gaps are judged."""
    resources: Resources = Resources()
    """Where the work runs."""
    tracking: Tracking = Tracking()
    """Which experiment trackers are told."""
    answers: str | None = None
    """Folder or URI where answers are remembered: a study asks only what none that shares it has
    asked. Greedy answers and likelihoods are shared by all, sampled ones by runs of one name."""
    limit: Amount | None = Field(None, ge=1)
    """To try a study out: a fixed sample of at most N items of each attribute (pairs: of each bias
    type), in equal parts over labels and in whole templates, so that every group is in each; at
    least one template of each label, even where that is more than N."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_its_profile(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        asked = data.get("profile") if isinstance(data, dict) else None
        with defaults_of("paper" if asked == "paper" else "strict"):
            return handler(data)

    @model_validator(mode="after")
    def _methods_have_what_they_need(self) -> Self:
        known = [backbone.name for backbone in self.backbones]
        for method in self.methods:
            _refuse_unknown(method.name, "backbone", method.backbones, known)
            if not getattr(self, method.reads):
                raise ValueError(
                    f"method {method.name!r} has nothing to read; give `{method.reads}`"
                )
            if not self.training and method.needs_training_set:
                raise ValueError(f"method {method.name!r} needs a training set; give `training`")
            if method.training and not method.uses_training_set:
                raise ValueError(
                    f"method {method.name!r} takes nothing from a training set; take its `training`"
                    " out"
                )
            sets = [each.name for each in self.training]
            _refuse_unknown(method.name, "training set", method.training, sets)
        return self

    @model_validator(mode="after")
    def _training_sets_are_used(self) -> Self:
        """Refuse a training set that methods with a `training` of their own all leave out."""
        takers = [method for method in self.methods if method.uses_training_set]
        used = {each.name for method in takers for each in self.training_of(method)}
        if takers and (idle := [each.name for each in self.training if each.name not in used]):
            raise ValueError(
                f"no method takes the training set {idle[0]!r}; name it in the `training` of one,"
                " or take it out"
            )
        return self

    @model_validator(mode="after")
    def _engines_read_known_weights(self) -> Self:
        models = [backbone.name for backbone in self.backbones if not backbone.weights_of]
        for name, model in self.engines.items():
            if model not in models:
                raise ValueError(
                    f"backbone {name!r} has the weights of {model!r}, which is no backbone with"
                    f" weights of its own; there are {', '.join(models) or 'none'}"
                )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        """Refuse parts of one name, and runs or replicas of one name once theirs are joined."""
        _refuse_repeated("backbones", self.backbones)
        if any(backbone.name == ALL for backbone in self.backbones):
            raise ValueError(
                f"a backbone is called {ALL!r}, as all are in results; give it another `name`"
            )
        _refuse_repeated("training", self.training)
        _refuse_repeated("probes", (*self.probes, *self.pairs, *self.questions))
        runs: dict[str, str] = {}
        replicas: dict[str, str] = {}
        for backbone in self.backbones:
            methods = self.methods_of(backbone)
            _refuse_repeated("methods", methods, f" on {backbone.name}")
            folders: dict[str, str] = {}
            for method in methods:
                output = method.output()
                other = folders.setdefault(output.folder, method.name)
                if other != method.name and not {"method", "score"} & {*output.schema.names}:
                    raise ValueError(
                        f"methods {other!r} and {method.name!r} both fill OUT/{output.folder},"
                        " whose rows do not name their method; run them as two studies"
                    )
                who = f"{method.name!r} on {backbone.name!r}"
                _claim(replicas, f"{backbone.name}-{method.name}", who)
                needed = method.needs_training_set
                sets = [each.name for each in self.training_of(method)]
                for name in sets if needed else ["none"]:
                    run = f"{who} with {name!r}" if needed else who
                    _claim(runs, f"{backbone.name}.{name}.{method.name}", run)
        for name, run in runs.items():
            for found in _RUN_PART.finditer(name):
                if (one := runs.get(name[: found.start()])) is not None:
                    raise ValueError(_ambiguous(one, run, name))
        return self

    def methods_of(self, backbone: Backbone) -> list[MethodFields]:
        """Return the methods that are used on a backbone."""
        return [m for m in self.methods if not m.backbones or backbone.name in m.backbones]

    def training_of(self, method: MethodFields) -> tuple[TrainingSet, ...]:
        """Return the training sets that a method names, or all."""
        chosen = method.training or [each.name for each in self.training]
        return tuple(each for each in self.training if each.name in chosen)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its sentences, in order: a label's number is its index here."""
        return tuple(self.verbalizer)

    @property
    def label_words(self) -> tuple[str, ...]:
        """The word that a model says for each label, in label order."""
        return tuple(self.verbalizer.values())

    @property
    def is_sentiment(self) -> bool:
        """Whether the labels are negative, neutral and positive."""
        return self.labels == LABELS

    @property
    def positive(self) -> int | None:
        """Number of the label that metrics of one class are about; None if there is none.

        It is `statistics.positive`, or else `positive` of sentiment and the last of two labels.
        """
        if self.statistics.positive is not None:
            return self.labels.index(self.statistics.positive)
        return len(self.labels) - 1 if self.is_sentiment or len(self.labels) == 2 else None

    def _repr_html_(self) -> str:
        chosen = self.model_dump(mode="json", exclude_unset=True)
        return f"<pre>{escape(to_yaml(chosen))}</pre>"

    @property
    def checkpoints(self) -> dict[str, Backbone]:
        """Models that are loaded: backbones by name, and those that rewrite pairs."""
        loaded = (each for each in self.backbones if each.is_checkpoint)
        found = {backbone.name: backbone for backbone in loaded}
        for style, options in self.styles.rewriting.items():
            found[f"rewriting {style}"] = options.spec()
            found[f"adequacy {style}"] = options.adequacy.spec()
        for method in self.methods:
            for what, spec in method.checkpoints.items():
                found[_held_by(method, what)] = spec
        return found

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the study with the revision of each of its `checkpoints` replaced."""
        parts = {
            "backbones": tuple(
                each.model_copy(update={"revision": revisions.get(each.name)})
                for each in self.backbones
            ),
            "methods": tuple(
                each.pinned({key: revisions.get(_held_by(each, key)) for key in each.checkpoints})
                for each in self.methods
            ),
            "styles": self.styles.pinned(revisions),
        }
        return self.model_copy(update=parts)

    @property
    def engines(self) -> dict[str, str]:
        """Backbones that are other engines of a model, each with that model's backbone."""
        return {each.name: each.weights_of for each in self.backbones if each.weights_of}

    @property
    def undecided(self) -> bool:
        """Whether the dtype of a backbone is still `auto`."""
        return any(backbone.dtype == "auto" for backbone in self.backbones)

    def with_dtypes(self, dtypes: Mapping[str, str]) -> Self:
        """Return the study with `auto` replaced by a backbone's dtype, by its name."""
        backbones = tuple(
            each.model_copy(update={"dtype": dtypes.get(each.name, "auto")})
            if each.dtype == "auto"
            else each
            for each in self.backbones
        )
        return self.model_copy(update={"backbones": backbones})


def _refuse_unknown(method: str, what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a method that names a part which the study does not have."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"method {method!r} names the {what} {unknown[0]!r}; there are {', '.join(known)}"
        )


def _refuse_repeated(part: str, sections: Sequence[Any], where: str = "") -> None:
    names = [section.name for section in sections]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{part} share the name {repeated[0]!r}{where}; give each its own `name`")


def _claim(names: dict[str, str], name: str, who: str) -> None:
    if (other := names.setdefault(name, who)) != who:
        raise ValueError(_ambiguous(other, who, name))


def _ambiguous(one: str, other: str, name: str) -> str:
    return f"{one} and {other} would both be called {name}; give one of them another `name`"


def _held_by(method: MethodFields, what: str) -> str:
    """Name a model of a method; methods of one name are of different backbones."""
    return " ".join((what, method.name, *method.backbones))


def load_study(
    path: str | Path,
    *,
    overrides: tuple[str, ...] = (),
    profile: Profile | None = None,
    limit: int | None = None,
) -> Study:
    """Read a study file; `ConfigError` where it is not YAML, or keys are unknown or wrong.

    Parameters
    ----------
    path: the YAML file; relative data and model paths in it are taken from its folder.
    overrides: `key=value` pairs, dotted into sections and list positions
        (`methods.0.max_steps=200`); values are YAML.
    profile, limit: override the file's.
    """
    data = read_mapping(path, cure="`raybias audit MODEL --write FILE` writes a study")
    for change in overrides:
        override(data, change)
    if profile is not None:
        data["profile"] = profile
    if limit is not None:
        data["limit"] = limit
    return parse_study(data, where=str(path), folder=Path(path).parent)


def parse_study(data: dict[str, Any], *, where: str = "study", folder: Path | None = None) -> Study:
    """Check a mapping against `Study`; one `ConfigError` line for the first thing wrong.

    Relative paths start from `folder`, by default the working directory.
    """
    hidden = {*registry_of("method"), *registry_of("api"), WEIGHTS}
    return parse_section(Study, data, where=where, hidden=hidden, folder=folder)


def study_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a study file.

    It has the methods and endpoints of installed packages too. Shorthands are allowed: one value
    for a list of one, and a backbone's id for its section.
    """
    schema = Study.model_json_schema(schema_generator=_FileSchema)
    backbone = schema["$defs"][Backbone.__name__]
    schema["$defs"][Backbone.__name__] = {"anyOf": [{"type": "string"}, backbone]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _FileSchema(GenerateJsonSchema):
    """Generates the JSON Schema, with the shorthands of a study file."""

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """Allow a single value beside a list of any number of them."""
        array = super().tuple_schema(schema)
        items = array.get("items", {})
        if items.get("type") in _SCALARS or Backbone.__name__ in str(items.get("oneOf")):
            return {"anyOf": [array, items]}
        return array

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Require `kind` of every method but those of the default kind, and `api` alike."""
        union = super().tagged_union_schema(schema)
        for reference in union["oneOf"]:
            section = self.get_schema_from_definitions(reference["$ref"]) or {}
            for name, least in _TOLD_BY.items():
                if section["properties"].get(name, {"default": least})["default"] != least:
                    section["required"] = [name, *section.get("required", ())]
        return union
