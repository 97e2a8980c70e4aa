"""Runs a study from its data to its predictions, and goes on where a run was cut off.

Everything that a user could have got wrong is checked before any work: data, label
words, lengths, the output place and the plan. Tables and reports are made elsewhere,
from the files that this leaves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from raybias.config import Backbone, Method, Study
from raybias.methods import fit_methods
from raybias.methods.prediction import Shard, UntrainedRun
from raybias.planning.inventory import with_autoscaled_nodes
from raybias.planning.plan import Plan, plan, read_items
from raybias.planning.preflight import check_inputs, check_rewritten, study_text
from raybias.planning.resolve import resolve_models
from raybias.planning.shards import missing, shards_of
from raybias.planning.stage_plans import ScorePlan
from raybias.probes import training_sentences
from raybias.registry import pair_probes
from raybias.runtime.inventory import read_inventory
from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Advance, Done, Reporter
from raybias.runtime.ray_session import connected, translating_errors
from raybias.runtime.tracking import check_tracking, track_runs
from raybias.schema import ITEMS, RUNS
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import Record, begin, fingerprint, make_record, resumed

_RUNS: Final = "runs.parquet"


@dataclass(frozen=True)
class Data:
    """The text of a study, read once."""

    items: dict[str, pl.DataFrame]
    """Per probe, its items with the study's limit applied, as they are before a model rewrites."""
    sentences: dict[str, dict[str, pl.DataFrame]]
    """Per training set, its splits."""

    def fingerprints(self) -> dict[str, str]:
        """Per probe and split, what it held."""
        marks = {f"probe {name}": fingerprint(frame) for name, frame in self.items.items()}
        for name, splits in self.sentences.items():
            marks |= {f"{name} {split}": fingerprint(frame) for split, frame in splits.items()}
        return marks


def run_study(
    study: Study,
    out: str | Path,
    *,
    address: str | None = None,
    command: str = "",
    reporter: Reporter | None = None,
) -> None:
    """Do all of a study that OUT does not hold yet, up to its predictions.

    Parameters
    ----------
    out: folder or URI.
    address: of a Ray cluster; None as `cluster.connected` says.
    command: what the user typed, for the record.

    Raises
    ------
    BadInput: before any work, for what the user can mend.
    WorkFailed: the work was begun and failed; running again goes on with it.
    """
    reporter = reporter or Reporter()
    store = Store(out)
    reporter.say(f"{study.name}: checking data, models and {store.uri}")
    record, data = prepare(study, store, command=command)
    reporter.say(f"{study.name}: connecting to Ray")
    with connected(address):
        undecided = record.study.undecided
        there = with_autoscaled_nodes(
            read_inventory(address, products=undecided), study.resources.nodes
        )
        planned = plan(record.study, there, out=store.uri)
        if planned.precision is not None:
            reporter.say(f"{study.name}: {planned.precision}")
        parameters = {name: shape.parameters for name, shape in planned.shapes.items()}
        record = replace(record.with_study(planned.decided), parameters=parameters)
        study = record.study
        begin(store, record)
        work = _Work(record, planned, store, reporter, data)
        work.tidy()
        for name, items in work.styled().items():
            store.write_table(f"items/{name}.parquet", _items_table(study, name, items))
        for backbone in study.backbones:
            rows = work.runs(backbone)
            track_runs(study, rows, mark=record.hash, reporter=reporter)
            work.score(backbone, rows)


def prepare(study: Study, store: Store | None, *, command: str = "") -> tuple[Record, Data]:
    """Read a study's data and refuse what cannot be run, before it is planned or begun.

    No weights are loaded (those of a local model are hashed where OUT is known), Ray is not
    needed, and nothing is written.

    Parameters
    ----------
    study: resolved.
    store: the study's OUT, which must not hold another study; None where it is not known yet.
    command: what the user typed, for the record.

    Raises
    ------
    BadInput: data, models, label words, lengths, trackers or OUT, as `check_inputs`, `read_data`,
        `check_tracking` and `resumed` say.
    """
    study, data, models = fit_methods(study), read_data(study), None
    if store is not None:
        study, models = resolve_models(study)
    record = make_record(study, data.fingerprints(), command=command, models=models)
    if store is not None:
        record = resumed(store, record)
    check_tracking(study)
    check_inputs(study, data.items, data.sentences)
    return record, data


def read_data(study: Study) -> Data:
    """All probes and training sets of a study.

    Raises
    ------
    DataError: one is missing or malformed.
    """
    return Data(
        items=read_items(study),
        sentences={each.name: training_sentences(each) for each in study.training},
    )


