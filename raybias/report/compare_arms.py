"""Find out what the arms of a comparison have in common, and what else differs than the model.

What two studies did is in their OUT/study.yaml and OUT/prompts. Models, names, places, resources
and seeds may differ. Arms that are labelled or read differently are refused; any other difference
is reported, since a change may be due to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final, Literal, get_args

import polars as pl

from raybias.config import Study
from raybias.config.parts import Backbone, MethodFields
from raybias.errors import ConfigError, DataError
from raybias.methods.asking import AskingMethod
from raybias.methods.prompted import prompted_methods
from raybias.report.files import out_of
from raybias.seal import changes, in_words, verify
from raybias.storage import Store
from raybias.study_record import Record, read_record, read_runs

#: Names of model, method and training set.
Classifier = tuple[str, str, str]
Kind = Literal["prompts", "decoding", "settings", "training", "models", "versions"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: Fields of methods that word a prompt, and that choose its answer's tokens.
_WORDS: Final = ("template", "cue", "system", "prompt_format", "chat_question", "chat_cue")
_TOKENS: Final = ("temperature", "answer_tokens", "reasoning_tokens")
#: Fields of methods that say which runs there are, not what each does.
_NAMES: Final = ("name", "backbones", "seeds")
#: Packages that compute answers.
_PACKAGES: Final = ("raybias", "torch", "transformers", "peft")
_SHOWN: Final = 60


@dataclass(frozen=True)
class Difference:
    """What differs between two arms besides the model."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class _Arm:
    """One OUT of an arm, as it was named."""

    out: str
    store: Store
    record: Record

    @property
    def study(self) -> Study:
        return self.record.study

    @cached_property
    def runs(self) -> pl.DataFrame:
        """Its runs (schema.RUNS)."""
        return read_runs(self.store)

    @cached_property
    def methods(self) -> dict[str, MethodFields]:
        """The methods of its study, by name."""
        return {each.name: each for each in self.study.methods}

    def backbone(self, name: str) -> Backbone | None:
        return next((each for each in self.study.backbones if each.name == name), None)

    def prompt(self, model: str, method: str) -> dict[str, Any]:
        """Read the prompt of a classifier's first run; empty if it has none."""
        own = self.runs.filter(model=model, method=method)
        for run_id in own["run_id"].sort()[:1]:
            name = f"prompts/{run_id}.json"
            if self.store.exists(name):
                with self.store.reading(name, "as a prompt with its sampling"):
                    return dict(json.loads(self.store.read_text(name)))
        return {}


def differences(
    base: Sequence[str], candidate: Sequence[str], classifiers: Collection[Classifier]
) -> list[Difference]:
    """List what else differs between the OUTs of two arms than their models; each once, by kind.

    `classifiers` are the matched names of model, method and training set (`a -> b` if they differ,
    which is compared then and not listed). Scores of pairs and some answers to questions name no
    method, so all that read pairs or questions count. Files without a study say nothing of this.
    """
    found: list[Difference] = []
    others = _arms(candidate)
    for one in _arms(base):
        for other in others:
            each = [*_by_method(one, classifiers)]
            found += _of_prompts(one, other, each)
            if one.store.uri != other.store.uri:
                found += _of_methods(one, other, {method for _, method, _ in each})
                found += _of_data(one, other, {dataset for *_, dataset in each})
    return sorted(dict.fromkeys(found), key=lambda each: KINDS.index(each.kind))


def _arms(paths: Sequence[str]) -> list[_Arm]:
    """Read what each OUT of an arm was made by, once for all files of one."""
    outs = dict.fromkeys(filter(None, map(out_of, paths)))
    return [_Arm(out, Store(out), read_record(Store(out))) for out in outs]


def arm_names(arms: Sequence[Sequence[str]], chosen: Sequence[Mapping[str, str]]) -> list[str]:
    """Name each arm by its paths as given, without the folders that absolute ones have in common.

    chosen: by arm, which of its rows are meant; it stands in brackets.
    """
    paths = [*dict.fromkeys(path for arm in arms for path in arm)]
    longest = max(len(PurePath(path).parts) for path in paths)
    for length in range(1, longest + 1):
        shown = {path: _last_parts(path, length) for path in paths}
        if len({*shown.values()}) == len(paths):
            break
    names = []
    for arm, of in zip(arms, chosen, strict=True):
        meant = [f"({', '.join(map(' '.join, of.items()))})"] if of else []
        names.append(" ".join([*(shown[path] for path in arm), *meant]))
    return names


