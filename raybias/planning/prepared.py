"""A study and what it reads, each once: data, tokenizers, token counts; refuse what cannot work.

Of models, tokenizers, configurations and the headers of weights are read. A hub model is pinned to
its commit, the files of a local one are hashed, and the version of another engine is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import polars as pl

from raybias.config import Backbone, MethodFields, PairProbe, QuestionProbe, Study
from raybias.config.parts import Ability
from raybias.engine.checkpoint import (
    adapter_of,
    base_of,
    folder_of,
    is_pickled,
    locate,
    model_hashes,
    refuse_pickled,
    safe_weights,
)
from raybias.engine.encoder import load_tokenizer
from raybias.engine.headers import check_folder
from raybias.errors import ConfigError
from raybias.methods.base import Inputs, Method, methods, methods_of
from raybias.methods.work import TokenCounts, Work
from raybias.planning.labels import resolve_labels, with_outcomes
from raybias.probes import base_pairs, in_styles, probe_items, question_items, training_sentences
from raybias.probes.registries import Source, pair_probes, question_probes
from raybias.probes.sampling import sample_items, sample_pairs
from raybias.stats.checks import check_reference_groups
from raybias.stats.metric import check_metrics
from raybias.study_record import Record, make_record

Items = Mapping[str, pl.DataFrame]
#: Parts of a checkpoint that a note names.
_SHOWN: Final = 4
#: What backbones can do, in words.
_WORDS: Final[dict[Ability, str]] = {
    "weights": "a model's weights",
    "chat": "answers to chats",
    "text": "completions of plain text",
    "first_tokens": "the log-probabilities of an answer's first tokens",
    "likelihoods": "the log-probabilities of a prompt's tokens",
    "predict": "a function that labels texts",
}


@dataclass(frozen=True)
class StudyData:
    """The text of a study, read and tokenised when it is first asked for."""

    study: Study
    works: dict[tuple[str, str], Work] = field(default_factory=dict)
    unused: dict[str, set[str]] = field(default_factory=dict)
    """By backbone, the parts of its checkpoint that no model of its methods has; see `check`."""

    @cached_property
    def items(self) -> dict[str, pl.DataFrame]:
        """By probe, its items with the study's limit applied, before a model rewrites any."""
        return read_items(self.study)

    @cached_property
    def sentences(self) -> dict[str, dict[str, pl.DataFrame]]:
        """By training set, its splits."""
        return {
            each.name: training_sentences(each, labels=self.study.labels)
            for each in self.study.training
        }

    @cached_property
    def tokens(self) -> dict[str, TokenCounts]:
        """By backbone, its tokenizer with the counts of what it tokenised."""
        return {each.name: TokenCounts(load_tokenizer(each)) for each in self.study.backbones}


