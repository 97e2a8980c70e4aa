"""What will run where, decided before any model is loaded.

`plan` is a pure function of a study, the probe files and an inventory. Both
stages ask it for their numbers, so what it prints is what happens. It refuses
what cannot be scheduled, because Ray would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from raybias.config import Method, Probe, Rewriting, Study
from raybias.errors import ConfigError, OutputError
from raybias.methods import fit_methods, tuned_methods
from raybias.planning.inventory import Inventory
from raybias.planning.layout import LayoutPlanner
from raybias.planning.precision import Precision, decide_dtypes
from raybias.planning.rewrite_layout import rewriting_plan
from raybias.planning.stage_plans import RewritePlan, ScorePlan, TunePlan
from raybias.probes import probe_items
from raybias.probes.pairs.items import in_styles, pair_items
from raybias.probes.sampling import sample_items, sample_pairs
from raybias.registry import pair_probes
from raybias.storage import Store
from raybias.study_record import recorded_dtypes

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

__all__ = [
    "Plan",
    "check_place",
    "in_style",
    "plan",
    "read_by",
    "read_items",
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study on an inventory."""

    study: str
    decided: Study
    """The study, with every dtype that it left to the hardware."""
    precision: Precision | None
    """What was decided and why; None where the study, or OUT before it, says."""
    inventory: Inventory
    items: dict[str, int]
    """Rows per probe."""
    shapes: dict[str, ModelShape]
    """Of each backbone, by name."""
    rewriting: tuple[RewritePlan, ...]
    tuning: tuple[TunePlan, ...]
    scoring: tuple[ScorePlan, ...]
    notes: tuple[str, ...]
    """What a user should know before starting."""

    def rewrite(self, style: str) -> RewritePlan:
        """The plan of a style that a model makes."""
        return next(each for each in self.rewriting if each.style == style)

    def tune(self, backbone: str, training: str, method: str) -> TunePlan:
        """The tuning plan of a backbone, training set and method, by their names."""
        wanted = (backbone, training, method)
        return next(t for t in self.tuning if (t.backbone, t.training, t.method) == wanted)

    def score(self, backbone: str, method: str) -> ScorePlan:
        """The scoring plan of a backbone and method, by their names."""
        return next(s for s in self.scoring if (s.backbone, s.method) == (backbone, method))


def plan(study: Study, inventory: Inventory, *, out: str | None = None) -> Plan:
    """Decide what runs where.

    Parameters
    ----------
    study: resolved.
    out: where results will go, to be checked against the inventory; a dtype that it was begun
        with stays.

    Raises
    ------
    PlanError: more CPUs, GPUs or memory than there are, or a layout that cannot run.
    OutputError: a local `out` with more than one machine.
    ModelError, DataError: a backbone's configuration or a probe cannot be read.
    ConfigError, ModelError: pair scores that a backbone cannot have.
    """
    from raybias.engine.model_shape import model_shape

    study = fit_methods(study)
    if out is not None:
        check_place(Store(out), inventory)
        study = recorded_dtypes(Store(out), study)
    study, precision = decide_dtypes(study, inventory)
    shapes = {backbone.name: model_shape(backbone) for backbone in study.backbones}
    read = read_items(study)
    items = {name: frame.height for name, frame in read.items()}
    rooms = {
        backbone.name: LayoutPlanner(study, inventory, backbone, shapes[backbone.name])
        for backbone in study.backbones
    }
    tuning = tuple(
        rooms[backbone.name].tuning(training, method)
        for backbone in study.backbones
        for training in study.training
        for method in tuned_methods(study.methods_of(backbone))
    )
    scoring = tuple(
        rooms[backbone.name].scoring({name: items[name] for name in read_by(study, method)}, method)
        for backbone in study.backbones
        for method in study.methods_of(backbone)
    )
    notes = tuple(
        f"{method.name}: max_steps is not set; the early-stop rule can run for ever on a slowly"
        " falling loss"
        for method in tuned_methods(study.methods)
        if method.last_step(1) is None
    )
    return Plan(
        study=study.name,
        decided=study,
        precision=precision,
        inventory=inventory,
        items=items,
        shapes=shapes,
        rewriting=tuple(
            _rewriting(study, inventory, style, options, read)
            for style, options in study.styles.rewriting.items()
        ),
        tuning=tuning,
        scoring=scoring,
        notes=notes,
    )


