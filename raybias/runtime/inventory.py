"""Ask the nodes of this machine or of a Ray cluster what they are, and have them fetch models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from raybias.config import Backbone
from raybias.planning.inventory import (
    GPU_LABEL,
    Inventory,
    Node,
    Product,
    for_workers,
    measure_product,
)
from raybias.runtime.ray_session import NO_RAY, connected

T = TypeVar("T")

#: What `address` says for this machine: by default, with a Ray of its own, or without Ray.
_HERE: Final = (None, "local", NO_RAY)


def read_inventory(address: str | None = None, *, products: bool = False) -> Inventory:
    """Read the inventory of this machine, or of the cluster at `address`.

    Parameters
    ----------
    address: of a Ray cluster ("auto" for the one this machine belongs to); None, "local" and
        "none" read this machine and start no Ray. A Ray that is connected already
        is read whatever `address` says.
    products: whether to measure how fast each node's CPU is in bfloat16 (a second or two).

    Raises
    ------
    PlanError: no cluster answers at `address`.
    """
    import ray

    if ray.is_initialized():
        return _cluster("the connected Ray cluster", products)
    if address in _HERE:
        return this_machine(products=products)
    with connected(address):
        return _cluster(f"the Ray cluster at {address}", products)


def this_machine(*, products: bool = False) -> Inventory:
    """Read the inventory that a Ray of this machine would have.

    Parameters
    ----------
    products: as for `read_inventory`.
    """
    # The same functions that `ray.init` asks, so that both see a container's limits.
    import torch
    from ray._common.utils import get_system_memory
    from ray._private.accelerators import NvidiaGPUAcceleratorManager
    from ray._private.utils import get_num_cpus

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    node = Node(
        cpus=float(get_num_cpus()),
        memory=for_workers(get_system_memory()),
        gpus=gpus,
        gpu_memory=int(torch.cuda.get_device_properties(0).total_memory) if gpus else None,
        gpu=NvidiaGPUAcceleratorManager.get_current_node_accelerator_type() if gpus else None,
        bfloat16=torch.cuda.is_bf16_supported(including_emulation=False) if gpus else None,
        product=measure_product() if products else None,
    )
    return Inventory(nodes=(node,), source="this machine")


def _cluster(source: str, products: bool) -> Inventory:
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    asked = [node["NodeID"] for node in alive if node["Resources"].get("GPU", 0)]
    gpus = ask(asked, _smallest_gpu)
    gpus |= ask([each for each in asked if gpus.get(each) is None], _first_gpu)
    measured = _products(alive) if products else {}
    nodes = tuple(
        Node(
            cpus=node["Resources"].get("CPU", 0.0),
            memory=int(node["Resources"].get("memory", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
            gpu_memory=(gpus.get(node["NodeID"]) or (None, None))[0],
            address=node["NodeManagerAddress"],
            gpu=_labels(node).get(GPU_LABEL),
            bfloat16=(gpus.get(node["NodeID"]) or (None, None))[1],
            product=measured.get(node["NodeID"]),
        )
        for node in alive
    )
    return Inventory(nodes=nodes, source=source)


def _labels(node: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    return node.get("Labels") or {}


def _products(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Product]:
    """Measure how fast each node's CPU is in bfloat16."""
    from ray.util import get_node_ip_address

    here = get_node_ip_address()
    own = [node["NodeID"] for node in nodes if node["NodeManagerAddress"] == here]
    others = [node["NodeID"] for node in nodes if node["NodeManagerAddress"] != here]
    found = dict.fromkeys(own, measure_product()) if own else {}
    return found | ask(others, measure_product)


def sick_gpus() -> dict[str, str]:
    """Multiply matrices on one GPU of each node that has any, in the connected cluster.

    Returns what is wrong, by the node's address; a node whose GPUs are all at work is left out.
    """
    import ray

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    asked = [name for name, node in nodes.items() if node["Resources"].get("GPU", 0)]
    said = ask(asked, multiply_on_gpu, num_gpus=0.01)
    return {nodes[name]["NodeManagerAddress"]: wrong for name, wrong in said.items() if wrong}


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


def _smallest_gpu() -> tuple[int, bool] | None:
    """Ask NVIDIA's driver, which needs no GPU to be free, for a node's GPUs; None without one.

    Returns the bytes of the smallest, and whether all multiply in bfloat16.
    """
    from ray._private.thirdparty import pynvml

    try:
        pynvml.nvmlInit()
        handles = list(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
        sizes = [int(pynvml.nvmlDeviceGetMemoryInfo(each).total) for each in handles]
        able = [pynvml.nvmlDeviceGetCudaComputeCapability(each) >= (8, 0) for each in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return (min(sizes), all(able)) if sizes else None


def _first_gpu() -> tuple[int, bool]:
    """Read the bytes of a node's first GPU, and whether it multiplies in bfloat16.

    Other work may hold all of its GPUs, so none is asked of Ray, which therefore hides them.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    import torch

    able = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return int(torch.cuda.get_device_properties(0).total_memory), able


def ask(
    node_ids: Iterable[str],
    question: Callable[[], T],
    *,
    num_gpus: float = 0,
    patience_s: float | None = 30,
) -> dict[str, T]:
    """Call a function once on each node, which needs no CPU that is free.

    Parameters
    ----------
    num_gpus: that it holds meanwhile; without any, Ray hides all from it.
    patience_s: a node that does not reply within it is left out; None waits.

    Raises
    ------
    RayError: a call failed, or a node was lost.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A process that has seen a GPU is not used again: Ray could hide none from it.
    ask = ray.remote(num_cpus=0, num_gpus=num_gpus, max_retries=0, max_calls=1)(question)
    asked = {
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(): node_id
        for node_id in node_ids
    }
    if not asked:
        return {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=patience_s)
    for reference in late:
        ray.cancel(reference)
    return {asked[reference]: ray.get(reference) for reference in ready}


def fetch(backbone: Backbone, *, gpus: bool) -> None:
    """Bring a model of the hub into the cache of every machine that has workers.

    Parameters
    ----------
    gpus: whether workers are on nodes with GPUs alone.

    Raises
    ------
    ModelError: a machine has neither the model nor a way to the hub.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    from raybias.engine.model_files import fetched

    alive = [node for node in ray.nodes() if node["Alive"]]
    able = [node for node in alive if node["Resources"].get("GPU") or not gpus]
    machines = {node["NodeManagerAddress"]: node["NodeID"] for node in able}
    try:
        ask(machines.values(), partial(fetched, backbone), patience_s=None)
    except RayTaskError:
        raise
    except RayError:
        # A node was lost. Workers fetch what a machine does not have.
        return


def free(*, gpus: bool) -> float:
    """Return the GPUs, or CPUs, of the cluster that nothing holds."""
    import ray

    return float(ray.available_resources().get("GPU" if gpus else "CPU", 0))
