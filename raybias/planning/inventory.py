"""The nodes of a machine or cluster, with their CPUs, memory and GPUs, and the dtype that suits.

The planner reads nothing else, so it can plan for a cluster that does not exist yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ByteSize, Field

from raybias.config import Resources, Study
from raybias.config.reading import parse_section
from raybias.config.section import Section, Size, bytes_of
from raybias.config.study import NodeKind
from raybias.engine.checkpoint import quantisation

#: Kinds of GPU, as Ray names them, from before bfloat16 (compute capability below 8.0).
_OLD_GPUS: Final = frozenset({"K80", "P4", "P100", "V100", "T4"})
# Ray keeps about this part of a node's memory for its object store and itself.
_RAY_SHARE = 0.3
#: Memory of an assumed node per CPU, where none is given.
_PER_CPU: Final = 8 * 2**30
#: The label in which Ray keeps a node's kind of GPU.
GPU_LABEL: Final = "ray.io/accelerator-type"


@dataclass(frozen=True)
class Precision:
    """A dtype, and why it was chosen."""

    dtype: str
    reason: str

    def __str__(self) -> str:
        return f"dtype {self.dtype}: {self.reason}"


def cpu_has_bfloat16() -> bool:
    """Return whether this machine's CPU has instructions that multiply in bfloat16."""
    import torch

    able = torch.cpu.get_capabilities()
    return any(has is True for name, has in able.items() if name.endswith("bf16"))


def decide_dtypes(study: Study, inventory: Inventory) -> tuple[Study, Precision | None]:
    """Replace `auto` by the dtype that suits the nodes; return the choice, if any was open."""
    if not study.undecided:
        return study, None
    chosen = choose(inventory, gpus=inventory.gpus_of_worker(study.resources) > 0)
    loaded = [each for each in study.backbones if each.is_checkpoint]
    own = {each.name: quantisation(each) for each in loaded}
    dtypes = {name: how.dtype if how else chosen.dtype for name, how in own.items()}
    left = any(each.dtype == "auto" and own[each.name] is None for each in loaded)
    return study.with_dtypes(dtypes), chosen if left else None


