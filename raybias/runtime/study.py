"""Run a study from its data to its predictions, and resume it where it was interrupted.

Every mistake that a user can mend is refused before any work. Tables and reports are made
elsewhere, from the files that this leaves.
"""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from raybias.config import Study
from raybias.errors import ConfigError, ModelError, PlanError
from raybias.planning.inventory import Inventory, with_autoscaled_nodes
from raybias.planning.plan import check_libraries, plan
from raybias.planning.prepared import (
    PreparedStudy,
    check_folders,
    convert_local_models,
    hashes_of,
    resolve_models,
)
from raybias.planning.stage_plans import Plan
from raybias.providers.predict import of_process
from raybias.runtime import ray_internals
from raybias.runtime.ending import undoing
from raybias.runtime.graph import Stopped
from raybias.runtime.inventory import read_inventory, this_machine
from raybias.runtime.predict.shards import slow_ways
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_session import NO_RAY, connected, names_no_cluster, translating_errors
from raybias.runtime.tracking import check_tracking
from raybias.runtime.work import StudyRun
from raybias.runtime.workers import ThisProcess, Workers
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import begin, fingerprint, make_record, of_finished, resumed

#: Seconds that Ray, an actor that tunes and a replica that reads take to start on two cores.
_STARTING_S: Final = 30.0


def run_study(
    study: Study,
    out: str | Path,
    *,
    address: str | None = None,
    command: str = "",
    reporter: Reporter | None = None,
    skip_unfit: bool = False,
) -> None:
    """Compute what OUT lacks of a study, up to its predictions; parameters as of `raybias.run`.

    Where nothing names a cluster, and the plan takes less time than Ray needs to start, this
    process does it by itself; it starts Ray after all when it has taken twice that. A function of
    this process is called in it wherever no address was given.
    """
    reporter = reporter or Reporter()
    store = Store(out)
    reporter.say(f"{study.name}: checking data, models and {store.uri}")
    start = _Start(prepare(study, store, command=command), store, reporter, skip_unfit)
    # Before OUT is written: a file with more than weights is refused.
    for note in start.prepared.notes():
        start.say(note)
    convert_local_models(start.prepared.study)
    alone = _alone(study, address)
    if (alone or names_no_cluster(address)) and start.in_this_process(whatever_it_takes=alone):
        return
    own = address == "local" or names_no_cluster(address)
    start.say("starting Ray on this machine, some 10 s" if own else "connecting to Ray")
    with connected(address) as own:
        from raybias.runtime.ray_workers import RayWorkers

        app = f"raybias-{key(store.uri):016x}"
        # Serve's applications do not end with their driver.
        end_replicas = partial(ray_internals.delete_left, app)
        # First, since a plan asks devices that a driver that was killed may still hold.
        with translating_errors("asking Ray Serve what runs"):
            end_replicas()
        planned = start.plan(read_inventory(address, dtypes=start.prepared.study.undecided))
        workers = RayWorkers(planned, app)
        with nullcontext() if own else undoing(end_replicas):
            work = start.work(planned, workers)
            if workers.full:
                held_by = "".join(f" for {each}" for each in ray_internals.others()[:3])
                start.say(f"other work holds the whole cluster; waiting{held_by}")
            start.run(work)


def _alone(study: Study, address: str | None) -> bool:
    """Return whether this process does all of a study; refuse an address for its own functions."""
    own = any(map(of_process, study.backbones))
    if own and address not in (None, NO_RAY):
        raise ConfigError(
            "Ray's workers cannot call a function of this process",
            where=f"{study.name}, on {address}",
            cure="write the function into a file and name it file.py:function, or give no address",
        )
    return own or address == NO_RAY


