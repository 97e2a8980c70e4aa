"""Do what OUT lacks of a planned study: tune, rewrite and read, all that is ready at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, Final

import polars as pl
import pyarrow as pa

from raybias.config import Backbone, Study
from raybias.methods import tuned_methods
from raybias.methods.base import Shard
from raybias.planning.prepared import in_style, with_styles
from raybias.planning.stage_plans import Plan, ScorePlan
from raybias.planning.tasks import Task, fetched_models, tasks_of
from raybias.planning.workload import STYLED, chunks_of, shards_of
from raybias.probes.own import card_texts
from raybias.probes.registries import pair_probes, question_probes
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.runtime.graph import Grant, Graph
from raybias.runtime.predict.shards import (
    Reading,
    Served,
    ShardFiles,
    StyleRewriting,
    delete_empty_parts,
    stored_output,
)
from raybias.runtime.progress import Done, Meter, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.tracking import track_runs
from raybias.runtime.tuning import TuningJob
from raybias.runtime.workers import Workers
from raybias.schema import ITEMS, PAIRS, RUNS, SCHEDULE, SCHEDULE_FILE
from raybias.seal import seal, still_valid
from raybias.storage import Store
from raybias.study_record import read_runs
from raybias.table_rules import read_checked

_NAME: Final = "runs.parquet"
#: Backbone, training set and method of tuned runs; a backbone's other runs stand together.
_Part = tuple[str, str, str]


class RunsTable:
    """The runs that are known, in the study's order whatever ended first."""

    def __init__(self, study: Study, store: Store, *, mark: str, reporter: Reporter) -> None:
        self.study, self.store, self.mark, self.reporter = study, store, mark, reporter
        self._rows: dict[_Part, list[Mapping[str, Any]]] = {}
        for each in study.backbones:
            self._rows[each.name, "", ""] = []
            for method in tuned_methods(study.methods_of(each)):
                for training in study.training_of(method):
                    self._rows[each.name, training.name, method.name] = []
        self._lock = Lock()
        for row in read_runs(store).iter_rows(named=True):
            part = (row["model"], row["dataset"], row["method"])
            at = part if part in self._rows else (row["model"], "", "")
            self._rows.get(at, []).append(row)

    def put(
        self, rows: Sequence[Mapping[str, Any]], model: str, dataset: str = "", method: str = ""
    ) -> None:
        """Put the rows of one tuning, or the untuned ones of a backbone, into the table."""
        with self._lock:
            self._rows[model, dataset, method] = list(rows)
            known = [*chain.from_iterable(self._rows.values())]
            self.store.write_table(_NAME, pa.Table.from_pylist(known, schema=RUNS))
            track_runs(self.study, rows, mark=self.mark, reporter=self.reporter)

    def kept(self, model: str, method: str, dataset: str = "") -> list[Mapping[str, Any]]:
        """Return the runs that read the probes; of all training sets by default."""
        with self._lock:
            return [
                row
                for row in chain.from_iterable(self._rows.values())
                if row["selected"]
                and (row["model"], row["method"]) == (model, method)
                and dataset in ("", row["dataset"])
            ]


#: Seconds of work below which the schedule of an earlier command is kept.
_WORTH_NOTING_S: Final = 1.0