@dataclass(frozen=True)
class PreparedStudy:
    """A study with its methods fitted, its record and its text, from `runtime.study.prepare`."""

    record: Record
    data: StudyData

    @classmethod
    def of(cls, study: Study) -> PreparedStudy:
        """Find a study's labels, and fit its methods; its data is read when it is asked for."""
        study = with_outcomes(fit_methods(resolve_labels(study)))
        return cls(make_record(study, {}, command=""), StudyData(study))

    @property
    def study(self) -> Study:
        """The study that runs: its methods fitted, its models pinned as far as is known."""
        return self.record.study

    @property
    def methods(self) -> list[tuple[Backbone, Method]]:
        """Each backbone with each of its methods."""
        study = self.study
        return [(each, method) for each in study.backbones for method in methods_of(study, each)]

    @property
    def works(self) -> Mapping[tuple[str, str], Work]:
        """What the runs of each method on each backbone need, counted once."""
        held = self.data.works
        for backbone, method in self.methods:
            name = backbone.name, method.name
            if name not in held:
                work = method.work(self.inputs(method, backbone))
                # ZeRO-3 cuts weights up before an adapter could be added to them.
                whole = backbone.is_checkpoint and adapter_of(backbone) is not None
                held[name] = replace(work, can_shard=False) if whole else work
        return held

    def with_study(self, study: Study) -> PreparedStudy:
        """Replace what does not change the text: resources, revisions and dtypes."""
        return replace(self, record=self.record.with_study(study))

    def inputs(
        self, method: MethodFields, backbone: Backbone, items: Items | None = None
    ) -> Inputs:
        """Gather a method's inputs on a backbone; `items`, by probe, replace the study's own."""
        chosen = self.data.items if items is None else items
        return Inputs(
            backbone=backbone,
            tokens=self.data.tokens[backbone.name],
            labels=self.study.labels,
            words=self.study.label_words,
            items={name: chosen[name] for name in read_by(self.study, method)},
            sentences={
                each.name: self.data.sentences[each.name] for each in self.study.training_of(method)
            },
        )

    def check(self) -> None:
        """Refuse what no run of the study could work with.

        ModelError: a model or tokenizer that a method cannot use, label words that share a token,
            LoRA targets that match nothing, or texts longer than the context.
        DataError: a training set without the splits that a method needs, or too few shots.
        ConfigError: label words without an answer, an unknown metric or unknown reference groups.
        """
        check_metrics(self.study.statistics.metrics)
        for probe in self.study.probes:
            items, where = self.data.items[probe.name], f"probe {probe.name}, reference_groups"
            check_reference_groups(items, probe.reference_groups, where=where)
        for backbone, method in self.methods:
            method.check(self.inputs(method, backbone))
        for backbone, method in self.methods:
            if backbone.is_checkpoint:
                unused = method.check_weights(self.inputs(method, backbone))
                self.data.unused.setdefault(backbone.name, set()).update(unused)

    def check_rewritten(self, items: Items) -> None:
        """Refuse rewritten pairs, by probe, that are too long for a backbone that scores them."""
        for backbone, method in self.methods:
            if method.reads == "pairs":
                method.check(self.inputs(method, backbone, items))

    def notes(self) -> list[str]:
        """Say which weights will be converted, and what methods say of their inputs."""
        notes = conversion_notes(self.study)
        for name, parts in self.data.unused.items():
            if parts:
                listed = ", ".join(sorted(parts)[:_SHOWN]) + ", ..." * (len(parts) > _SHOWN)
                notes.append(f"{name}: its checkpoint also holds {listed}, which is not used")
        for backbone, method in self.methods:
            notes += method.notes(self.inputs(method, backbone))
        return notes

    def rows_per_shard(self, backbone: Backbone, method: MethodFields) -> int | None:
        """Return the items of a shard that the study or its OUT names; None where a plan may."""
        kept = self.record.rows_per_shard.get(backbone.name, {})
        return self.study.resources.rows_per_shard or kept.get(method.name)


def styles_of(study: Study, probe: PairProbe) -> list[str]:
    """Return those of the study's styles that a probe's pairs can be put into, in order."""
    possible = pair_probes[probe.source].styles
    return [name for name in study.styles.names if name in possible]


