"""Estimate the cost of a plan from shapes, row counts and a sample of texts; load no model.

Attention's own products, a few percent at these lengths, and tokens saved by shared prefixes are
left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tabulate import tabulate

from raybias.config import Study
from raybias.engine.memory import MemoryTerm, product, total
from raybias.engine.model_shape import ModelShape
from raybias.planning.bounds import Forecast, scale_table
from raybias.planning.inventory import size
from raybias.planning.prepared import styles_of
from raybias.planning.stage_plans import (
    LATENCY_S,
    AskPlan,
    FunctionPlan,
    Plan,
    RewritePlan,
    ScorePlan,
    Stage,
    TunePlan,
)
from raybias.planning.tasks import tasks_of
from raybias.planning.workload import ReadingWork

#: A step of the arithmetic: what is counted, how, and the result.
Line = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Tokens, FLOPs, device-hours, and bytes gathered under ZeRO-3, of one stage."""

    tokens: float
    flops: float = 0.0
    hours: float = 0.0
    gathered: float = 0.0
    lines: tuple[Line, ...]


#: By backbone, method and training set, which is empty for scoring.
Costs = Mapping[tuple[str, str, str], Cost]


def costs_of(plan: Plan) -> Costs:
    """Count the costs of all stages of a plan; none of tuning that no step ends."""
    stages: dict[tuple[str, str, str], Cost] = {}
    late, early = (defaultdict[tuple[str, str, str], float](float) for _ in range(2))
    for hours in (late, early):
        for task in tasks_of(plan, early=hours is early):
            training = task.training if task.kind == "tune" else ""
            hours[task.backbone, task.method, training] += task.work / 3600
    for tuned in plan.tuning:
        key = tuned.backbone, tuned.method, tuned.training
        if tuned.work.last is not None:
            stages[key] = _tuning_cost(tuned, late[key], early[key])
    for scored in plan.scoring:
        key = scored.backbone, scored.method, ""
        if isinstance(scored, AskPlan):
            stages[key] = _asking_cost(scored)
        elif scored.work is not None:
            stages[key] = _scoring_cost(scored, scored.work, late[key])
    return stages


def _tuning_cost(stage: TunePlan, hours: float, planned: float) -> Cost:
    work, steps, unit = stage.work, stage.work.last or 0, "GPU" if stage.gpus else "core"
    shape = work.passes.shape
    (cut, whole), checks = work.cut or (0, work.sweep), 1 + math.ceil(steps / work.every)
    runs, given_up = whole + work.final, work.sweep - whole
    by_runs = runs, "{} run" if runs == 1 else "{} runs"
    tuned, tuned_on = product(
        by_runs, (steps, "{:,} steps"), (work.step.number, "{} rows"),
        (work.step.length, "{:.1f}"),
    )  # fmt: skip
    checked, evaluated_on = product(
        by_runs, (checks, "{:,}"), (work.checked.number, "{:,} rows"),
        (work.checked.length, "{:.1f}"),
    )  # fmt: skip
    tested, tested_on = product(
        by_runs, (work.tested.number, "{:,} rows"), (work.tested.length, "{:.1f}")
    )
    cut_rows = cut * work.step.number, (1 + cut // work.every) * work.checked.number
    cut_tuned, cut_read = (
        given_up * rows * each.length
        for rows, each in zip(cut_rows, (work.step, work.checked), strict=True)
    )
    tuned, read = tuned + cut_tuned, checked + tested + cut_read
    flops = shape.block_parameters * (work.factor * tuned + 2 * read)
    # The sweep and the final runs come one after the other, each in packs of its own.
    gathered = sum(
        _gathered(stage, shape, trials * work.step.number * work.step.length) * 2 * steps
        + _gathered(stage, shape, trials * work.checked.number * work.checked.length) * checks
        for runs in (work.sweep, work.final)
        for trials in _pack_sizes(runs, stage.pack)
    )
    parts = work.step_parts(stage.speed, stage.layout, stage.pack)
    taken = ", ".join(f"{what} {1e3 * each:,.1f} ms" for what, each in parts.items())
    lines = [
        ("tokens tuned on", tuned_on, _short(tuned - cut_tuned)),
        ("tokens of evaluations", evaluated_on, _short(checked)),
        *([("tokens of tests", tested_on, _short(tested))] if tested else []),
        *([("tokens of runs given up", f"{given_up} runs to step {cut:,}",
            _short(cut_tuned + cut_read))] if given_up else []),
        ("work",
         f"{_short(shape.block_parameters)} parameters x ({work.factor} x {_short(tuned)}"
         f" + 2 x {_short(read)})",
         _short(flops, "FLOP")),
        (f"a step of {_count(stage.pack, 'run')}",
         f"the longest of {taken}; host {1e3 * work.host(stage.speed, stage.pack):,.1f} ms",
         f"{1e3 * work.step_seconds(stage.speed, stage.layout, stage.pack):,.1f} ms"),
        *_sent(stage, gathered),
        (f"{unit}-hours", f"if all runs go to step {steps:,}", f"{hours:,.2f} h"),
        *([("as planned",
            f"if runs stop between steps {work.first:,} and {steps:,}, evenly in their logarithm",
            f"{planned:,.2f} h")] if work.first < steps else []),
    ]  # fmt: skip
    tokens = tuned + read
    return Cost(tokens=tokens, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines))


