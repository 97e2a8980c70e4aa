"""Classifiers that were tuned before, by raybias or as a prompt or prefix by PEFT, in folders.

raybias saves with each run how its classifier reads texts (`saved_reading`): the method with its
template and sizes, the label words, and the base's precision. A soft prompt or prefix that PEFT
saved says no more than its vectors, and is read as raybias reads its own, by the label words of the
study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from raybias.config import Backbone
from raybias.config.section import Profile, defaults_of
from raybias.engine.adapter_folder import PROMPT, RAYBIAS, READS, read_json
from raybias.engine.checkpoint import adapter_of, base_of, folder_of
from raybias.engine.encoder import load_tokenizer
from raybias.errors import ConfigError, ModelError, said_by
from raybias.methods.base import Inputs, methods
from raybias.methods.tuned import AdapterReader, Tuned
from raybias.methods.work import TokenCounts, Work
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.adapters.base import Weights
    from raybias.engine.backbone import ModelContext

#: Methods of vectors that PEFT saved, by its name of their kind.
_OF_PEFT: Final = {"PROMPT_TUNING": "soft_prompt", "PREFIX_TUNING": "prefix"}


def saved_reading(
    method: Tuned, backbone: Backbone, *, labels: Sequence[str], words: Sequence[str]
) -> dict[str, Any]:
    """Return what raybias.json keeps of how a tuned classifier reads texts."""
    return {
        "method": method.model_dump(mode="json", exclude={"name", "backbones"}),
        "labels": [*labels],
        "words": [*words],
        "bos": backbone.bos,
        "dtype": backbone.dtype,
    }


@dataclass(frozen=True)
class TunedClassifier:
    """A tuned classifier in a folder.

    folder: of its adapter, or of all its weights.
    base: the model that was tuned, as it was loaded then.
    method: by which it was tuned.
    labels, words: of the study; empty if any study's will do.
    """

    folder: Path
    base: Backbone
    method: Tuned
    labels: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def check_labels(self, labels: Sequence[str], *, where: str) -> None:
        """Refuse a study of other labels than those that it was tuned for."""
        if self.labels and self.labels != (*labels,):
            raise ConfigError(
                f"was tuned for the labels {', '.join(self.labels)}, and those of the study are"
                f" {', '.join(labels)}",
                where=where,
                cure="choose probes with its labels",
            )

    def inputs(self, inputs: Inputs) -> Inputs:
        """Replace the model, its tokens and words by those of the tuning; nothing is tuned on."""
        return replace(
            inputs,
            backbone=self.base,
            tokens=TokenCounts(load_tokenizer(self.base)),
            words=self.words or inputs.words,
            sentences={},
        )

    def work(self, inputs: Inputs) -> Work:
        """Return what one run that reads texts needs."""
        from raybias.engine.model_shape import model_shape

        work = self.method.work(self.inputs(inputs))
        return replace(work, runs=1, can_shard=False, shape=model_shape(self.base))

    def reader(self, context: ModelContext) -> FolderReader:
        """Load the base and the reader of texts; ModelError: not loadable."""
        words = self.words or context.words
        own = replace(context, spec=self.base, words=words, labels=self.labels or context.labels)
        reader = self.method.reader(own, Store(self.folder.parent))
        held = {each.name: getattr(reader, each.name) for each in fields(reader)}
        return FolderReader(**held, folder=self.folder.name)


@dataclass(frozen=True)
class FolderReader(AdapterReader):
    """Label texts with the one classifier in `folder`, whatever run it is now."""

    folder: str

    def load(self, run_id: str) -> Weights:
        return self.trainer.load(self.store, self.folder)


def tuned_classifier(spec: Backbone, profile: Profile = "strict") -> TunedClassifier | None:
    """Return the tuned classifier that a folder holds; None for any other model.

    Raises ModelError: a record that cannot be read, or of a method that is not known here.
    """
    folder = folder_of(spec.id)
    if folder is None:
        return None
    record = folder / RAYBIAS
    if record.is_file():
        reads = read_json(record).get(READS)
        if isinstance(reads, Mapping):
            return _recorded(spec, folder, reads, profile)
    adapter = adapter_of(spec)
    if adapter is None or not adapter.is_prompt:
        return None
    length = adapter.shape_of(PROMPT)[0]
    with defaults_of(profile):
        method = methods[_OF_PEFT[adapter.kind]].model_validate({"prompt_length": length})
    return TunedClassifier(folder, base_of(spec), _tuned(method, folder))


def _recorded(
    spec: Backbone, folder: Path, reads: Mapping[str, Any], profile: Profile
) -> TunedClassifier:
    """Make the classifier that raybias saved, as its record says."""
    options = reads.get("method")
    try:
        kind = dict(options or {})["kind"]
        with defaults_of(profile):
            method = methods[kind].model_validate(options)
        changed = {"bos": str(reads["bos"]), "dtype": reads["dtype"]}
        base = Backbone.model_validate(base_of(spec).model_dump() | changed)
        labels, words = (tuple(map(str, reads[name])) for name in ("labels", "words"))
    except (KeyError, TypeError, ValueError, ValidationError, ConfigError) as error:
        raise ModelError(
            f"{RAYBIAS} does not say how its classifier reads texts ({said_by(error)})",
            where=str(folder),
            cure="give the folder as raybias saved it",
        ) from error
    return TunedClassifier(folder, base, _tuned(method, folder), labels, words)


def _tuned(method: Any, folder: Path) -> Tuned:
    if not isinstance(method, Tuned):
        raise ModelError(
            f"{RAYBIAS} names the method {method.kind}, which tunes nothing",
            where=str(folder),
            cure="give the folder as raybias saved it",
        )
    return method
