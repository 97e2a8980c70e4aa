"""Describe a study in tables: probes, models, rules and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.config import Backbone, Study
from raybias.config.card import Card, parse_card
from raybias.measures.prediction_rows import gap_rows, under
from raybias.methods import prompted_methods
from raybias.probes import sources
from raybias.probes.registries import probes
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.report import wording
from raybias.report.outs import load_sampling
from raybias.report.table import Cell, Row, TextTable, count, pairs_of, same, table, worded
from raybias.schema import LABELS
from raybias.seal import digest
from raybias.stats.scopes import SCOPES
from raybias.storage import Store, split_uri
from raybias.study_record import Record

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
#: Of a hash that are shown; OUT/study.yaml has all.
_DIGITS: Final = 12
_RUN_COLUMNS: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stage", "steps",
    "weights_step", "stop_reason", "validation_loss", "untuned_accuracy", "validation_accuracy",
    "test_accuracy", "rank", "selected", "tied",
)  # fmt: skip
#: Columns that were chosen and not measured; their numbers are shown in full.
_SETTINGS: Final = ("learning_rate", "weight_decay")
#: What a card says, by its field.
_ABOUT: Final = {
    "about": "what is measured",
    "harm": "who is harmed, and how",
    "metric": "number to look at",
    "gold": "what the right answer means",
    "units": "what is drawn anew",
}
_VALIDITY: Final = {
    "language": "language",
    "use_context": "use in which it would come about",
    "bias": "what is called bias",
    "desired_outcome": "without bias",
    "demographics": "people",
    "proxy": "what stands for them",
    "origin": "origin of the texts",
    "limits": "what it cannot show",
}


def measured_on(
    store: Store, study: Study, record: Record, runs: pl.DataFrame, answers: pl.DataFrame | None
) -> Iterator[TextTable]:
    """Yield what is to be said of backbones, endpoints, tuning and prompting.

    Parameters
    ----------
    runs: schema.RUNS.
    answers: schema.ANSWERS; None where the study has no probes of labels.
    """
    yield _backbones(study, runs, record)
    yield _endpoints(store, study)
    if answers is not None:
        yield _training(study, runs)
        yield _prompting(study, load_sampling(store, runs))
        yield _unread(answers)


def _backbones(study: Study, runs: pl.DataFrame, record: Record) -> TextTable:
    """Describe each backbone: its commit or weights, and the token ids of its classifiers."""
    headers = ["model", "id", "commit or sha256", "parameters", "dtype", "BOS", "begin token"]
    if study.probes:
        headers += ["prompt token", "label words (token id)"]
    rows = []
    for backbone in study.backbones:
        size = record.parameters.get(backbone.name)
        row = [
            backbone.name,
            _without_folder(backbone.id),
            _version(backbone, (record.models or {}).get(backbone.name, {})),
            "" if size is None else f"{size:,}",
            backbone.dtype,
            backbone.bos,
            *list(record.begin_tokens.get(backbone.name, [""]))[:1],
        ]
        if study.probes:
            part = runs.filter(pl.col("model") == backbone.name)
            tokens = part["prompt_token_id"].drop_nulls().unique().sort()
            row += [", ".join(map(str, tokens)), _verbalizer(study, part)]
        rows.append(tuple(row))
    return TextTable("Backbones", tuple(headers), tuple(rows))


def _version(backbone: Backbone, files: Mapping[str, str]) -> str:
    """Return the start of a local model's hash or of a hub model's commit, if OUT records it."""
    weights = [name for name in files if name.endswith(".safetensors")]
    if weights:
        more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
        return f"{weights[0]} {files[weights[0]][:_DIGITS]}{more}"
    if backbone.revision:
        is_commit = _COMMIT.fullmatch(backbone.revision)
        return backbone.revision[:_DIGITS] if is_commit else backbone.revision
    shipped = backbone.id == "planted" or Path(backbone.id).is_absolute()
    return "local" if shipped else "not pinned"


def _verbalizer(study: Study, part: pl.DataFrame) -> str:
    ids = part["verbalizer_ids"].drop_nulls().to_list()[:1]
    names = study.verbalizer.words()
    if not ids:
        return ", ".join(names)
    return ", ".join(f"{word} ({number})" for word, number in zip(names, ids[0], strict=False))


def _endpoints(store: Store, study: Study) -> TextTable:
    """Tabulate the requests to each endpoint, its model names, and how often answers repeated."""
    found = [(each, read_asked(store, each.name)) for each in study.backbones
             if isinstance(each, Provider)]  # fmt: skip
    rows = (
        (
            backbone.name, backbone.place, f"{asked.requests:,}", f"{asked.tokens:,}",
            f"{backbone.prices.of(asked.read, asked.written):,.2f}",
            f"{asked.same:,} of {asked.twice:,}", f"{asked.furthest:.2g}",
            ", ".join(asked.models), ", ".join(asked.fingerprints) or "none",
        )
        for backbone, asked in found
    )  # fmt: skip
    headers = (
        "model", "endpoint", "requests", "tokens", "cost", "the same answer when asked again",
        "furthest likelihoods of one text", "calls itself", "system fingerprints",
    )  # fmt: skip
    return TextTable("Endpoints", headers, tuple(rows))


def _training(study: Study, runs: pl.DataFrame) -> TextTable:
    """Describe each tuned (model, method, training set): its seeds, and which of them count."""
    selections = {method.name: method.selection for method in study.methods}
    untrained = [method.name for method in study.methods if not method.trains]
    of_sets = {section.name: section.source for section in study.training}
    final = runs.filter(~pl.col("method").is_in(untrained), pl.col("stage") == "final")
    rows = []
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        model, method, dataset = map(str, key)
        selection = selections.get(method)
        kept = part.filter(pl.col("selected").fill_null(value=False))
        rows.append(
            (
                model, method, dataset, of_sets.get(dataset, ""),
                *(wording.listed([f"{v:g}" for v in part[name].drop_nulls().unique().sort()])
                  for name in _SETTINGS),
                str(part.height),
                f"{kept.height} (seeds {', '.join(map(str, kept['seed'].sort()))})",
                f"{selection} accuracy" if selection else "",
                str(part.filter(pl.col("stop_reason") == "diverged").height),
                *(_spread(kept, f"{when}_accuracy") for when in ("untuned", "validation", "test")),
            )
        )  # fmt: skip
    headers = (
        "model", "method", "training set", "source", "learning rate", "weight decay", "seeds run",
        "kept", "kept by", "diverged", "validation accuracy before tuning",
        "validation accuracy of the kept", "test accuracy of the kept",
    )  # fmt: skip
    return TextTable("Tuning", headers, tuple(rows))


def _spread(part: pl.DataFrame, column: str) -> str:
    values = part[column].drop_nulls().to_list()
    ends = [wording.number(end) for end in (min(values), max(values))] if values else [""]
    return " to ".join(dict.fromkeys(ends))


def _prompting(study: Study, sampling: Mapping[tuple[str, str], Mapping[str, Any]]) -> TextTable:
    """Describe each prompted method: its runs, sampling, and what an unread answer counts as.

    Parameters
    ----------
    sampling: by (model, method); the values that are not the study's are the model's.
    """
    rows = tuple(
        (
            method.name, method.kind, backbone.name, ", ".join(map(str, method.seeds)),
            f"{method.temperature:g}",
            ", ".join(
                f"{name} {_shown(value)}"
                for name, value in sampling.get((backbone.name, method.name), {}).items()
                if name != "temperature"
            ),
            str(method.answer_tokens), method.shown_first,
            wording.UNPARSED.get(str(method.unparsed), str(method.unparsed)),
        )
        for method in prompted_methods(study.methods)
        for backbone in study.backbones
    )  # fmt: skip
    headers = (
        "method", "kind", "model", "seeds", "temperature", "other sampling values",
        "answer tokens", "shown first", "an answer without a label counts as",
    )  # fmt: skip
    return TextTable("Prompting", headers, rows)


def _unread(counts: pl.DataFrame) -> TextTable:
    """Count the answers of each prompted classifier without a label (schema.ANSWERS)."""
    of_all = pl.col("run_id") == "all"
    shares = (
        counts.filter(~of_all)
        .group_by(schema.KEYS)
        .agg(low=pl.col("share").min(), high=pl.col("share").max())
    )
    return table(
        "Answers that hold no label",
        counts.filter(of_all).join(shares, on=schema.KEYS, nulls_equal=True, maintain_order="left"),
        {
            **same("model", "method"),
            "shots from": "dataset",
            "probe": "probe",
            "answers": count("predictions"),
            "without a label": count("unparsed"),
            "with several": count("several"),
            "negated": count("negated"),
            "share": lambda row: f"{row['share']:.2%}",
            "share by run": lambda row: f"{row['low']:.2%} to {row['high']:.2%}",
        },
    )


def accuracies(estimates: pl.DataFrame, composition: pl.DataFrame) -> TextTable:
    """Compare accuracy on the probes with always guessing the commonest label.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    composition: of `stats.composition`, whose labels say how common each is.
    """
    chance = _chance_levels(composition)

    def guessing(row: Row) -> str:
        level = chance.get((row["probe"], row["attribute"]))
        return "one label only" if level is None else wording.number(level)

    found = estimates.filter(score="accuracy", statistic="rate", group="all")
    return table(
        "Accuracy on the probes",
        under(found, SCOPES, "widest"),
        {
            **same(*wording.naming_keys(found), "probe", "attribute"),
            "accuracy": lambda row: wording.estimate(
                row["value"], (row["low"], row["high"]), plus=False
            ),
            "chance": guessing,
            "items": count("n"),
        },
    )


def _chance_levels(composition: pl.DataFrame) -> dict[tuple[str, str], float | None]:
    """Share of the commonest label by (probe, attribute); None where there is only one label.

    A probe's attribute `all` is over all its attributes.
    """
    groups = stats.without_extras(composition)
    labels = [pl.col(f"items_{label}").sum() for label in LABELS]
    apart = groups.group_by("probe", "attribute").agg(labels)
    whole = groups.group_by("probe").agg(pl.lit(schema.ALL).alias("attribute"), *labels)
    levels: dict[tuple[str, str], float | None] = {}
    for probe, attribute, *counts in pl.concat([whole, apart]).iter_rows():
        several = sum(each > 0 for each in counts) > 1
        levels[probe, attribute] = max(counts) / sum(counts) if several else None
    return levels


def probe_sizes(composition: pl.DataFrame, estimates: pl.DataFrame) -> list[TextTable]:
    """Count, per probe and attribute, each group's sentences by label, and say who is in the mean.

    Parameters
    ----------
    composition: of `stats.composition`.
    estimates: schema.ESTIMATES, whose gaps say which groups are in the mean.
    """
    place = ["probe", "attribute", "group"]
    judged = gap_rows(estimates)
    members = judged.group_by(place).agg(in_mean=(pl.col("condition") == "").all())
    sizes = composition.join(members, on=place, how="left", nulls_equal=True)
    inside = {**wording.YES_NO, None: "extra"}
    columns: dict[str, Cell] = {
        "group": worded(wording.spaced, "group"),
        **{label: count(f"items_{label}") for label in LABELS},
        "all": count("items"),
        "share": worded(wording.percent, "fraction"),
        "in the mean": lambda row: inside[row["in_mean"]],
    }
    return [
        table(
            f"Sentences of {probe}: {attribute}",
            sizes.filter(probe=probe, attribute=attribute).sort(
                pl.col("in_mean").is_null(), "group"
            ),
            columns,
        )
        for probe, attribute in wording.probe_order(judged)
    ]


def every_run(runs: pl.DataFrame) -> TextTable:
    """Show each run as it is, without keys that are the same throughout (schema.RUNS)."""
    names = [c for c in _RUN_COLUMNS if c not in schema.KEYS or runs[c].n_unique() > 1]
    rows = (
        tuple(_shown(value) if name in _SETTINGS else _measured(value)
              for name, value in zip(names, row, strict=True))
        for row in runs.select(names).iter_rows()
    )  # fmt: skip
    return TextTable("Every run", tuple(map(wording.spaced, names)), tuple(rows))


def _measured(value: Any) -> str:
    """Show a value of a table; what is measured is never so small that it needs an exponent."""
    text = _shown(value)
    return f"{value:.4f}" if isinstance(value, float) and "e-" in text else text


def options(study: Study) -> TextTable:
    """List every resolved option of the study but resources, which change no result."""
    content = study.model_dump(mode="json", exclude={"resources"})
    title = f"Every resolved option: {study.profile} profile"
    return pairs_of(title, _flat(content), ("option", "value"))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    parts: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, dict) and value:
        parts = value.items()
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = enumerate(value)
    if parts is None:
        yield name, _shown(value)
        return
    for key, part in parts:
        yield from _flat(part, f"{name}.{key}" if name else str(key))


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return wording.YES_NO[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return ", ".join(_shown(part) for part in value) or "default"
    return _without_folder(str(value))


def _without_folder(text: str) -> str:
    """Cut the folder off an absolute path: where files lie on this machine is nobody's business."""
    return Path(text).name if Path(text).is_absolute() else text


