"""Choose how the workers of one backbone hold it on an inventory, by estimated wall time.

Each worker holds all of it on one device, splits its layers over devices of its node, or shares
every weight with the others (ZeRO-3). A refusal names the nearest layout that would fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, Final

from raybias.config import Backbone, Resources
from raybias.config.section import bytes_of
from raybias.engine.memory import MemoryTerm, host_memory, total, with_headroom, within_share
from raybias.engine.model_shape import ModelShape
from raybias.errors import PlanError
from raybias.methods.work import Work
from raybias.planning.inventory import Inventory, Node, size
from raybias.planning.machine import (
    Fit,
    Layout,
    Machine,
    ResourceRequest,
    by_gpu_speed,
    fastest,
    halved,
    places,
)
from raybias.planning.stage_plans import ScorePlan, TunePlan
from raybias.planning.workload import Passes, ReadingWork, TuningWork

# A replica computes on all its CPUs but asks Ray for this part of them: the rest
# lets Ray Data's readers and callers, which mostly wait, be scheduled beside it.
_REPLICA_SHARE: Final = 0.75
# A forward pass of fewer tokens than this is slower than sharding is worth.
_FEWEST_TOKENS: Final = 512
# Devices of a node that a worker's layers are on.
_SPLITS: Final = (1, 2, 4, 8)
#: Workers that a refusal looks for a sharded layout with.
_MOST_SHARDS: Final = 64
#: Count the memory of one device, by shape, and by name tokens of a pass, device and partitions.
Terms = Callable[..., tuple[MemoryTerm, ...]]


class LayoutPlanner:
    """Choose worker counts and layouts for one backbone and method on the inventory."""

    def __init__(
        self,
        asked: Resources,
        inventory: Inventory,
        backbone: Backbone,
        shape: ModelShape,
        *,
        method: str,
        work: Work,
        machine: Machine = Machine(),  # noqa: B008
    ) -> None:
        self.resources, self.inventory, self.shape = asked, inventory, shape
        self.machine, self.backbone, self.method, self.work = machine, backbone, method, work
        #: Bytes of one weight.
        self.item = work.weight_bytes(shape)
        self.cpus, self.gpus = asked.cpus_per_worker, inventory.gpus_of_worker(asked)
        self.on = "gpu" if self.gpus else "cpu"
        self.nodes = inventory.nodes
        #: Token budgets of a pass, halved from the study's.
        self.budgets = halved(asked.tokens_per_batch, _FEWEST_TOKENS)
        gpus = f" and {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        self.each = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{gpus}"
        if asked.memory_per_device is not None:
            most = bytes_of(asked.memory_per_device)
            self.nodes = tuple(replace(n, gpu_memory=most) if n.gpus else n for n in self.nodes)
        elif not self.gpus:
            most = max(node.memory for node in self.nodes)
        elif not inventory.gpus:
            problem = f"resources.gpus_per_worker is {self.gpus}, there is no GPU"
            raise self._refused(problem, "set it to 0, or add GPU nodes")
        elif not (most := max((n.gpu_memory or 0 for n in self.nodes if n.gpus), default=0)):
            cure = "set resources.memory_per_device, such as 80GiB"
            raise self._refused("the memory of its GPUs cannot be read", cure)
        #: Bytes of the largest device.
        self.device_memory = most
        largest = max(node.cpus for node in self.nodes)
        if self.cpus > largest:
            problem = f"is {self.cpus}, the largest node has {largest:g} CPUs"
            cure = f"set it to {largest:g} or less"
            raise self._refused(f"resources.cpus_per_worker {problem}", cure)

    def _refused(self, problem: str, cure: str) -> PlanError:
        return PlanError(problem, where=str(self.inventory), cure=cure)

    def tunings(self, training: str) -> list[TunePlan]:
        """Plan the method on one training set, from the largest packs to the smallest.

        The last plan, where possible, has all GPUs share one pack. If nothing else fits, they
        share packs of fewer runs, one after another. PlanError as in `scoring`, of the smallest
        packs.
        """
        passes = Passes(self.shape, self.item, self.shape.block_parameters)
        work = TuningWork(**vars(self.work.tuning[training]), passes=passes)
        asked, trials = self.resources.train_workers, max(work.sweep, work.final)
        wanted = [min(asked, trials)] if asked else list(range(1, trials + 1))
        made: list[TunePlan] = []
        errors: list[PlanError] = []
        for pack in sorted({math.ceil(trials / packs) for packs in wanted}, reverse=True):
            try:
                made.append(self._tuning(training, work, pack))
            except PlanError as error:
                errors.append(error)
                continue
            if made[-1].sharded:
                break
        if not made:
            counts = sorted({math.ceil(trials / packs) for packs in range(2, trials + 1)})
            for together in reversed(counts):
                try:
                    return [self._tuning(training, work, 1, shared=True, together=together)]
                except PlanError as error:
                    errors.append(error)
            raise errors[-1]
        if self.gpus and asked is None and not made[-1].sharded:
            with suppress(PlanError):
                made.append(self._tuning(training, work, 1, shared=True))
        return made

    def _tuning(
        self,
        training: str,
        work: TuningWork,
        pack: int,
        *,
        shared: bool = False,
        together: int | None = None,
    ) -> TunePlan:
        """Plan packs of `pack` runs, or of `together`, by default all, on a shared backbone.

        shared: only layouts in which workers share every weight.
        """
        trials = max(work.sweep, work.final)
        packs = math.ceil(trials / pack)
        together = together or trials

        def terms(shape: ModelShape, *, partitions: int, **how: Any) -> tuple[MemoryTerm, ...]:
            held = together if partitions > 1 else pack
            return self.work.tuning_memory(shape, pack=held, partitions=partitions, **how)

        def seconds(fit: Fit) -> float:
            parts = math.ceil(trials / together) if fit.layout.sharded else packs
            return parts * work.pack_seconds(fit.speed, fit.layout, work.stops(trials)[::parts])

        fit = self._fit(terms, packs, seconds, shared=shared)
        size = together if fit.layout.sharded else pack
        return TunePlan(
            training=training,
            method=self.method,
            work=work,
            workers=fit.workers,
            pack=min(size, work.most or size),
            packs={name: math.ceil(runs / size) for name, (runs, _) in work.stages.items()},
            **self.stage(fit, terms),
        )

    def scoring(self, rows: int | None = None) -> ScorePlan:
        """Plan the replicas and shards of all probes; PlanError where it does not fit."""
        whole = self.work
        work = ReadingWork(whole, Passes(self.shape, self.item, whole.parameters(self.shape)))

        def each(fit: Fit) -> int:
            return rows or work.rows_per_shard(fit.speed, fit.layout, fit.workers)

        def seconds(fit: Fit) -> float:
            return work.seconds(fit.speed, fit.layout, each(fit))

        fit = self._fit(whole.reading_memory, None, seconds)
        least = most = slots = fit.workers
        held, asked = float(self.cpus), self.resources
        if not fit.layout.sharded:
            held, least = self.cpus * _REPLICA_SHARE, asked.replicas_min
            most = asked.replicas_max or max(slots, least)
        if most > slots:
            key = "replicas_max" if asked.replicas_max else "replicas_min"
            raise self._refused(
                f"resources.{key} is {most}: replicas of {self.each} would leave Ray Data"
                f" nothing to read with; {slots} fit",
                f"set it to {slots} or less, or lower resources.cpus_per_worker",
            )
        if least > most:
            problem = f"resources.replicas_min is {least}, replicas_max is {most}"
            raise PlanError(problem, cure="lower replicas_min")
        fit = replace(fit, workers=most)
        return ScorePlan(
            method=self.method,
            replicas_min=least,
            replicas_max=most,
            replica_cpus=held,
            data_cpus=self.inventory.cpus - most * held,
            rows_per_shard=each(fit),
            items=whole.items,
            runs=whole.runs,
            work=work,
            **self.stage(fit, whole.reading_memory),
        )

    def memory(self, terms: Terms, layout: Layout) -> tuple[MemoryTerm, ...]:
        """Count the memory of one device."""
        shape = self.shape if layout.devices == 1 else self.shape.part(layout.devices)
        tokens, share = layout.tokens * layout.passes, self.backbone.gpu_share
        found = terms(shape, tokens=tokens, device=self.on, partitions=layout.ranks)
        if share < 1 and self.on == "gpu":
            return within_share(found, share)
        return with_headroom(found, self.on)

    def host(self, layout: Layout) -> tuple[MemoryTerm, ...]:
        """Count what a worker on a GPU takes of its node's memory."""
        return host_memory(self.shape, device=self.on, item=self.item, partitions=layout.ranks)

    def stage(self, fit: Fit, terms: Terms) -> dict[str, Any]:
        """Return the fields that all stages of a plan have."""
        layout = fit.layout
        return {
            "backbone": self.backbone.name,
            "need": fit.places.need,
            "layout": layout,
            "memory": self.memory(terms, layout),
            "host": self.host(layout),
            "device_memory": fit.places.device_memory,
            "reason": self._reason(fit, terms),
            "requests": fit.places.options,
            "pending": fit.places.pending(fit.workers),
            "speed": fit.speed,
            "deterministic": self.resources.deterministic,
        }

    def _fit(
        self,
        terms: Terms,
        packs: int | None,
        seconds: Callable[[Fit], float],
        *,
        shared: bool = False,
    ) -> Fit:
        """Choose the fastest layout, of equals that with the longest passes; or raise PlanError.

        packs: parts of the work that workers share; None where any number do, on any device.
        seconds: of all of the work on one worker, or on all that share the backbone.
        shared: only layouts in which workers share every weight.
        """
        room = places(self.nodes, ResourceRequest(cpus=self.cpus, gpus=self.gpus)).count
        if not room:
            cure = "lower resources.cpus_per_worker or add nodes"
            raise self._refused(f"no node has {self.each} for a worker", cure)
        share = max(1, self.inventory.devices(self.resources) // (self.gpus or self.cpus))
        asked, slots = self.resources.train_workers, min(room, share)
        if asked is not None and asked > slots:
            problem = f"resources.train_workers is {asked}, but {slots} of {self.each} fit"
            raise self._refused(problem, f"set it to {slots} or less, or add nodes")
        wanted = slots if packs is None else min(asked or slots, packs)
        found: list[Fit] = []
        if self.resources.shard != "zero3" and not shared:
            found = list(self._fits(terms, wanted, self._splits(), together=packs is not None))
        if packs is not None and asked is not None and found:
            most = max(fit.workers for fit in found)
            if most < wanted:
                problem = f"{wanted} workers do not fit the memory beside each other, {most} do"
                raise self._refused(problem, f"set resources.train_workers to {most} or less")
            found = [fit for fit in found if fit.workers == most]
        workers = asked or slots
        one_gpu = (self.resources.gpus_per_worker or 0) <= 1
        never = self.shape.quantised or self.resources.shard == "never"
        can_shard = self.work.can_shard and self.backbone.can_shard and one_gpu and workers > 1
        plain = any((fit.layout.devices, fit.layout.passes) == (1, 1) for fit in found)
        if can_shard and not never and not plain:
            among_all = self._fits(terms, 0, [Layout(0, ranks=workers)], together=True)
            found += [fit for fit in among_all if asked is None or fit.workers == asked]
        if not found:
            raise self._refusal(terms, workers)

        return fastest(found, seconds)

    def _splits(self) -> list[Layout]:
        """List over how many devices a worker may split the layers; budgets are chosen later."""
        if self.resources.gpus_per_worker is not None or not self.gpus or not self.work.can_shard:
            counts = [max(1, self.gpus)]
        else:
            counts = [n for n in _SPLITS if n <= max(node.gpus for node in self.nodes)]
        return [Layout(0, n, passes) for n in counts for passes in sorted({1, n})]

    def _fits(
        self, terms: Terms, wanted: int, layouts: Sequence[Layout], *, together: bool
    ) -> Iterator[Fit]:
        """Yield every layout that fits; `together`: also layouts on faster nodes alone."""
        groups = by_gpu_speed(self.nodes) if self.gpus and together else [self.nodes]
        for layout, tokens, among in product(layouts, self.budgets, groups):
            fit = self.settle(terms, replace(layout, tokens=tokens), wanted, among=among)
            if fit is not None:
                yield fit

    def settle(
        self, terms: Terms, layout: Layout, wanted: int = 1, *, among: Sequence[Node] | None = None
    ) -> Fit | None:
        """Return as many workers as fit on `among`: up to `wanted`, or to the ranks."""
        workers = layout.ranks if layout.sharded else wanted
        # Fewer ranks each hold more.
        while workers >= (2 if layout.sharded else 1):
            if layout.sharded:
                layout = replace(layout, ranks=workers)
            held, host = total(self.memory(terms, layout)), total(self.host(layout))
            need = ResourceRequest(
                cpus=self.cpus,
                gpus=self.gpus and layout.devices,
                device=held if self.gpus else 0,
                host=host if self.gpus else held,
            )
            if held > self.device_memory:
                return None
            found = places(self.nodes, need, among=among)
            if found.count >= workers:
                if layout.sharded:
                    across = workers > max(count for _, count in found.rooms)
                    layout = replace(layout, across=across)
                nodes = [node for node, _ in found.rooms]
                speed = self.machine.speed(nodes, gpus=self.gpus, threads=self.cpus)
                return Fit(layout, workers, found, speed)
            workers = found.count
        return None

    def _reason(self, fit: Fit, terms: Terms) -> str:
        asked, layout = self.resources.tokens_per_batch, fit.layout
        device = "GPU" if self.gpus else "node"
        if layout.sharded:
            others = (replace(each, tokens=_FEWEST_TOKENS) for each in self._splits())
            other = next((each for each in others if self.settle(terms, each)), None)
            if self.resources.shard == "zero3":
                why = ", as resources.shard asks"
            elif other is None:
                room = f"{size(self.device_memory)} of one {device}"
                why = f": the whole backbone does not fit the {room}"
            elif other.devices == 1:
                why = ": estimated faster than packs on whole backbones"
            else:
                why = f": estimated faster than layers split over {other.devices} GPUs of a node"
            return f"sharded with ZeRO-3 by Ray Train{why}"
        tokens = layout.tokens
        less = f", {tokens} tokens at a time instead of {asked}" if tokens < asked else ""
        fits = f"the {size(fit.places.device_memory)} of one {device}"
        if layout.devices > 1:
            passes = f", {layout.passes} batches side by side" if layout.passes > 1 else ""
            slower = ""
            if fit.sharded_takes is not None:
                times = f"{fit.sharded_takes:,.{0 if fit.sharded_takes >= 10 else 1}f}"
                slower = f"; with ZeRO-3 by Ray Train it is estimated to take {times} times as long"
            return (
                f"split: the layers of each worker's backbone over {layout.devices} GPUs of its"
                f" node, in {fits}{less}{passes}{slower}"
            )
        return f"replicated: each worker holds the whole backbone in {fits}{less}"

    def _refusal(self, terms: Terms, workers: int) -> PlanError:
        """Make the error of a backbone that fits in no way, with the nearest way that would."""
        asked, alone = self.resources.shard, Layout(self.budgets[-1])
        who, can_shard = f"{self.backbone.name} ({self.method})", self.work.can_shard
        if not can_shard and asked == "zero3":
            shared = f"workers cannot share {self.backbone.name} for {self.method}"
            cure = "set resources.shard to auto, or use lora or soft_prompt"
            return self._refused(shared, cure)
        cure = f"use devices of {size(total(self.memory(terms, alone)))} or more"
        layouts = (replace(alone, ranks=count) for count in range(2, _MOST_SHARDS + 1))
        fits = (each for each in layouts if total(self.memory(terms, each)) <= self.device_memory)
        if not can_shard:
            cure = f"{cure}, or lora, for which workers can share it"
        elif nearest := next(fits, None):
            auto = " with resources.shard auto" if asked == "never" else ""
            more = f"give {nearest.ranks} or more such workers{auto}, which can share it"
            cure = f"{more}, or {cure}"
        else:
            cure = f"{cure}, or a smaller backbone"
        if workers < 2 and asked == "zero3":
            lacking = "is to be sharded with ZeRO-3, which needs two workers or more, and there is"
            return self._refused(f"{who} {lacking} one", cure)
        shares = can_shard and asked != "never" and workers > 1
        layout = replace(alone, ranks=workers if shares else 1)
        need, held = total(self.memory(terms, layout)), total(self.host(layout))
        how = f" sharded over {workers} workers" if shares else ""
        node = max(node.memory for node in self.nodes)
        if need <= self.device_memory and held > node:
            return self._refused(
                f"{who}{how} needs {size(held)} of its node's memory while it is loaded, and the"
                f" largest node has {size(node)}",
                f"use nodes that leave {size(held)} or more to a worker",
            )
        return self._refused(
            f"{who}{how} needs {size(need)} on one device at the smallest token budget, which has"
            f" {size(self.device_memory)}",
            cure,
        )