def _last_parts(path: str, length: int) -> str:
    return "/".join(PurePath(path).parts[-length:]) if PurePath(path).is_absolute() else path


def verify_arms(paths: Iterable[str]) -> None:
    """Refuse an arm that is no OUT with a seal, or is not as its study wrote it (`DataError`)."""
    for path in dict.fromkeys(paths):
        out = out_of(path)
        if out is None:
            raise DataError(
                "is no study's output, so nothing shows whether it changed",
                where=path,
                cure="leave --verify out, or compare the OUTs of studies",
            )
        verify(Store(out))


def changed_since(base: Sequence[str], candidate: Sequence[str]) -> Iterator[str]:
    """Say which results of each arm are not as their study wrote them."""
    for name, arm in (("base", base), ("candidate", candidate)):
        for out in dict.fromkeys(filter(None, map(out_of, arm))):
            if found := changes(Store(out)):
                yield f"Of the {name}, {in_words(found)}"


def listed_kinds(found: Iterable[Difference]) -> list[str]:
    """Return the kinds of differences, in their order."""
    return [*dict.fromkeys(each.kind for each in found)]


def check_accepted(found: Sequence[Difference], accept: Collection[str]) -> None:
    """Refuse differences of a kind that is not accepted, and kinds that do not exist."""
    if unknown := [name for name in accept if name not in KINDS]:
        raise ConfigError(
            f"{unknown[0]!r} is no difference that can be accepted",
            cure=f"choose from {', '.join(KINDS)}",
        )
    others = [each for each in found if each.kind not in accept]
    if others:
        said = "; ".join(f"{each.kind}: {each.text}" for each in others)
        kinds = ",".join(dict.fromkeys([*accept, *listed_kinds(others)]))
        raise ConfigError(
            f"the arms differ in more than the model ({said}), so a verdict would not be the "
            "model's alone",
            cure=f"run both alike, or accept it with --accept {kinds}",
        )


def _by_method(arm: _Arm, classifiers: Iterable[Classifier]) -> Iterator[Classifier]:
    """Name the methods of classifiers that name none."""
    for model, method, dataset in classifiers:
        methods = [each.name for each in arm.study.methods if each.reads != "probes"]
        yield from ((model, name, dataset) for name in ([method] if method else methods))


def _of_prompts(one: _Arm, other: _Arm, classifiers: Iterable[Classifier]) -> Iterator[Difference]:
    """Compare what the matched classifiers were asked, by the prompts of their first runs."""
    for models, method, _ in classifiers:
        names = [models.partition(" -> ")[place] or models for place in (0, 2)]
        if method not in one.methods or method not in other.methods:
            continue
        methods = (one.methods[method], other.methods[method])
        prompts = (one.prompt(names[0], method), other.prompt(names[1], method))
        if len(prompted_methods(methods)) == len(methods) and all(prompts):
            for text in _other_words(methods, prompts):
                yield Difference("prompts", f"{method}: {text}")
            sampling = [each.get("sampling", {}) for each in prompts]
            for text in _changed(sampling[0], sampling[1], ("eos_ids", *_TOKENS)):
                yield Difference("decoding", f"{method}: {text}")
        elif _only_one_begins_answers(one.backbone(names[0]), other.backbone(names[1]), methods):
            yield Difference(
                "prompts",
                f"{method}: a cue begins the answer of weights, and ends the question to an"
                " endpoint",
            )


def _only_one_begins_answers(
    base: Backbone | None, candidate: Backbone | None, methods: Sequence[MethodFields]
) -> bool:
    """Whether an item's question in a chat has its cue in the answer of one arm alone."""
    known = [each for each in (base, candidate) if each is not None]
    asked = [
        each
        for each in methods
        if isinstance(each, AskingMethod)
        and not prompted_methods([each])
        and each.prompt_format != "raw"
    ]
    return len({each.is_checkpoint for each in known}) == len(asked) == 2