def _rewriting(
    study: Study,
    inventory: Inventory,
    style: str,
    options: Rewriting,
    items: Mapping[str, pl.DataFrame],
) -> RewritePlan:
    from raybias.engine.rewriting.rewriter import check_rewriter

    shape, judge = check_rewriter(options, style=style)
    pairs = {name: frame.height for name, frame in in_style(study, style, items).items()}
    room = LayoutPlanner(study, inventory, options.spec(), shape)
    return rewriting_plan(room, style, options, judge, pairs)


def in_style(
    study: Study, style: str, items: Mapping[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """By name, the items in a style of the probes that have it."""
    names = [p.name for p in study.pairs if style in pair_probes[p.source].styles]
    return {name: items[name].filter(pl.col("style") == style) for name in names}


def read_items(study: Study) -> dict[str, pl.DataFrame]:
    """By name, the items of every probe, in every style where it has pairs, limit applied.

    A style that a model is to make holds the originals, marked as kept.

    Raises
    ------
    DataError, ConfigError: a probe is missing or malformed, or no probe has a style.
    """
    _check_styles(study)
    found = {probe.name: _sampled(probe, study.limit) for probe in study.probes}
    for probe in study.pairs:
        pairs = pair_items(probe.source, probe.data, kinds=probe.kinds)
        kind = pair_probes[probe.source].kind
        if study.limit is not None:
            pairs = sample_pairs(pairs, study.limit, kind=kind, source=probe.source)
        styles = [name for name in study.styles.names if name in pair_probes[probe.source].styles]
        found[probe.name] = in_styles(
            probe.source,
            pairs,
            styles,
            files=study.styles.files,
            rewritten=study.styles.rewriting,
            options=study.styles.options,
            seed=study.styles.seed,
        )
    return found


def _sampled(probe: Probe, limit: int | None) -> pl.DataFrame:
    items = probe_items(probe)
    return items if limit is None else sample_items(items, limit, source=probe.source)


def _check_styles(study: Study) -> None:
    had = {style for probe in study.pairs for style in pair_probes[probe.source].styles}
    for style in study.styles.names if study.pairs else ():
        if style not in had:
            probes = ", ".join(dict.fromkeys(probe.source for probe in study.pairs))
            raise ConfigError(
                f"no probe of the study has the style {style!r}; there is {probes}",
                where="styles.names",
                cure="take it out, or add pairs that have it",
            )


def read_by(study: Study, method: Method) -> list[str]:
    """Names of the probes that a method reads.

    Raises
    ------
    ConfigError: there is none.
    """
    wanted = method.output().items
    if wanted is None:
        return [probe.name for probe in study.probes]
    sources = [name for name, each in pair_probes.items() if each.schema.equals(wanted)]
    found = [probe.name for probe in study.pairs if probe.source in sources]
    if not found:
        raise ConfigError(
            f"method {method.name!r} has nothing to read: it cannot read pairs of source"
            f" {', '.join(dict.fromkeys(probe.source for probe in study.pairs))}",
            where="pairs",
            cure=f"add pairs of source {', '.join(sources)}, or take the method out",
        )
    return found


def check_place(store: Store, inventory: Inventory) -> None:
    """Refuse a folder of one machine as the output of many.

    Raises
    ------
    OutputError: a local store with more than one machine.
    """
    if store.is_local and inventory.machines > 1:
        raise OutputError(
            f"a local folder cannot be shared by the {inventory.machines} nodes of this cluster",
            where=store.uri,
            cure="give a URI that all nodes reach, such as s3:// or gs://",
        )