def choose(inventory: Inventory, *, gpus: bool) -> Precision:
    """Choose bfloat16 if every GPU, or CPU, multiplies in it; else float32, as emulation is slow.

    GPUs of an unknown kind are assumed to; unknown CPUs are not.
    """
    if gpus:
        nodes = [node for node in inventory.nodes if node.gpus]
        kinds = ", ".join(sorted({node.gpu for node in nodes if node.gpu})) or "this GPU"
        if old := [node for node in nodes if node.bfloat16 is False or node.gpu in _OLD_GPUS]:
            lacking = ", ".join(sorted({node.gpu or "a GPU" for node in old}))
            some = f"; {len(old)} of {len(nodes)} nodes" if len(old) < len(nodes) else ""
            return Precision("float32", f"no bfloat16 on {lacking}{some}")
        if any(node.bfloat16 is None and node.gpu is None for node in nodes):
            return Precision("bfloat16", "assumed of GPUs whose kind is not known")
        return Precision("bfloat16", f"{kinds} can multiply in it")
    able = [node.cpu_bfloat16 for node in inventory.nodes if node.cpus]
    one, all_of_them = len(able) == 1, f"of {len(able)} nodes"
    if slow := able.count(False):
        whose = "this CPU" if one else f"the CPU of {slow} {all_of_them}"
        return Precision("float32", f"{whose} emulates bfloat16")
    if unknown := able.count(None):
        problem = "have CPUs that are not known to multiply in bfloat16"
        return Precision("float32", f"{unknown} {all_of_them} {problem}")
    whose = "this CPU multiplies" if one else "the CPUs of all nodes multiply"
    return Precision("bfloat16", f"{whose} in it")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine, as Ray would schedule on it.

    memory: bytes that workers may use, Ray's own share taken off.
    gpu_memory: bytes of one GPU, if known.
    address: of its machine, which several nodes can share, if known.
    name: its id in the cluster, if it is there.
    gpu: kind of GPU, as Ray names it (A100, H100, A10G), if known.
    pending: not there yet; the cluster's autoscaler brings it when work waits for it.
    bfloat16: whether its GPUs multiply in bfloat16; None where only their kind tells.
    cpu_bfloat16: whether its CPUs do; None where they were not asked.
    """

    cpus: float
    memory: int
    gpus: int = 0
    gpu_memory: int | None = None
    address: str | None = None
    name: str = ""
    gpu: str | None = None
    pending: bool = False
    bfloat16: bool | None = None
    cpu_bfloat16: bool | None = None


@dataclass(frozen=True)
class Inventory:
    """The nodes that a plan is made for, and for people where they were read."""

    nodes: tuple[Node, ...]
    source: str

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    @property
    def pending(self) -> int:
        """Nodes that are not there yet."""
        return sum(node.pending for node in self.nodes)

    @property
    def machines(self) -> int:
        """How many machines the nodes are; nodes of one address share theirs and its files."""
        known = {node.address for node in self.nodes if node.address is not None}
        return len(known) + sum(node.address is None for node in self.nodes)

    def gpus_of_worker(self, resources: Resources) -> int:
        """Return the GPUs of one worker or replica: as a study asks, or one if there are any."""
        asked = resources.gpus_per_worker
        return int(self.gpus > 0) if asked is None else asked

    def devices(self, resources: Resources) -> int:
        """Return the GPUs, or CPUs without them, that a study takes at most."""
        held = self.gpus if self.gpus_of_worker(resources) else self.cpus
        return max(1, int(held * resources.share))

    def __str__(self) -> str:
        nodes = f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
        if self.pending:
            nodes += f" ({self.pending} yet to come)"
        memory = size(sum(node.memory for node in self.nodes))
        text = f"{nodes}, {self.cpus:g} CPUs, {memory} for workers"
        kinds = Counter[str]()
        for node in self.nodes:
            if node.gpus:
                each = f" of {size(node.gpu_memory)}" if node.gpu_memory else ""
                kinds[f"{each} ({node.gpu})" if node.gpu else each] += node.gpus
        gpus = [f"{count} GPU{'s' if count > 1 else ''}{kind}" for kind, count in kinds.items()]
        return f"{', '.join([text, *gpus])} ({self.source})"


def smallest_gpus(nodes: Iterable[Node]) -> dict[str | None, int]:
    """Return the least memory of a GPU of each kind, where it is known."""
    sizes: dict[str | None, int] = {}
    for node in nodes:
        if node.gpus and node.gpu_memory:
            sizes[node.gpu] = min(node.gpu_memory, sizes.get(node.gpu, node.gpu_memory))
    return sizes


def size(count: float) -> str:
    """Format bytes, such as `1.5GiB`."""
    return ByteSize(int(count)).human_readable()


def duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.1f} s"


class _Nodes(Section):
    """Nodes of one kind, as `--assume` writes them."""

    nodes: int = Field(1, ge=1, le=1000)
    cpus: int = Field(1, ge=1, le=1024)
    memory: Size | None = None
    gpus: int = Field(0, ge=0, le=64)
    gpu_memory: Size | None = None
    gpu: str | None = None

    @classmethod
    def read(cls, given: dict[str, Any], where: str, *, pending: bool = False) -> list[Node]:
        kind = parse_section(cls, given, where=where)
        node = Node(
            cpus=kind.cpus,
            memory=for_workers(bytes_of(kind.memory) if kind.memory else _PER_CPU * kind.cpus),
            gpus=kind.gpus,
            gpu_memory=bytes_of(kind.gpu_memory) if kind.gpu_memory else None,
            gpu=kind.gpu,
            pending=pending,
        )
        return [node] * kind.nodes


def assumed(*texts: str) -> Inventory:
    """Parse the inventory of `--assume nodes=4,cpus=32,memory=256GiB,gpus=8,...`.

    Each text is one kind of node. `cpus`, `memory` (8GiB per CPU by default), `gpus`, `gpu_memory`
    (of one GPU) and `gpu` (its kind, such as A100) are per node.
    """
    nodes: list[Node] = []
    for text in texts:
        given = dict(part.strip().partition("=")[::2] for part in text.split(","))
        nodes += _Nodes.read(given, "--assume")
    return Inventory(tuple(nodes), "assumed")


def with_autoscaled_nodes(inventory: Inventory, kinds: Sequence[NodeKind]) -> Inventory:
    """Add the nodes of `resources.nodes` that the cluster's autoscaler has not brought yet."""
    free, coming = list(inventory.nodes), list[Node]()
    for kind in kinds:
        given = {"nodes": kind.count, **kind.model_dump(exclude={"count"})}
        wanted = _Nodes.read(given, "resources.nodes", pending=True)
        there = [each for each in free if _alike(each, wanted[0])][: kind.count]
        for each in there:
            free.remove(each)
        coming += wanted[len(there) :]
    return replace(inventory, nodes=(*inventory.nodes, *coming))


def _alike(node: Node, kind: Node) -> bool:
    """Compare a node with a kind, but for its memory, which is never quite what was ordered."""
    named = node.gpu is None or kind.gpu is None or node.gpu == kind.gpu
    return named and (node.cpus, node.gpus) == (kind.cpus, kind.gpus)


def for_workers(memory: int) -> int:
    """Return the bytes of a node that Ray leaves to workers, of `memory` in all."""
    return int(memory * (1 - _RAY_SHARE))
