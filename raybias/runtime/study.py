"""Run a study from its data to its predictions, and resume it where it was interrupted.

Everything that a user could have got wrong is checked before any work: data, label
words, lengths, the output place and the plan. Tables and reports are made elsewhere,
from the files that this leaves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from raybias.config import Backbone, Method, Study
from raybias.methods.prediction import Shard, UntrainedRun
from raybias.planning.inventory import with_autoscaled_nodes
from raybias.planning.plan import Plan, plan
from raybias.planning.preflight import check_inputs, check_rewritten
from raybias.planning.prepared import PreparedStudy
from raybias.planning.resolve import resolve_models
from raybias.planning.shards import missing, shards_of
from raybias.planning.stage_plans import ScorePlan
from raybias.registry import pair_probes
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Advance, Done, Reporter
from raybias.runtime.ray_session import connected, translating_errors
from raybias.runtime.tracking import check_tracking, track_runs
from raybias.schema import ITEMS, RUNS
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import begin, make_record, resumed

_RUNS: Final = "runs.parquet"


def run_study(
    study: Study,
    out: str | Path,
    *,
    address: str | None = None,
    command: str = "",
    reporter: Reporter | None = None,
) -> None:
    """Do what OUT lacks of a study, up to its predictions.

    Parameters
    ----------
    out: folder or URI.
    address: of a Ray cluster; None as `ray_session.connected` says.
    command: what the user typed, for the record.

    Raises
    ------
    BadInput: before any work, for what the user can mend.
    WorkFailed: the work was begun and failed; running again goes on with it.
    """
    reporter = reporter or Reporter()
    store = Store(out)
    reporter.say(f"{study.name}: checking data, models and {store.uri}")
    prepared = prepare(study, store, command=command)
    reporter.say(f"{study.name}: connecting to Ray")
    with connected(address) as own:
        there = with_autoscaled_nodes(
            read_inventory(address, products=prepared.study.undecided), study.resources.nodes
        )
        planned = plan(prepared, there, out=store.uri)
        if planned.precision is not None:
            reporter.say(f"{study.name}: {planned.precision}")
        parameters = {name: shape.parameters for name, shape in planned.shapes.items()}
        study = planned.decided
        record = replace(prepared.record.with_study(study), parameters=parameters)
        begin(store, record)
        work = _Work(replace(prepared, record=record), planned, store, reporter)
        work.tidy()
        with nullcontext() if own else undoing(work.end_replicas):
            for name, items in work.styled().items():
                store.write_table(f"items/{name}.parquet", _items_table(study, name, items))
            for backbone in study.backbones:
                rows = work.runs(backbone)
                track_runs(study, rows, mark=record.hash, reporter=reporter)
                work.score(backbone, rows)


def prepare(study: Study, store: Store | None, *, command: str = "") -> PreparedStudy:
    """Read a study's data and refuse what cannot be run, before it is planned or begun.

    No weights are loaded (those of a local model are hashed where OUT is known), Ray is not
    needed, and nothing is written.

    Parameters
    ----------
    store: the study's OUT, which must not hold another study; None where it is not known yet.
    command: what the user typed, for the record.

    Raises
    ------
    BadInput: data, models, label words, lengths, trackers or OUT, as `check_inputs`,
        `StudyData`, `check_tracking` and `resumed` say.
    """
    prepared, models = PreparedStudy.of(study), None
    study, marks = prepared.study, prepared.data.fingerprints()
    if store is not None:
        study, models = resolve_models(study)
    record = make_record(study, marks, command=command, models=models)
    if store is not None:
        record = resumed(store, record)
    check_tracking(study)
    prepared = replace(prepared, record=record)
    check_inputs(prepared)
    return prepared


@dataclass(frozen=True)
class _Waiting:
    """Shards that one backbone must still read by one method."""

    title: str
    method: Method
    plan: ScorePlan
    shards: int
    """How many there are, with those that OUT holds."""
    todo: tuple[Shard, ...]


@dataclass(frozen=True)
class _Work:
    """A study under way."""

    prepared: PreparedStudy
    plan: Plan
    store: Store
    reporter: Reporter

    @property
    def study(self) -> Study:
        """The study, with nothing left to decide."""
        return self.prepared.study

    @property
    def app(self) -> str:
        """Prefix of the names of this OUT's Serve applications.

        The same study can run for another OUT in the same cluster.
        """
        return f"raybias-{key(self.prepared.record.hash, self.store.uri):016x}"

    def tidy(self) -> None:
        """Free what a driver of this study that was killed left running."""
        with translating_errors("asking Ray Serve what runs"):
            self.end_replicas()
        self.store.sweep()

    def end_replicas(self) -> None:
        """Have Serve end this OUT's applications, which do not end with their driver."""
        from raybias.runtime.predict.replica import delete_left

        delete_left(self.app)

    def styled(self) -> dict[str, pl.DataFrame]:
        """Rewrite pairs in the styles that a model makes, into OUT/styled, and return all items."""
        study, items = self.study, self.prepared.data.items
        if not study.styles.rewriting:
            return items
        from raybias.runtime.predict.rewriting import rewrite_items

        whole = rewrite_items(
            study, items, self.plan, self.store, app=self.app, reporter=self.reporter
        )
        check_rewritten(self.prepared, whole)
        return whole

    def runs(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Tune what is missing of a backbone, and put its runs into OUT/runs.parquet."""
        from raybias.runtime.tune.driver import tune

        rows = self._untrained(backbone)
        for training in self.study.training:
            with translating_errors(f"tuning {backbone.name} on {training.name}"):
                rows += tune(
                    self.prepared,
                    backbone,
                    training,
                    self.plan,
                    self.store,
                    reporter=self.reporter,
                )
            self._write_runs(backbone.name, rows)
        self._write_runs(backbone.name, rows)
        return rows

    def _untrained(self, backbone: Backbone) -> list[dict[str, Any]]:
        """List the runs that tune nothing, and write their prompts to OUT/prompts."""
        rows = []
        names = [training.name for training in self.study.training]
        for method in self.study.methods_of(backbone):
            text = self.prepared.text(method, backbone)
            for run in method.untrained_runs(backbone, text, names):
                if run.recipe is not None:
                    content = json.dumps(run.recipe, indent=2)
                    self.store.write_text(f"prompts/{run.run_id}.json", content)
                rows.append(_untrained_row(run, backbone, method))
        return rows

    def _write_runs(self, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put the rows of one model into OUT/runs.parquet, beside those of the others."""
        table = pa.Table.from_pylist(list(rows), schema=RUNS)
        if self.store.exists(_RUNS):
            held = self.store.read_table(_RUNS)
            table = pa.concat_tables([held.filter(pc.field("model") != model), table])
        self.store.write_table(_RUNS, table)

    def score(self, backbone: Backbone, rows: Sequence[Mapping[str, Any]]) -> None:
        """Read every probe with the kept runs of a backbone."""
        from raybias.runtime.predict.replica import share_weights

        for methods in share_weights(self.study.methods_of(backbone)):
            waiting = [self._waiting(backbone, method, rows) for method in methods]
            # Methods that ask for the same replicas share them and one loaded backbone.
            shared: dict[Hashable, list[_Waiting]] = defaultdict(list)
            for each in waiting:
                if each.todo and each.plan.sharded:
                    self._score_together(backbone, each)
                elif each.todo:
                    shared[each.plan.replica].append(each)
            for group in shared.values():
                self._score(backbone, group)

    def _waiting(
        self, backbone: Backbone, method: Method, rows: Sequence[Mapping[str, Any]]
    ) -> _Waiting:
        """List what a method must still read; broken files are deleted."""
        planned = self.plan.score(backbone.name, method.name)
        kept = [row for row in rows if row["selected"] and row["method"] == method.name]
        stored = method.output()
        shards = shards_of(kept, planned.items, planned.rows_per_shard, stored)
        todo = missing(self.store, shards, stored)
        title = f"score with {backbone.name}, {method.name}"
        if not todo:
            self.reporter.say(f"{title}: all {len(shards)} shards are there")
        return _Waiting(title, method, planned, len(shards), tuple(todo))

    def _score(self, backbone: Backbone, waiting: Sequence[_Waiting]) -> None:
        """Read by methods that share replicas, one after the other."""
        from raybias.runtime.predict.replica import scorers
        from raybias.runtime.predict.stream import score_shards

        study, app = self.study, ""
        meter = Meter(study=study.name, stage="score", model=backbone.name)
        # The outer one is for ending the replicas, which fails where the cluster is gone.
        with translating_errors(waiting[0].title), ExitStack() as stack:
            for each in waiting:
                with self._stage(each) as advance:
                    app = app or stack.enter_context(
                        scorers(
                            self._name(backbone, each.method),
                            each.plan,
                            each.plan.context(backbone, study.verbalizer.words()),
                            [other.method for other in waiting],
                            out=self.store.uri,
                            meter=meter,
                        )
                    )
                    failures = study.resources.max_failures
                    for row in score_shards(
                        app, each.todo, each.plan, self.store, max_failures=failures, meter=meter
                    ):
                        done = Done(rows=row["rows"], tokens=row["tokens"], retries=row["retries"])
                        advance(done=done)

    @contextmanager
    def _stage(self, waiting: _Waiting) -> Iterator[Advance]:
        """Show the progress of reading by a method, and name it in errors."""
        stage = self.reporter.stage(waiting.title, waiting.shards)
        with stage as advance, translating_errors(waiting.title):
            advance(waiting.shards - len(waiting.todo))
            yield advance

    def _score_together(self, backbone: Backbone, waiting: _Waiting) -> None:
        """Read by workers that share the backbone."""
        from raybias.runtime.predict.sharded import Reading, score_together

        study = self.study
        reading = Reading(
            context=waiting.plan.context(backbone, study.verbalizer.words()),
            method=waiting.method,
            out=self.store.uri,
            shards=waiting.todo,
            meter=Meter(study=study.name, stage="score", model=backbone.name),
        )
        with self._stage(waiting) as advance:
            score_together(
                self._name(backbone, waiting.method),
                reading,
                waiting.plan,
                max_failures=study.resources.max_failures,
                advance=advance,
            )

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
    schema = pairs.get(name, ITEMS)
    return items.select(schema.names).to_arrow().cast(schema)
