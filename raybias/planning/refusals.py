"""Say why a backbone cannot be laid out on an inventory, and what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raybias.engine.memory import total
from raybias.errors import PlanError
from raybias.methods.work import Work
from raybias.planning.inventory import Inventory, size
from raybias.planning.splits import Load, Split

if TYPE_CHECKING:
    from raybias.planning.layout import LayoutPlanner

# Workers that a refusal looks for a sharded layout with.
_MOST_SHARDS: Final = 64


def too_many_cpus(asked: int, inventory: Inventory) -> PlanError:
    """Make the error of workers with more CPUs than any node has."""
    largest = max(node.cpus for node in inventory.nodes)
    return PlanError(
        f"resources.cpus_per_worker is {asked}, the largest node has {largest:g} CPUs",
        where=str(inventory),
        cure=f"set it to {largest:g} or less",
    )


def refusal(planner: LayoutPlanner, load: Load, method: str, work: Work, workers: int) -> PlanError:
    """Make the error of a backbone that fits in no way that the study allows.

    Parameters
    ----------
    workers: that the study asks for, or that the nodes have places for.
    """
    asked, where = planner.resources.shard, str(planner.inventory)
    who = f"{planner.backbone} ({method})"
    if not work.can_shard and asked == "zero3":
        return PlanError(
            f"workers cannot share {planner.backbone} for {method}, whose runs are whole models",
            where=where,
            cure="set resources.shard to auto, or use lora or soft_prompt",
        )
    if workers < 2 and asked == "zero3":
        return PlanError(
            f"{who} is to be sharded with ZeRO-3, which needs two workers or more, and there is"
            " one",
            where=where,
            cure=_nearest(planner, load, work),
        )
    shares = work.can_shard and asked != "never" and workers > 1
    split, fewest = Split(sharded=shares), planner.budgets[-1]
    need = total(load.device(fewest, workers if shares else 1, split))
    host = total(planner.host(load, workers if shares else 1, split))
    how = f" sharded over {workers} workers" if shares else ""
    largest = max(node.memory for node in planner.nodes)
    if need <= planner.device_memory and host > largest:
        return PlanError(
            f"{who}{how} needs {size(host)} of its node's memory while it is loaded, and the"
            f" largest node has {size(largest)}",
            where=where,
            cure=f"use nodes that leave {size(host)} or more to a worker",
        )
    return PlanError(
        f"{who}{how} needs {size(need)} on one device at the smallest token budget, which has"
        f" {size(planner.device_memory)}",
        where=where,
        cure=_nearest(planner, load, work),
    )


def _nearest(planner: LayoutPlanner, load: Load, work: Work) -> str:
    """Name what would fit, nearest first."""
    fewest = planner.budgets[-1]
    whole = f"use devices of {size(total(load.device(fewest)))} or more"
    if not work.can_shard:
        return f"{whole}, or lora, for which workers can share it"
    shared = Split(sharded=True)
    counts = range(2, _MOST_SHARDS + 1)
    enough = (n for n in counts if total(load.device(fewest, n, shared)) <= planner.device_memory)
    workers = next(enough, None)
    if workers is None:
        return f"{whole}, or a smaller backbone"
    auto = " with resources.shard auto" if planner.resources.shard == "never" else ""
    return f"give {workers} or more such workers{auto}, which can share it, or {whole}"


def together(errors: list[PlanError]) -> PlanError:
    """Make one error of those of several stages; the first alone where there are no others."""
    texts = list(dict.fromkeys(error.problem for error in errors))
    if len(texts) == 1:
        return errors[0]
    return PlanError(
        f"{len(texts)} parts of the study do not fit: {'; '.join(texts)}",
        where=errors[0].where,
        cure="take them out, skip them with --skip-unfit, or use larger devices",
    )