def _scoring_cost(stage: ScorePlan, work: ReadingWork, hours: float) -> Cost:
    unit, shape = "GPU" if stage.gpus else "core", work.passes.shape
    by_runs = stage.runs, "{} run" if stage.runs == 1 else "{} runs"
    read = {
        name: product(by_runs, (rows, "{:,} items"), (work.whole.tokens[name], "{:.1f}"))
        for name, rows in stage.items.items()
    }
    tokens = sum(count for count, _ in read.values())
    weights = work.passes.parameters
    flops = 2.0 * weights * tokens
    # Each rank reads shards of its own, and every new token is a pass.
    passes = tokens / (stage.replicas_max * stage.layout.tokens)
    passes += stage.shards * (1 + work.whole.new_tokens) / stage.replicas_max
    gathered = _gathered(stage, shape, 1.0) * math.ceil(passes)
    lines = [
        *((f"tokens of {name}", how, _short(count)) for name, (count, how) in read.items()),
        ("work", f"{_short(weights)} parameters x 2 x {_short(tokens)} tokens",
         _short(flops, "FLOP")),
        *_sent(stage, gathered),
        (f"{unit}-hours", f"at the speed of {stage.speed.kind}, below", f"{hours:,.2f} h"),
    ]  # fmt: skip
    return Cost(tokens=tokens, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines))


def _asking_cost(stage: AskPlan) -> Cost:
    asks = stage.asks
    lines = [
        ("requests", stage.counted, f"{asks.requests:,.0f}"),
        ("tokens of prompts", "one for each four bytes", _short(asks.read)),
        ("tokens of answers", "if each is as long as it may be", _short(asks.written)),
        *([("money", "at the prices given", f"{stage.money:,.2f}")] if stage.money else []),
        ("time", f"{stage.at_once} at once, if each takes {LATENCY_S:g} s",
         f"{stage.seconds / 3600:,.2f} h"),
    ]  # fmt: skip
    return Cost(tokens=asks.read + asks.written, lines=tuple(lines))


def _pack_sizes(runs: int, most: int) -> list[int]:
    """Return the sizes of the fewest packs of at most so many runs, as equal as they can be."""
    packs = math.ceil(runs / most)
    return [len(range(pack, runs, packs)) for pack in range(packs)]


def _gathered(stage: Stage, shape: ModelShape, tokens: float) -> float:
    """Count the bytes that all ranks receive in a sharded forward pass."""
    if not stage.sharded:
        return 0.0
    passes = math.ceil(tokens / (stage.layout.ranks * stage.layout.tokens))
    return passes * (stage.layout.ranks - 1) * float(shape.weight_bytes)


def _sent(stage: Stage, gathered: float) -> list[Line]:
    if not stage.sharded:
        return []
    counted = "passes x (workers - 1) x bytes of the weights"
    return [("gathered by all workers", counted, _short(gathered, "B"))]


def _short(number: float, unit: str = "") -> str:
    for prefix, least in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= least:
            return f"{number / least:.3g} {prefix}{unit}".rstrip()
    return f"{number:,.0f} {unit}".rstrip()


