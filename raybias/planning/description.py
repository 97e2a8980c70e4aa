"""Describe a plan for people: stages, workers, memory and costs, with the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tabulate import tabulate

from raybias.engine.memory import MemoryTerm, total
from raybias.planning.bounds import Forecast, scale_table
from raybias.planning.costs import Cost, Costs
from raybias.planning.inventory import size
from raybias.planning.stage_plans import AskPlan, Plan, RewritePlan, ScorePlan, Stage, TunePlan


@dataclass(frozen=True)
class StudyPlan:
    """What a study would run where, and what that costs; `print` it.

    Attributes
    ----------
    plan: its stages, with workers and memory.
    costs: tokens, FLOPs and device-hours of each stage.
    forecast: bounds of its wall time.
    scales: bounds for so many times the nodes.
    """

    plan: Plan
    costs: Costs
    forecast: Forecast
    scales: tuple[tuple[int, Forecast], ...] = ()

    def __str__(self) -> str:
        table = scale_table(self.scales) if self.scales else ""
        parts = (self.forecast.unused, describe(self.plan, self.costs), str(self.forecast), table)
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def describe(plan: Plan, costs: Costs) -> str:
    """Write a plan and its costs as text."""
    parts = [f"{plan.study} on {plan.inventory}"]
    if plan.precision is not None:
        parts.append(str(plan.precision))
    parts += [_rewriting(part) for part in plan.rewriting]
    for tuned in plan.tuning:
        cost = costs.stages.get((tuned.backbone, tuned.method, tuned.training))
        parts.append("\n".join([_tuning(tuned), *_cost(cost)]))
    for scored in plan.scoring:
        cost = costs.stages.get((scored.backbone, scored.method, ""))
        parts.append("\n".join([_scoring(scored), *_cost(cost)]))
    computed = [scored.speed for scored in plan.scoring if not isinstance(scored, AskPlan)]
    parts += dict.fromkeys(f"speed of {speed}" for speed in computed)
    parts += [f"note: {note}" for note in plan.notes]
    aside = ", rewriting aside" if plan.rewriting else ""
    parts.append(f"together {costs.hours:,.1f} device-hours at most{aside}")
    return "\n\n".join(parts)


def _cost(cost: Cost | None) -> list[str]:
    if cost is None:
        return []
    rows = [(line.what, line.arithmetic, line.result) for line in cost.lines]
    return ["  costs at most", *_arithmetic(rows)]


def _rewriting(plan: RewritePlan) -> str:
    probes = ", ".join(f"{name} {_count(rows, 'pair')}" for name, rows in plan.pairs.items())
    return "\n".join(
        [
            f"rewrite as {plan.style} with {plan.backbone}, judged by {plan.judge} ({plan.paired}):"
            f" {probes}",
            f"  {_count(plan.replicas_max, 'replica')}, each {_resources(plan)};"
            f" {_count(plan.chunks, 'chunk')}, {plan.tokens_per_batch} tokens at a time",
            *_memory(plan),
        ]
    )


def _tuning(plan: TunePlan) -> str:
    runs = f"{plan.final_units} runs"
    if plan.sweep_units:
        runs = f"{plan.sweep_units} runs of the sweep, then {runs} of what it chooses"
    packs = max(plan.sweep_packs, plan.final_packs)
    together = (
        f"{plan.workers} workers share one pack of {plan.pack} seeds"
        if plan.sharded
        else f"{_count(packs, 'pack')} of up to {_count(plan.pack, 'seed')},"
        f" {_count(plan.workers, 'worker')} at once"
    )
    return "\n".join(
        [
            f"tune {plan.backbone} on {plan.training} ({plan.method})",
            f"  {runs}; {together}; each worker {_resources(plan)}",
            f"  {plan.reason}",
            *_memory(plan),
        ]
    )


def _scoring(plan: ScorePlan) -> str:
    probes = ", ".join(f"{name} {rows:,} items" for name, rows in plan.items.items())
    if isinstance(plan, AskPlan):
        return f"ask {plan.backbone} ({plan.method}): {probes}\n  {plan.reason}"
    replicas = f"{_count(plan.replicas_min, 'replica')} to start with, up to {plan.replicas_max}"
    rest = f"; {plan.data_cpus:g} CPUs left to Ray Data"
    if plan.sharded:
        replicas, rest = f"{plan.replicas_max} workers share the backbone", ""
    return "\n".join(
        [
            f"score with {plan.backbone} ({plan.method}): {probes}",
            f"  {replicas}; each {_resources(plan)}{rest}",
            f"  {plan.reason}",
            f"  {_count(plan.shards, 'shard')} of {plan.rows_per_shard} rows or fewer",
            *_memory(plan),
        ]
    )


def _memory(plan: Stage) -> list[str]:
    lines = _memory_terms(plan.memory, f"of {size(plan.device_memory)}")
    if plan.host:
        lines += ["  and of its node's memory", *_memory_terms(plan.host, "")]
    return lines


def _memory_terms(terms: Sequence[MemoryTerm], of: str) -> list[str]:
    rows = [(term.what, term.arithmetic, size(term.bytes)) for term in terms]
    return _arithmetic([*rows, ("together", of, size(total(terms)))])


def _arithmetic(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Align what is counted, how, and the result."""
    table = tabulate(rows, tablefmt="plain", colalign=("left", "left", "right"))
    return [f"    {line}" for line in table.splitlines()]


def _resources(plan: Stage) -> str:
    gpus = _count(plan.gpus, "GPU") if plan.sharers == 1 else f"1/{plan.sharers} GPU"
    text = _count(plan.threads, "CPU") + (f" and {gpus}" if plan.gpus else "")
    if selector := plan.requests.get("label_selector"):
        text += f" {next(iter(selector.values()))}"
    if plan.pending:
        text += f", {_count(plan.pending, 'node')} of them yet to come"
    return text


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
