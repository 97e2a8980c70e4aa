"""What a machine or cluster has: nodes with CPUs, memory and GPUs.

The planner reads this and nothing else, so that a plan can be made for a
cluster that does not exist yet. It knows nothing of studies or models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import ByteSize, TypeAdapter, ValidationError

from raybias.config import NodeKind, Resources
from raybias.errors import ConfigError
from raybias.runtime.precision import Product, measure_product

# Ray keeps about this part of a node's memory for its object store and itself.
_RAY_SHARE = 0.3
T = TypeVar("T")

#: Memory of an assumed node per CPU, where none is given.
_PER_CPU: Final = "8GiB"
#: The label in which Ray keeps a node's kind of GPU.
GPU_LABEL: Final = "ray.io/accelerator-type"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine, as Ray would schedule on it."""

    cpus: float
    """CPUs."""
    memory: int
    """Bytes that workers may use, Ray's own share taken off."""
    gpus: int = 0
    """GPUs."""
    gpu_memory: int | None = None
    """Bytes of one GPU; None where it is not known."""
    address: str | None = None
    """Of its machine, which several nodes can share; None where it is not known."""
    gpu: str | None = None
    """Kind of GPU, as Ray names it: A100, H100, A10G; None where it is not known."""
    to_come: bool = False
    """Not there yet; the cluster's autoscaler brings it when work waits for it."""
    bfloat16: bool | None = None
    """Whether its GPUs multiply in bfloat16; None where only their kind tells."""
    product: Product | None = None
    """Its CPUs' speed in bfloat16; None where it was not measured."""


