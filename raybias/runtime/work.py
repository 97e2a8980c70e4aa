"""Do what OUT lacks of a planned study: tune, rewrite and read, all that is ready at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Final

import polars as pl
import pyarrow as pa

from raybias.config import Backbone, Method, Study
from raybias.methods import tuned_methods
from raybias.methods.prediction import Shard, UntrainedRun
from raybias.planning.plan import Plan
from raybias.planning.preflight import check_rewritten
from raybias.planning.prepared import PreparedStudy
from raybias.planning.schedule import Schedule, Task
from raybias.planning.shards import missing, shards_of
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.tasks import tasks_of
from raybias.probes.card_table import card_texts
from raybias.registry import pair_probes, question_probes
from raybias.runtime.graph import Grant, Graph
from raybias.runtime.inventory import fetch, free
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.readers import Readers
from raybias.runtime.predict.replica import scorers, share_weights
from raybias.runtime.predict.rewriting import StyleRewriter, with_styles
from raybias.runtime.predict.stream import score_shards
from raybias.runtime.progress import Advance, Done, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.runs_table import RunsTable
from raybias.runtime.tune.driver import TuningJob
from raybias.runtime.tune.packs import PackWorkers
from raybias.schema import ITEMS, RUNS, SCHEDULE, SCHEDULE_FILE
from raybias.storage import Store

#: Seconds of work below which the chart of an earlier command is kept.
_WORTH_A_CHART_S: Final = 1.0


@dataclass(frozen=True)
class _Reading:
    """Shards that one backbone must still read by one method."""

    title: str
    backbone: Backbone
    method: Method
    plan: ScorePlan
    shards: int
    """How many there are, with those that OUT holds."""
    todo: tuple[Shard, ...]


class StudyRun:
    """A study under way.

    Parameters
    ----------
    app: prefix of the names of this OUT's Serve applications. The same study can run for another
        OUT in the same cluster.
    """

    def __init__(
        self, prepared: PreparedStudy, plan: Plan, store: Store, reporter: Reporter, app: str
    ) -> None:
        self.prepared, self.plan, self.store = prepared, plan, store
        self.reporter, self.app, self.study = reporter, app, prepared.study
        mark = prepared.record.hash
        self.table = RunsTable(self.study, store, mark=mark, reporter=reporter)
        self.workers = PackWorkers(self.study.resources)
        self.backbones = {each.name: each for each in self.study.backbones}
        self._styled: dict[str, Mapping[str, pl.DataFrame]] = {}
        self._lock = Lock()

    def run(self) -> None:
        """Do all tasks.

        Raises
        ------
        RaybiasError: the first that failed; the others were stopped, and their work goes on from
            where it was when the study is run again.
        """
        if not self.study.styles.rewriting:
            self._write_items(self.prepared.data.items)
        for backbone in self.study.backbones:
            if rows := list(self._untrained(backbone)):
                self.table.put(rows, backbone.name)
        graph = Graph(self.plan.devices, spare=self.workers.halve)
        do = {
            "fetch": self._fetch,
            "rewrite": self._rewrite,
            "tune": self._tune,
            "read": self._read,
        }
        for task in tasks_of(self.prepared, self.plan):
            graph.add(task, do[task.kind])
        if free(gpus=self._gpus) < 1:
            self.reporter.say(f"{self.study.name}: other work holds the whole cluster; waiting")
        try:
            graph.run()
            self._write_schedule(graph.log.schedule())
        finally:
            self.workers.close()
            for readers in self._readers.values():
                readers.close()

    @property
    def _gpus(self) -> bool:
        return self.plan.inventory.gpus_of_worker(self.study.resources) > 0

    def _write_schedule(self, schedule: Schedule) -> None:
        """Keep which task held which devices, unless nothing was left to do."""
        if schedule.wall < _WORTH_A_CHART_S:
            return
        rows = [{**vars(span), "devices": schedule.devices} for span in schedule.spans]
        self.store.write_table(SCHEDULE_FILE, pa.Table.from_pylist(rows, schema=SCHEDULE))

    def _untrained(self, backbone: Backbone) -> Iterator[dict[str, Any]]:
        """List the runs that tune nothing, and write their prompts to OUT/prompts."""
        names = [training.name for training in self.study.training]
        for method in self.plan.methods(backbone):
            text = self.prepared.text(method, backbone)
            for run in method.untrained_runs(backbone, text, names):
                if run.recipe is not None:
                    content = json.dumps(run.recipe, indent=2)
                    self.store.write_text(f"prompts/{run.run_id}.json", content)
                yield _untrained_row(run, backbone, method)

    def _fetch(self, grant: Grant) -> None:
        """Bring a backbone to the machines, so that no worker holds a device while it waits."""
        backbone = self.backbones[grant.task.backbone]
        with translating_errors(f"fetch {backbone.name}"):
            fetch(backbone, gpus=self._gpus)

    def _rewrite(self, grant: Grant) -> None:
        """Rewrite pairs in one style; the last one writes the items."""
        style = grant.task.key.partition("/")[2]
        rewriter = StyleRewriter(
            self.study, style, self.plan.rewrite(style), self.store, self.app, self.reporter
        )
        made = rewriter.run(self.prepared.data.items, grant)
        with self._lock:
            self._styled[style] = made
            if len(self._styled) < len(self.study.styles.rewriting):
                return
        whole = with_styles(self.prepared.data.items, self._styled)
        check_rewritten(self.prepared, whole)
        self._write_items(whole)

    def _write_items(self, items: Mapping[str, pl.DataFrame]) -> None:
        for name, frame in items.items():
            self.store.write_table(f"items/{name}.parquet", _items_table(self.study, name, frame))
        for name, text in card_texts(self.study).items():
            self.store.write_text(f"cards/{name}.yaml", text)

    @cached_property
    def _jobs(self) -> dict[tuple[str, str, str], TuningJob]:
        return {
            (backbone.name, training.name, method.name): TuningJob(
                self.prepared, backbone, training, method,
                self.plan.tune(backbone.name, training.name, method.name),
                self.store, self.reporter, self.workers, self._tune,
            )
            for backbone in self.study.backbones
            for training in self.study.training
            for method in tuned_methods(self.plan.methods(backbone))
        }  # fmt: skip

    def _tune(self, grant: Grant) -> None:
        """Tune one pack; the last of a training set selects the runs that are kept."""
        task = grant.task
        part = (task.backbone, task.training, task.method)
        # Packs begin in several threads, and all of a job count in the same one.
        with self._lock:
            job = self._jobs[part]
        if job.tune(grant):
            with translating_errors(job.title):
                self.table.put(job.rows(), *part)

    def _read(self, grant: Grant) -> None:
        """Read every probe with the kept runs of a backbone, method and training set."""
        reading = self._waiting(grant.task)
        if not reading.todo:
            self.reporter.say(f"{reading.title}: all {reading.shards} shards are there")
        elif reading.plan.sharded:
            self._read_together(reading)
        else:
            self._read_apart(reading, grant)

    def _waiting(self, task: Task) -> _Reading:
        """List what a task must still read; broken files are deleted."""
        backbone = self.backbones[task.backbone]
        method = next(m for m in self.plan.methods(backbone) if m.name == task.method)
        planned = self.plan.score(backbone.name, method.name)
        kept = self.table.kept(backbone.name, method.name, task.training)
        stored = method.output()
        shards = shards_of(kept, planned.items, planned.rows_per_shard, stored)
        tuned_on = f", {task.training}" if task.training and len(self.study.training) > 1 else ""
        title = f"score with {backbone.name}, {method.name}{tuned_on}"
        todo = missing(self.store, shards, stored)
        return _Reading(title, backbone, method, planned, len(shards), tuple(todo))

    @cached_property
    def _readers(self) -> dict[tuple[str, str], Readers]:
        """The replicas of each backbone and method; those that ask for the same share them."""
        found: dict[tuple[str, str], Readers] = {}
        for backbone in self.study.backbones:
            for methods in share_weights(self.plan.methods(backbone)):
                shared: dict[Any, list[Method]] = {}
                for method in methods:
                    plan = self.plan.score(backbone.name, method.name)
                    shared.setdefault(plan.replica, []).append(method)
                for group in shared.values():
                    readers = self._readers_of(backbone, group)
                    found |= {(backbone.name, method.name): readers for method in group}
        return found

    def _readers_of(self, backbone: Backbone, methods: list[Method]) -> Readers:
        plan = self.plan.score(backbone.name, methods[0].name)
        name = self._name(backbone, methods[0])
        meter = self._meter(backbone)
        context = plan.context(backbone, self.study.verbalizer.words())
        out = self.store.uri
        return Readers(
            name,
            lambda replicas: scorers(
                name, plan, context, methods, out=out, meter=meter, replicas=replicas
            ),
            most=plan.replicas_max,
        )

    def _read_apart(self, reading: _Reading, grant: Grant) -> None:
        """Read on replicas that compute by themselves."""
        with self._lock:
            readers = self._readers[reading.backbone.name, reading.method.name]
        left = len(reading.todo)
        grant.enough = left
        # The outer one is for ending the replicas, which fails where the cluster is gone.
        with (
            translating_errors(reading.title),
            self._shown(reading) as advance,
            readers.reading(grant),
        ):
            for row in score_shards(
                readers.name,
                reading.todo,
                reading.plan,
                self.store,
                max_failures=self.study.resources.max_failures,
                meter=self._meter(reading.backbone),
            ):
                advance(done=Done(rows=row["rows"], tokens=row["tokens"], retries=row["retries"]))
                left -= 1
                grant.enough = left
                readers.fit()

    @contextmanager
    def _shown(self, reading: _Reading) -> Iterator[Advance]:
        """Show the progress of a reading."""
        with self.reporter.stage(reading.title, reading.shards) as advance:
            advance(reading.shards - len(reading.todo))
            yield advance

    def _read_together(self, reading: _Reading) -> None:
        """Read by workers that share the backbone."""
        from raybias.runtime.predict.sharded import Reading, score_together

        work = Reading(
            context=reading.plan.context(reading.backbone, self.study.verbalizer.words()),
            method=reading.method,
            out=self.store.uri,
            shards=reading.todo,
            meter=self._meter(reading.backbone),
        )
        with translating_errors(reading.title), self._shown(reading) as advance:
            score_together(
                self._name(reading.backbone, reading.method),
                work,
                reading.plan,
                max_failures=self.study.resources.max_failures,
                advance=advance,
            )

    def _meter(self, backbone: Backbone) -> Meter:
        return Meter(study=self.study.name, stage="score", model=backbone.name)

    def _name(self, backbone: Backbone, method: Method) -> str:
        return f"{self.app}-{backbone.name}-{method.name}"


def _untrained_row(run: UntrainedRun, backbone: Backbone, method: Method) -> dict[str, Any]:
    """Build the row of `schema.RUNS` of a run that tunes nothing."""
    return {
        **dict.fromkeys(RUNS.names),
        "run_id": run.run_id,
        "model": backbone.name,
        "method": method.name,
        "dataset": run.dataset,
        "seed": run.seed,
        "stage": "final",
        "steps": 0,
        "selected": True,
    }


def _items_table(study: Study, name: str, items: pl.DataFrame) -> pa.Table:
    pairs = {probe.name: pair_probes[probe.source].schema for probe in study.pairs}
    questions = {probe.name: question_probes[probe.source].schema for probe in study.questions}
    schema = {**pairs, **questions}.get(name, ITEMS)
    return items.select(schema.names).to_arrow().cast(schema)
