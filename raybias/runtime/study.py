"""Run a study from its data to its predictions, and resume it where it was interrupted.

Everything that a user could have got wrong is checked before any work: data, label
words, lengths, the output place and the plan. Tables and reports are made elsewhere,
from the files that this leaves.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from raybias.config import Study
from raybias.planning.inventory import with_autoscaled_nodes
from raybias.planning.plan import plan
from raybias.planning.preflight import check_inputs
from raybias.planning.prepared import PreparedStudy
from raybias.planning.resolve import resolve_models
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_session import connected, translating_errors
from raybias.runtime.tracking import check_tracking
from raybias.runtime.ways import slow_ways
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import begin, make_record, resumed


def run_study(
    study: Study,
    out: str | Path,
    *,
    address: str | None = None,
    command: str = "",
    reporter: Reporter | None = None,
    skip_unfit: bool = False,
) -> None:
    """Do what OUT lacks of a study, up to its predictions.

    Parameters
    ----------
    out: folder or URI.
    address: of a Ray cluster; None as `ray_session.connected` says.
    command: what the user typed, for the record.
    skip_unfit: leave out backbones and methods that the cluster has no room for.

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
        from raybias.runtime.predict.replica import delete_left
        from raybias.runtime.work import StudyRun

        app = f"raybias-{key(store.uri):016x}"
        # Serve's applications do not end with their driver.
        end_replicas = partial(delete_left, app)
        # First, since a plan asks devices that a driver that was killed may still hold.
        with translating_errors("asking Ray Serve what runs"):
            end_replicas()
        store.sweep()
        there = with_autoscaled_nodes(
            read_inventory(address, products=prepared.study.undecided), study.resources.nodes
        )
        planned = plan(prepared, there, out=store.uri, skip_unfit=skip_unfit)
        for error in planned.unfit.values():
            reporter.say(f"{study.name}: left out: {error}")
        if planned.precision is not None:
            reporter.say(f"{study.name}: {planned.precision}")
        parameters = {name: shape.parameters for name, shape in planned.shapes.items()}
        record = replace(prepared.record.with_study(planned.decided), parameters=parameters)
        begin(store, record)
        work = StudyRun(replace(prepared, record=record), planned, store, reporter, app)
        with nullcontext() if own else undoing(end_replicas):
            work.run()
        for warning in slow_ways(store):
            reporter.say(f"{study.name}: {warning}")


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
