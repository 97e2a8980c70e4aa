"""Audit one model: choose the study that answers a question, run it, and say what it shows.

Functions import what they need when they are called, so importing them loads neither torch nor Ray.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raybias.api.studies import plan, run
from raybias.config import Backbone, Study
from raybias.probes.checks import choose
from raybias.probes.registries import probes
from raybias.probes.sources import download_data
from raybias.results import Results
from raybias.schema import PILOT_FILE
from raybias.storage import Store
from raybias.study_record import is_study, look_name

if TYPE_CHECKING:
    from raybias.planning.audit import Question
    from raybias.providers.predict import PredictTexts

#: What a finished classifier is of.
Task = Literal["sentiment", "toxicity"]


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
    head, a PEFT adapter with one, an adapter, soft prompt or prefix that raybias tuned, or a
    function. The study stands in OUT/study.yaml, and the same call resumes it.

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
        results of each look stand in OUT/look-NUMBER, and a command that is given OUT reads the
        last one. Where there is no difference, at most 5% of audits find one by a rate, over all
        looks together. Only for a model that is asked, not tuned.
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
    numbers = range(1, looks + 1)
    places = [f"{place}/{look_name(look)}" for look in numbers] if looks > 1 else [place]
    if is_study(place):
        question.check(Results(place).study, where=place)
        study = Results(places[0]).study
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
            shown = ended or audits.unanswered(results.estimates.collect(), each.statistics.scope)
            tell(f"{part}, {each.limit:,} sentences: {shown}")
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
    from raybias.planning.pilot import ways_of
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study

    pilot = f"{place}/pilot"
    asked = question.pilot(Store(pilot))
    if asked is None:
        return question
    tell(f"asking it for the labels of {audits.PILOT} training sentences")
    run_study(asked, pilot, address=address, command=command, reporter=Reporter())
    ways = ways_of(Results(pilot).predictions.collect())
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
