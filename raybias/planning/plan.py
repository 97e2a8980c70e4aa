"""Decide what runs where, before any model is loaded.

`plan` is a pure function of a prepared study and an inventory, and the stages run by its numbers.
It refuses what Ray would wait for in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Final

from raybias.config import Backbone, Study
from raybias.config.parts import Rewriting
from raybias.engine import memory
from raybias.engine.encoder import load_tokenizer
from raybias.engine.model_shape import ModelShape, model_shape
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.methods.base import Inputs, Method
from raybias.methods.work import TokenCounts, Work
from raybias.planning.bounds import Forecast, choose_packs
from raybias.planning.inventory import Inventory, decide_dtypes, size
from raybias.planning.layout import LayoutPlanner
from raybias.planning.machine import Layout, Machine, ResourceRequest, halved
from raybias.planning.prepared import Items, PreparedStudy, in_style
from raybias.planning.stage_plans import (
    Plan,
    RewritePlan,
    ScorePlan,
    Stage,
    TunePlan,
    asking_plan,
    function_plan,
)
from raybias.planning.workload import CHUNK_ROWS, REWRITING, chunks_of
from raybias.providers.base import Provider
from raybias.providers.predict import Predict
from raybias.storage import Store
from raybias.study_record import recorded_dtypes

# Tokens of the shortest sentence, with its instruction, that rewriting reckons with.
_SHORTEST_REWRITTEN: Final = 8
# Copies of the logits that are in memory while a token is drawn.
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
    machine: Machine = Machine(),  # noqa: B008
    skip_unfit: bool = False,
) -> Plan:
    """Decide what runs where.

    A dtype that `out` was begun with stays; parameters as of `raybias.plan`.

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
    works, prepared = prepared.works, prepared.with_study(study)
    shapes = {
        backbone.name: _backbone_shape(backbone, prepared)
        for backbone in study.backbones
        if backbone.is_checkpoint
    }
    tuning: list[list[TunePlan]] = []
    scoring: list[ScorePlan] = []
    errors: dict[tuple[str, str], PlanError] = {}
    for backbone, method in prepared.methods:
        work = works[backbone.name, method.name]
        if isinstance(backbone, Provider):
            scoring.append(asking_plan(prepared, inventory, backbone, method, work))
            continue
        if isinstance(backbone, Predict):
            scoring.append(function_plan(prepared, inventory, backbone, method, work))
            continue
        planner = LayoutPlanner(
            study.resources,
            inventory,
            backbone,
            work.shape or shapes[backbone.name],
            method=method.name,
            work=work,
            machine=machine,
        )
        try:
            sets = study.training_of(method) if method.trains else ()
            tuned = [planner.tunings(each.name) for each in sets]
            scoring.append(planner.scoring(prepared.rows_per_shard(backbone, method)))
            tuning += tuned
        except PlanError as error:
            errors[backbone.name, method.name] = error
    if errors and not (skip_unfit and scoring):
        raise _together(list(errors.values()))
    made = Plan(
        prepared=prepared,
        precision=precision,
        inventory=inventory,
        shapes=shapes,
        rewriting=tuple(
            _rewriting(prepared, inventory, style, options)
            for style, options in study.styles.rewriting.items()
        ),
        tuning=tuple(sizes[0] for sizes in tuning),
        scoring=tuple(scoring),
        unfit={key: str(error) for key, error in errors.items()},
        notes=(),
    )
    made = choose_packs(made, tuning)
    endless = {
        name: f"{name}: max_steps is not set; the early-stop rule can run for ever on a slowly"
        " falling loss"
        for (_, name), work in works.items()
        if any(each.last is None for each in work.tuning.values())
    }
    left_out = (f"left out: {error}" for error in errors.values())
    gathering = filter(None, map(_gathering, made.tuning))
    return replace(made, notes=(*prepared.notes(), *gathering, *left_out, *endless.values()))


def _backbone_shape(backbone: Backbone, prepared: PreparedStudy) -> ModelShape:
    """Return a backbone's shape: of its usual kind, unless each of its methods loads another."""
    methods = prepared.study.methods_of(backbone)
    shapes = [prepared.works[backbone.name, method.name].shape for method in methods]
    if shapes and shapes[0] is not None and None not in shapes:
        return shapes[0]
    return model_shape(backbone)


