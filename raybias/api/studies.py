"""Study a model: plan, run, open, report and serve, as the command line does.

Functions import what they need when they are called, so importing them loads neither torch nor Ray.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raybias.config import Backbone, Profile, Study, load_study
from raybias.errors import ConfigError
from raybias.probes.checks import choose
from raybias.probes.registries import probes
from raybias.probes.sources import download_data
from raybias.results import Results
from raybias.schema import PILOT_FILE
from raybias.storage import Store
from raybias.study_record import read_record

if TYPE_CHECKING:
    from raybias.engine.conversion import Converted
    from raybias.planning.audit import Question
    from raybias.planning.costs import StudyPlan
    from raybias.providers.predict import PredictTexts
    from raybias.runtime.doctor import Finding

#: What a finished classifier is of.
Task = Literal["sentiment", "toxicity"]


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Convert a GGUF file, or a checkpoint with pickled weights, into a folder with safetensors.

    transformers reads a GGUF file (extra `gguf`) and dequantises it to float32. torch's unpickler
    of weights alone reads a pickle.
    OUT/converted.json has the sha256 of each file, and a quantisation, which the backbone's default
    name includes.

    Parameters
    ----------
    model: a GGUF file, or a hub id or a folder with pytorch_model.bin, whole or in parts.
    out: a folder that does not exist yet.
    revision: branch, tag or commit on the hub.

    Raises
    ------
    ModelError: not found, damaged, of an architecture that transformers cannot load, safetensors
        already, or a pickle that holds more than weights.
    OutputError: `out` exists, or cannot be written.
    """
    from raybias.engine import conversion

    return conversion.convert(model, out, revision=revision)


def run(
    study: Study,
    *,
    out: str | Path,
    address: str | None = None,
    command: str = "raybias.run",
    skip_unfit: bool = False,
) -> Results:
    """Run a study, or the rest of it, and write its tables and report; return them.

    Parameters
    ----------
    study: from `load_study`, or made from Python.
    out: folder or URI of the results.
    address: of a Ray cluster; "local" starts Ray on this machine, "none" computes in this process;
        None takes RAY_ADDRESS, else this process for a study of seconds, or Ray on this machine.
    command: recorded in OUT/study.yaml.
    skip_unfit: leave out backbones and methods that do not fit, instead of refusing the study;
        the same call on a larger cluster does them.

    Raises
    ------
    BadInput: before any work, for what can be mended.
    WorkFailed: the work began and failed; the same call goes on with it.
    """
    from raybias.runtime.lease import leased
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study
    from raybias.runtime.tracking import track_tables

    store, reporter = Store(out), Reporter()
    with leased(store):
        run_study(
            study, out, address=address, command=command, reporter=reporter, skip_unfit=skip_unfit
        )
        reporter.say(f"{study.name}: writing the tables and the page")
        results = write_report(out)
        track_tables(study, store)
    return results


def open(out: str | Path) -> Results:
    """Open the OUT of a study that was run.

    Raises
    ------
    OutputError: OUT holds no study.
    """
    return Results(out)


def plan(
    study: Study,
    *,
    out: str | Path | None = None,
    address: str | None = None,
    assume: Sequence[str] = (),
    peak_tflops: float | None = None,
    utilisation: float | None = None,
    scale: Sequence[int] = (),
    skip_unfit: bool = False,
) -> StudyPlan:
    """Plan what would run where and what it costs, without loading a model; print the result.

    Parameters
    ----------
    out: folder or URI that results will go to; checked too.
    address: of a Ray cluster; None, "local" and "none" plan for this machine.
    assume: nodes to plan for, such as `nodes=4,cpus=32,memory=256GiB`, one text for each kind.
    peak_tflops: peak of one device; None looks it up by the kind of GPU.
    utilisation: fraction of the peak that long passes reach; None as the kind of device does.
    scale: also bound the wall time on so many times the nodes.
    skip_unfit: leave out backbones and methods that do not fit, instead of refusing the study.

    Raises
    ------
    BadInput: what `run` would refuse before any work.
    PlanError: the machine or cluster cannot hold it.
    """
    from raybias.planning.bounds import Forecast
    from raybias.planning.costs import StudyPlan, costs_of
    from raybias.planning.inventory import assumed, with_autoscaled_nodes
    from raybias.planning.machine import Machine
    from raybias.planning.plan import plan as make_plan
    from raybias.planning.plan import scaled
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.study import prepare

    if address is not None and assume:
        raise ConfigError("--address and --assume exclude each other", cure="give one")
    prepared = prepare(study, None if out is None else Store(out))
    if assume:
        inventory = assumed(*assume)
    else:
        there = read_inventory(address, dtypes=prepared.study.undecided)
        inventory = with_autoscaled_nodes(there, study.resources.nodes)
    machine = Machine(peak_tflops, utilisation)
    planned = make_plan(
        prepared,
        inventory,
        out=None if out is None else str(out),
        machine=machine,
        skip_unfit=skip_unfit,
    )
    scales = tuple(scaled(planned, scale, machine))
    return StudyPlan(planned, costs_of(planned), Forecast.of(planned), scales)