@dataclass(frozen=True)
class _Waiting:
    """What one backbone must still read by one method."""

    title: str
    method: Method
    plan: ScorePlan
    shards: int
    """How many there are, with those that OUT holds."""
    todo: tuple[Shard, ...]


@dataclass(frozen=True)
class _Work:
    """A study that is being run."""

    record: Record
    plan: Plan
    store: Store
    reporter: Reporter
    data: Data

    @property
    def app(self) -> str:
        """What the names of this OUT's Serve applications begin with.

        The same study can run for another OUT in the same cluster.
        """
        return f"raybias-{key(self.record.hash, self.store.uri):016x}"

    def tidy(self) -> None:
        """Free what a driver of this study that was killed left running."""
        from raybias.runtime.predict.replica import delete_left

        with translating_errors("asking Ray Serve what runs"):
            delete_left(self.app)
        self.store.sweep()

    def styled(self) -> dict[str, pl.DataFrame]:
        """The items, with the styles in place that a model makes; OUT/styled holds them then."""
        study, items = self.record.study, self.data.items
        if not study.styles.rewriting:
            return items
        from raybias.runtime.predict.rewriting import rewrite_items

        whole = rewrite_items(
            study, items, self.plan, self.store, app=self.app, reporter=self.reporter
        )
        check_rewritten(study, whole)
        return whole

    def runs(self, backbone: Backbone) -> list[dict[str, Any]]:
        """The runs of a backbone, tuned where that is needed; OUT/runs.parquet holds them then."""
        from raybias.runtime.tune.driver import tune

        study, rows = self.record.study, self._untrained(backbone)
        for training in study.training:
            with translating_errors(f"tuning {backbone.name} on {training.name}"):
                rows += tune(
                    study, backbone, training, self.plan, self.store, reporter=self.reporter
                )
            self._write_runs(backbone.name, rows)
        self._write_runs(backbone.name, rows)
        return rows

    def _untrained(self, backbone: Backbone) -> list[dict[str, Any]]:
        """List the runs that tune nothing; what each one is goes to OUT/prompts."""
        from raybias.engine.backbone import load_tokenizer

        study, rows, data = self.record.study, [], self.data
        names = [training.name for training in study.training]
        encoder = load_tokenizer(backbone)
        for method in study.methods_of(backbone):
            text = study_text(study, method, encoder, data.items, data.sentences)
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

        for methods in share_weights(self.record.study.methods_of(backbone)):
            waiting = [self._waiting(backbone, method, rows) for method in methods]
            # Replicas that are alike load the backbone once for all of them.
            alike: dict[Hashable, list[_Waiting]] = defaultdict(list)
            for each in waiting:
                if each.todo and each.plan.sharded:
                    self._score_together(backbone, each)
                elif each.todo:
                    alike[each.plan.replica].append(each)
            for group in alike.values():
                self._score(backbone, group)

    def _waiting(
        self, backbone: Backbone, method: Method, rows: Sequence[Mapping[str, Any]]
    ) -> _Waiting:
        """What a method must still read; broken files are deleted."""
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
        """Read by methods whose replicas are alike, one after the other."""
        from raybias.runtime.predict.replica import scorers
        from raybias.runtime.predict.stream import score_shards

        study, app = self.record.study, ""
        meter = Meter(study=study.name, stage="score", model=backbone.name)
        # The outer one is for ending the replicas, which fails where the cluster is gone.
        with translating_errors(waiting[0].title), ExitStack() as held:
            for each in waiting:
                with self._stage(each) as advance:
                    app = app or held.enter_context(
                        scorers(
                            self._name(backbone, each.method),
                            each.plan,
                            spec=backbone,
                            methods=[other.method for other in waiting],
                            verbalizer=study.verbalizer,
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
        """Shows how far the reading by a method is, and names it in what fails."""
        stage = self.reporter.stage(waiting.title, waiting.shards)
        with stage as advance, translating_errors(waiting.title):
            advance(waiting.shards - len(waiting.todo))
            yield advance

    def _score_together(self, backbone: Backbone, waiting: _Waiting) -> None:
        """Read by workers that share the backbone."""
        from raybias.runtime.predict.sharded import Reading, score_together

        study = self.record.study
        reading = Reading(
            spec=backbone,
            method=waiting.method,
            words=study.verbalizer.words(),
            out=self.store.uri,
            shards=waiting.todo,
            threads=waiting.plan.threads,
            tokens_per_batch=waiting.plan.tokens_per_batch,
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
