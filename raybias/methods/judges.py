"""Judge texts that a model wrote, by a classifier of others or a run of a study of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self

import numpy as np
from pydantic import model_validator

from raybias.config import Backbone, Location, Section
from raybias.errors import ConfigError, ModelError, OutputError
from raybias.methods.base import Method, Reader, methods_of, text_items
from raybias.schema import Label
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.classifier import TextJudge
    from raybias.engine.context import Execution
    from raybias.engine.model_shape import ModelShape
    from raybias.study_record import Record

#: Labels that classes can be named for; all others are neutral.
_NAMED: Final = (Label.NEGATIVE, Label.POSITIVE)
#: Digits of a run's fingerprint.
_BYTES: Final = 16


class Verdict(NamedTuple):
    """A judge's label of a text, None where it cannot read it, and the probability of its class."""

    label: int | None
    score: float


_UNREAD: Final = Verdict(None, 0.0)


class Judging(Protocol):
    """A loaded judge."""

    def verdicts(self, ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
        """Judge each text by itself; samples are keyed by `ids`."""


class Judge(Section):
    """What labels the texts that a model wrote."""

    model: Location
    """Hugging Face id or local path of a classifier of texts, with safetensors weights; or with
    `run`, the OUT of a study."""
    run: str = ""
    """A run of that study, by its run_id, which labels texts as it labels sentences."""
    revision: str | None = None
    """Branch, tag or commit on the hub; of a run, the fingerprint of its files."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of a classifier's weights."""
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

    @property
    def spec(self) -> Backbone:
        """The classifier's checkpoint."""
        return Backbone(id=self.model, revision=self.revision, dtype=self.dtype)

    @property
    def words(self) -> str:
        """What judges, for people."""
        return f"run {self.run} of {self.model}" if self.run else self.model

    @property
    def checkpoints(self) -> dict[str, Backbone]:
        """The classifier, whose weights are pinned; a run has a fingerprint."""
        return {} if self.run else {"judge": self.spec}

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the judge with its classifier's commit, or its run's fingerprint.

        Raises OutputError, ConfigError: no such study or run, or one that `revision` does not name.
        """
        if not self.run:
            return self.model_copy(update={"revision": revisions["judge"]})
        found = _StudyRun.of(self).fingerprint
        if self.revision not in (None, found):
            raise ConfigError(
                f"run {self.run} of {self.model} has the fingerprint {found}, not {self.revision}",
                where="judge",
                cure="give the run that is meant, or take out its revision",
            )
        return self.model_copy(update={"revision": found})

    def check(self) -> None:
        """Refuse what cannot judge (ModelError, ConfigError, OutputError); loads no weights."""
        if self.run:
            _StudyRun.of(self).check()
            return
        from raybias.engine.classifier import check_judge

        self.labels(check_judge(self.spec)[1])

    def labels(self, classes: Sequence[str]) -> list[Label]:
        """Return the label of each class of a classifier.

        Raises ConfigError: an unknown class, one for two labels, or none that is negative or
        positive.
        """
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
        return [found.get(n, Label.NEUTRAL) for n in range(len(classes))]

    def loaded(self, execution: Execution) -> Judging:
        """Load the judge; ModelError for weights that cannot be loaded."""
        if self.run:
            return _StudyRun.of(self).loaded(execution)
        from raybias.engine.classifier import TextJudge, check_judge

        return _Classifier(TextJudge(self.spec, execution), self.labels(check_judge(self.spec)[1]))

    def _wrong(self, problem: str, classes: Sequence[str]) -> ConfigError:
        return ConfigError(
            f"the judge {self.model} {problem}; it has {', '.join(classes)}",
            where="judge",
            cure="say with `negative` and `positive` which of them count",
        )


@lru_cache(maxsize=16)
def sized(judge: Judge) -> tuple[Backbone, ModelShape]:
    """Return the classifier, or the run's backbone, and its shape, read without weights."""
    from raybias.engine.backbone import empty_model
    from raybias.engine.classifier import check_judge
    from raybias.engine.model_shape import shape_of

    if not judge.run:
        return judge.spec, check_judge(judge.spec)[0]
    spec = _StudyRun.of(judge).backbone
    return spec, shape_of(empty_model(spec), spec)


@dataclass(frozen=True)
class _Classifier:
    judge: TextJudge
    labels: Sequence[Label]

    def verdicts(self, ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
        """Judge the texts that fit the context, by the likeliest class."""
        rows = self.judge.encoder.ids(texts)
        most = self.judge.context or max(map(len, rows), default=0)
        fit = [n for n, row in enumerate(rows) if row and len(row) <= most and texts[n].strip()]
        found = [_UNREAD] * len(texts)
        if fit:
            probability_NC = self.judge.probabilities([rows[n] for n in fit])
            for n, each_C in zip(fit, probability_NC, strict=True):
                place = int(each_C.argmax())
                found[n] = Verdict(int(self.labels[place]), float(each_C[place]))
        return found


@dataclass(frozen=True)
class _Run:
    reader: Reader
    run: Any

    def verdicts(self, ids: Sequence[str], texts: Sequence[str]) -> list[Verdict]:
        fit = [n for n, text in enumerate(texts) if text.strip() and self._fits(text)]
        found = [_UNREAD] * len(texts)
        if fit:
            items = text_items([ids[n] for n in fit], [texts[n] for n in fit])
            made, _ = self.reader.prepare(self.run, items)()
            labels, scores = (made[name].to_pylist() for name in ("pred", "scores"))
            for n, label, logits in zip(fit, labels, scores, strict=True):
                logits_L = np.array(logits, np.float64)
                share_L = np.exp(logits_L - logits_L.max())
                score = 0.0 if label is None else float(share_L[label] / share_L.sum())
                found[n] = Verdict(label, score)
        return found

    def _fits(self, text: str) -> bool:
        try:
            self.reader.check([text])
        except ModelError:
            return False
        return True


@dataclass(frozen=True)
class _StudyRun:
    """A finished run of a study, with its origin."""

    judge: Judge
    store: Store
    record: Record
    backbone: Backbone
    method: Method

    @classmethod
    def of(cls, judge: Judge) -> Self:
        """Find the run; OutputError where the study has none such."""
        # Its classes know every method, this module's too.
        from raybias.study_record import read_record, read_runs

        store = Store(judge.model)
        record, runs = read_record(store), read_runs(store)
        row = next(iter(runs.filter(run_id=judge.run).iter_rows(named=True)), None)
        backbones = [
            each for each in record.study.backbones
            if row and each.name == row["model"] and "weights" in each.abilities
        ]  # fmt: skip
        methods = [
            each for one in backbones for each in methods_of(record.study, one)
            if row and each.name == row["method"] and each.reads == "probes" and not each.judged_by
        ]  # fmt: skip
        if not methods or not cls._files(store, judge.run):
            kept = runs.filter("selected")["run_id"].to_list()
            raise OutputError(
                f"has no run {judge.run!r} that labels texts with weights in hand",
                where=store.uri,
                cure=f"choose among {', '.join(kept[:3])}" if kept else "run its study to the end",
            )
        return cls(judge, store, record, backbones[0], methods[0])

    @staticmethod
    def _files(store: Store, run: str) -> list[str]:
        adapter = [*store.files(f"adapters/{run}", recursive=True)]
        prompt = f"prompts/{run}.json"
        return sorted(adapter) or ([prompt] if store.exists(prompt) else [])

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of its study, with data and weights, and of the run's files."""
        found = hashlib.blake2b(self.record.hash.encode(), digest_size=_BYTES)
        for name in self._files(self.store, self.judge.run):
            found.update(name.encode() + b"\0" + self.store.read_bytes(name))
        return found.hexdigest()

    def check(self) -> None:
        """Refuse other weights than the run's."""
        from raybias.engine.checkpoint import file_hashes, folder_of
        from raybias.study_record import refuse_other

        held = self.record.models.get(self.backbone.name)
        folder = folder_of(self.backbone.id)
        if held is not None and folder is not None:
            found = file_hashes(folder)
            name = self.backbone.name
            refuse_other(self.store, {"models": {name: held}}, {"models": {name: found}})

    def loaded(self, execution: Execution) -> Judging:
        from raybias.engine.backbone import ModelContext

        whole = replace(execution, sharding=None, ways={})
        context = ModelContext(self.backbone, self.record.study.verbalizer.words(), whole)
        reader = self.method.reader(context, self.store)
        return _Run(reader, reader.load(self.judge.run))
