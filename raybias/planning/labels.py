"""Find the labels of a study, and refuse whatever of it is made for other labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from raybias.config import Probe, Study, TrainingSet
from raybias.config.labels import refuse_paper
from raybias.errors import ConfigError
from raybias.methods.base import Method
from raybias.probes import declared_favourable, declared_labels
from raybias.stats.metric import check_names, metrics
from raybias.stats.untold import OUTCOME

#: Metrics of a study with two labels that are not sentiment's, and with more.
OF_TWO: Final = ("fpr", "tpr", "selection_rate", "accuracy")
OF_MANY: Final = ("accuracy", "tpr", "fpr")


def resolve_labels(study: Study) -> Study:
    """Return the study with its labels, those that are rated and favourable, and its metrics.

    A study that sets no `verbalizer` has the labels that its first probe declares. Raises
    ConfigError: a probe, training set, metric or profile that is made for other labels.
    """
    if "verbalizer" not in study.model_fields_set and study.probes:
        labels = declared_labels(study.probes[0]) or study.labels
        if labels != study.labels:
            words = {label: label for label in labels}
            study = study.model_copy(update={"verbalizer": words})
    for probe in study.probes:
        _refuse_other_labels(study.labels, probe)
    for training in study.training:
        _refuse_other_labels(study.labels, training)
    refuse_paper(study.profile, study.labels)
    return _with_favourable(_with_metrics(study))


def _with_favourable(study: Study) -> Study:
    """Name the label that is favourable: the study's, or the one that all its probes declare."""
    favourable = study.statistics.favourable
    if favourable is None:
        declared = {declared_favourable(probe) for probe in study.probes}
        if len(declared) != 1 or not any(declared):
            return study
        (favourable,) = declared
    if favourable not in study.labels:
        raise ConfigError(
            f"{favourable!r} is no label of the study, which has {', '.join(study.labels)}",
            where="statistics.favourable",
            cure="name one of them",
        )
    statistics = study.statistics.model_copy(update={"favourable": favourable})
    return study.model_copy(update={"statistics": statistics})


def with_outcomes(study: Study) -> Study:
    """Return a study whose metrics also tell the outcome where a classifier never gives the label.

    methods: fitted. Metrics that the study names itself stay as they are.
    """
    methods = [method for method in study.methods if isinstance(method, Method)]
    untold = any(method.never(study.labels) for method in methods)
    named = "metrics" in study.statistics.model_fields_set
    if named or not (untold and study.is_sentiment):
        return study
    metrics = (*study.statistics.metrics, OUTCOME)
    statistics = study.statistics.model_copy(update={"metrics": metrics})
    return study.model_copy(update={"statistics": statistics})


def _refuse_other_labels(labels: Sequence[str], part: Probe | TrainingSet) -> None:
    """Refuse a probe or training set that does not have a study's labels, by a ConfigError."""
    what = "probe" if isinstance(part, Probe) else "training set"
    where = f"{what} {part.name}"
    declared = declared_labels(part)
    codes = part.labels if isinstance(part, TrainingSet) and part.labels else {}
    unknown = next((label for label in codes.values() if label not in labels), None)
    if unknown is not None:
        raise ConfigError(
            f"`labels` maps a value to {unknown!r}, and the study has the labels"
            f" {', '.join(labels)}",
            where=where,
            cure="map each value to a label of the study",
        )
    if declared is None or declared == tuple(labels):
        return
    # A file has words, which may be in another order than the study's labels.
    by_word = isinstance(part, Probe) and part.source == "file"
    if {*declared} == {*labels} and by_word:
        return
    listed = ", ".join(declared)
    cure = f"set `verbalizer: [{listed}]`, or take the probe into a study of its own"
    if isinstance(part, TrainingSet):
        cure = "give sentences with the labels of the study, such as a `file` of your own"
    raise ConfigError(
        f"has the labels {listed}, and the study has {', '.join(labels)}", where=where, cure=cure
    )


def _with_metrics(study: Study) -> Study:
    """Fill in the metrics that a study's labels allow, and refuse others by a ConfigError."""
    labels, statistics = study.labels, study.statistics
    listed = ", ".join(labels)
    if statistics.positive is not None and statistics.positive not in labels:
        raise ConfigError(
            f"{statistics.positive!r} is no label of the study, which has {listed}",
            where="statistics.positive",
            cure="name one of them",
        )
    if study.is_sentiment and statistics.positive in (None, labels[-1]):
        return study
    check_names(statistics.metrics)
    positive = None if study.positive is None else labels[study.positive]
    update: dict[str, Any] = {"positive": positive}
    if "metrics" not in statistics.model_fields_set:
        usual = OF_TWO if len(labels) == 2 else OF_MANY
        update["metrics"] = usual if positive else OF_MANY[:1]
    statistics = statistics.model_copy(update=update)
    for name in statistics.metrics:
        kind = metrics[name].of
        if kind == "counts" and name != "accuracy":
            raise ConfigError(
                f"the metric {name!r} is about negative, neutral and positive sentences, and the"
                f" study's rates are about {positive or listed}",
                where="statistics.metrics",
                cure=f"choose metrics such as {', '.join(OF_TWO)}",
            )
        if kind in ("class", "contrast") and positive is None:
            raise ConfigError(
                f"the metric {name!r} is about one label, and the study names none",
                where="statistics.positive",
                cure=f"name one of {listed}",
            )
    return study.model_copy(update={"statistics": statistics})
