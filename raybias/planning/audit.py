"""Choose a study for a model from a question and a budget of time.

Designs stand in an order: the first ones tell most and cost most. Of one model, what it can be read
by without tuning comes first where time is short; an encoder has to be tuned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import Backbone, Study, parse_study
from raybias.engine.backbone import is_encoder, load_tokenizer
from raybias.errors import ConfigError, DataError, ModelError, PlanError
from raybias.methods.zero_shot import ZeroShot
from raybias.planning.forecast import duration
from raybias.planning.prepared import PreparedStudy
from raybias.probes import sources
from raybias.probes.card_design import gap_widths
from raybias.registry import methods
from raybias.schema import LABELS
from raybias.storage import Store

_SEEDS: Final = (2024, 2025, 2026, 2027, 2028)
#: Seeds, and at most so many sentences of an attribute (None: all).
_READ: Final = ((5, None), (5, 600), (5, 240), (3, 120), (2, 60), (2, 24))
#: Seeds, sentences, and steps at most.
_TUNED: Final = ((5, None, None), (5, None, 800), (3, None, 400), (3, 600, 200), (2, 240, 60))
#: Of jobs/minilm.yaml; by default a method tries several rates.
_RATES: Final[Mapping[str, dict[str, Any]]] = {"lora": {"learning_rates": [5e-4]},
                 "full": {"learning_rates": [5e-5], "batch_size": 32}}  # fmt: skip
#: A plan knows the arithmetic of a machine, and nothing of what else it does meanwhile.
_SURE: Final = 2.0
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def seconds(budget: str) -> float:
    """Read a time such as `90s`, `10m` or `1.5h`.

    Raises
    ------
    ConfigError: anything else, or nothing.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", budget.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"--budget {budget!r} is not a time", cure="such as 90s, 10m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def short_name(model: str) -> str:
    """Return the name of a model's study: what a file name can hold of its id."""
    return f"audit-{re.sub('[^A-Za-z0-9._-]', '-', Path(model).name)}"[:64]


def suited_methods(model: str) -> tuple[str, ...]:
    """Choose kinds of methods for a model: asked is one whose answers can be told apart.

    Raises
    ------
    ModelError: the model's configuration cannot be read.
    """
    backbone = Backbone(id=model)
    if is_encoder(backbone):
        return ("full",)
    with suppress(ModelError):
        ZeroShot().asking(load_tokenizer(backbone)).label_ids(LABELS)
        return "lora", "zero_shot"
    return ("lora",)


