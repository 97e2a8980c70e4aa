"""The nodes of a machine or cluster, with their CPUs, memory and GPUs.

The planner reads this and nothing else, so that a plan can be made for a
cluster that does not exist yet. It knows nothing of studies or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from raybias.config import NodeKind, Resources
from raybias.errors import ConfigError
from raybias.planning.precision import Product

# Ray keeps about this part of a node's memory for its object store and itself.
_RAY_SHARE = 0.3
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
    pending: bool = False
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
    per_gpu: int = 1
    """Places of a GPU, in each of which a worker may tune."""

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
    def pending(self) -> int:
        """Nodes that are not there yet."""
        return sum(node.pending for node in self.nodes)

    def gpus_of_worker(self, resources: Resources) -> int:
        """Return the GPUs of one worker or replica: as a study asks, or one if there are any."""
        asked = resources.gpus_per_worker
        return int(self.gpus > 0) if asked is None else asked

    def devices(self, resources: Resources) -> int:
        """Return the GPUs, or CPUs without them, that a study takes at most."""
        held = self.gpus if self.gpus_of_worker(resources) else self.cpus
        return max(1, int(held * resources.share))

    def places(self, resources: Resources) -> int:
        """Return the places of these GPUs, or CPUs."""
        return self.devices(resources) * self.per_gpu

    def __str__(self) -> str:
        nodes = f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
        if self.pending:
            nodes += f" ({self.pending} yet to come)"
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
    """Format bytes, such as `1.5GiB`."""
    return ByteSize(int(count)).human_readable()


def parse_size(text: str, *, where: str) -> int:
    """Return the bytes of a text such as `80GiB` or `512MB`.

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
    """Parse the inventory of `--assume nodes=4,cpus=32,memory=256GiB,gpus=8,...`.

    Each text is one kind of node. `cpus`, `memory` (8GiB per CPU by default), `gpus`,
    `gpu_memory` (of one GPU) and `gpu` (its kind, such as A100) are per node.

    Raises
    ------
    ConfigError: an unknown key or a value that is no number or size.
    """
    nodes = tuple(node for text in texts for node in _assumed_kind(text))
    return Inventory(nodes=nodes, source="assumed")


#: How many nodes of a kind there are, and CPUs and GPUs of a node, as in `resources.nodes`.
_COUNTS: Final = {"nodes": (1, 1000), "cpus": (1, 1024), "gpus": (0, 64)}
_DIGITS: Final = 6


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
    for name, (least, most) in _COUNTS.items():
        known = values[name].isdecimal() and len(values[name]) <= _DIGITS
        if not known or not least <= int(values[name]) <= most:
            problem = f"{name}={values[name]!r} is not a whole number from {least} to {most}"
            raise ConfigError(problem, where=where)
        counts[name] = int(values[name])
    memory = parse_size(values["memory"] or _PER_CPU, where=where)
    node = Node(
        cpus=counts["cpus"],
        memory=for_workers(memory * (1 if values["memory"] else counts["cpus"])),
        gpus=counts["gpus"],
        gpu_memory=parse_size(values["gpu_memory"], where=where) if values["gpu_memory"] else None,
        gpu=values["gpu"] or None,
    )
    return (node,) * counts["nodes"]


def with_autoscaled_nodes(inventory: Inventory, kinds: Sequence[NodeKind]) -> Inventory:
    """Add the nodes that a cluster's autoscaler can still bring.

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
            memory=for_workers(parse_size(kind.memory, where=where)),
            gpus=kind.gpus,
            gpu_memory=parse_size(kind.gpu_memory, where=where) if kind.gpu_memory else None,
            gpu=kind.gpu,
            pending=True,
        )
        there = [each for each in free if _alike(each, node)][: kind.count]
        for each in there:
            free.remove(each)
        coming += [node] * (kind.count - len(there))
    return replace(inventory, nodes=(*inventory.nodes, *coming))


def _alike(node: Node, kind: Node) -> bool:
    """Tell whether a node is of a kind; its memory is never quite what was ordered."""
    named = node.gpu is None or kind.gpu is None or node.gpu == kind.gpu
    return named and (node.cpus, node.gpus) == (kind.cpus, kind.gpus)


def for_workers(memory: int) -> int:
    """Return the bytes of a node that Ray leaves to workers, of `memory` in all."""
    return int(memory * (1 - _RAY_SHARE))