class StudyRun:
    """A study under way."""

    def __init__(self, plan: Plan, store: Store, reporter: Reporter, workers: Workers) -> None:
        self.prepared, self.plan, self.store = plan.prepared, plan, store
        self.reporter, self.workers, self.study = reporter, workers, plan.study
        self.table = RunsTable(self.study, store, mark=self.prepared.record.hash, reporter=reporter)
        self.tasks = tasks_of(plan)
        self.backbones = {each.name: each for each in self.study.backbones}
        self.methods = {
            (backbone.name, method.name): method
            for backbone in self.study.backbones
            for method in plan.methods(backbone)
        }
        self.rewriting = {f"rewrite/{each.style}": each for each in plan.rewriting}
        self.jobs = {
            (backbone.name, training.name, method.name): TuningJob(
                self.prepared, backbone, training, method,
                plan.tune(backbone.name, training.name, method.name), store, reporter, workers,
            )
            for backbone in self.study.backbones
            for method in tuned_methods(plan.methods(backbone))
            for training in self.study.training_of(method)
        }  # fmt: skip
        self._styled: dict[str, Mapping[str, pl.DataFrame]] = {}
        self._listed: dict[str, ShardFiles] = {}
        self._lock = Lock()

    def run(self, *, limit_s: float = math.inf) -> None:
        """Do all tasks; those of a failed study go on from where they were when it is run again.

        Stopped: they took more than `limit_s` seconds. RaybiasError: the first that failed.
        """
        valid = still_valid(self.store)
        if not self.study.styles.rewriting:
            self._write_items(self.prepared.data.items)
        for backbone in self.study.backbones:
            if rows := list(self._untrained(backbone)):
                self.table.put(rows, backbone.name)
        graph = Graph(self.workers)
        do = {
            "fetch": self._fetch,
            "rewrite": self._rewrite,
            "tune": self._tune,
            "read": self._read,
        }
        for task in self.tasks:
            graph.add(task, do[task.kind])
        try:
            graph.run(limit_s=limit_s)
            if max((span["end"] for span in graph.spans), default=0.0) >= _WORTH_NOTING_S:
                rows = [span | {"devices": graph.devices} for span in graph.spans]
                self.store.write_table(SCHEDULE_FILE, pa.Table.from_pylist(rows, schema=SCHEDULE))
            delete_empty_parts(self.store)
            folders = {each.output().folder for each in self.methods.values()}
            seal(self.store, valid, {"items", *folders})
        finally:
            self.workers.close()

    def left(self) -> float:
        """Return the planned seconds of computing what OUT lacks, as one worker would."""
        return sum(task.seconds * self._shares[task.key] for task in self.tasks)

    @property
    def is_done(self) -> bool:
        """Whether OUT lacks nothing that the study computes."""
        return not any(self._shares.values())

    @cached_property
    def _shares(self) -> dict[str, float]:
        """The share of each task that OUT lacks, 0 to 1; fetching is needed by what is left."""
        shares = dict[str, float]()
        # Each comes after those that it waits for.
        for task in self.tasks:
            if task.kind == "tune":
                job = self.jobs[task.backbone, task.training, task.method]
                shares[task.key] = job.left(task.stage)
            elif task.kind != "fetch":
                shares[task.key] = 1.0
                # Runs that tune nothing are not in the table before the study begins.
                if not any(map(shares.get, task.after)) and (files := self._files(task)).shards:
                    self._listed[task.key] = files
                    shares[task.key] = len(files.todo) / len(files.shards)
        left = [task for task in self.tasks if shares.get(task.key)]
        lacking = {f"fetch/{task.backbone}" for task in left}.union(*(task.after for task in left))
        return {task.key: float(task.key in lacking) for task in self.tasks} | shares

    def _untrained(self, backbone: Backbone) -> Iterator[dict[str, Any]]:
        """Yield rows of schema.RUNS of the runs that tune nothing; write OUT/prompts."""
        for method in self.plan.methods(backbone):
            for run in method.runs(self.prepared.inputs(method, backbone)):
                if run.recipe:
                    content = json.dumps(run.recipe, indent=2)
                    self.store.write_text(f"prompts/{run.run_id}.json", content)
                names = {"run_id": run.run_id, "model": backbone.name, "method": method.name}
                own = {"dataset": run.dataset, "seed": run.seed, "stage": "final", "steps": 0}
                yield {**dict.fromkeys(RUNS.names), **names, **own, "selected": True}

    def _fetch(self, grant: Grant) -> None:
        task = grant.task
        if self._shares[task.key]:
            with translating_errors(f"fetch {task.backbone}"):
                self.workers.fetch(fetched_models(self.plan)[task.key][0])

    def _rewrite(self, grant: Grant) -> None:
        """Rewrite pairs in one style; the last one writes the items."""
        stage, items = self.rewriting[grant.task.key], self.prepared.data.items
        title = f"rewrite as {stage.style} with {stage.backbone}"
        self._complete(title, grant)
        made = {}
        for probe in stage.items:
            name = f"{STYLED.folder}/{probe}/{stage.style}.parquet"
            made[probe] = read_checked(self.store, name, PAIRS)
        kept = sum(int(frame["kept"].sum()) for frame in made.values())
        self.reporter.say(
            f"{title}: {kept:,} of {sum(stage.items.values()):,} pairs keep their original, for"
            " which nothing adequate was drawn"
        )
        with self._lock:
            self._styled[stage.style] = made
            if len(self._styled) < len(self.study.styles.rewriting):
                return
        whole = with_styles(items, self._styled)
        self.prepared.check_rewritten(whole)
        self._write_items(whole)

    def _write_items(self, items: Mapping[str, pl.DataFrame]) -> None:
        pairs = {probe.name: pair_probes[probe.source].schema for probe in self.study.pairs}
        asked = {each.name: question_probes[each.source].schema for each in self.study.questions}
        for name, frame in items.items():
            schema = {**pairs, **asked}.get(name, ITEMS)
            table = frame.select(schema.names).to_arrow().cast(schema)
            self.store.write_table(f"items/{name}.parquet", table)
        for name, text in card_texts(self.study).items():
            self.store.write_text(f"cards/{name}.yaml", text)

    def _tune(self, grant: Grant) -> None:
        """Tune one pack; the last of a training set selects the runs that are kept."""
        task = grant.task
        job = self.jobs[task.backbone, task.training, task.method]
        if job.tune(grant):
            with translating_errors(job.title):
                self.table.put(job.rows(), task.backbone, task.training, task.method)

    def _read(self, grant: Grant) -> None:
        task = grant.task
        several = task.training and len(self.study.training) > 1
        tuned_on = f", {task.training}" if several else ""
        title = f"score with {task.backbone}, {task.method}{tuned_on}"
        files = self._complete(title, grant)
        if not files.todo:
            self.reporter.say(f"{title}: all {len(files.shards)} shards are there")
            return
        if isinstance(backbone := self.backbones[task.backbone], Provider):
            asked = read_asked(self.store, backbone.name)
            self.reporter.say(f"{title}: {asked.in_words(backbone.prices)}")

    def _complete(self, title: str, grant: Grant) -> ShardFiles:
        task = grant.task
        # The files may have been listed already, to know how much is missing.
        files = self._listed.pop(task.key, None) or self._files(task)

        def read(add: Callable[[Done], None]) -> None:
            self.workers.read(self._reading(task, tuple(files.todo)), grant, add)

        files.complete(title, read, self.reporter, starting=self.workers.starting)
        return files

    def _files(self, task: Task) -> ShardFiles:
        if task.kind == "rewrite":
            stage = self.rewriting[task.key]
            return ShardFiles(self.store, chunks_of(stage.style, stage.items), STYLED)
        method = self.methods[task.backbone, task.method]
        planned = self.plan.score(task.backbone, method.name)
        kept = self.table.kept(task.backbone, method.name, task.training)
        stored = stored_output(method, self.study.labels)
        shards = shards_of(kept, planned.items, planned.rows_per_shard, stored)
        return ShardFiles(self.store, shards, stored)

    def _reading(self, task: Task, todo: tuple[Shard, ...]) -> Reading:
        plan: ScorePlan
        methods: list[Served]
        items = None
        if task.kind == "rewrite":
            plan = rewriting = self.rewriting[task.key]
            styles, stage, name = self.study.styles, "rewrite", rewriting.style
            options = styles.rewriting[name]
            methods = [StyleRewriting(style=name, options=options, seed=styles.seed)]
            context = plan.context(options.spec())
            originals = in_style(self.study, name, self.prepared.data.items)
            items = {
                probe: each.select(PAIRS.names).to_arrow() for probe, each in originals.items()
            }
        else:
            backbone = self.backbones[task.backbone]
            method = self.methods[backbone.name, task.method]
            plan, methods = self.plan.score(backbone.name, method.name), [method]
            memory = Store(self.study.answers).uri if self.study.answers else ""
            context = plan.context(backbone, self.study, memory=memory)
            # Ranks that share a backbone hold it for one method alone.
            if method.shares_backbone and not plan.sharded:
                methods = [
                    each
                    for each in self.plan.methods(backbone)
                    if each.shares_backbone
                    and self.plan.score(backbone.name, each.name).replica == plan.replica
                ]
            name, stage = f"{backbone.name}-{methods[0].name}", "score"
        return Reading(
            name=name,
            context=context,
            methods=tuple(methods),
            plan=plan,
            store=self.store,
            todo=todo,
            meter=Meter(study=self.study.name, stage=stage, model=plan.backbone),
            items=items,
        )
