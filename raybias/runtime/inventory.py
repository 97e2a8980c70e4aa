"""Ask the nodes of this machine or of a Ray cluster what they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from raybias.planning.inventory import (
    GPU_LABEL,
    Inventory,
    Node,
    cpu_has_bfloat16,
    for_workers,
    smallest_gpus,
)
from raybias.runtime import ray_internals
from raybias.runtime.ray_session import NO_RAY, connected

T = TypeVar("T")

#: The label in which Ray keeps a node's id.
NODE_LABEL: Final = "ray.io/node-id"
#: Seconds between two looks whether nodes that are asked are alive.
_LOOK_EVERY_S: Final = 5.0


def read_inventory(address: str | None = None, *, dtypes: bool = False) -> Inventory:
    """Read the inventory of this machine, or of the cluster at `address`.

    address: None, "local" and "none" read this machine and start no Ray. A connected Ray is read
        whatever it says.
    dtypes: whether to ask each node's CPU if it multiplies in bfloat16 (a second or two).

    Raises PlanError: no cluster answers at `address`.
    """
    import ray

    if ray.is_initialized():
        return _cluster("the connected Ray cluster", dtypes=dtypes)
    if address in (None, "local", NO_RAY):
        return this_machine(dtypes=dtypes)
    with connected(address):
        return _cluster(f"the Ray cluster at {address}", dtypes=dtypes)


def this_machine(*, dtypes: bool = False) -> Inventory:
    """Read the inventory that a Ray of this machine would have; `dtypes` as in `read_inventory`."""
    gpus = ray_internals.gpus_of_machine(os.environ.get("CUDA_VISIBLE_DEVICES"))
    node = Node(
        cpus=float(ray_internals.cpu_count()),
        memory=for_workers(ray_internals.memory_bytes()),
        gpus=len(gpus),
        gpu_memory=min((gpu.free for gpu in gpus), default=None),
        gpu=gpus[0].kind if gpus else None,
        bfloat16=all(gpu.bfloat16 for gpu in gpus) if gpus else None,
        cpu_bfloat16=cpu_has_bfloat16() if dtypes else None,
    )
    return Inventory(nodes=(node,), source="this machine")


def alive_nodes() -> list[Node]:
    """List the nodes of the connected cluster as Ray's own table has them."""
    import ray

    return [
        Node(
            cpus=node["Resources"].get("CPU", 0.0),
            memory=int(node["Resources"].get("memory", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
            address=node["NodeManagerAddress"],
            name=node["NodeID"],
            gpu=(node.get("Labels") or {}).get(GPU_LABEL),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _cluster(source: str, *, dtypes: bool) -> Inventory:
    from ray.util import get_node_ip_address

    nodes, there = [], alive_nodes()
    described = ask((node.name for node in there if node.gpus), ray_internals.gpus_of_machine)
    unheld, able = ray_internals.free_by_node(), dict[str, bool]()
    if dtypes:
        # This machine's CPU is asked here.
        here = get_node_ip_address()
        able = dict.fromkeys((n.name for n in there if n.address == here), cpu_has_bfloat16())
        able |= ask((n.name for n in there if n.address != here), cpu_has_bfloat16)
    for node in there:
        gpus = described.get(node.name, [])
        # What Ray's workers hold comes free; what other processes hold does not.
        idle = unheld.get(node.name, {}).get("GPU", 0.0) >= node.gpus
        nodes.append(
            replace(
                node,
                gpu_memory=min((gpu.free if idle else gpu.total for gpu in gpus), default=None),
                bfloat16=all(gpu.bfloat16 for gpu in gpus) if gpus else None,
                cpu_bfloat16=able.get(node.name),
            )
        )
    return Inventory(nodes=tuple(nodes), source=source)


def nodes_now(planned: Inventory) -> Inventory:
    """List the cluster's nodes that stay, without asking any; GPUs are as large as `planned`."""
    sizes, leaving = smallest_gpus(planned.nodes), ray_internals.leaving_nodes()
    there = (node for node in alive_nodes() if node.name not in leaving)
    nodes = (replace(node, gpu_memory=sizes.get(node.gpu)) for node in there)
    return replace(planned, nodes=tuple(nodes))


def sick_gpus() -> dict[str, str]:
    """Multiply matrices on one free GPU of each node; return what is wrong, by its address."""
    nodes = {node.name: str(node.address) for node in alive_nodes() if node.gpus}
    said = ask(nodes, multiply_on_gpu, num_gpus=0.01)
    return {nodes[name]: wrong for name, wrong in said.items() if wrong}


def multiply_on_gpu() -> str:
    """Multiply two matrices on the first GPU; return what is wrong with it, or nothing."""
    import torch

    if not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        ones = torch.ones(512, 512, device="cuda")
        return "" if bool(((ones @ ones) == ones.shape[0]).all()) else "a product is wrong"
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def ask(
    node_ids: Iterable[str],
    question: Callable[[], T],
    *,
    num_gpus: float = 0,
    patience_s: float = 30,
) -> dict[str, T]:
    """Call a function once on each node, which needs no free CPU but may hold `num_gpus`.

    A node that does not reply within `patience_s`, or is lost before it begins, is left out.
    """
    import ray

    # A process that has seen a GPU is not used again: Ray could hide none from it.
    ask = ray.remote(num_cpus=0, num_gpus=num_gpus, max_retries=0, max_calls=1)(question)
    asked = {ask.options(label_selector={NODE_LABEL: each}).remote(): each for each in node_ids}
    ended = time.monotonic() + patience_s
    late = list(asked)
    while late and time.monotonic() < ended:
        _, late = ray.wait(late, num_returns=len(late), timeout=min(_LOOK_EVERY_S, patience_s))
        alive = {node.name for node in alive_nodes()}
        # What asks for a node that is gone waits for ever.
        late = [each for each in late if asked[each] in alive]
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
    for reference in late:
        ray.cancel(reference)
    return {asked[reference]: ray.get(reference) for reference in ready}
