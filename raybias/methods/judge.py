"""Judges, which label what a model wrote: a classifier, a run of a study, or a lexicon."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from pydantic import model_validator
from scipy.special import softmax

from raybias.config import Backbone
from raybias.config.parts import Checkpoint
from raybias.config.section import Location, Place, by_profile
from raybias.errors import ConfigError, ModelError, OutputError
from raybias.methods.base import check_models, methods_of, text_items
from raybias.methods.lexicon import Lexicon, read_lexicon
from raybias.schema import LABELS, Label
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.context import Execution
    from raybias.engine.model_shape import ModelShape

#: Labels that classes can be named for; all others are neutral.
_NAMED: Final = (Label.NEGATIVE, Label.POSITIVE)
#: Digits of a run's fingerprint.
_BYTES: Final = 16


class Verdict(NamedTuple):
    """A judge's label of a text, None where it cannot read it, and the probability of its class."""

    label: int | None
    score: float


_UNREAD: Final = Verdict(None, 0.0)


#: A loaded judge: it judges texts, each by itself; samples are keyed by their ids.
Judging = Callable[[Sequence[str], Sequence[str]], list[Verdict]]


def _reads_by_default(fields: Mapping[str, Any]) -> str:
    return "continuation" if fields.get("lexicon") else "whole"


class Judge(Checkpoint):
    """What labels the texts that a model wrote."""

    model: Location = ""
    """Hugging Face id or local path of a classifier of texts, with safetensors weights; or with
    `run`, the OUT of a study."""
    run: str = ""
    """A run of that study, by its run_id, which labels texts as it labels sentences."""
    lexicon: Place = ""
    """Instead of a model, a table of words (columns `word`, and perhaps `category`): a text with
    one of them is negative, any other neutral. Words are whole, in any case; several can be one
    entry."""
    revision: str | None = None
    """Branch, tag or commit on the hub; of a run, the fingerprint of its files; of a lexicon, the
    sha256 of its file."""
    negative: tuple[str, ...] = ()
    """Classes that count as negative, by name or number; by default the one called so."""
    positive: tuple[str, ...] = ()
    """Classes that count as positive; by default the one called so. All others are neutral."""
    reads: Literal["whole", "continuation"] = by_profile(
        paper=_reads_by_default, strict=_reads_by_default, shown="whole; of a lexicon, continuation"
    )
    """The prompt with what was written after it, or that alone."""

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if bool(self.model) == bool(self.lexicon):
            raise ValueError("a judge has either a `model` or a `lexicon`")
        options = bool(self.negative or self.positive or self.dtype != "float32")
        if self.lexicon and (self.run or options):
            raise ValueError("a lexicon has no run, negative, positive or dtype; take them out")
        if self.run and options:
            raise ValueError("a run has the study's labels and dtype; take out the judge's")
        return self

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return it with its commit, fingerprint or sha256.

        Raises ConfigError: a run or lexicon that is not the one `revision` names.
        """
        if self.lexicon:
            found = read_lexicon(self.lexicon, self.revision).digest
            return self.model_copy(update={"revision": found})
        if not self.run:
            return self.model_copy(update={"revision": revisions["judge"]})
        found = _StudyRun(self).fingerprint
        if self.revision not in (None, found):
            raise ConfigError(
                f"run {self.run} of {self.model} has the fingerprint {found}, not {self.revision}",
                where="judge",
                cure="give the run that is meant, or take out its revision",
            )
        return self.model_copy(update={"revision": found})

    def class_labels(self, labels: Sequence[str]) -> list[int]:
        """Return the label of each class that the judge tells apart; raises as `check`."""
        if self.lexicon:
            if tuple(labels) != LABELS:
                raise ConfigError(
                    "a lexicon calls texts negative or neutral, and the labels of the study are"
                    f" {', '.join(labels)}",
                    where="judge",
                    cure="take out `verbalizer`, or give a judge with these labels",
                )
            return [Label.NEGATIVE, Label.NEUTRAL]
        if self.run:
            return [*range(len(labels))]
        from raybias.engine.published import exclusive_classes

        return self.label_numbers(exclusive_classes(self.spec()), labels)

    def check(self, labels: Sequence[str]) -> None:
        """Refuse what cannot judge by these labels (ModelError, ConfigError, OutputError).

        No weights are loaded.
        """
        if self.run:
            run = _StudyRun(self)
            if run.record.study.labels != tuple(labels):
                raise ConfigError(
                    f"the run {self.run} of {self.model} has the labels"
                    f" {', '.join(run.record.study.labels)}, and this study {', '.join(labels)}",
                    where="judge",
                    cure="give a run of a study with the same labels",
                )
            check_models(run.store, run.record, [run.backbone.name])
        else:
            self.class_labels(labels)

    def label_numbers(self, classes: Sequence[str], labels: Sequence[str]) -> list[int]:
        """Return the number of each class's label.

        Classes of other labels than sentiment's are called like them, in any case. Raises
        ConfigError: a class that is unknown or named twice, or none that is not neutral.
        """
        if tuple(labels) == LABELS:
            return self._sentiment_numbers(classes)
        numbers = {label.lower(): number for number, label in enumerate(labels)}
        found = [numbers.get(name.strip().lower()) for name in classes]
        known = [number for number in found if number is not None]
        if self.negative or self.positive or len({*known}) < len(classes):
            raise ConfigError(
                f"the classes of the judge {self.model} are {', '.join(classes)}, and the labels"
                f" of the study {', '.join(labels)}",
                where="judge",
                cure="give a judge whose classes are called like labels, without `negative` and"
                " `positive`, or a run of a study with these labels",
            )
        return known

    def _sentiment_numbers(self, classes: Sequence[str]) -> list[int]:
        places = {name.lower(): n for n, name in enumerate(classes)}
        by_number = {str(n): n for n in range(len(classes))} | places
        found: dict[int, Label] = {}
        for label, named in zip(_NAMED, (self.negative, self.positive), strict=True):
            word = label.name.lower()
            for name in named or ((word,) if word in places else ()):
                place = by_number.get(name.strip().lower())
                if place is None or found.get(place, label) != label:
                    why = "has no class" if place is None else "has two labels for the class"
                    raise self._wrong(f"{why} {name!r}", classes)
                found[place] = label
        if not found:
            raise self._wrong("has no class called negative or positive", classes)
        return [int(found.get(n, Label.NEUTRAL)) for n in range(len(classes))]

    def check_weights(self) -> Sequence[str]:
        """Refuse a classifier whose weights on this machine are not whole; see `check_loads`."""
        if self.run or self.lexicon:
            return ()
        from raybias.engine.published import check_classifier

        return check_classifier(self.spec())

    def loaded(self, execution: Execution, labels: Sequence[str]) -> Judging:
        """Load the judge of a study with these labels; ModelError: it cannot be loaded."""
        if self.lexicon:
            return _by_words(read_lexicon(self.lexicon, self.revision))
        if self.run:
            return _StudyRun(self).loaded(execution)
        from raybias.engine.published import PublishedClassifier

        numbers = self.class_labels(labels)
        cure = "give a classifier with one label a text"
        judge = PublishedClassifier(self.spec(), execution, cure=cure)
        tokens = judge.encoder.ids

        def read(_ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
            probability_NC = judge.outputs(tokens(texts))
            return [Verdict(numbers[p_C.argmax()], float(p_C.max())) for p_C in probability_NC]

        most = judge.context or math.inf
        return _judging(read, fits=lambda text: 0 < len(tokens([text])[0]) <= most)

    def _wrong(self, problem: str, classes: Sequence[str]) -> ConfigError:
        return ConfigError(
            f"the judge {self.model} {problem}; it has {', '.join(classes)}",
            where="judge",
            cure="say with `negative` and `positive` which of them count",
        )


def _by_words(lexicon: Lexicon) -> Judging:
    """Judge texts by a lexicon; a verdict is certain."""

    def read(_ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
        labels = (Label.NEGATIVE if held else Label.NEUTRAL for held in lexicon.holds(texts))
        return [Verdict(int(label), 1.0) for label in labels]

    return _judging(read, fits=lambda _: True)


def _judging(read: Judging, *, fits: Callable[[str], bool]) -> Judging:
    """Judge the texts that fit the context; others, and empty ones, get no verdict."""

    def judge(ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
        fit = [n for n, text in enumerate(texts) if text.strip() and fits(text)]
        found = [_UNREAD] * len(texts)
        if fit:
            verdicts = read([ids[n] for n in fit], [texts[n] for n in fit])
            for n, verdict in zip(fit, verdicts, strict=True):
                found[n] = verdict
        return found

    return judge


@lru_cache(maxsize=16)
def sized(judge: Judge) -> tuple[Backbone, ModelShape]:
    """Return the classifier, or the run's backbone, and its shape, read without weights."""
    from raybias.engine.model_shape import model_shape
    from raybias.engine.published import classifier_shape

    if not judge.run:
        return judge.spec(), classifier_shape(judge.spec())
    spec = _StudyRun(judge).backbone
    return spec, model_shape(spec)