def audit(
    model: str | PredictTexts,
    *,
    probe: str = "race",
    task: Task | None = None,
    method: str | None = None,
    labels: Mapping[str, str | Sequence[str]] | None = None,
    threshold: float | Sequence[float] = (),
    truncate: bool = False,
    data: str | Path = "data",
    budget: str = "10m",
    looks: int = 1,
    margin: float | None = None,
    out: str | Path | None = None,
    address: str | None = None,
    convert: bool = True,
    command: str = "raybias.audit",
    tell: Callable[[str], None] = print,
) -> Results:
    """Ask whether a model treats groups differently, by the most telling study that fits a budget.

    A pilot asks the model for the labels of a few training sentences, raw and in its chat template,
    and decides how the study asks the model, or that it tunes it. A finished classifier is measured
    as it is, without a pilot and training sentences: a checkpoint with a trained classification
    head, a PEFT adapter with one, an adapter or soft prompt that raybias tuned, or a function. The
    study stands in OUT/study.yaml, and the same call resumes it.

    Parameters
    ----------
    model: hub id or folder; or a function that takes a list of texts and returns their labels or
        probabilities (see `predict` of a backbone), or its place, `package.module:function` or
        `file.py:function`.
    probe: the attribute that sentences are about: race, age, gender, religion, nationality,
        disability or sexuality.
    task: what a finished classifier is of: sentiment (the Amazon templates) or toxicity (sentences
        of our own); None tells it by its labels, and takes a function's to be sentiment.
    method: kind of method, such as zero_shot or lora; None chooses by the model, the pilot and the
        budget.
    labels: by label, the classes of a finished classifier that mean it, if their names do not tell.
    threshold: of a finished classifier: from which output on the classes in `labels`, or a
        function's number, mean their label; one number, or one between every two labels.
    truncate: cut texts that are longer than a finished classifier takes, instead of refusing them.
    data: local folder that holds the public data sets as amazon/ and sst5/; what it lacks is
        fetched there.
    budget: time on this machine or cluster: 90s, 10m or 2h; starting Ray is not counted.
    looks: look so often at a sample that doubles, and stop where the question is answered; the
        results of each look stand in OUT/look-NUMBER. Where there is no difference, at most 5% of
        audits find one, over all looks together. Only for a model that is asked, not tuned.
    margin: the largest gap that does not matter; without one no gap is shown to be small.
    out: folder or URI of the results; by default out/audit-MODEL-PROBE, with the method if given.
    address: as for `run`.
    convert: convert a model with pickled weights only to safetensors, once, in this machine's
        cache; false refuses it.
    tell: is given the choice and the expected width of its intervals, and at the end the result.

    Raises
    ------
    BadInput: as for `run`; or no design fits the budget, or OUT holds another question's study.
    WorkFailed: data cannot be fetched, or as for `run`.
    """
    from raybias.engine.checkpoint import refuse_pickled
    from raybias.planning import audit as audits
    from raybias.providers.predict import is_function_place, predict_section

    name = model if isinstance(model, str) else predict_section(model)["predict"]
    is_function = not isinstance(model, str) or is_function_place(model)
    tell(f"{name}: looking at the model")
    if not convert and not is_function:
        refuse_pickled(Backbone(id=name))
    begun = time.monotonic()
    question = audits.Question(
        name,
        probe,
        method,
        Path(data),
        looks=looks,
        margin=margin,
        task=task,
        reading=_reading(labels, threshold, truncate=truncate),
        is_function=is_function,
    )
    limit = audits.seconds(budget)
    choose([probe], probes[question.source].kinds, where="--probe")
    place = str(out or f"out/{question.name}")
    places = [f"{place}/look-{look}" for look in range(1, looks + 1)] if looks > 1 else [place]
    if Store(places[0]).exists("study.yaml"):
        study = Results(places[0]).study
        question.check(study, where=place)
        if study.limit is not None:
            study = study.model_copy(update={"limit": study.limit << looks - 1})
        tell(f"{place}: resuming the audit that it holds")
    else:
        _ = question.kinds  # The model is read before anything is fetched or written.
        for name, folder in question.folders.items():
            if not folder.exists():
                tell(f"fetching {name} to {folder}")
                download_data(name, folder)
        question = _with_pilot(question, place, address=address, command=command, tell=tell)

        def estimate(study: Study) -> float:
            there = address or os.environ.get("RAY_ADDRESS")
            return plan(study, address=there).forecast.latest.high

        spent = time.monotonic() - begun
        found = audits.choose(question, limit - spent, estimate)
        tell("\n".join(filter(None, (question.unused_head, audits.said(found, limit, spent)))))
        study = found.study
        if looks > 1:
            # A look asks only what none before it has asked.
            study = study.model_copy(update={"answers": f"{place}/answers"})
    for each, part in zip(audits.looks_of(study), places, strict=True):
        if looks > 1 and Store(place).exists(PILOT_FILE):
            Store(part).write_text(PILOT_FILE, Store(place).read_text(PILOT_FILE))
        results, study = run(each, out=part, address=address, command=command), each
        if looks > 1:
            ended = audits.answered(results.estimates.collect(), each.statistics.scope)
            tell(f"{part}, {each.limit:,} sentences: {ended or 'no difference is shown'}")
            if ended:
                break
    tell(
        audits.reached(study, results.estimates.collect(), audits.accuracy_in(Store(place), study))
    )
    return results