def in_style(
    study: Study, style: str, items: Mapping[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Return, by probe, the items in a style; only of the probes that have it."""
    names = [probe.name for probe in study.pairs if style in styles_of(study, probe)]
    return {name: items[name].filter(pl.col("style") == style) for name in names}


def with_styles(items: Items, made: Mapping[str, Items]) -> dict[str, pl.DataFrame]:
    """Put rewritten pairs, by style and probe, into the places of their originals."""
    whole = dict(items)
    for style, frames in made.items():
        for name, frame in frames.items():
            # Styles stand one after another.
            parts = whole[name].partition_by("style", maintain_order=True)
            whole[name] = pl.concat(frame if p["style"][0] == style else p for p in parts)
    return whole


def read_items(study: Study) -> dict[str, pl.DataFrame]:
    """Read the limited items by probe; a style that a model will make holds the originals."""
    had = {style for probe in study.pairs for style in pair_probes[probe.source].styles}
    for style in study.styles.names if study.pairs else ():
        if style not in had:
            probes = ", ".join(dict.fromkeys(probe.source for probe in study.pairs))
            raise ConfigError(
                f"no probe of the study has the style {style!r}; there is {probes}",
                where="styles.names",
                cure="take it out, or add pairs that have it",
            )
    found = {}
    for each in study.probes:
        items = probe_items(each, labels=study.labels)
        if study.limit is not None:
            items = sample_items(items, study.limit, source=each.source)
        found[each.name] = items
    for probe in study.pairs:
        pairs = base_pairs(probe)
        kind = pair_probes[probe.source].kind
        if study.limit is not None:
            pairs = sample_pairs(pairs, study.limit, kind=kind, source=probe.source)
        styles = styles_of(study, probe)
        found[probe.name] = in_styles(
            probe.source,
            pairs,
            styles,
            files=study.styles.files,
            rewritten=study.styles.rewriting,
            options=study.styles.options,
            seed=study.styles.seed,
            repeats=study.styles.repeats,
        )
    for asked in study.questions:
        found[asked.name] = question_items(asked, limit=study.limit)
    return found


def read_by(study: Study, method: MethodFields) -> list[str]:
    """List the names of the probes that a method reads; refuses a method without any."""
    wanted = method.output().items
    if wanted is None:
        return [probe.name for probe in study.probes]
    known: Mapping[str, Source]
    probes: Sequence[PairProbe | QuestionProbe]
    known, probes = (
        (pair_probes, study.pairs)
        if method.reads == "pairs"
        else (question_probes, study.questions)
    )
    sources = [name for name, each in known.items() if each.schema.equals(wanted)]
    found = [probe.name for probe in probes if probe.source in sources]
    if not found:
        raise ConfigError(
            f"method {method.name!r} has nothing to read: it cannot read {method.reads} of source"
            f" {', '.join(dict.fromkeys(probe.source for probe in probes))}",
            where=method.reads,
            cure=f"add {method.reads} of source {', '.join(sources)}, or take the method out",
        )
    return found


def fit_methods(study: Study) -> Study:
    """Fit each method to its backbones; it becomes several of its name where they differ."""
    found: list[MethodFields] = []
    for method in study.methods:
        fitted: dict[MethodFields, list[str]] = {}
        for backbone in study.backbones:
            if method in study.methods_of(backbone):
                check_abilities(method, backbone)
                fitted.setdefault(method.fit(backbone, study.profile, study.labels), []).append(
                    backbone.name
                )
        for each, names in fitted.items():
            chosen = tuple(names) if len(fitted) > 1 else method.backbones
            found.append(each.model_copy(update={"backbones": chosen}))
    return study.model_copy(update={"methods": tuple(found)})


def check_abilities(method: MethodFields, backbone: Backbone) -> None:
    """Refuse a method that needs what a backbone cannot do; names what would do."""
    offered = backbone.abilities
    lacking = {each: way for each, way in method.needs(offered).items() if each not in offered}
    if not lacking:
        return
    ways = [way for way in lacking.values() if way]
    able = [
        kind
        for kind, each in methods.items()
        if {n for n, way in each.model_construct().needs(offered).items() if not way} <= offered
    ]
    raise ConfigError(
        f"method {method.name!r} needs {' and '.join(_WORDS[each] for each in lacking)}, which"
        f" {backbone.name} does not offer",
        where=f"backbones, {backbone.name}",
        cure=" and ".join(ways)
        if len(ways) == len(lacking)
        else f"use {', '.join(able)}, name what it offers in `offers`, or give a backbone with"
        " weights",
    )


def resolve_models(study: Study) -> Study:
    """Pin hub models to commits, and engines to their installed versions.

    Raises ModelError: a missing, closed or pickled model; ConfigError: an engine that is missing or
    in another version.
    """
    revisions: dict[str, str | None] = {}
    for name, spec in study.checkpoints.items():
        if not study.resources.convert:
            refuse_pickled(spec)
        is_local = folder_of(spec.id) is not None
        revisions[name] = spec.revision if is_local else locate(spec.id, spec.revision).commit
    installed = tuple(each.as_installed() for each in study.backbones)
    return study.model_copy(update={"backbones": installed}).pinned(revisions)


def hashes_of(study: Study) -> dict[str, dict[str, str]]:
    """Return the sha256 of the files of local models, by model and file."""
    local = {n: each for n, each in study.checkpoints.items() if folder_of(each.id) is not None}
    return {name: model_hashes(each) for name, each in local.items()}


def conversion_notes(study: Study) -> list[str]:
    """Say which checkpoints have pickled weights, which are converted before they are loaded.

    Raises ModelError: one that the study does not allow to be converted.
    """
    notes = []
    for name, spec in study.checkpoints.items():
        if not is_pickled(spec):
            continue
        if not study.resources.convert:
            refuse_pickled(spec)
        notes.append(
            f"{name}: its weights are pickled, and are converted to safetensors once, in this"
            " machine's cache; nothing in them is run"
        )
    return notes


def convert_local_models(study: Study) -> None:
    """Convert the pickled weights of folders, in this machine's cache; see `safe_weights`."""
    for spec in map(base_of, study.checkpoints.values()):
        if (folder := folder_of(spec.id)) is not None:
            safe_weights(folder, spec.id)


def check_folders(study: Study) -> None:
    """Refuse the folder of a model without weights, or with some that are missing or damaged."""
    specs = [*study.checkpoints.values()]
    # Folders of adapters are checked as well as those of their bases.
    for spec in (*specs, *(base_of(spec) for spec in specs if adapter_of(spec) is not None)):
        check_folder(spec)
