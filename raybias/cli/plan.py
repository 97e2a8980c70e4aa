"""`raybias plan`: what a study would run where, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from raybias.engine.memory import MemoryTerm
    from raybias.planning.costs import Cost, Costs
    from raybias.planning.plan import Plan
    from raybias.planning.stage_plans import RewritePlan, ScorePlan, Stage, TunePlan


def plan(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.")],
    out: Annotated[
        str | None, typer.Option(help="Folder or URI that results will go to; checked too.")
    ] = None,
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as methods.0.keep=3."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only a fixed sample of at most N items of each attribute or bias type: whole"
            " templates, in equal parts over labels; at least one template of each label.",
        ),
    ] = None,
    profile: Annotated[
        Literal["paper", "strict"] | None, typer.Option(help="Override the study's profile.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; without it only this machine is looked at."),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="nodes=4,cpus=32,memory=256GiB,gpus=8,gpu_memory=80GiB,gpu=A100",
            help="Plan for nodes like this, which need not exist; again for each kind of node.",
        ),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            "--peak-tflops", min=0.001, help="Peak of one device; by its kind where that is known."
        ),
    ] = None,
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Part of the peak that costs reckon with.")
    ] = 0.3,
) -> None:
    """Show workers, packs, memory and costs of a study; loads no model, starts no Ray.

    Exits with 2 and one line for what `raybias run` would refuse before any work.
    """
    from raybias.config import load_study
    from raybias.errors import ConfigError

    if address is not None and assume:
        raise ConfigError("--address and --assume exclude each other", cure="give one")
    loaded = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)

    from raybias.planning.costs import Machine, costs_of
    from raybias.planning.inventory import assumed, with_autoscaled_nodes
    from raybias.planning.plan import plan as make_plan
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.study import prepare
    from raybias.storage import Store

    prepared = prepare(loaded, None if out is None else Store(out))
    undecided, nodes = prepared.study.undecided, loaded.resources.nodes
    inventory = (
        assumed(*assume)
        if assume
        else with_autoscaled_nodes(read_inventory(address, products=undecided), nodes)
    )
    made = make_plan(prepared, inventory, out=out)
    typer.echo(describe(made, costs_of(prepared, made, Machine(peak, utilisation))))


def describe(plan: Plan, costs: Costs) -> str:
    """A plan and its costs as text for people."""
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
    parts += [f"note: {note}" for note in plan.notes]
    if costs.hours is not None:
        aside = ", rewriting aside" if plan.rewriting else ""
        parts.append(f"together {costs.hours:,.1f} device-hours at most{aside}")
    return "\n\n".join(parts)


def _cost(cost: Cost | None) -> list[str]:
    if cost is None:
        return []
    from tabulate import tabulate

    rows = [(line.what, line.arithmetic, line.result) for line in cost.lines]
    table = tabulate(rows, tablefmt="plain", colalign=("left", "left", "right"))
    return ["  costs at most", *(f"    {line}" for line in table.splitlines())]


def _rewriting(plan: RewritePlan) -> str:
    probes = ", ".join(f"{name} {_count(rows, 'pair')}" for name, rows in plan.pairs.items())
    return "\n".join(
        [
            f"rewrite as {plan.style} with {plan.backbone}, judged by {plan.judge} ({plan.paired}):"
            f" {probes}",
            f"  {_count(plan.actors, 'actor')}, each {_resources(plan.cpus, plan)};"
            f" {_count(plan.chunks, 'chunk')}, {plan.tokens_per_batch} tokens at a time",
            *_memory(plan),
        ]
    )


def _tuning(plan: TunePlan) -> str:
    runs = f"{plan.final_units} runs"
    if plan.sweep_units:
        runs = f"{plan.sweep_units} runs of the sweep, then {runs} of what it chooses"
    together = (
        f"{plan.workers} workers share one pack of {plan.pack} seeds"
        if plan.sharded
        else f"{_count(plan.workers, 'worker')}, up to {_count(plan.pack, 'seed')} in a pack"
    )
    return "\n".join(
        [
            f"tune {plan.backbone} on {plan.training} ({plan.method})",
            f"  {runs}; {together}; each worker {_resources(plan.cpus, plan)}",
            f"  {plan.reason}",
            *_memory(plan),
        ]
    )


def _scoring(plan: ScorePlan) -> str:
    probes = ", ".join(f"{name} {rows:,} items" for name, rows in plan.items.items())
    replicas = f"{_count(plan.replicas_min, 'replica')} to start with, up to {plan.replicas_max}"
    rest = f"; {plan.data_cpus:g} CPUs left to Ray Data"
    if plan.sharded:
        replicas, rest = f"{plan.replicas_max} workers share the backbone", ""
    return "\n".join(
        [
            f"score with {plan.backbone} ({plan.method}): {probes}",
            f"  {replicas}; each {_resources(plan.threads, plan)}{rest}",
            f"  {plan.reason}",
            f"  {_count(plan.shards, 'shard')} of {plan.rows_per_shard} rows or fewer",
            *_memory(plan),
        ]
    )


def _memory(plan: Stage) -> list[str]:
    from raybias.planning.inventory import size

    lines = _table(plan.memory, f"of {size(plan.device_memory)}")
    if plan.host:
        lines += ["  and of its node's memory", *_table(plan.host, "")]
    return lines


def _table(shares: tuple[MemoryTerm, ...], of: str) -> list[str]:
    from tabulate import tabulate

    from raybias.engine.memory import total
    from raybias.planning.inventory import size

    rows = [(share.what, share.arithmetic, size(share.bytes)) for share in shares]
    rows.append(("together", of, size(total(shares))))
    table = tabulate(rows, tablefmt="plain", colalign=("left", "left", "right"))
    return [f"    {line}" for line in table.splitlines()]


def _resources(cpus: int, plan: Stage) -> str:
    text = _count(cpus, "CPU") + (f" and {_count(plan.gpus, 'GPU')}" if plan.gpus else "")
    if selector := plan.requests.get("label_selector"):
        text += f" {next(iter(selector.values()))}"
    if plan.pending:
        text += f", {_count(plan.pending, 'node')} of them yet to come"
    return text


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