def _with_pilot(
    question: Question,
    place: str,
    *,
    address: str | None,
    command: str,
    tell: Callable[[str], None],
) -> Question:
    """Ask the model by every way of asking, and return the question with what they gave."""
    from raybias.planning import audit as audits
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study

    pilot = f"{place}/pilot"
    asked = question.pilot(Store(pilot))
    if asked is None:
        return question
    tell(f"asking it for the labels of {audits.PILOT} training sentences")
    run_study(asked, pilot, address=address, command=command, reporter=Reporter())
    ways = audits.ways_of(Results(pilot).predictions.collect())
    question = replace(question, ways=ways)
    Store(place).write_text(PILOT_FILE, json.dumps([way.record for way in ways], indent=1))
    tell("\n".join(f"  {way}" for way in question.best_ways))
    return question


def _reading(
    labels: Mapping[str, str | Sequence[str]] | None,
    threshold: float | Sequence[float],
    *,
    truncate: bool,
) -> dict[str, Any]:
    """Return the options of the method classify that a user gives."""
    bounds = [threshold] if isinstance(threshold, int | float) else [*threshold]
    options = {"labels": labels and dict(labels), "thresholds": bounds, "truncate": truncate}
    return {name: value for name, value in options.items() if value}


def demo(
    out: str | Path = "out/demo", *, address: str | None = None, command: str = "raybias.demo"
) -> Results:
    """Run the embedded calibration, whose planted bias is known.

    Parameters
    ----------
    out, address, command: as for `run`.
    """
    from raybias.probes.published.planted import plant
    from raybias.runtime.lease import leased
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study

    store, reporter = Store(out), Reporter()
    with leased(store):
        with as_file(files("raybias") / "assets" / "demo.yaml") as path:
            study = load_study(path)
        run_study(study, out, address=address, command=command, reporter=reporter)
        # Only now is OUT known to be the demonstration's.
        store.write_text("planted.json", json.dumps(asdict(plant()), indent=2) + "\n")
        reporter.say("demo: writing the tables and the page")
        return write_report(out)


def write_report(
    out: str | Path,
    *,
    profile: Profile | None = None,
    verify: bool = False,
) -> Results:
    """Write the tables, figures and page of an OUT again from its files.

    Parameters
    ----------
    profile: states the statistics by this profile; how runs were tuned stays as it was.
    verify: refuse results that changed since they were written, by OUT/seal.json; without it the
        page and a warning name them.

    Raises
    ------
    OutputError: OUT holds no study.
    DataError: with `verify`, a file that was changed, deleted or added, or no OUT/seal.json.
    """
    from raybias import seal
    from raybias.report import page
    from raybias.report.outs import restated

    store = Store(out)
    if verify:
        seal.verify(store)
    page.write_report(store, restated(read_record(store).study, profile))
    return Results(out)


def serve(out: str | Path, **options: Any) -> AbstractContextManager[str]:
    """Serve the runs of a finished study over HTTP while the context is open; gives the URL.

    Parameters
    ----------
    options: of `raybias.runtime.serve.app.serve_out`.
    """
    from raybias.runtime.serve.app import serve_out

    return serve_out(str(out), **options)


def doctor(
    address: str | None = None, *, out: str | Path | None = None, hub: bool = True
) -> Iterator[Finding]:
    """Examine this machine or a cluster: each finding is ok, warn or fail, with a cure.

    Parameters
    ----------
    address: of a Ray cluster; None starts one on this machine.
    out: of a study, to be examined too.
    hub: whether to try to reach the model hub.
    """
    from raybias.runtime.doctor import examine

    return examine(address, hub=hub, out=None if out is None else str(out))
