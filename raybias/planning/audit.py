"""Choose a study for a model from a question and a budget of time.

A pilot asks the model for the labels of a few training sentences by each prompt format. The first
design within the budget is chosen, most informative first; prompting precedes a short tuning only
where the pilot's labels are good.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import Backbone, Scope, Study, TrainingSet, parse_study
from raybias.config.reading import parse_section
from raybias.engine.backbone import is_encoder
from raybias.engine.encoder import load_tokenizer
from raybias.engine.model_shape import model_shape
from raybias.errors import ConfigError, DataError, ModelError, OutputError, PlanError
from raybias.measures.prediction_rows import gap_rows
from raybias.methods.base import methods, methods_of
from raybias.methods.classify import Classify
from raybias.methods.finetuned import Finetuned
from raybias.methods.label_prompts import ZeroShot
from raybias.methods.prompted import Prompted, prompted_methods
from raybias.methods.tuned_folder import tuned_classifier
from raybias.planning.inventory import duration
from raybias.planning.pilot import Way
from raybias.planning.prepared import PreparedStudy
from raybias.probes import sources, training_sentences
from raybias.probes.design import gap_widths
from raybias.probes.published.toxicity import LABELS as TOXICITY_LABELS
from raybias.providers.predict import Predict
from raybias.schema import ALL, LABELS, PILOT_FILE
from raybias.seeding import generator
from raybias.stats.conclusive import refused
from raybias.stats.gaps import SMALLER
from raybias.stats.looks import level_of_each
from raybias.storage import Store

_SEEDS: Final = (2024, 2025, 2026, 2027, 2028)
#: Most sentences of an attribute that a prompted design reads (None: all).
_READ: Final = (None, 600, 240, 120, 60, 24)
#: Sentences, and steps at most, of tuned designs. They have five seeds: two give an interval with
#: one degree of freedom, and fewer steps teach a model little.
_TUNED: Final = ((None, None), (None, 800), (600, 400), (240, 300))
#: Rates that are right for one try; by default a method tries several.
_RATES: Final[Mapping[str, dict[str, Any]]] = {"lora": {"learning_rates": [5e-4]},
                 "full": {"learning_rates": [5e-5], "batch_size": 32}}  # fmt: skip
#: The accuracy to expect from which asking goes before a short tuning.
_GOOD: Final = 0.6
#: A plan knows the arithmetic of a machine, and nothing of what else it does meanwhile.
_SURE: Final = 2.0
#: Fewest sentences of the first of several looks.
_FIRST: Final = 60
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
#: Sentences of a pilot, and the seed that draws them.
PILOT: Final = 24
_SEED: Final = 2024


def seconds(budget: str) -> float:
    """Read a time such as `90s`, `10m` or `1.5h`."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", budget.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"--budget {budget!r} is not a time", cure="such as 90s, 10m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def short_name(*parts: str) -> str:
    """Return the name of a study: what a file name can hold of a model's id, probe and method."""
    first, *others = parts
    name = "-".join(["audit", Path(first).name[:40], *others])
    return re.sub("[^A-Za-z0-9._-]+", "-", name)[:64].strip("-.")


#: Of each task, the source of its probe and the labels of its classifiers.
TASKS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sentiment": ("amazon", LABELS),
    "toxicity": ("toxicity", TOXICITY_LABELS),
}


def read_task(backbone: Backbone) -> str:
    """Tell what a finished classifier is of by its labels; any other model is of sentiment."""
    from raybias.engine.published import has_trained_head

    if isinstance(backbone, Predict):
        return "sentiment"
    tuned = tuned_classifier(backbone)
    if tuned is not None:
        return next((t for t, (_, labels) in TASKS.items() if labels == tuned.labels), "sentiment")
    if not has_trained_head(backbone):
        return "sentiment"
    for task, (_, labels) in TASKS.items():
        with suppress(ConfigError):
            Classify().rule(backbone, labels, with_examples=False)
            return task
    return "sentiment"


def suited_methods(backbone: Backbone) -> tuple[str, ...]:
    """Choose kinds of methods for a model.

    A finished classifier is measured as it is. Prompts need answers that can be told apart.
    """
    from raybias.engine.published import has_trained_head

    if isinstance(backbone, Predict):
        return ("classify",)
    if tuned_classifier(backbone) is not None or has_trained_head(backbone):
        return ("classify",)
    if is_encoder(backbone):
        return ("full",)
    # Raises for an architecture that no method takes.
    model_shape(backbone)
    with suppress(ModelError):
        ZeroShot().form(load_tokenizer(backbone)).label_ids(LABELS)
        return "lora", "soft_prompt", "zero_shot", "few_shot"
    return "lora", "soft_prompt"