def _other_words(
    methods: Sequence[MethodFields], prompts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Describe the words that one of two prompts lacks, whatever marks a model's turns."""
    forms = ["chat" if each.get("prompt_format") == "chat" else "raw" for each in prompts]
    if forms[0] != forms[1]:
        yield f"{forms[0]} prompts in the base, {forms[1]} ones in the candidate"
    texts = [_plain(each.get("prompt", "")) for each in prompts]
    pieces = {
        f"the {name} {_shown(piece)}": _plain(piece.split("{", 1)[0])
        for method in prompted_methods(methods)
        for name, piece in (
            ("cue", method.cue),
            ("request", method.asked_in_a_chat),
            ("system message", method.system),
        )
    }
    lacking = False
    for name, piece in pieces.items():
        there = [piece in text for text in texts]
        if piece and there[0] != there[1]:
            lacking = True
            yield f"{name} in the {'base' if there[0] else 'candidate'} alone"
    if forms == ["raw", "raw"] and not lacking and texts[0] != texts[1]:
        yield "other words, or demonstrations"


def _plain(text: str) -> str:
    """Write a text, or the JSON of a chat's messages, with single blanks."""
    return " ".join(text.replace("\\n", " ").replace('\\"', '"').split())


def _of_methods(one: _Arm, other: _Arm, used: Collection[str]) -> Iterator[Difference]:
    """Compare the settings of methods that both studies have."""
    for name, method in one.methods.items():
        if name not in used or name not in other.methods:
            continue
        fields = [each.model_dump(mode="json") for each in (method, other.methods[name])]
        groups: dict[Kind, tuple[str, ...]] = {"prompts": _WORDS, "decoding": _TOKENS}
        for kind, keys in groups.items():
            parts = [{key: each[key] for key in keys if key in each} for each in fields]
            for text in _changed(*parts):
                yield Difference(kind, f"{name}: {text}")
        for text in _changed(fields[0], fields[1], (*_WORDS, *_TOKENS, *_NAMES)):
            yield Difference("settings", f"{name}: {text}")
    styles = [arm.study.styles.model_dump(mode="json", exclude={"names"}) for arm in (one, other)]
    if one.study.pairs and other.study.pairs:
        for text in _changed(*styles):
            yield Difference("settings", f"styles: {text}")


def _of_data(one: _Arm, other: _Arm, used: Collection[str]) -> Iterator[Difference]:
    """Compare training sets of one name, models that help, and versions."""
    backbones = {each.name for arm in (one, other) for each in arm.study.backbones}
    for key in one.record.data.keys() & other.record.data.keys():
        kind, _, name = key.partition(" ")
        if kind == "training" and name in used and one.record.data[key] != other.record.data[key]:
            yield Difference("training", f"{name} has other sentences or labels")
    for name in one.record.models.keys() & other.record.models.keys() - backbones:
        if one.record.models[name] != other.record.models[name]:
            yield Difference("models", f"{name} has other weights")
    # What follows a plus sign is how a package was built for its hardware.
    versions = [
        {
            package: arm.record.versions[package].partition("+")[0]
            for package in _PACKAGES
            if package in arm.record.versions
        }
        for arm in (one, other)
    ]
    for package in _PACKAGES:
        both = [each[package] for each in versions if package in each]
        if len({*both}) > 1:
            yield Difference("versions", f"{package} {both[0]} and {both[1]}")


def _changed(
    one: Mapping[str, Any], other: Mapping[str, Any], leave_out: Collection[str] = ()
) -> Iterator[str]:
    """Describe the values of keys that both have, if they differ."""
    for key, value in one.items():
        if key in other and key not in leave_out and value != other[key]:
            yield f"{key} {_shown(value)} and {_shown(other[key])}"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


def check_studies(base: Sequence[str], candidate: Sequence[str], *, probes: Sequence[str]) -> None:
    """Refuse studies that label or read differently, or whose probes of one name do."""
    others = _arms(candidate)
    for one in _arms(base):
        here = _read_alike(one.record, probes)
        for other in others:
            there = _read_alike(other.record, probes)
            for what in (name for name in here if name in there and here[name] != there[name]):
                raise ConfigError(
                    f"{what} is {here[what]!r} in {one.out} and {there[what]!r} in {other.out}, "
                    "so a change would not be the candidate's alone",
                    cure="compare studies that differ in their models or methods only",
                )


def _read_alike(record: Record, probes: Sequence[str]) -> dict[str, object]:
    """Return what studies must have in common where both have it, by its name in messages."""
    study = record.study
    return {
        "the profile": study.profile,
        "the labels": study.labels,
        "the choice of label words": study.verbalizer,
        **{
            f"the content of probe {probe}": record.data[f"probe {probe}"]
            for probe in sorted(probes)
            if f"probe {probe}" in record.data
        },
        # What methods let a model read around a sentence.
        **{
            f"the {field} of {method.name}": getattr(method, field)
            for field in ("label_words", "template")
            for method in sorted(study.methods, key=lambda each: each.name)
            if hasattr(method, field)
        },
    }
