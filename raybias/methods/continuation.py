"""Have a backbone continue prompts that name groups, and a judge label the continuations.

BOLD (Dhamala et al. 2021) and Regard (Sheng et al. 2019) evaluate generation so. The answer of a
prediction is the continuation. A judge is a classifier of others, or a run of a study of one's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator
from scipy.special import softmax

from raybias.config import Backbone
from raybias.config.parts import Checkpoint
from raybias.config.section import Count, Location
from raybias.engine.answers import without_thoughts
from raybias.errors import ConfigError, ModelError, OutputError
from raybias.methods.base import (
    Inputs,
    Run,
    check_models,
    method,
    methods_of,
    predictions,
    text_items,
)
from raybias.methods.label_prompts import PromptedReader, Reply
from raybias.methods.prompted import Prompted
from raybias.methods.work import Beside, Work
from raybias.providers.base import answers_of
from raybias.schema import LABELS, Label
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.context import Execution
    from raybias.engine.model_shape import ModelShape

#: Characters that follow a word without a blank.
_JOINED: Final = ".,;:!?')-"
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


class Judge(Checkpoint):
    """What labels the texts that a model wrote."""

    model: Location
    """Hugging Face id or local path of a classifier of texts, with safetensors weights; or with
    `run`, the OUT of a study."""
    run: str = ""
    """A run of that study, by its run_id, which labels texts as it labels sentences."""
    revision: str | None = None
    """Branch, tag or commit on the hub; of a run, the fingerprint of its files."""
    negative: tuple[str, ...] = ()
    """Classes that count as negative, by name or number; by default the one called so."""
    positive: tuple[str, ...] = ()
    """Classes that count as positive; by default the one called so. All others are neutral."""
    reads: Literal["whole", "continuation"] = "whole"
    """The prompt with what was written after it, or that alone."""

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if self.run and (self.negative or self.positive or self.dtype != "float32"):
            raise ValueError("a run has the study's labels and dtype; take out the judge's")
        return self

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return it with its commit or fingerprint; refuses a run that `revision` does not name."""
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

    def loaded(self, execution: Execution, labels: Sequence[str]) -> Judging:
        """Load the judge of a study with these labels; ModelError: it cannot be loaded."""
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


@method
class Continuation(Prompted):
    """What a model writes after prompts, labelled by a judge: BOLD and Regard."""

    kind: Literal["continuation"] = "continuation"
    template: str = "{text}"
    """The prompt for one item, without a blank at its end; a chat needs words that ask for it."""
    read: Literal["answer"] = "answer"
    """What is judged: a sampled answer."""
    answer_tokens: Count | None = Field(20, ge=1)
    """Most tokens of a continuation."""
    unparsed: Literal["invalid"] = "invalid"
    """What the judge cannot read, since it is empty or too long, has no label."""
    judge: Judge
    """What labels the continuations."""

    @property
    def judged_by(self) -> str:
        judge = self.judge
        return f"run {judge.run} of {judge.model}" if judge.run else judge.model

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        # A run has a fingerprint instead.
        return {} if self.judge.run else {"judge": self.judge.spec()}

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        return self.model_copy(update={"judge": self.judge.pinned(revisions)})

    def answer_words(self, words: Sequence[str]) -> list[str]:
        return []

    def check(self, inputs: Inputs) -> None:
        super().check(inputs)
        self.judge.check(inputs.labels)

    def runs(self, inputs: Inputs) -> list[Run]:
        # Statistics of draws need to know what the verdict's probability says of other labels.
        known = {"judge_labels": self.judge.class_labels(inputs.labels)}
        return [replace(run, recipe={**run.recipe, **known}) for run in super().runs(inputs)]

    def work(self, inputs: Inputs) -> Work:
        beside = Beside("the judge", *sized(self.judge))
        return replace(super().work(inputs), beside=(beside,), can_shard=False)

    def reader(self, context: ModelContext, store: Store) -> ContinuationReader:
        from raybias.engine.context import ON_CPU

        # An endpoint has no budget of tokens.
        execution = context.execution if context.execution.tokens_per_batch else ON_CPU
        judge = self.judge.loaded(execution, context.labels)
        answers = answers_of(context, store)
        return ContinuationReader(self, answers, context.words, store, judge=judge)


@dataclass(frozen=True)
class ContinuationReader(PromptedReader):
    """Have the model continue prompts, and a judge label the continuations."""

    method: Continuation
    judge: Judging = field(kw_only=True)

    def labelled(self, run: Run, items: pa.Table, replies: Sequence[Reply]) -> pa.Table:
        """Label continuations by the judge; the one score is its verdict's probability."""
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        written = [each.text for _, each in replies]
        said = [without_thoughts(each) for each in written]
        verdicts = self.judge(item_ids, [*map(self._judged, texts, said)])
        return predictions(
            items,
            scores=np.array([[each.score] for each in verdicts], np.float32),
            labels=[each.label for each in verdicts],
            parsed=[each.label is not None for each in verdicts],
            unread=[
                "filtered" if each.finish_reason == "content_filter" else None
                for _, each in replies
            ],
            answers=written,
        )

    def _judged(self, text: str, said: str) -> str:
        """Return the judge's input; an empty continuation has no verdict."""
        if self.method.judge.reads == "continuation" or not said.strip():
            return said.strip()
        # A chat's answer, and what a tokenizer decodes after a blank, begin without one.
        apart = not (said[0].isspace() or said[0] in _JOINED)
        return f"{text} {said}" if apart else text + said
