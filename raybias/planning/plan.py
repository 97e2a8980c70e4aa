"""Decide what runs where, before any model is loaded.

`plan` is a pure function of a prepared study and an inventory. The stages take their numbers from
it, so what it prints is what happens. It refuses what Ray would wait for in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raybias.config import Rewriting, Study
from raybias.errors import OutputError
from raybias.methods import tuned_methods
from raybias.planning.inventory import Inventory
from raybias.planning.layout import LayoutPlanner, runs_read
from raybias.planning.precision import Precision, decide_dtypes
from raybias.planning.prepared import PreparedStudy, in_style, read_by
from raybias.planning.rewrite_layout import rewriting_plan
from raybias.planning.stage_plans import RewritePlan, ScorePlan, TunePlan
from raybias.storage import Store
from raybias.study_record import recorded_dtypes

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape


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
        """Return the plan of a style that a model makes."""
        return next(each for each in self.rewriting if each.style == style)

    def tune(self, backbone: str, training: str, method: str) -> TunePlan:
        """Return the tuning plan of a backbone, training set and method, by their names."""
        wanted = (backbone, training, method)
        return next(t for t in self.tuning if (t.backbone, t.training, t.method) == wanted)

    def score(self, backbone: str, method: str) -> ScorePlan:
        """Return the scoring plan of a backbone and method, by their names."""
        return next(s for s in self.scoring if (s.backbone, s.method) == (backbone, method))


def plan(prepared: PreparedStudy, inventory: Inventory, *, out: str | None = None) -> Plan:
    """Decide what runs where.

    Parameters
    ----------
    out: where results will go, to be checked against the inventory; a dtype that it was begun
        with stays.

    Raises
    ------
    PlanError: more CPUs, GPUs or memory than there are, or a layout that cannot run.
    OutputError: a local `out` with more than one machine.
    ModelError, DataError: a backbone's configuration or a probe cannot be read.
    """
    from raybias.engine.model_shape import model_shape

    study = prepared.study
    if out is not None:
        check_place(Store(out), inventory)
        study = recorded_dtypes(Store(out), study)
    study, precision = decide_dtypes(study, inventory)
    shapes = {backbone.name: model_shape(backbone) for backbone in study.backbones}
    items = {name: frame.height for name, frame in prepared.data.items.items()}
    planners = {
        backbone.name: LayoutPlanner(study.resources, inventory, backbone, shapes[backbone.name])
        for backbone in study.backbones
    }
    tuning = tuple(
        planners[backbone.name].tuning(training, method)
        for backbone in study.backbones
        for training in study.training
        for method in tuned_methods(study.methods_of(backbone))
    )
    scoring = tuple(
        planners[backbone.name].scoring(
            {name: items[name] for name in read_by(study, method)},
            method,
            runs=runs_read(study, method),
        )
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
            _rewriting(prepared, inventory, style, options)
            for style, options in study.styles.rewriting.items()
        ),
        tuning=tuning,
        scoring=scoring,
        notes=notes,
    )


def _rewriting(
    prepared: PreparedStudy, inventory: Inventory, style: str, options: Rewriting
) -> RewritePlan:
    from raybias.engine.rewriting.rewriter import check_rewriter

    shape, judge = check_rewriter(options, style=style)
    originals = in_style(prepared.study, style, prepared.data.items)
    pairs = {name: frame.height for name, frame in originals.items()}
    planner = LayoutPlanner(prepared.study.resources, inventory, options.spec(), shape)
    return rewriting_plan(planner, style, options, judge, pairs)


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