@dataclass(frozen=True)
class Inventory:
    """The nodes that a plan is made for."""

    nodes: tuple[Node, ...]
    source: str
    """Where this was read, for people."""

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def memory(self) -> int:
        """Bytes of all nodes."""
        return sum(node.memory for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    @property
    def machines(self) -> int:
        """How many machines the nodes are; nodes of one address share theirs and its files."""
        known = {node.address for node in self.nodes if node.address is not None}
        return len(known) + sum(node.address is None for node in self.nodes)

    @property
    def to_come(self) -> int:
        """Nodes that are not there yet."""
        return sum(node.to_come for node in self.nodes)

    def gpus_of_worker(self, resources: Resources) -> int:
        """GPUs of one worker or replica: as a study asks, or one where there are any."""
        asked = resources.gpus_per_worker
        return int(self.gpus > 0) if asked is None else asked

    def __str__(self) -> str:
        nodes = f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
        if self.to_come:
            nodes += f" ({self.to_come} yet to come)"
        text = f"{nodes}, {self.cpus:g} CPUs, {size(self.memory)} for workers"
        kinds: dict[str, int] = {}
        for node in self.nodes:
            if node.gpus:
                each = f" of {size(node.gpu_memory)}" if node.gpu_memory else ""
                kind = f"{each} ({node.gpu})" if node.gpu else each
                kinds[kind] = kinds.get(kind, 0) + node.gpus
        gpus = [f"{count} GPU{'s' if count > 1 else ''}{kind}" for kind, count in kinds.items()]
        return f"{', '.join([text, *gpus])} ({self.source})"


def size(count: float) -> str:
    """Bytes for people, such as `1.5GiB`."""
    return ByteSize(int(count)).human_readable()


def parse_size(text: str, *, where: str) -> int:
    """Bytes of a text such as `80GiB` or `512MB`.

    Raises
    ------
    ConfigError: not a size.
    """
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise ConfigError(
            f"{text!r} is not a size", where=where, cure="write it like 80GiB or 512MB"
        ) from error


def assumed(*texts: str) -> Inventory:
    """The inventory that `--assume nodes=4,cpus=32,memory=256GiB,gpus=8,...` describes.

    Each text is one kind of node. `cpus`, `memory` (8GiB per CPU by default), `gpus`,
    `gpu_memory` (of one GPU) and `gpu` (its kind, such as A100) are per node.

    Raises
    ------
    ConfigError: an unknown key or a value that is no number or size.
    """
    nodes = tuple(node for text in texts for node in _assumed_kind(text))
    return Inventory(nodes=nodes, source="assumed")


def _assumed_kind(text: str) -> tuple[Node, ...]:
    where = "--assume"
    values = {"nodes": "1", "cpus": "1", "memory": "", "gpus": "0", "gpu_memory": "", "gpu": ""}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in values:
            raise ConfigError(
                f"{part.strip()!r} is not one of {', '.join(values)} with =value", where=where
            )
        values[name] = value
    counts = {}
    for name in ("nodes", "cpus", "gpus"):
        if not values[name].isdecimal() or (name != "gpus" and int(values[name]) < 1):
            raise ConfigError(f"{name}={values[name]!r} is not a whole number", where=where)
        counts[name] = int(values[name])
    memory = parse_size(values["memory"] or _PER_CPU, where=where)
    node = Node(
        cpus=counts["cpus"],
        memory=_for_workers(memory * (1 if values["memory"] else counts["cpus"])),
        gpus=counts["gpus"],
        gpu_memory=parse_size(values["gpu_memory"], where=where) if values["gpu_memory"] else None,
        gpu=values["gpu"] or None,
    )
    return (node,) * counts["nodes"]


def grown(inventory: Inventory, kinds: Sequence[NodeKind]) -> Inventory:
    """An inventory with the nodes that its autoscaler can still bring.

    Parameters
    ----------
    kinds: `resources.nodes` of a study; nodes of a kind that are there already count.

    Raises
    ------
    ConfigError: a size that is none.
    """
    free, coming = list(inventory.nodes), []
    for kind in kinds:
        where = "resources.nodes"
        node = Node(
            cpus=kind.cpus,
            memory=_for_workers(parse_size(kind.memory, where=where)),
            gpus=kind.gpus,
            gpu_memory=parse_size(kind.gpu_memory, where=where) if kind.gpu_memory else None,
            gpu=kind.gpu,
            to_come=True,
        )
        there = [each for each in free if _alike(each, node)][: kind.count]
        for each in there:
            free.remove(each)
        coming += [node] * (kind.count - len(there))
    return replace(inventory, nodes=(*inventory.nodes, *coming))


def _alike(node: Node, kind: Node) -> bool:
    """Whether a node is of a kind; its memory is never quite what was ordered."""
    named = node.gpu is None or kind.gpu is None or node.gpu == kind.gpu
    return named and (node.cpus, node.gpus) == (kind.cpus, kind.gpus)


def _for_workers(memory: int) -> int:
    return int(memory * (1 - _RAY_SHARE))


def read_inventory(address: str | None = None, *, products: bool = False) -> Inventory:
    """What this machine has, or the cluster at `address`.

    Parameters
    ----------
    address: of a Ray cluster ("auto" for the one this machine belongs to); None
        looks at this machine and starts no Ray. A Ray that is connected already
        is asked whatever `address` says.
    products: whether to measure how fast each node's CPU is in bfloat16 (a second or two).

    Raises
    ------
    PlanError: no cluster answers at `address`.
    """
    import ray

    from raybias.runtime.cluster import connected

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
        memory=_for_workers(get_system_memory()),
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
    gpus = _ask(asked, _first_gpu, num_gpus=0.01)
    measured = _products(alive) if products else {}
    nodes = tuple(
        Node(
            cpus=node["Resources"].get("CPU", 0.0),
            memory=int(node["Resources"].get("memory", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
            gpu_memory=gpus.get(node["NodeID"], (None, None))[0],
            address=node["NodeManagerAddress"],
            gpu=_labels(node).get(GPU_LABEL),
            bfloat16=gpus.get(node["NodeID"], (None, None))[1],
            product=measured.get(node["NodeID"]),
        )
        for node in alive
    )
    return Inventory(nodes=nodes, source=source)


def _labels(node: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    return node.get("Labels") or {}


def _products(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Product]:
    """How fast each node's CPU is in bfloat16; this machine's is measured here."""
    from ray.util import get_node_ip_address

    here = get_node_ip_address()
    own = [node["NodeID"] for node in nodes if node["NodeManagerAddress"] == here]
    others = [node["NodeID"] for node in nodes if node["NodeManagerAddress"] != here]
    found = dict.fromkeys(own, measure_product()) if own else {}
    return found | _ask(others, measure_product, num_gpus=0)


def _first_gpu() -> tuple[int, bool]:
    """Bytes of a GPU, and whether it multiplies in bfloat16."""
    import torch

    able = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return int(torch.cuda.get_device_properties(0).total_memory), able


def _ask(node_ids: Sequence[str], question: Callable[[], T], *, num_gpus: float) -> dict[str, T]:
    """What a function returns on each node; a node that is too busy to answer is left out."""
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