@dataclass(frozen=True)
class StudyPlan:
    """Tasks of a study, their workers, memory and cost, and bounds for other numbers of nodes."""

    plan: Plan
    costs: Costs
    forecast: Forecast
    scales: tuple[tuple[int, Forecast], ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """List what each stage takes of a worker and in all, and last bounds of the wall time."""
        found: list[dict[str, Any]] = []
        for stage in _stages(self.plan):
            training = stage.training if isinstance(stage, TunePlan) else ""
            cost = self.costs.get((stage.backbone, stage.method, training))
            found.append({
                "stage": type(stage).__name__.removesuffix("Plan").lower(),
                "model": stage.backbone, "method": stage.method, "dataset": training,
                "cpus": stage.need.cpus, "gpus": stage.gpus, "bytes": total(stage.memory),
                "node_bytes": total(stage.host) if stage.host else None,
                "tokens": cost and cost.tokens, "flops": cost and cost.flops,
                "device_hours": cost and cost.hours,
            })  # fmt: skip
        ends = {"planned": self.forecast.planned, "latest": self.forecast.latest}
        bounds = {name: [each.low, each.high] for name, each in ends.items()}
        return [*found, {"stage": "wall seconds", "devices": self.forecast.count, **bounds}]

    def __str__(self) -> str:
        table = scale_table(self.scales) if self.scales else ""
        parts = (self.forecast.unused, describe(self.plan, self.costs), str(self.forecast), table)
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _stages(plan: Plan) -> tuple[TunePlan | ScorePlan, ...]:
    return (*plan.rewriting, *plan.tuning, *plan.scoring)


def describe(plan: Plan, costs: Costs) -> str:
    """Write a plan and its costs as text."""
    parts = [f"{plan.study.name} on {plan.inventory}"]
    if plan.precision is not None:
        parts.append(str(plan.precision))
    for stage in _stages(plan):
        lines = _described(stage, plan.study)
        if not isinstance(stage, AskPlan):
            lines += _memory(stage.memory, f"of {size(stage.device_memory)}")
            if stage.host:
                lines += ["  and of its node's memory", *_memory(stage.host, "")]
        training = stage.training if isinstance(stage, TunePlan) else ""
        if cost := costs.get((stage.backbone, stage.method, training)):
            lines += ["  costs at most", *_arithmetic(cost.lines)]
        parts.append("\n".join(lines))
    others = AskPlan | FunctionPlan
    computed = [scored.speed for scored in plan.scoring if not isinstance(scored, others)]
    parts += dict.fromkeys(f"speed of {speed}" for speed in computed)
    parts += [f"note: {note}" for note in plan.notes]
    hours = sum(cost.hours for cost in costs.values())
    aside = ", rewriting aside" if plan.rewriting else ""
    parts.append(f"together {hours:,.1f} device-hours at most{aside}")
    return "\n\n".join(parts)


def _described(plan: TunePlan | ScorePlan, study: Study) -> list[str]:
    each = _count(plan.need.cpus, "CPU") + (f" and {_count(plan.gpus, 'GPU')}" if plan.gpus else "")
    if selector := plan.requests.get("label_selector"):
        each += f" {next(iter(selector.values()))}"
    if plan.pending:
        each += f", {_count(plan.pending, 'node')} of them yet to come"
    if isinstance(plan, RewritePlan):
        options = study.styles.rewriting[plan.style]
        judge = options.adequacy.spec().name
        probes = ", ".join(f"{name} {_count(rows, 'pair')}" for name, rows in plan.items.items())
        return [
            f"rewrite as {plan.style} with {plan.backbone}, judged by {judge} ({options.paired}):"
            f" {probes}",
            f"  {_count(plan.replicas_max, 'replica')}, each {each};"
            f" {_count(plan.shards, 'chunk')}, {plan.layout.tokens} tokens at a time",
        ]
    if isinstance(plan, TunePlan):
        return _described_tuning(plan, each)
    styles = _counted_styles(study)
    probes = ", ".join(
        f"{name} {rows:,} items{styles.get(name, '')}" for name, rows in plan.items.items()
    )
    if isinstance(plan, AskPlan):
        return [f"ask {plan.backbone} ({plan.method}): {probes}", f"  {plan.reason}"]
    replicas = f"{_count(plan.replicas_min, 'replica')} to start with, up to {plan.replicas_max}"
    rest = f"; {plan.data_cpus:g} CPUs left to Ray Data"
    if plan.sharded:
        replicas, rest = f"{plan.replicas_max} workers share the backbone", ""
    return [
        f"score with {plan.backbone} ({plan.method}): {probes}",
        f"  {replicas}; each {each}{rest}",
        f"  {plan.reason}",
        f"  {_count(plan.shards, 'shard')} of {plan.rows_per_shard} rows or fewer",
    ]


def _described_tuning(plan: TunePlan, each: str) -> list[str]:
    """Say how many runs are tuned in which packs; `each` is what one worker takes."""
    runs = f"{plan.work.final} runs"
    if plan.work.sweep:
        cut = ", of which {1} go on at step {0:,}".format(*plan.work.cut or (0, 0))
        runs = (
            f"{plan.work.sweep} runs of the sweep{cut if plan.work.cut else ''}, then {runs} of"
            " what it chooses"
        )
    packs = _count(max(plan.packs.values()), "pack")
    together = (
        f"{plan.workers} workers share {_one_after_another(plan)}"
        if plan.sharded
        else f"{packs} of up to {_count(plan.pack, 'seed')},"
        f" {_count(plan.workers, 'worker')} at once"
    )
    return [
        f"tune {plan.backbone} on {plan.training} ({plan.method})",
        f"  {runs}; {together}; each worker {each}",
        f"  {plan.reason}",
    ]


def _one_after_another(plan: TunePlan) -> str:
    """Name the packs that are tuned on a shared backbone."""
    packs = max(plan.packs.values())
    if packs == 1:
        return f"one pack of {plan.pack} seeds"
    return f"{packs} packs of up to {plan.pack} seeds, one after another"


def _counted_styles(study: Study) -> dict[str, str]:
    """Say in how many styles the pairs of each probe come, for those with more than one."""
    counts = {each.name: len(styles_of(study, each)) for each in study.pairs}
    return {name: f" in {count} styles" for name, count in counts.items() if count > 1}


def _memory(terms: Sequence[MemoryTerm], of: str) -> list[str]:
    rows = [(term.what, term.arithmetic, size(term.bytes)) for term in terms]
    return _arithmetic([*rows, ("together", of, size(total(terms)))])


def _arithmetic(rows: Sequence[Line]) -> list[str]:
    table = tabulate(rows, tablefmt="plain", colalign=("left", "left", "right"))
    return [f"    {line}" for line in table.splitlines()]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