@dataclass
class _Start:
    """A study that was checked, on its way to the workers that will do it."""

    prepared: PreparedStudy
    store: Store
    reporter: Reporter
    skip_unfit: bool

    def in_this_process(self, *, whatever_it_takes: bool) -> bool:
        """Do a study without Ray, if it is small or `whatever_it_takes`; returns whether it was."""
        planned = self.plan(this_machine(dtypes=self.prepared.study.undecided))
        stages = (*planned.rewriting, *planned.tuning, *planned.scoring)
        if shared := next((stage.backbone for stage in stages if stage.sharded), None):
            if whatever_it_takes:
                raise PlanError(
                    "its weights must be shared by several processes, which only Ray starts",
                    where=shared,
                    cure=f"leave out --address {NO_RAY}",
                )
            return False
        if not whatever_it_takes and (planned.inventory.gpus or planned.inventory.pending):
            return False
        work = self.work(planned, ThisProcess())
        if not whatever_it_takes and work.left() > _STARTING_S:
            return False
        try:
            self.run(work, limit_s=math.inf if whatever_it_takes else 2 * _STARTING_S)
        except Stopped:
            self.say("takes longer than planned, and goes on with Ray")
            return False
        return True

    def plan(self, inventory: Inventory) -> Plan:
        self.store.sweep()
        there = with_autoscaled_nodes(inventory, self.prepared.study.resources.nodes)
        return plan(self.prepared, there, out=self.store.uri, skip_unfit=self.skip_unfit)

    def work(self, planned: Plan, workers: Workers) -> StudyRun:
        """Write OUT/study.yaml, and return what runs the study."""
        check_libraries(planned)
        parameters = {name: shape.parameters for name, shape in planned.shapes.items()}
        record = planned.prepared.record
        rows = {name: dict(each) for name, each in record.rows_per_shard.items()}
        for stage in planned.scoring:
            rows.setdefault(stage.backbone, {})[stage.method] = stage.rows_per_shard
        begins: dict[str, list[str]] = {}
        for name, shape in planned.shapes.items():
            # A tokenizer with neither BOS nor EOS has no such token.
            with suppress(ModelError):
                if not shape.encoder:
                    begins[name] = self.prepared.data.tokens[name].encoder.begin_tokens
        record = replace(record, parameters=parameters, begin_tokens=begins, rows_per_shard=rows)
        # Whatever plans this OUT again finds its shards.
        self.prepared = replace(self.prepared, record=record)
        planned = replace(planned, prepared=self.prepared)
        work = StudyRun(planned, self.store, self.reporter, workers)
        begin(self.store, of_finished(self.store, record) if work.is_done else record)
        return work

    def say(self, text: str) -> None:
        self.reporter.say(f"{self.prepared.study.name}: {text}")

    def run(self, work: StudyRun, *, limit_s: float = math.inf) -> None:
        for error in work.plan.unfit.values():
            self.say(f"left out: {error}")
        if work.plan.precision is not None:
            self.say(str(work.plan.precision))
        work.run(limit_s=limit_s)
        for warning in slow_ways(self.store):
            self.say(warning)


def prepare(study: Study, store: Store | None, *, command: str = "") -> PreparedStudy:
    """Read a study's data and refuse by BadInput what cannot be run; loads no weights or Ray.

    Where OUT is given, it must not hold another study, and the files of local models are hashed.
    Nothing is written.
    """
    prepared = PreparedStudy.of(study)
    study, data = prepared.study, prepared.data
    marks = {f"probe {name}": fingerprint(frame) for name, frame in data.items.items()}
    for name, splits in data.sentences.items():
        marks |= {f"{name} {split}": fingerprint(frame) for split, frame in splits.items()}
    study = resolve_models(study)
    models = None if store is None else hashes_of(study)
    record = make_record(study, marks, command=command, models=models)
    if store is not None:
        record = resumed(store, record)
    check_tracking(study)
    prepared = replace(prepared, record=record)
    prepared.check()
    # A study can be planned from the configurations of models alone.
    if store is not None:
        check_folders(study)
    return prepared
