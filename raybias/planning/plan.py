"""Decide what runs where, before any model is loaded.

`plan` is a pure function of a prepared study and an inventory, and the stages run by its numbers.
It refuses what Ray would wait for in vain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from raybias.config.parts import Rewriting
from raybias.engine.backbone import ModelShape, model_shape
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
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.methods.base import methods_of
from raybias.planning.bounds import Forecast, choose_packs
from raybias.planning.inventory import Inventory, decide_dtypes, size
from raybias.planning.layout import LayoutPlanner
from raybias.planning.machine import Layout, Load, Machine, halved
from raybias.planning.prepared import PreparedStudy, in_style
from raybias.planning.stage_plans import Plan, RewritePlan, ScorePlan, TunePlan, asking_plan
from raybias.planning.workload import CHUNK_ROWS, REWRITING, Works, works_of
from raybias.providers.base import Provider
from raybias.storage import Store
from raybias.study_record import recorded_dtypes

# Tokens of the shortest sentence, with its instruction, that rewriting reckons with.
_SHORTEST_REWRITTEN: Final = 8
# Copies of the logits that a draw holds.
_DRAWN_FROM: Final = 6
# The fewest tokens of sentences that are worth rewriting at once.
_FEWEST_TOKENS: Final = 64
# All candidates of a batch are decoded until the last has ended; on a CPU, which small batches
# fill, more is lost time.
_MOST_ON_CPU: Final = 512


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

    A dtype that `out` was begun with stays. `works` are those of another plan of the study, and
    parameters else as of `raybias.plan`.

    Raises
    ------
    PlanError: names all stages that do not fit, or cannot be laid out.
    OutputError: a local `out` with more than one machine.
    ModelError, DataError: a backbone's configuration or a probe cannot be read.
    """
    study = prepared.study
    if out is not None:
        check_place(Store(out), inventory)
        study = recorded_dtypes(Store(out), study)
    if study.answers is not None:
        check_place(Store(study.answers), inventory)
    study, precision = decide_dtypes(study, inventory)
    shapes = {
        backbone.name: model_shape(backbone)
        for backbone in study.backbones
        if backbone.is_checkpoint
    }
    works = works or works_of(prepared, shapes)
    prepared = prepared.with_study(study)
    tuning, scoring, errors = _laid_out(prepared, inventory, machine or Machine(), shapes, works)
    if errors and not (skip_unfit and scoring):
        raise _together(list(errors.values()))
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
        tuning=tuple(sizes[0] for sizes in tuning),
        scoring=tuple(scoring),
        works=works,
        unfit={key: str(error) for key, error in errors.items()},
        notes=(
            *(f"left out: {error}" for error in errors.values()),
            *(
                f"{name}: max_steps is not set; the early-stop rule can run for ever on a slowly"
                " falling loss"
                for name in dict.fromkeys(
                    name for (_, _, name), work in works.tuning.items() if work.last is None
                )
            ),
        ),
    )
    made = choose_packs(prepared, made, tuning)
    gathering = (_gathering(stage, works) for stage in made.tuning)
    notes = filter(None, (*gathering, *made.notes))
    return replace(made, notes=tuple(notes))


def scaled(
    prepared: PreparedStudy, made: Plan, sizes: Sequence[int], machine: Machine
) -> list[tuple[int, Forecast]]:
    """Bound a study's wall time on so many times the nodes of its plan, planned anew for each."""
    found = []
    for times in sizes:
        inventory = replace(made.inventory, nodes=made.inventory.nodes * times)
        again = plan(
            prepared, inventory, machine=machine, skip_unfit=bool(made.unfit), works=made.works
        )
        found.append((times, Forecast.of(prepared, again)))
    return found