@dataclass(frozen=True)
class Question:
    """What is asked of a model.

    Attributes
    ----------
    attribute: of the Amazon templates, such as race or age.
    kind: of the method; None chooses by the model and the budget.
    data: local folder that holds, or will hold, the public data sets.
    """

    model: str
    attribute: str
    kind: str | None
    data: Path

    def __post_init__(self) -> None:
        kinds = [
            kind for kind, each in methods.items()
            if each.reads == "probes"
            and not any(field.is_required() for field in each.model_fields.values())
        ]  # fmt: skip
        if self.kind is not None and self.kind not in kinds:
            raise ConfigError(
                f"--method {self.kind!r} is none that an audit can choose",
                cure=f"take {', '.join(kinds)}, or write a study (`raybias init`)",
            )

    def designs(self) -> Iterator[Study]:
        """Yield studies, those that tell most first.

        Raises
        ------
        ModelError: the model's configuration cannot be read.
        """
        kinds = (self.kind,) if self.kind else suited_methods(self.model)
        for kind in kinds:
            if not methods[kind].trains:
                for seeds, limit in _READ:
                    yield self._study({"kind": kind, "seeds": _SEEDS[:seeds]}, limit)
                continue
            # Of a causal model that can be asked, what little tuning fits the time tells less.
            for seeds, limit, steps in _TUNED if kind == kinds[-1] else _TUNED[:2]:
                method: dict[str, Any] = {"kind": kind, "seeds": _SEEDS[:seeds], "keep": seeds}
                method |= _RATES.get(kind, {})
                if steps is not None:
                    method |= {"max_steps": steps, "eval_every": max(20, steps // 8)}
                yield self._study(method, limit)

    def _study(self, method: Mapping[str, Any], limit: int | None) -> Study:
        content: dict[str, Any] = {
            "name": short_name(self.model),
            "backbones": [{"id": self.model}],
            "methods": [{**method, "seeds": list(method["seeds"])}],
            "probes": [
                {
                    "source": "amazon",
                    "data": str(self.folders["amazon"]),
                    "attributes": [self.attribute],
                }
            ],
        }
        if methods[method["kind"]].needs_training_set:
            content["training"] = [{"source": "sst5", "data": str(self.folders["sst5"])}]
        if limit is not None:
            content["limit"] = limit
        return parse_study(content, where="audit")

    def sets(self, study: Study) -> dict[str, Path]:
        """Return the folders of the public data sets that a design reads, by name."""
        names = ("amazon", "sst5") if study.training else ("amazon",)
        return {name: self.folders[name] for name in names}

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each data set: the one that holds its files, else one of its name."""
        return {name: self._folder(name) for name in ("amazon", "sst5")}

    def _folder(self, name: str) -> Path:
        own = self.data / name
        if self.data.is_dir() and not own.exists():
            for each in sorted(path for path in self.data.iterdir() if path.is_dir()):
                with suppress(DataError):
                    if sources.recognise(Store(each)) == name:
                        return each
        return own


@dataclass(frozen=True)
class Choice:
    """The study that an audit runs, and those that it leaves out for want of time.

    Attributes
    ----------
    takes: seconds by the plan for the machine at hand; twice that is in the budget.
    """

    study: Study
    takes: float
    dearer: tuple[tuple[Study, float], ...]


def choose(question: Question, budget: float, estimate: Callable[[Study], float]) -> Choice:
    """Choose the first design that fits the budget, were it to take twice what is planned.

    Parameters
    ----------
    budget: seconds.
    estimate: of a study's seconds on the machine at hand.

    Raises
    ------
    PlanError: none fits.
    """
    dearer: list[tuple[Study, float]] = []
    for study in question.designs():
        takes = estimate(study)
        if _SURE * takes <= budget:
            return Choice(study, takes, tuple(dearer))
        dearer.append((study, takes))
    last = _SURE * dearer[-1][1]
    raise PlanError(
        f"the smallest design may take {duration(last)} here, and the budget is {duration(budget)}",
        where=question.model,
        cure="give a larger --budget, a smaller model, or a machine with a GPU",
    )


def said(choice: Choice, budget: float) -> str:
    """Say what was chosen, how small a gap it can show, and what the budget leaves out."""
    study = choice.study
    (method,), (probe,) = study.methods, study.probes
    items = PreparedStudy.of(study).data.items[probe.name]
    groups = items.group_by("group").agg(pl.col("template_id", "term").n_unique())
    least = groups.select(pl.col("template_id", "term").min()).row(0)
    sentences, wording = gap_widths(runs=method.n_runs, templates=least[0], words=least[1])
    attribute = items["attribute"][0]
    lines = [
        f"{study.backbones[0].name}: {described(study)}; {len(items):,} about {attribute} "
        f"({groups.height} groups, {least[0]} templates or more, {least[1]} words or more each)",
        f"  {duration(choice.takes)} here as planned, of {duration(budget)}, beside starting Ray",
        f"  a gap's 95% interval is expected to reach +-{sentences:.2f} for other sentences like"
        f" these, +-{wording:.2f} for other words too, were it to vary as on Regard",
    ]
    if choice.dearer:
        study, takes = choice.dearer[-1]
        lines.append(f"  with --budget {math.ceil(_SURE * takes / 60)}m: {described(study)}")
    return "\n".join(lines)


def described(study: Study) -> str:
    """Describe a design in a few words."""
    (method,) = study.methods
    steps = getattr(method, "max_steps", None)
    parts = [f"{method.kind}, {method.n_runs} seeds"]
    if steps is not None:
        parts.append(f"{steps:,} steps at most")
    parts.append("all sentences" if study.limit is None else f"{study.limit} sentences")
    return ", ".join(parts)
