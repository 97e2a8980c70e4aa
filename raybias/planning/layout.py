"""Choose worker counts, token budgets and sharding for one backbone on an inventory.

What a study asks for and cannot have is refused, with the nearest that it could have. A backbone is
known by its shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Backbone, Method, Resources, Study, TrainingSet
from raybias.engine.memory import MemoryTerm, host_memory, total
from raybias.errors import PlanError
from raybias.planning.inventory import Inventory, Node, parse_size, size
from raybias.planning.placement import Placement, ResourceRequest, by_gpu_speed, places, requests
from raybias.planning.stage_plans import ScorePlan, TunePlan
from raybias.planning.workload import runs_of

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape
    from raybias.methods import Tuned

# A replica computes on all its CPUs but asks Ray for this part of them: the rest
# lets Ray Data's readers and callers, which mostly wait, be scheduled beside it.
_REPLICA_SHARE: Final = 0.75
# A forward pass of fewer tokens than this is slower than sharding is worth.
_FEWEST_TOKENS: Final = 512
# Workers that a refusal looks for a sharded layout with.
_MOST_SHARDS: Final = 64


@dataclass(frozen=True)
class Fit:
    """A layout that fits."""

    tokens: int
    workers: int
    places: Placement
    sharded: bool


@dataclass(frozen=True)
class Load:
    """What one worker holds, by token budget, number of workers, and whether it is sharded."""

    device: Callable[[int, int, bool], tuple[MemoryTerm, ...]]
    item: int
    """Bytes of one weight."""


class LayoutPlanner:
    """Choose worker counts and sharding for one backbone on the inventory."""

    def __init__(
        self, asked: Resources, inventory: Inventory, backbone: Backbone, shape: ModelShape
    ) -> None:
        self.resources, self.inventory, self.shape = asked, inventory, shape
        self.backbone = backbone.name
        self.cpus = asked.cpus_per_worker
        self.gpus = inventory.gpus_of_worker(asked)
        self.on = "gpu" if self.gpus else "cpu"
        self.nodes, self.device_memory = self._devices()
        largest = max(node.cpus for node in inventory.nodes)
        if self.cpus > largest:
            raise PlanError(
                f"resources.cpus_per_worker is {self.cpus}, the largest node has {largest:g} CPUs",
                where=str(inventory),
                cure=f"set it to {largest:g} or less",
            )

    def _devices(self) -> tuple[tuple[Node, ...], int]:
        """Return the nodes with the memory of their GPUs, and that of the largest device."""
        given, nodes = self.resources.memory_per_device, self.inventory.nodes
        if given is not None:
            most = parse_size(given, where="resources.memory_per_device")
            return tuple(replace(n, gpu_memory=most) if n.gpus else n for n in nodes), most
        if not self.gpus:
            return nodes, max(node.memory for node in nodes)
        if not self.inventory.gpus:
            raise PlanError(
                f"resources.gpus_per_worker is {self.gpus}, there is no GPU",
                where=str(self.inventory),
                cure="set it to 0, or add GPU nodes",
            )
        known = [n.gpu_memory for n in nodes if n.gpus and n.gpu_memory]
        if not known:
            raise PlanError(
                "the memory of its GPUs cannot be read",
                where=str(self.inventory),
                cure="set resources.memory_per_device, such as 80GiB",
            )
        return nodes, max(known)

    def tuning(self, training: TrainingSet, method: Tuned) -> TunePlan:
        """Plan the workers, packs and sharding of one method on one training set.

        Raises
        ------
        PlanError: it does not fit, or not as the study wants it.
        """
        sweep, final = runs_of(method)
        trials = max(sweep, final)

        def shares(tokens: int, workers: int, sharded: bool) -> tuple[MemoryTerm, ...]:
            return method.training_memory(
                self.shape,
                pack=trials if sharded else math.ceil(trials / workers),
                tokens=tokens,
                device=self.on,
                partitions=workers if sharded else 1,
            )

        load = Load(shares, method.bytes_per_weight(self.shape))
        fit = self._fit(method, load, trials, asked=self._train_workers())
        pack = trials if fit.sharded else math.ceil(trials / fit.workers)
        return TunePlan(
            training=training.name,
            method=method.name,
            sweep_units=sweep,
            final_units=final,
            workers=fit.workers,
            pack=min(pack, method.max_pack or pack),
            sweep_packs=1 if sweep and fit.sharded else min(fit.workers, sweep),
            final_packs=1 if fit.sharded else min(fit.workers, final),
            **self.stage(fit, load),
        )

    def scoring(self, items: Mapping[str, int], method: Method, *, runs: int) -> ScorePlan:
        """Plan the replicas and shards of all probes under one method, read by `runs` runs.

        Raises
        ------
        PlanError: it does not fit, or not as the study wants it.
        """
        rows = self.resources.rows_per_shard

        def shares(tokens: int, workers: int, sharded: bool) -> tuple[MemoryTerm, ...]:
            parts = workers if sharded else 1
            return method.inference_memory(
                self.shape, tokens=tokens, device=self.on, partitions=parts
            )

        load = Load(shares, method.bytes_per_weight(self.shape))
        fit = self._fit(method, load, None, asked=self._train_workers())
        least, most = (fit.workers,) * 2 if fit.sharded else self._replicas(fit.workers)
        held = self.cpus * (1 if fit.sharded else _REPLICA_SHARE)
        return ScorePlan(
            method=method.name,
            replicas_min=least,
            replicas_max=most,
            replica_cpus=held,
            data_cpus=self.inventory.cpus - most * held,
            rows_per_shard=rows,
            items=items,
            shards=runs * sum(math.ceil(count / rows) for count in items.values()),
            **self.stage(replace(fit, workers=most), load),
        )

    def stage(self, fit: Fit, load: Load) -> dict[str, Any]:
        """Return the fields that all stages of a plan have."""
        return {
            "backbone": self.backbone,
            "gpus": self.gpus,
            "threads": self.cpus,
            "tokens_per_batch": fit.tokens,
            "memory": load.device(fit.tokens, fit.workers, fit.sharded),
            "host": self._host(load, fit.workers, fit.sharded),
            "device_memory": fit.places.device_memory,
            "sharded": fit.sharded,
            "reason": self._reason(fit, load),
            "requests": requests(fit.places),
            "pending": fit.places.pending(fit.workers),
            "speed": fit.places.speed,
        }

    def _train_workers(self) -> int | None:
        """Return the workers asked for, if the nodes have so many places, memory aside."""
        asked, slots = self.resources.train_workers, self._slots()
        if asked is not None and asked > slots:
            raise PlanError(
                f"resources.train_workers is {asked}, but {slots} of {self._each()} fit",
                where=str(self.inventory),
                cure=f"set it to {slots} or less, or add nodes",
            )
        return asked

    def _slots(self) -> int:
        """Count the workers that all nodes hold, memory aside."""
        slots = places(self.nodes, ResourceRequest(cpus=self.cpus, gpus=self.gpus)).count
        if not slots:
            raise PlanError(
                f"no node has {self._each()} for a worker",
                where=str(self.inventory),
                cure="lower resources.cpus_per_worker or add nodes",
            )
        return slots

    def _replicas(self, slots: int) -> tuple[int, int]:
        """Return the least and most replicas, where `slots` fit."""
        asked = self.resources
        most = asked.replicas_max or max(slots, asked.replicas_min)
        if most > slots:
            key = "replicas_max" if asked.replicas_max else "replicas_min"
            raise PlanError(
                f"resources.{key} is {most}: replicas of {self._each()} would leave Ray Data"
                f" nothing to read with; {slots} fit",
                where=str(self.inventory),
                cure=f"set it to {slots} or less, or lower resources.cpus_per_worker",
            )
        if asked.replicas_min > most:
            raise PlanError(
                f"resources.replicas_min is {asked.replicas_min}, replicas_max is {most}",
                cure="lower replicas_min",
            )
        return asked.replicas_min, most

    def _fit(self, method: Method, load: Load, trials: int | None, *, asked: int | None) -> Fit:
        """Choose the layout of a method: whole where that fits, else sharded.

        Parameters
        ----------
        trials: runs that workers share; None where each works by itself, on any device.
        asked: workers that the study wants.

        Raises
        ------
        PlanError: neither fits, or not as the study wants it.
        """
        slots, shard = self._slots(), self.resources.shard
        wanted = slots if trials is None else min(asked or slots, trials)
        whole = None
        if shard != "zero3":
            whole = self._best(load, trials, wanted=wanted, sharded=False)
        if whole is not None:
            if trials is not None and asked is not None and whole.workers < wanted:
                raise PlanError(
                    f"{wanted} workers do not fit the memory beside each other, {whole.workers} do",
                    where=str(self.inventory),
                    cure=f"set resources.train_workers to {whole.workers} or less",
                )
            return whole
        if not method.can_shard and shard == "zero3":
            raise PlanError(
                f"workers cannot share {self.backbone} for {method.name}, whose runs are whole"
                " models",
                where=str(self.inventory),
                cure="set resources.shard to auto, or use lora or soft_prompt",
            )
        if not method.can_shard or shard == "never":
            raise self._too_big(load, method)
        if (asked or slots) < 2:
            few = shard == "zero3"
            raise self._too_few(load, method) if few else self._too_big(load, method)
        found = self._best(load, trials, wanted=asked or slots, sharded=True)
        if found is None or (asked is not None and found.workers < asked):
            raise self._too_big(load, method, workers=asked or slots)
        return found

    def _best(self, load: Load, trials: int | None, *, wanted: int, sharded: bool) -> Fit | None:
        """Choose the layout that is done first, with the largest token budget of those."""
        together = sharded or trials is not None
        groups = by_gpu_speed(self.nodes) if self.gpus and together else [self.nodes]
        found = [
            fit
            for tokens in self.budgets
            for among in groups
            if (fit := self.settle(load, tokens, wanted, sharded=sharded, among=among)) is not None
        ]

        def seconds(fit: Fit) -> float:
            share = (
                1 / fit.workers if trials is None or sharded else math.ceil(trials / fit.workers)
            )
            return share / (fit.places.speed or 1.0)

        return min(found, key=lambda fit: (seconds(fit), -fit.tokens), default=None)

    def settle(
        self,
        load: Load,
        tokens: int,
        wanted: int = 1,
        *,
        sharded: bool = False,
        among: Sequence[Node] | None = None,
    ) -> Fit | None:
        """Return as many workers as fit, up to `wanted`; fewer of them hold more each."""
        workers = wanted
        while workers >= (2 if sharded else 1):
            need = self._need(load, tokens, workers, sharded)
            if max(need.device, 0 if self.gpus else need.host) > self.device_memory:
                return None
            found = places(self.nodes, need, among=among)
            if found.count >= workers:
                return Fit(tokens, workers, found, sharded)
            workers = found.count
        return None

    def _need(self, load: Load, tokens: int, workers: int, sharded: bool) -> ResourceRequest:
        held = total(load.device(tokens, workers, sharded))
        host = total(self._host(load, workers, sharded)) if self.gpus else held
        device = held if self.gpus else 0
        return ResourceRequest(cpus=self.cpus, gpus=self.gpus, device=device, host=host)

    def _host(self, load: Load, workers: int, sharded: bool) -> tuple[MemoryTerm, ...]:
        parts = workers if sharded else 1
        return host_memory(self.shape, device=self.on, item=load.item, partitions=parts)

    @property
    def budgets(self) -> list[int]:
        """Token budgets of a pass, halved from the study's."""
        return halved(self.resources.tokens_per_batch, _FEWEST_TOKENS)

    def _too_few(self, load: Load, method: Method) -> PlanError:
        return PlanError(
            f"{self.backbone} ({method.name}) is to be sharded with ZeRO-3, which needs two workers"
            " or more, and there is one",
            where=str(self.inventory),
            cure=self._nearest(load, method),
        )

    def _too_big(self, load: Load, method: Method, *, workers: int = 0) -> PlanError:
        fewest = self.budgets[-1]
        need = total(load.device(fewest, workers or 1, workers > 0))
        how = f" sharded over {workers} workers" if workers else ""
        largest = max(node.memory for node in self.nodes)
        host = total(self._host(load, workers or 1, workers > 0))
        if need <= self.device_memory and host > largest:
            return PlanError(
                f"{self.backbone} ({method.name}){how} needs {size(host)} of its node's memory"
                f" while it is loaded, and the largest node has {size(largest)}",
                where=str(self.inventory),
                cure=f"use nodes that leave {size(host)} or more to a worker",
            )
        return PlanError(
            f"{self.backbone} ({method.name}){how} needs {size(need)} on one device at the smallest"
            f" token budget, which has {size(self.device_memory)}",
            where=str(self.inventory),
            cure=self._nearest(load, method),
        )

    def _nearest(self, load: Load, method: Method) -> str:
        """Name what would fit, nearest first."""
        fewest = self.budgets[-1]
        whole = f"use devices of {size(total(load.device(fewest, 1, False)))} or more"
        if not method.can_shard:
            return f"{whole}, or lora, for which workers can share it"
        counts = range(2, _MOST_SHARDS + 1)
        enough = (n for n in counts if total(load.device(fewest, n, True)) <= self.device_memory)
        workers = next(enough, None)
        if workers is None:
            return f"{whole}, or a smaller backbone"
        auto = " with resources.shard auto" if self.resources.shard == "never" else ""
        return f"give {workers} or more such workers{auto}, which can share it, or {whole}"

    def _reason(self, fit: Fit, load: Load) -> str:
        shard, asked = self.resources.shard, self.resources.tokens_per_batch
        if fit.sharded and shard == "zero3":
            return "sharded with ZeRO-3, as resources.shard asks"
        if fit.sharded:
            return (
                "sharded with ZeRO-3: the whole backbone does not fit the"
                f" {size(self.device_memory)} of one {'GPU' if self.gpus else 'node'}"
            )
        less = f", {fit.tokens} tokens at a time instead of {asked}" if fit.tokens < asked else ""
        fits = f"the {size(fit.places.device_memory)} of one {'GPU' if self.gpus else 'node'}"
        return f"replicated: each worker holds the whole backbone in {fits}{less}"

    def _each(self) -> str:
        gpu = f" and {self.gpus} GPU" if self.gpus else ""
        return f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{gpu}"


def halved(tokens: int, fewest: int) -> list[int]:
    """Return a token budget and its halves down to `fewest`, or itself where it is less."""
    return [tokens >> n for n in range(tokens.bit_length()) if tokens >> n >= min(tokens, fewest)]


def runs_read(study: Study, method: Method) -> int:
    """Count the runs of a method that read the probes, on one backbone."""
    return method.n_runs * (len(study.training) if method.needs_training_set else 1)
