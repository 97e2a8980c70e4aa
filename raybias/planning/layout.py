"""Choose how the workers of one backbone hold it on an inventory, by estimated wall time.

Each worker holds all of it on one device, splits its layers over several devices of its node, or
shares every weight with the others (ZeRO-3). What a study asks for and cannot have is refused, with
the nearest that it could have. A backbone is known by its shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Backbone, MethodFields, Resources, TrainingSet
from raybias.engine.memory import MemoryTerm, total
from raybias.errors import PlanError
from raybias.methods.work import Work
from raybias.planning.inventory import Inventory, Node, parse_size, size
from raybias.planning.machine import Machine, ResourceRequest, by_gpu_speed, places, requests
from raybias.planning.splits import Fit, Load, Room, halved
from raybias.planning.stage_plans import ScorePlan, TunePlan
from raybias.planning.workload import Layout, ReadingWork, TuningWork

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

# A replica computes on all its CPUs but asks Ray for this part of them: the rest
# lets Ray Data's readers and callers, which mostly wait, be scheduled beside it.
_REPLICA_SHARE: Final = 0.75
# A forward pass of fewer tokens than this is slower than sharding is worth.
_FEWEST_TOKENS: Final = 512
# Devices of a node that a worker's layers are on.
_SPLITS: Final = (1, 2, 4, 8)


class LayoutPlanner:
    """Choose worker counts and layouts for one backbone on the inventory."""

    def __init__(
        self,
        asked: Resources,
        inventory: Inventory,
        backbone: Backbone,
        shape: ModelShape,
        machine: Machine | None = None,
    ) -> None:
        self.resources, self.inventory, self.shape = asked, inventory, shape
        self.machine = machine or Machine()
        self.backbone, self.shards = backbone.name, backbone.can_shard
        self.share = backbone.gpu_share
        self.cpus = asked.cpus_per_worker
        self.gpus = inventory.gpus_of_worker(asked)
        self.per_gpu = inventory.per_gpu
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

    def tunings(
        self, training: TrainingSet, method: MethodFields, work: TuningWork
    ) -> list[TunePlan]:
        """Plan the workers of one method on one training set for every sensible size of its packs.

        Returns the plans from the largest packs to the smallest; then those whose workers share
        GPUs, and last the one in which all GPUs share one pack, where these are to be had.

        Raises
        ------
        PlanError: it does not fit, or not as the study wants it.
        """
        asked, trials = self._train_workers(), max(work.sweep, work.final)
        wanted = [min(asked, trials)] if asked else list(range(1, trials + 1))
        sizes = sorted({math.ceil(trials / packs) for packs in wanted}, reverse=True)
        made: list[TunePlan] = []
        error: PlanError | None = None
        for pack in sizes:
            try:
                made.append(self._tuning(training, method, work, pack, asked))
            except PlanError as raised:
                error = error or raised
                continue
            if made[-1].sharded:
                break
        if error is not None and not made:
            raise error
        for pack in sizes if self.per_gpu > 1 else ():
            with suppress(PlanError):
                made.append(self._tuning(training, method, work, pack, asked, sharers=self.per_gpu))
        if self.gpus and asked is None and not made[-1].sharded:
            with suppress(PlanError):
                made.append(self._tuning(training, method, work, 1, asked, shared=True))
        return made

    def _tuning(
        self,
        training: TrainingSet,
        method: MethodFields,
        work: TuningWork,
        pack: int,
        asked: int | None,
        *,
        sharers: int = 1,
        shared: bool = False,
    ) -> TunePlan:
        """Plan one method on one training set, so many runs in a pack, or all on shared weights.

        Parameters
        ----------
        sharers: workers on one GPU.
        """
        trials = max(work.sweep, work.final)

        def terms(shape: ModelShape, tokens: int, partitions: int) -> tuple[MemoryTerm, ...]:
            held = trials if partitions > 1 else pack
            return work.whole.tuning_memory(
                shape, pack=held, tokens=tokens, device=self.on, partitions=partitions
            )

        def seconds(fit: Fit) -> float:
            packs = 1 if fit.layout.sharded else math.ceil(trials / pack)
            own = work.stops(trials)[::packs]
            return packs * work.pack_seconds(fit.speed, fit.layout, own)

        load = Load(terms, self.shape, work.whole.weight_bytes(self.shape), self.on)
        packs = math.ceil(trials / pack)
        fit = self._fit(
            method, work.whole, load, packs, seconds, asked=asked, sharers=sharers, shared=shared
        )
        size = trials if fit.layout.sharded else pack
        return TunePlan(
            training=training.name,
            method=method.name,
            sweep_units=work.sweep,
            final_units=work.final,
            workers=fit.workers,
            pack=min(size, work.most or size),
            sweep_packs=math.ceil(work.sweep / size),
            final_packs=math.ceil(work.final / size),
            **self.stage(fit, load),
        )

    def scoring(
        self, method: MethodFields, work: ReadingWork, rows: int | None = None
    ) -> ScorePlan:
        """Plan the replicas and shards of all probes under one method.

        Parameters
        ----------
        rows: items of a shard; by default as many as take a few seconds.

        Raises
        ------
        PlanError: it does not fit, or not as the study wants it.
        """

        def terms(shape: ModelShape, tokens: int, partitions: int) -> tuple[MemoryTerm, ...]:
            return work.whole.reading_memory(
                shape, tokens=tokens, device=self.on, partitions=partitions
            )

        def each(fit: Fit) -> int:
            return rows or work.rows_per_shard(fit.speed, fit.layout, fit.workers)

        def seconds(fit: Fit) -> float:
            return work.seconds(fit.speed, fit.layout, each(fit))

        load = Load(terms, self.shape, work.whole.weight_bytes(self.shape), self.on, self.share)
        fit = self._fit(method, work.whole, load, None, seconds, asked=self._train_workers())
        sharded = fit.layout.sharded
        least, most = (fit.workers,) * 2 if sharded else self._replicas(fit.workers)
        fit = replace(fit, workers=most)
        held = self.cpus * (1 if sharded else _REPLICA_SHARE)
        return ScorePlan(
            method=method.name,
            replicas_min=least,
            replicas_max=most,
            replica_cpus=held,
            data_cpus=self.inventory.cpus - most * held,
            rows_per_shard=each(fit),
            items=work.whole.items,
            runs=work.whole.runs,
            shards=work.whole.runs * work.shards(each(fit)),
            **self.stage(fit, load),
        )

    def stage(self, fit: Fit, load: Load) -> dict[str, Any]:
        """Return the fields that all stages of a plan have."""
        layout = fit.layout
        return {
            "backbone": self.backbone,
            "gpus": self.gpus and layout.devices,
            "threads": self.cpus,
            "tokens_per_batch": layout.tokens,
            "sharers": layout.sharers,
            "per_gpu": self.per_gpu,
            "passes": layout.passes,
            "memory": load.device(layout),
            "host": load.host(layout),
            "device_memory": fit.places.device_memory,
            "sharded": layout.sharded,
            "reason": self._reason(fit, load),
            "requests": requests(fit.places),
            "pending": fit.places.pending(fit.workers),
            "speed": fit.speed,
            "across": layout.across,
            "deterministic": self.resources.deterministic,
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
        share = max(1, self.inventory.devices(self.resources) // (self.gpus or self.cpus))
        room = places(self.nodes, ResourceRequest(cpus=self.cpus, gpus=self.gpus)).count
        slots = min(room, share)
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

    def _fit(
        self,
        method: MethodFields,
        whole: Work,
        load: Load,
        packs: int | None,
        seconds: Callable[[Fit], float],
        *,
        asked: int | None,
        sharers: int = 1,
        shared: bool = False,
    ) -> Fit:
        """Choose the layout in which all devices do such work fastest; then that of longest passes.

        Parameters
        ----------
        packs: parts of the work that workers share; None where any number do, on any device.
        seconds: of all of the work on one worker, or on all that share the backbone.
        asked: workers that the study wants.
        sharers: on each GPU; only layouts in which so many share it.
        shared: only layouts in which workers share every weight.

        Raises
        ------
        PlanError: none fits, or not as the study wants it.
        """
        slots, sharding = self._slots() * sharers, self.resources.shard
        wanted = slots if packs is None else min(asked or slots, packs)
        found: list[Fit] = []
        if sharding != "zero3" and not shared:
            splits = self._splits(can_split=whole.can_shard)
            if sharers > 1:
                splits = [Layout(0, sharers=sharers)]
            found = list(self._fits(load, wanted, splits, together=packs is not None))
        if packs is not None and asked is not None and found:
            most = max(fit.workers for fit in found)
            if most < wanted:
                raise PlanError(
                    f"{wanted} workers do not fit the memory beside each other, {most} do",
                    where=str(self.inventory),
                    cure=f"set resources.train_workers to {most} or less",
                )
            found = [fit for fit in found if fit.workers == most]
        can_shard = sharers == 1 and self._can_shard(whole, asked or slots)
        if can_shard and not any(
            (fit.layout.devices, fit.layout.passes) == (1, 1) for fit in found
        ):
            among_all = self._fits(load, 0, [Layout(0, ranks=asked or slots)], together=True)
            found += [fit for fit in among_all if asked is None or fit.workers == asked]
        if not found:
            raise Room(
                backbone=self.backbone,
                where=str(self.inventory),
                asked=sharding,
                fewest=self.budgets[-1],
                device=self.device_memory,
                node=max(node.memory for node in self.nodes),
                workers=asked or slots,
                can_shard=whole.can_shard,
            ).refusal(load, method.name)
        return min(found, key=lambda fit: (seconds(fit) / fit.at_once, -fit.layout.tokens))

    def _splits(self, *, can_split: bool) -> list[Layout]:
        """List over how many devices a worker may split the layers; budgets are chosen later."""
        if self.resources.gpus_per_worker is not None or not self.gpus or not can_split:
            counts = [max(1, self.gpus)]
        else:
            counts = [n for n in _SPLITS if n <= max(node.gpus for node in self.nodes)]
        return [Layout(0, n, passes) for n in counts for passes in sorted({1, n})]

    def _can_shard(self, work: Work, workers: int) -> bool:
        asked = self.resources
        one = asked.gpus_per_worker is None or asked.gpus_per_worker <= 1
        whole = self.shape.quantised or asked.shard == "never" or not self.shards
        return work.can_shard and not whole and one and workers > 1

    def _fits(
        self, load: Load, wanted: int, layouts: Sequence[Layout], *, together: bool
    ) -> Iterator[Fit]:
        """Yield every layout that fits, up to `wanted` workers.

        Parameters
        ----------
        together: whether some nodes, the faster ones, may do better than all.
        """
        groups = by_gpu_speed(self.nodes) if self.gpus and together else [self.nodes]
        for layout, tokens, among in product(layouts, self.budgets, groups):
            fit = self.settle(load, replace(layout, tokens=tokens), wanted, among=among)
            if fit is not None:
                yield fit

    def settle(
        self, load: Load, layout: Layout, wanted: int = 1, *, among: Sequence[Node] | None = None
    ) -> Fit | None:
        """Return as many workers as fit: up to `wanted`, or to the ranks, fewer of which hold more.

        Parameters
        ----------
        among: nodes that may be used; all by default.
        """
        workers = layout.ranks if layout.sharded else wanted
        while workers >= (2 if layout.sharded else 1):
            if layout.sharded:
                layout = replace(layout, ranks=workers)
            held, host = total(load.device(layout)), total(load.host(layout))
            need = ResourceRequest(
                cpus=self.cpus,
                gpus=self.gpus and layout.devices,
                sharers=layout.sharers,
                per_gpu=self.per_gpu,
                device=held if self.gpus else 0,
                host=host if self.gpus else held,
            )
            if max(need.device * need.sharers, 0 if self.gpus else held) > self.device_memory:
                return None
            found = places(self.nodes, need, among=among)
            if found.count >= workers:
                if layout.sharded:
                    across = workers > max(count for _, count in found.rooms)
                    layout = replace(layout, across=across)
                nodes = [node for node, _ in found.rooms]
                speed = self.machine.speed(nodes, gpus=self.gpus, threads=self.cpus)
                return Fit(layout, workers, found, speed.shared(layout.sharers))
            workers = found.count
        return None

    @property
    def budgets(self) -> list[int]:
        """Token budgets of a pass, halved from the study's."""
        return halved(self.resources.tokens_per_batch, _FEWEST_TOKENS)

    def _reason(self, fit: Fit, load: Load) -> str:
        sharding, asked = self.resources.shard, self.resources.tokens_per_batch
        device = "GPU" if self.gpus else "node"
        layout = fit.layout
        if layout.sharded:
            others = (replace(s, tokens=_FEWEST_TOKENS) for s in self._splits(can_split=True))
            other = next((each for each in others if self.settle(load, each)), None)
            if sharding == "zero3":
                why = ", as resources.shard asks"
            elif other is None:
                why = (
                    ": the whole backbone does not fit the"
                    f" {size(self.device_memory)} of one {device}"
                )
            elif other.devices == 1:
                why = ": estimated faster than packs on whole backbones"
            else:
                why = f": estimated faster than layers split over {other.devices} GPUs of a node"
            return f"sharded with ZeRO-3{why}"
        tokens = layout.tokens
        less = f", {tokens} tokens at a time instead of {asked}" if tokens < asked else ""
        fits = f"the {size(fit.places.device_memory)} of one {device}"
        if layout.devices > 1:
            passes = f", {layout.passes} batches side by side" if layout.passes > 1 else ""
            return (
                f"split: the layers of each worker's backbone over {layout.devices} GPUs of its"
                f" node, in {fits}{less}{passes}"
            )
        if layout.sharers > 1:
            fits += f", which {layout.sharers} workers share"
        return f"replicated: each worker holds the whole backbone in {fits}{less}"

    def _each(self) -> str:
        gpu = f" and {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{gpu}"