def cards(store: Store, study: Study, composition: pl.DataFrame | None) -> Iterator[TextTable]:
    """Yield what each probe measures, whom it names and who published it.

    Probes with a card of their own in OUT/cards are described by it, others by the catalogue.

    Parameters
    ----------
    composition: of `stats.composition`; None where the study has no probes of labels.

    Raises
    ------
    ConfigError: a card that was changed and is wrong now.
    """
    files = store.files("cards", suffix=".yaml")
    own = {name.removeprefix("cards/").removesuffix(".yaml"): name for name in files}
    published = sources.registry()
    for probe in study.probes if composition is not None else ():
        if probe.name in own or probe.source not in probes or composition is None:
            continue
        mine = composition.filter(probe=probe.name)
        groups = mine.group_by("attribute", maintain_order=True).agg(
            pl.col("group").unique().sort()
        )
        rows = [("what it is", probes[probe.source].about)]
        rows += [
            (f"groups of {attribute}", wording.listed(list(map(wording.spaced, names))))
            for attribute, names in groups.iter_rows()
        ]
        rows.append(("sentences", f"{mine['items'].sum():,}"))
        for part in published[probe.source].parts[:1] if probe.source in published else ():
            rows += [("published at", part.page), ("licence", part.licence)]
        yield pairs_of(f"Probe {probe.name}", rows, ("question", "answer"))
    for probe_name, name in own.items():
        card = parse_card(store.read_text(name), where=store.uri_of(name))
        title = f"{probe_name}, by its author's card"
        yield pairs_of(title, _of_card(card), ("question", "answer"))


def _of_card(card: Card) -> Iterator[tuple[str, str]]:
    for field, title in _ABOUT.items():
        if text := getattr(card, field):
            yield title, text
    for group, people in card.groups.items():
        yield f"group {group}", people
    if card.facets:
        yield "what else varies", ", ".join(card.facets)
    if card.hub:
        yield "data", f"{card.hub} at {card.revision}"
    for field, title in _VALIDITY.items():
        yield title, getattr(card.validity, field) or "not said"


def made_from(paths: Sequence[str], *, command: str = "") -> TextTable:
    """List the command, date and version that a page was made by, and the sha256 of each file.

    Parameters
    ----------
    paths: files, and folders of them.
    """
    rows = [("command", command)] if command else []
    rows += [("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))]
    rows += [("raybias", version("raybias"))]
    for path in paths:
        if Store(path).is_file():
            store, name = split_uri(path)
            names = [name]
        else:
            store = Store(path)
            names = store.files(recursive=True)
        rows += [
            (f"{_without_folder(path)}{f'/{name}' * (len(names) > 1)}",
             digest(store.read_bytes(name)))
            for name in names
        ]  # fmt: skip
    title = "Command, date, version, and sha256 of the files"
    return pairs_of(title, rows, ("what", "value"))