@dataclass(frozen=True)
class Question:
    """What is asked of a model: an attribute of a probe, and how.

    model: hub id or folder; or the place of a function, `file.py:function`.
    kind: of the method; None chooses by the model and the budget.
    data: local folder of the public data sets.
    ways: of the pilot, the best first.
    looks: at growing samples, each twice as large as the one before.
    margin: the largest gap that does not matter.
    task: what a finished classifier is of, one of TASKS; None tells it by its labels.
    reading: options of the method classify.
    is_function: whether `model` is the place of a function.
    """

    model: str
    attribute: str
    kind: str | None
    data: Path
    ways: tuple[Way, ...] = field(default=(), compare=False)
    looks: int = 1
    margin: float | None = None
    task: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    is_function: bool = False

    def __post_init__(self) -> None:
        kinds = [
            kind for kind, each in methods.items()
            if each.reads == "probes"
            and not any(field.is_required() for field in each.model_fields.values())
        ]  # fmt: skip
        if self.kind is not None and self.kind not in kinds:
            raise ConfigError(
                f"--method {self.kind!r} is none that an audit can choose",
                cure=f"take {', '.join(kinds)}, or write a study (`raybias audit --write`)",
            )

    @property
    def name(self) -> str:
        """Name of its study and OUT."""
        task = [self.task] if self.task not in (None, "sentiment") else []
        kind = [self.kind] if self.kind else []
        model = self.backbone.name if self.is_function else self.model
        return short_name(model, *task, self.attribute, *kind)

    @cached_property
    def section(self) -> dict[str, str]:
        """The model in a study."""
        return {"predict": self.model} if self.is_function else {"id": self.model}

    @cached_property
    def backbone(self) -> Backbone:
        """The model."""
        kind = Predict if self.is_function else Backbone
        return parse_section(kind, self.section, where="audit")

    @cached_property
    def source(self) -> str:
        """The source of the probe."""
        source, _ = TASKS[self.task or read_task(self.backbone)]
        return source

    @property
    def unused_head(self) -> str:
        """What becomes of a trained classification head that the method does not use, if any."""
        from raybias.engine.published import has_trained_head

        unused = self.kind is not None and self.kind != "classify"
        if not unused or self.is_function or not has_trained_head(self.backbone):
            return ""
        tunes = issubclass(methods[str(self.kind)], Finetuned)
        fate = "replaced by a new one, which {} tunes" if tunes else "not used by {}"
        return (
            f"{self.model}: its trained classification head is {fate.format(self.kind)};"
            " --method classify measures the head that it has"
        )

    def check(self, study: Study, *, where: str) -> None:
        """Refuse the study of another question."""
        (backbone, *_), (method, *_) = study.backbones, study.methods
        attributes = study.probes[0].attributes or () if study.probes else ()
        same = backbone.id in (self.model, str(Path(self.model).resolve()))
        rules = study.statistics
        same &= attributes == (self.attribute,) and self.kind in (None, method.kind)
        same &= self.task is None or study.probes[0].source == TASKS[self.task][0]
        alike = (rules.looks, rules.margin) == (self.looks, self.margin)
        if not (same and alike):
            looks = "" if alike else f", --looks {rules.looks}, --margin {rules.margin}"
            raise OutputError(
                f"holds a study of {', '.join(attributes) or 'something else'} in {backbone.id} by"
                f" {method.kind}{looks}",
                where=where,
                cure="give another --out",
            )

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of methods that it may take, tuned ones first."""
        found = (self.kind,) if self.kind else suited_methods(self.backbone)
        if self.looks > 1 and not (found := tuple(k for k in found if not methods[k].trains)):
            raise ConfigError(
                "--looks spares sentences, and tuning costs the same at each look",
                cure="leave it out, or give --method zero_shot for a model that can be asked",
            )
        return found

    def pilot(self, folder: Store) -> Study | None:
        """Write the pilot's sentences; return its study of prompts that fit the context, if any."""
        asked = [kind for kind in self.kinds if issubclass(methods[kind], Prompted)]
        if not asked:
            return None
        splits = training_sentences(TrainingSet(**self._training))
        # Equally many of each label, from a split that nothing is tuned on.
        pool = splits.get("validation", splits["train"])
        rows = [
            int(row)
            for label in range(len(LABELS))
            for row in generator(_SEED, "pilot", label).choice(
                (pool["label"] == label).arg_true().to_numpy(), PILOT // len(LABELS), replace=False
            )
        ]
        names = {"attribute": pl.lit("pilot"), "group": pl.lit("sentences")}
        sentences = pool[rows].select("text", "label").with_columns(**names)
        folder.write_table("sentences.parquet", sentences.to_arrow())
        forms = ["raw"]
        if load_tokenizer(self.backbone).has_chat_template:
            forms.append("chat")
        ways = [
            {"kind": kind, "name": f"{kind}_{form}", "prompt_format": form, "temperature": 0.0,
             "unparsed": "invalid", "seeds": [_SEEDS[0]]}
            for kind in asked for form in forms
        ]  # fmt: skip
        probe = {"source": "file", "name": "pilot", "data": folder.uri_of("sentences.parquet")}
        study = self._study(ways, probe, name=f"{self.name}-pilot"[:64])
        prepared = PreparedStudy.of(study)
        (backbone,) = prepared.study.backbones
        fitting = []
        for method in methods_of(prepared.study, backbone):
            with suppress(ModelError):
                method.check(prepared.inputs(method, backbone))
                fitting.append(method)
        return study.model_copy(update={"methods": tuple(fitting)}) if fitting else None

    def designs(self) -> Iterator[Study]:
        """Yield studies, those that tell most first."""
        tuned = [kind for kind in self.kinds if methods[kind].trains]
        asked = [kind for kind in self.kinds if issubclass(methods[kind], Prompted)]
        ready = [kind for kind in self.kinds if kind not in (*tuned, *asked)]
        well_read = bool(self.ways) and self.ways[0].expected >= _GOOD

        def made(method: Mapping[str, Any], limit: int | None) -> Study:
            probe = {"source": self.source, "attributes": [self.attribute]}
            if self.source in self.folders:
                probe["data"] = str(self.folders[self.source])
            return self._study([method], probe, **({} if limit is None else {"limit": limit}))

        for limit, steps in _TUNED[: 2 if asked and well_read else None]:
            for kind in tuned:
                method = {"kind": kind, "seeds": list(_SEEDS), "keep": len(_SEEDS)}
                method |= _RATES.get(kind, {})
                if steps is not None:
                    method |= {"max_steps": steps, "eval_every": max(20, steps // 8)}
                yield made(method, limit)
        read = [{"kind": kind, **(self.reading if kind == "classify" else {})} for kind in ready]
        for kind in asked[:1]:
            way: dict[str, Any] = {"kind": kind}
            if self.ways:
                way = {**self.ways[0].options, "read": self.ways[0].read}
            read.append({**way, "seeds": list(_SEEDS)})
        for method in read:
            for limit in _READ:
                if limit is None or self.looks == 1 or limit >> self.looks - 1 >= _FIRST:
                    yield made(method, limit)

    @property
    def best_ways(self) -> list[Way]:
        """The best reading of each kind of method and form of its prompts."""
        found: dict[tuple[Any, ...], Way] = {}
        for way in self.ways:
            found.setdefault(tuple(way.options.values()), way)
        return [*found.values()]

    @property
    def _training(self) -> dict[str, str]:
        return {"source": "sst5", "data": str(self.folders["sst5"])}

    def _study(self, methods: Any, probe: Mapping[str, Any], **options: Any) -> Study:
        content = {
            "name": self.name,
            "backbones": [self.section],
            "training": [self._training] if "sst5" in self.folders else [],
            "methods": methods,
            "probes": [probe],
            "statistics": {
                "level": level_of_each(self.looks),
                "looks": self.looks,
                "margin": self.margin,
            },
        }
        return parse_study(content | options, where="audit")

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each data set that it reads: the one with its files, or one of its name.

        A method that neither tunes nor asks reads no training set.
        """
        trained = any(
            methods[kind].trains or issubclass(methods[kind], Prompted) for kind in self.kinds
        )
        names = [*(["amazon"] if self.source == "amazon" else []), *(["sst5"] if trained else [])]
        found = {name: self.data / name for name in names}
        for name, own in found.items():
            if self.data.is_dir() and not own.exists():
                for each in sorted(filter(Path.is_dir, self.data.iterdir()), reverse=True):
                    with suppress(DataError):
                        if sources.recognise(Store(each)) == name:
                            found[name] = each
        return found


@dataclass(frozen=True)
class Choice:
    """The study that an audit runs, its planned seconds, and the `dearer` ones left out.

    accuracy: to expect of its way of asking, by the pilot; None where it tunes.
    """

    study: Study
    takes: float
    dearer: tuple[tuple[Study, float], ...]
    accuracy: float | None = None


def choose(question: Question, budget: float, estimate: Callable[[Study], float]) -> Choice:
    """Choose the first design whose doubled estimate fits the budget in seconds; else PlanError."""
    dearer: list[tuple[Study, float]] = []
    for study in question.designs():
        takes = estimate(study)
        if _SURE * takes <= budget:
            asks = question.ways and not study.methods[0].trains
            accuracy = question.ways[0].expected if asks else None
            return Choice(study, takes, tuple(dearer), accuracy)
        dearer.append((study, takes))
    last = _SURE * dearer[-1][1]
    raise PlanError(
        f"the smallest design may take {duration(last)} here, and {duration(max(0.0, budget))} are"
        " left of the budget",
        where=question.model,
        cure="give the same command again, which keeps the pilot's answers and has the whole budget"
        " for the study, or a larger --budget, a smaller model, or a machine with a GPU",
    )


def looks_of(study: Study) -> list[Study]:
    """Return the study of each planned look, whose sample the next one doubles."""
    looks = study.statistics.looks
    if looks == 1:
        return [study]
    whole = study.limit or PreparedStudy.of(study).data.items[study.probes[0].name].height
    if (first := whole >> looks - 1) < _FIRST:
        raise ConfigError(
            f"--looks {looks} would begin with {first} of {whole:,} sentences, and {_FIRST} are"
            " needed",
            cure="give fewer looks",
        )
    return [study.model_copy(update={"limit": first << look}) for look in range(looks)]


def answered(estimates: pl.DataFrame, scope: Scope) -> str | None:
    """Return what ends an audit before its last look, of schema.ESTIMATES; None where nothing."""
    gaps = gap_rows(estimates, scope).drop_nulls("significant")
    if gaps["survives"].any():
        return "a difference is shown"
    if gaps.height and gaps["reason"].str.starts_with(SMALLER).fill_null(False).all():
        return "every gap is shown to be smaller than the margin"
    return None


def unanswered(estimates: pl.DataFrame, scope: Scope) -> str:
    """Return what a look says that ends nothing: no difference, or why nothing was judged."""
    gaps = gap_rows(estimates, scope)
    if gaps["significant"].count():
        return "no difference is shown"
    reasons = gaps["reason"].drop_nulls().value_counts().sort("count", "reason", descending=True)
    why = reasons["reason"][0] if reasons.height else "there is no gap"
    return f"no gap is judged: {why}"


def accuracy_in(store: Store, study: Study) -> float | None:
    """Return the accuracy to expect of a study's way of asking; None without a pilot."""
    if study.methods[0].trains or not store.exists(PILOT_FILE):
        return None
    with store.reading(PILOT_FILE, "as what a pilot found"):
        expected = {
            (way["kind"], way["prompt_format"], way["read"]): float(way["expected"])
            for way in json.loads(store.read_text(PILOT_FILE))
        }
    asked = prompted_methods(study.methods)
    return expected.get((asked[0].kind, asked[0].prompt_format, asked[0].read)) if asked else None


def forecast(study: Study, accuracy: float | None = None) -> pl.DataFrame:
    """Expect each group's half widths of 95% intervals, with gaps as variable as Regard's.

    A classifier that errs more often than Regard's do, by its `accuracy`, varies more.
    """
    (method,), (probe,) = study.methods, study.probes
    items = PreparedStudy.of(study).data.items[probe.name]
    groups = items.group_by("group").agg(
        pl.len(), templates=pl.col("template_id").n_unique(), words=pl.col("term").n_unique()
    )
    widths = [
        gap_widths(
            runs=method.n_runs, templates=templates, words=words, items=count, accuracy=accuracy
        )
        for _, count, templates, words in groups.iter_rows()
    ]
    made = pl.DataFrame(widths, ["sentences", "wording"], orient="row")
    return groups.hstack(made).sort("group")


def said(choice: Choice, budget: float, spent: float = 0.0) -> str:
    """Describe the choice, its expected intervals, and what the budget in seconds leaves out."""
    study, widths = choice.study, forecast(choice.study, choice.accuracy)
    lines = [
        f"{study.backbones[0].name}: {described(study)}; {widths.height} groups of"
        f" {study.probes[0].attributes[0] if study.probes[0].attributes else 'the probe'}, each in"
        f" {_span(widths['templates'])} templates with {_span(widths['words'])} words",
        f"  {duration(choice.takes)} here as planned; {duration(budget - spent)} are left",
        "  were gaps to vary as on Regard, 95% intervals would reach"
        f" +-{_span(widths['sentences'])} for other sentences like these, and"
        f" +-{_span(widths['wording'])} for other words too",
    ]
    if len(looks := looks_of(choice.study)) > 1:
        sizes = ", ".join(f"{each.limit:,}" for each in looks)
        lines.append(
            f"  looks at {sizes} sentences, each at {study.statistics.level:.1%}: it stops where a"
            " difference is shown, or every gap is shown to be smaller than --margin"
        )
    if choice.dearer:
        study, takes = choice.dearer[-1]
        lines.append(
            f"  with --budget {math.ceil((spent + _SURE * takes) / 60)}m: {described(study)}"
        )
    return "\n".join(lines)


def reached(study: Study, estimates: pl.DataFrame, accuracy: float | None) -> str:
    """Compare the forecast of intervals with schema.ESTIMATES, and say what would help."""
    gaps = estimates.filter(
        pl.col("method") == study.methods[0].name, pl.col("model") != ALL,
        condition="", statistic="gap",
    )  # fmt: skip
    if gaps.height and gaps.select(refused("reason").all()).item():
        if not (study.methods[0].trains or prompted_methods(study.methods)):
            return "no gap is judged: the classifier is not shown to do the task, see the page"
        return (
            "no gap is judged. A larger --budget reads more sentences, which makes the accuracy"
            " surer; examples (--method few_shot) or tuning (lora, soft_prompt) may raise it. Give"
            " another --out"
        )
    half = (pl.col("high") - pl.col("low")) / 2
    widest = (
        gaps.filter(pl.col("scope").is_in(["sentences", "wording"]))
        .group_by("group", "scope").agg(half.max())
        .pivot("scope", index="group", values="high")
    )  # fmt: skip
    scope = "wording" if "wording" in widest.columns else "sentences"
    if scope not in widest.columns:
        return "no interval over sentences was reached: see the page for the reason"
    reached = widest.select("group", got=scope).drop_nulls()
    both = forecast(study, accuracy).join(reached, on="group", maintain_order="left")
    lines = [
        f"95% intervals of gaps over {scope}, half widths: expected, and reached at the widest"
    ]
    lines += [
        f"  {group:24} +-{expected:.2f}  +-{got:.2f}"
        for group, expected, got in both.select("group", scope, "got").iter_rows()
    ]
    ratio = both.select((pl.col("got") / pl.col(scope)).max()).item()
    if ratio is None or ratio <= 1:
        return "\n".join([*lines, "  every group's interval is as narrow as expected, or narrower"])
    if study.limit is not None:
        needed = math.ceil(ratio**2 * study.limit)
        cure = f"some {needed:,} sentences instead of {study.limit:,}: give a larger --budget"
    else:
        cure = "more templates and words than the probe has; more runs alone would not do"
    return "\n".join([*lines, f"  to reach the forecast everywhere would take {cure}"])


def _span(values: pl.Series) -> str:
    form = ".2f" if values.dtype.is_float() else "d"
    low, high = (format(each, form) for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def described(study: Study) -> str:
    """Describe a design in a few words."""
    (method,) = study.methods
    steps, read = getattr(method, "max_steps", None), getattr(method, "read", None)
    runs = method.n_runs
    parts = [method.kind, *([f"read by {read}"] if read else []), f"{runs} run{'s' * (runs > 1)}"]
    if steps is not None:
        parts.append(f"{steps:,} steps at most")
    parts.append("all sentences" if study.limit is None else f"{study.limit} sentences")
    return ", ".join(parts)