def _laid_out(
    prepared: PreparedStudy,
    inventory: Inventory,
    machine: Machine,
    shapes: Mapping[str, ModelShape],
    works: Works,
) -> tuple[list[list[TunePlan]], list[ScorePlan], dict[tuple[str, str], PlanError]]:
    """Lay out the stages of a study.

    Returns each tuning stage's plans by pack size, the plans of scoring, and by backbone and method
    why it does not fit.
    """
    tuning: list[list[TunePlan]] = []
    scoring: list[ScorePlan] = []
    errors: dict[tuple[str, str], PlanError] = {}
    for backbone in prepared.study.backbones:
        for method in methods_of(prepared.study, backbone):
            name = backbone.name, method.name
            if isinstance(backbone, Provider):
                whole = works.whole[name]
                scoring.append(asking_plan(prepared, inventory, backbone, method, whole))
                continue
            shape = shapes[backbone.name]
            planner = LayoutPlanner(prepared.study.resources, inventory, backbone, shape, machine)
            try:
                tuned = [
                    planner.tunings(each, method, works.tuning[name[0], each.name, name[1]])
                    for each in prepared.study.training
                    if method.trains
                ]
                rows = prepared.rows_per_shard(backbone, method)
                scoring.append(planner.scoring(method, works.reading[name], rows))
            except PlanError as error:
                errors[name] = error
                continue
            tuning += tuned
    return tuning, scoring, errors


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


def _rewriting(
    prepared: PreparedStudy, inventory: Inventory, style: str, options: Rewriting
) -> RewritePlan:
    # With transformers, which other studies may do without.
    from raybias.engine.rewriter import check_rewriter

    shape, judge = check_rewriter(options, style=style)
    originals = in_style(prepared.study, style, prepared.data.items)
    pairs = {name: frame.height for name, frame in originals.items()}
    planner = LayoutPlanner(prepared.study.resources, inventory, options.spec(), shape, Machine())

    def terms(shape: ModelShape, tokens: int, partitions: int) -> tuple[MemoryTerm, ...]:
        return _rewriting_memory(shape, judge, options, tokens=tokens, device=planner.on)

    load = Load(terms, planner.shape, planner.shape.item, planner.on)
    asked = planner.resources.tokens_per_batch
    budgets = halved(asked if planner.gpus else min(asked, _MOST_ON_CPU), _FEWEST_TOKENS)
    fit = next(filter(None, (planner.settle(load, Layout(each)) for each in budgets)), None)
    if fit is None:
        raise PlanError(
            f"{planner.backbone.name}, which makes the style {style!r}, needs"
            f" {size(total(load.device(Layout(budgets[-1]))))} with its judge at the smallest token"
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
        method=REWRITING,
        replicas_min=1,
        replicas_max=replicas,
        replica_cpus=planner.cpus,
        data_cpus=0,
        rows_per_shard=CHUNK_ROWS,
        items=pairs,
        runs=1,
        shards=chunks,
        **planner.stage(replace(fit, workers=replicas), load),
    )


def _rewriting_memory(
    shape: ModelShape, judge: ModelShape, options: Rewriting, *, tokens: int, device: str
) -> tuple[MemoryTerm, ...]:
    """Count the memory of a replica that rewrites `tokens` tokens at a time."""
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
    texts = list(dict.fromkeys(error.problem for error in errors))
    if len(texts) == 1:
        return errors[0]
    return PlanError(
        f"{len(texts)} parts of the study do not fit: {'; '.join(texts)}",
        where=errors[0].where,
        cure="take them out, skip them with --skip-unfit, or use larger devices",
    )


def check_place(store: Store, inventory: Inventory) -> None:
    """Refuse a folder of one machine as the output of many."""
    if store.is_local and inventory.machines > 1:
        raise OutputError(
            f"a local folder cannot be shared by the {inventory.machines} nodes of this cluster",
            where=store.uri,
            cure="give a URI that all nodes reach, such as s3:// or gs://",
        )


def check_libraries(planned: Plan) -> None:
    """Refuse a plan that needs a package which is not installed, or not for its devices."""
    backbones = {each.name: each for each in planned.decided.backbones}
    for stage in planned.scoring:
        backbones[stage.backbone].check_device(stage.gpus)
    sharded = [each.backbone for each in (*planned.tuning, *planned.scoring) if each.sharded]
    if sharded and find_spec("deepspeed") is None:
        raise ConfigError(
            f"{sharded[0]} is shared among workers with ZeRO-3, which needs deepspeed",
            cure="`pip install 'raybias[zero]'` on every node, or choose `resources.shard: never`",
        )
