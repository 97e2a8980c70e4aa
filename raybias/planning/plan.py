"""Decide what runs where, before any model is loaded.

`plan` is a pure function of a prepared study and an inventory. The stages take their numbers from
it, so what it prints is what happens. It refuses what Ray would wait for in vain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from raybias.config import Backbone, Rewriting
from raybias.engine.memory import (
    MemoryTerm,
    activations,
    added,
    keys_and_values,
    of_bytes,
    process,
    term,
    total,
    weights,
)
from raybias.errors import OutputError, PlanError
from raybias.methods.base import Method, methods_of
from raybias.planning.bounds import Forecast, choose_packs
from raybias.planning.inventory import Inventory, decide_dtypes, size
from raybias.planning.layout import LayoutPlanner
from raybias.planning.machine import Machine
from raybias.planning.prepared import PreparedStudy, in_style
from raybias.planning.shards import CHUNK_ROWS
from raybias.planning.splits import Load, halved
from raybias.planning.stage_plans import Plan, RewritePlan, ScorePlan, TunePlan, asking_plan
from raybias.planning.workload import Works, works_of
from raybias.providers.base import Provider
from raybias.storage import Store
from raybias.study_record import recorded_dtypes

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

# Tokens of the shortest sentence, with its instruction, that rewriting reckons with.
_SHORTEST_REWRITTEN: Final = 8
# Copies of the logits that a draw holds.
_DRAWN_FROM: Final = 6
# The fewest tokens of sentences that are worth rewriting at once.
_FEWEST_TOKENS: Final = 64
# All candidates of a batch are decoded until the last has ended; on a CPU, which small batches
# fill, more is lost time.
_MOST_ON_CPU: Final = 512
#: A GPU that waits for its process so many times as long as it computes has room for others.
_MOSTLY: Final = 2.0


def plan(
    prepared: PreparedStudy,
    inventory: Inventory,
    *,
    out: str | None = None,
    machine: Machine | None = None,
    skip_unfit: bool = False,
    works: Works | None = None,
) -> Plan:
    """Decide what runs where.

    Parameters
    ----------
    out: where results will go, to be checked against the inventory; a dtype that it was begun
        with stays.
    machine: the speed of its devices, where their kinds do not say.
    skip_unfit: leave out the backbones and methods that the inventory has no room for.
    works: of another plan of this study.

    Raises
    ------
    PlanError: more CPUs, GPUs or memory than there are, or a layout that cannot run; names all
        that do not fit.
    OutputError: a local `out` with more than one machine.
    ModelError, DataError: a backbone's configuration or a probe cannot be read.
    """
    from raybias.engine.model_shape import model_shape

    study = prepared.study
    if out is not None:
        check_place(Store(out), inventory)
        study = recorded_dtypes(Store(out), study)
    if study.answers is not None:
        check_place(Store(study.answers), inventory)
    study, precision = decide_dtypes(study, inventory)
    if inventory.gpus_of_worker(study.resources):
        inventory = replace(inventory, per_gpu=study.resources.workers_per_gpu)
    shapes = {
        backbone.name: model_shape(backbone)
        for backbone in study.backbones
        if backbone.is_checkpoint
    }
    works = works or works_of(prepared, shapes)
    stages = _Stages(prepared.with_study(study), inventory, shapes, works, machine or Machine())
    for backbone in study.backbones:
        for method in methods_of(study, backbone):
            stages.add(backbone, method)
    if stages.errors and not (skip_unfit and stages.scoring):
        raise _together(list(stages.errors.values()))
    made = Plan(
        study=study.name,
        decided=study,
        precision=precision,
        inventory=inventory,
        items={name: frame.height for name, frame in prepared.data.items.items()},
        shapes=shapes,
        rewriting=tuple(
            _rewriting(prepared, inventory, style, options)
            for style, options in study.styles.rewriting.items()
        ),
        tuning=tuple(sizes[0] for sizes in stages.tuning),
        scoring=tuple(stages.scoring),
        works=works,
        unfit={key: str(error) for key, error in stages.errors.items()},
        notes=(
            *(f"left out: {error}" for error in stages.errors.values()),
            *(
                f"{name}: max_steps is not set; the early-stop rule can run for ever on a slowly"
                " falling loss"
                for name in dict.fromkeys(
                    name for (_, _, name), work in works.tuning.items() if work.last is None
                )
            ),
        ),
    )
    made = choose_packs(prepared, made, stages.tuning)
    gathering = (_gathering(stage, works) for stage in made.tuning)
    notes = filter(None, (*gathering, _launching(made), *made.notes))
    return replace(made, notes=tuple(notes))


def scaled(
    prepared: PreparedStudy, made: Plan, sizes: Sequence[int], machine: Machine
) -> list[tuple[int, Forecast]]:
    """Bound a study's wall time on so many times the nodes of its plan, planned anew for each.

    Raises
    ------
    PlanError: it does not fit.
    """
    found = []
    for times in sizes:
        inventory = replace(made.inventory, nodes=made.inventory.nodes * times)
        again = plan(
            prepared, inventory, machine=machine, skip_unfit=bool(made.unfit), works=made.works
        )
        found.append((times, Forecast.of(prepared, again)))
    return found


@dataclass(frozen=True)
class _Stages:
    """The stages of a study as they are laid out, backbone by backbone."""

    prepared: PreparedStudy
    inventory: Inventory
    shapes: Mapping[str, ModelShape]
    works: Works
    machine: Machine
    tuning: list[list[TunePlan]] = field(default_factory=list)
    """For each stage, by the size of its packs."""
    scoring: list[ScorePlan] = field(default_factory=list)
    errors: dict[tuple[str, str], PlanError] = field(default_factory=dict)

    def add(self, backbone: Backbone, method: Method) -> None:
        """Lay out one method on one backbone, or keep why it does not fit."""
        study, name = self.prepared.study, (backbone.name, method.name)
        whole = self.works.whole[name]
        if isinstance(backbone, Provider):
            asked = asking_plan(self.prepared, self.inventory, backbone, method, whole)
            self.scoring.append(asked)
            return
        shape = self.shapes[backbone.name]
        planner = LayoutPlanner(study.resources, self.inventory, backbone, shape, self.machine)
        try:
            tuning = [
                planner.tunings(
                    training,
                    method,
                    self.works.tuning[backbone.name, training.name, method.name],
                )
                for training in study.training
                if method.trains
            ]
            rows = self.prepared.rows_per_shard(backbone, method)
            scoring = planner.scoring(method, self.works.reading[name], rows)
        except PlanError as error:
            self.errors[name] = error
            return
        self.tuning.extend(tuning)
        self.scoring.append(scoring)


def _gathering(stage: TunePlan, works: Works) -> str:
    """Warn of a stage whose workers wait longer for weights than they compute; else nothing."""
    work = works.tuning[stage.backbone, stage.training, stage.method]
    parts = work.step_parts(stage.speed, stage.layout, stage.pack)
    if parts.get("gathering", 0.0) <= parts["computing"]:
        return ""
    hours = parts["gathering"] * (work.last or work.first) / 3600
    return (
        f"{stage.backbone} ({stage.method}) on {stage.training}: gathering weights takes"
        f" {1e3 * parts['gathering']:,.0f} ms of a step and computing"
        f" {1e3 * parts['computing']:,.0f} ms, up to {hours:,.0f} h for the sweep and as much for"
        " the final runs; a node whose GPUs hold the backbone together would be faster"
    )


def _launching(made: Plan) -> str:
    """Name the stages whose GPUs wait for their processes, where others could use them; or none."""
    waiting: dict[str, None] = {}
    for stage in made.tuning:
        work = made.works.tuning[stage.backbone, stage.training, stage.method]
        if stage.gpus and stage.per_gpu == 1 == work.most and work.sweep + work.final > 1:
            parts = work.step_parts(stage.speed, stage.layout, 1)
            waited = parts["launches"] + work.host(stage.speed, 1)
            if waited > _MOSTLY * parts["computing"]:
                waiting[f"{stage.backbone} ({stage.method})"] = None
    if not waiting:
        return ""
    return (
        f"launching the kernels of a step takes longer than computing it: {', '.join(waiting)};"
        " with resources.workers_per_gpu: 4 several runs share a GPU"
    )


def _rewriting(
    prepared: PreparedStudy, inventory: Inventory, style: str, options: Rewriting
) -> RewritePlan:
    from raybias.engine.rewriter import check_rewriter

    shape, judge = check_rewriter(options, style=style)
    originals = in_style(prepared.study, style, prepared.data.items)
    pairs = {name: frame.height for name, frame in originals.items()}
    planner = LayoutPlanner(prepared.study.resources, inventory, options.spec(), shape)
    return _rewriting_plan(planner, style, options, judge, pairs)


def _rewriting_plan(
    planner: LayoutPlanner,
    style: str,
    options: Rewriting,
    judge: ModelShape,
    pairs: Mapping[str, int],
) -> RewritePlan:
    """Choose replicas and chunks for all probes in one style.

    Parameters
    ----------
    planner: of the checkpoint.
    pairs: of each probe.

    Raises
    ------
    PlanError: no node holds one replica at the smallest token budget.
    """

    def terms(shape: ModelShape, tokens: int, partitions: int) -> tuple[MemoryTerm, ...]:
        return _rewriting_memory(shape, judge, options, tokens=tokens, device=planner.on)

    load = Load(terms, planner.shape, planner.shape.item, planner.on)
    asked = planner.resources.tokens_per_batch
    budgets = halved(asked if planner.gpus else min(asked, _MOST_ON_CPU), _FEWEST_TOKENS)
    fit = next(filter(None, (planner.settle(load, tokens) for tokens in budgets)), None)
    if fit is None:
        raise PlanError(
            f"{planner.backbone}, which makes the style {style!r}, needs"
            f" {size(total(load.device(budgets[-1])))} with its judge at the smallest token"
            f" budget, and one device has {size(planner.device_memory)}",
            where=str(planner.inventory),
            cure="draw fewer candidates, use bfloat16 or a smaller checkpoint, or larger devices",
        )
    chunks = sum(math.ceil(rows / CHUNK_ROWS) for rows in pairs.values())
    replicas = min(fit.places.count, chunks)
    return RewritePlan(
        style=style,
        judge=options.adequacy.spec().name,
        paired=options.paired,
        replicas_max=replicas,
        pairs=pairs,
        chunks=chunks,
        **planner.stage(replace(fit, workers=replicas), load),
    )


def _rewriting_memory(
    shape: ModelShape, judge: ModelShape, options: Rewriting, *, tokens: int, device: str
) -> tuple[MemoryTerm, ...]:
    """Count the memory of a replica that rewrites `tokens` tokens of sentences at a time.

    Parameters
    ----------
    shape, judge: of the checkpoint and of what decides on adequacy.
    """
    rows = min(tokens // _SHORTEST_REWRITTEN, 2 * CHUNK_ROWS) * options.candidates
    held = added((rows, options.max_length), (tokens, options.candidates), unit="tokens")
    alive = [activations(each, tokens, each.item, "activations") for each in (shape, judge)]
    return (
        weights("weights of the checkpoint", shape.parameters, shape.item),
        weights("weights of the judge", judge.parameters, judge.item),
        max(alive, key=lambda each: each.bytes),
        keys_and_values(shape, held, shape.item, note=", written and read"),
        term(
            "logits and what is drawn from",
            (rows, "{:,} candidates"),
            (shape.vocabulary, "{:,} words"),
            of_bytes(4),
            _DRAWN_FROM,
        ),
        process(device),
    )


def _together(errors: list[PlanError]) -> PlanError:
    """Make one error of those of several stages; the first alone where there are no others."""
    texts = list(dict.fromkeys(error.problem for error in errors))
    if len(texts) == 1:
        return errors[0]
    return PlanError(
        f"{len(texts)} parts of the study do not fit: {'; '.join(texts)}",
        where=errors[0].where,
        cure="take them out, skip them with --skip-unfit, or use larger devices",
    )


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