def serving_plan(
    study: Study,
    backbone: Backbone,
    method: Method,
    items: Items,
    inventory: Inventory,
    *,
    gpus: int | None = None,
) -> Stage:
    """Plan a replica that labels texts as long as `items`, by probe, with a study's runs.

    It holds its backbone alone, on one device or with its layers split; PlanError: on none. Where
    so many `gpus` are asked for, Serve waits for a node that has them.
    """
    asked = study.resources
    if gpus is not None or isinstance(backbone, Provider | Predict):
        need = ResourceRequest(cpus=asked.cpus_per_worker, gpus=gpus or 0)
        layout = Layout(asked.tokens_per_batch, max(1, need.gpus))
        return Stage(
            backbone=backbone.name,
            need=need,
            layout=layout,
            memory=(),
            device_memory=0,
            deterministic=asked.deterministic,
        )
    own = {"shard": "never", "replicas_min": 1, "replicas_max": None}
    inputs = Inputs(
        backbone=backbone,
        tokens=TokenCounts(load_tokenizer(backbone)),
        labels=study.labels,
        words=study.label_words,
        items=items,
        sentences={},
    )
    work, resources = replace(method.work(inputs), runs=1), asked.model_copy(update=own)
    shape = work.shape or model_shape(backbone)
    planner = LayoutPlanner(resources, inventory, backbone, shape, method=method.name, work=work)
    return planner.scoring()


def scaled(made: Plan, sizes: Sequence[int], machine: Machine) -> list[tuple[int, Forecast]]:
    """Bound a study's wall time on so many times the nodes of its plan, planned anew for each."""
    found = []
    for times in sizes:
        inventory = replace(made.inventory, nodes=made.inventory.nodes * times)
        again = plan(made.prepared, inventory, machine=machine, skip_unfit=bool(made.unfit))
        found.append((times, Forecast.of(again)))
    return found


def _gathering(stage: TunePlan) -> str:
    """Warn of a stage whose workers wait longer for weights than they compute; else nothing."""
    work = stage.work
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
    asked, work = prepared.study.resources, Work(runs=1, items=pairs)
    planner = LayoutPlanner(asked, inventory, options.spec(), shape, method=REWRITING, work=work)
    terms = partial(_rewriting_memory, judge, options)
    most = asked.tokens_per_batch
    budgets = halved(most if planner.gpus else min(most, _MOST_ON_CPU), _FEWEST_TOKENS)
    fit = next(filter(None, (planner.settle(terms, Layout(each)) for each in budgets)), None)
    if fit is None:
        least = memory.total(planner.memory(terms, Layout(budgets[-1])))
        raise PlanError(
            f"{planner.backbone.name}, which makes the style {style!r}, needs {size(least)} with"
            f" its judge at the smallest token budget, and one device has"
            f" {size(planner.device_memory)}",
            where=str(planner.inventory),
            cure="draw fewer candidates, use bfloat16 or a smaller checkpoint, or larger devices",
        )
    replicas = min(fit.places.count, len(chunks_of(style, pairs)))
    return RewritePlan(
        style=style,
        method=REWRITING,
        replicas_min=1,
        replicas_max=replicas,
        replica_cpus=planner.cpus,
        data_cpus=0,
        rows_per_shard=CHUNK_ROWS,
        items=pairs,
        runs=1,
        **planner.stage(replace(fit, workers=replicas), terms),
    )


def _rewriting_memory(
    judge: ModelShape,
    options: Rewriting,
    shape: ModelShape,
    *,
    tokens: int,
    device: str,
    partitions: int,
) -> tuple[memory.MemoryTerm, ...]:
    """Count the memory of a replica that rewrites `tokens` tokens at a time."""
    rows = min(tokens // _SHORTEST_REWRITTEN, 2 * CHUNK_ROWS) * options.candidates
    held = memory.added((rows, options.max_length), (tokens, options.candidates), unit="tokens")
    alive = [memory.activations(each, tokens, each.item, "activations") for each in (shape, judge)]
    return (
        memory.weights("weights of the checkpoint", shape.parameters, shape.item),
        memory.weights("weights of the judge", judge.parameters, judge.item),
        max(alive, key=lambda each: each.bytes),
        memory.keys_and_values(shape, held, shape.item, note=", written and read"),
        memory.term(
            "logits and what is drawn from",
            (rows, "{:,} candidates"),
            (shape.vocabulary, "{:,} words"),
            memory.of_bytes(4),
            _DRAWN_FROM,
        ),
        memory.process(device),
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
    backbones = {each.name: each for each in planned.study.backbones}
    for stage in planned.scoring:
        backbones[stage.backbone].check_device(stage.gpus)
    sharded = [each.backbone for each in (*planned.tuning, *planned.scoring) if each.sharded]
    if sharded and find_spec("deepspeed") is None:
        raise ConfigError(
            f"{sharded[0]} is shared among workers with ZeRO-3, which needs deepspeed",
            cure="`pip install 'raybias[zero]'` on every node, or choose `resources.shard: never`",
        )
