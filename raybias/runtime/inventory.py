"""Read the inventory of this machine or of a Ray cluster: CPUs, memory, GPUs and their speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raybias.planning.inventory import GPU_LABEL, Inventory, Node, for_workers
from raybias.planning.precision import Product, measure_product
from raybias.runtime.ray_session import connected

T = TypeVar("T")


def read_inventory(address: str | None = None, *, products: bool = False) -> Inventory:
    """Read the inventory of this machine, or of the cluster at `address`.

    Parameters
    ----------
    address: of a Ray cluster ("auto" for the one this machine belongs to); None
        reads this machine and starts no Ray. A Ray that is connected already
        is read whatever `address` says.
    products: whether to measure how fast each node's CPU is in bfloat16 (a second or two).

    Raises
    ------
    PlanError: no cluster answers at `address`.
    """
    import ray

    if ray.is_initialized():
        return _cluster("the connected Ray cluster", products)
    if address is None:
        return _local(products)
    with connected(address):
        return _cluster(f"the Ray cluster at {address}", products)


def _local(products: bool) -> Inventory:
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
    gpus = _ask(asked, _smallest_gpu, num_gpus=0)
    gpus |= _ask([each for each in asked if gpus.get(each) is None], _first_gpu, num_gpus=0.01)
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
    return found | _ask(others, measure_product, num_gpus=0)


def sick_gpus() -> dict[str, str]:
    """Multiply matrices on one GPU of each node that has any, in the connected cluster.

    Returns what is wrong, by the node's address; a node whose GPUs are all at work is left out.
    """
    import ray

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    asked = [name for name, node in nodes.items() if node["Resources"].get("GPU", 0)]
    said = _ask(asked, multiply_on_gpu, num_gpus=0.01)
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
    """Read the bytes of a GPU that is free, and whether it multiplies in bfloat16."""
    import torch

    able = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return int(torch.cuda.get_device_properties(0).total_memory), able


def _ask(node_ids: Sequence[str], question: Callable[[], T], *, num_gpus: float) -> dict[str, T]:
    """Call a function on each node; a node that is too busy to reply is left out."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, num_gpus=num_gpus, max_retries=0)(question)
    asked = {
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(): node_id
        for node_id in node_ids
    }
    if not asked:
        return {}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=30)
    for reference in late:
        ray.cancel(reference)
    return {asked[reference]: ray.get(reference) for reference in ready}