class _StudyRun:
    """A finished run of a study, which judges; OutputError where the study has none such."""

    def __init__(self, judge: Judge) -> None:
        # Imported here: its classes import every method, this module's too.
        from raybias.study_record import read_record, read_runs, study_place

        self.run_id, self.store = judge.run, Store(study_place(judge.model))
        self.record, runs = read_record(self.store), read_runs(self.store)
        self.files = sorted(self.store.files(f"adapters/{judge.run}", recursive=True))
        prompt = f"prompts/{judge.run}.json"
        if not self.files and self.store.exists(prompt):
            self.files = [prompt]
        study, of_run = self.record.study, runs.filter(run_id=judge.run)
        found = [
            (backbone, method)
            for row in of_run.iter_rows(named=True)
            for backbone in study.backbones
            if backbone.name == row["model"] and "weights" in backbone.abilities
            for method in methods_of(study, backbone)
            if method.name == row["method"] and method.reads == "probes" and not method.judged_by
        ]
        if not found or not self.files:
            kept = runs.filter("selected")["run_id"].to_list()
            raise OutputError(
                f"has no run {judge.run!r} that labels texts with weights in hand",
                where=self.store.uri,
                cure=f"choose among {', '.join(kept[:3])}" if kept else "run its study to the end",
            )
        self.backbone, self.method = found[0]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its study, with data and weights, and of the run's files."""
        found = hashlib.blake2b(self.record.hash.encode(), digest_size=_BYTES)
        for name in self.files:
            found.update(name.encode() + b"\0" + self.store.read_bytes(name))
        return found.hexdigest()

    def loaded(self, execution: Execution) -> Judging:
        from raybias.engine.backbone import ModelContext

        whole = replace(execution, sharding=None, ways={})
        study = self.record.study
        context = ModelContext(self.backbone, study.label_words, whole, labels=study.labels)
        reader = self.method.reader(context, self.store)
        run = reader.load(self.run_id)

        def fits(text: str) -> bool:
            try:
                reader.check([text])
            except ModelError:
                return False
            return True

        def read(ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
            made, _ = reader.prepare(run, text_items(ids, texts))()
            labels, scores = (made[name].to_pylist() for name in ("pred", "scores"))
            return [
                Verdict(label, 0.0 if label is None else float(softmax(logits)[label]))
                for label, logits in zip(labels, scores, strict=True)
            ]

        return _judging(read, fits=fits)
