"""Describe a study in tables: probes, models, rules and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Backbone, Study
from raybias.config.card import parse_card
from raybias.measures.prediction_rows import gap_rows
from raybias.methods import prompted_methods
from raybias.probes import sources
from raybias.probes.registries import probes
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.redaction import redact_command
from raybias.report import wording
from raybias.report.accuracy import label_columns
from raybias.report.rendering import Cell, TextTable, count, same, table, worded
from raybias.seal import digest
from raybias.storage import Store, split_uri
from raybias.study_record import Record

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
#: Of a hash that are shown; OUT/study.yaml has all.
_DIGITS: Final = 12
#: Columns of the table `runs` that the page leaves out.
_LEFT_OUT: Final = ("stop_window", "tokens", "seconds", "run_id", "adapter")
#: Columns that were chosen and not measured; their numbers are shown in full.
_SETTINGS: Final = ("learning_rate", "weight_decay")
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
    store: Store,
    study: Study,
    record: Record,
    runs: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
) -> Iterator[TextTable]:
    """Yield tables about backbones and endpoints and, of predictions, how they were made."""
    yield _backbones(store, study, runs, record)
    yield _endpoints(store, study)
    if tables:
        yield _training(study, runs, record.parameters)
        yield _prompting(store, study, runs)
        yield _unread(tables["answers"])
    if "unanswered" in tables:
        yield _unanswered(tables["unanswered"])


def _backbones(store: Store, study: Study, runs: pl.DataFrame, record: Record) -> TextTable:
    rows = []
    ways = [json.loads(store.read_text(name)) for name in store.files("readers", suffix=".json")]
    devices = {way["backbone"]: way["device"] for way in ways}
    made_of = {way["backbone"]: f" of {kind} weights" for way in ways if (kind := way["quantised"])}
    for backbone in study.backbones:
        size = record.parameters.get(backbone.name)
        row = {
            "model": backbone.name,
            "id": without_folder(backbone.id),
            "commit or sha256": _version(backbone, record.models.get(backbone.name, {})),
            "parameters": "" if size is None else f"{size:,}",
            "dtype": backbone.dtype + made_of.get(backbone.name, ""),
            "device": devices.get(backbone.name, ""),
            "BOS": backbone.bos,
            "begin token": next(iter(record.begin_tokens.get(backbone.name, ())), ""),
        }
        if study.probes:
            mine = runs.filter(model=backbone.name)
            tokens = mine["prompt_token_id"].drop_nulls().unique().sort()
            ids = mine["verbalizer_ids"].drop_nulls().to_list()[:1]
            words = study.label_words
            if ids:
                words = tuple(f"{word} ({n})" for word, n in zip(words, ids[0], strict=False))
            row |= {
                "prompt token": ", ".join(map(str, tokens)),
                "label words (token id)": ", ".join(words),
            }
        rows.append(row)
    return TextTable.of("Backbones", rows)


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


def _endpoints(store: Store, study: Study) -> TextTable:
    rows = []
    for backbone in study.backbones:
        if isinstance(backbone, Provider):
            asked = read_asked(store, backbone.name)
            rows.append({
                "model": backbone.name,
                "endpoint": backbone.place,
                "requests": f"{asked.requests:,}",
                "tokens": f"{asked.tokens:,}" + (
                    f" ({asked.estimated:,} replies do not count them: one for four bytes of text)"
                    * bool(asked.estimated)
                ),
                "parameters": ", ".join(asked.terms) or "the API's own",
                "likelihoods checked": f"{asked.checked} texts" if asked.checked else "",
                "cost": f"{backbone.prices.of(asked.read, asked.written):,.2f}",
                "the same answer when asked again": f"{asked.same:,} of {asked.twice:,}",
                "furthest likelihoods of one text": f"{asked.furthest:.2g}",
                "calls itself": ", ".join(asked.models),
                "system fingerprints": ", ".join(asked.fingerprints) or "none",
                "answers at their limit of tokens": f"{asked.cut:,}",
                "answers filtered": f"{asked.filtered:,}",
            })  # fmt: skip
    return TextTable.of("Endpoints", rows)


def _training(study: Study, runs: pl.DataFrame, parameters: Mapping[str, int]) -> TextTable:
    selections = {method.name: method.selection for method in study.methods}
    untrained = [method.name for method in study.methods if not method.trains]
    of_sets = {section.name: section.source for section in study.training}
    final = runs.filter(~pl.col("method").is_in(untrained), pl.col("stage") == "final")
    rows = []
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        model, method, dataset = map(str, key)
        selection = selections.get(method)
        kept = part.filter(pl.col("selected").fill_null(value=False))
        rows.append({
            "model": model,
            "method": method,
            "training set": dataset,
            "source": of_sets.get(dataset, ""),
            **{wording.spaced(name): wording.listed(
                [f"{value:g}" for value in part[name].drop_nulls().unique().sort()]
            ) for name in _SETTINGS},
            "tuned parameters": _tuned_parameters(part, parameters.get(model)),
            "seeds run": str(part.height),
            "kept": f"{kept.height} (seeds {', '.join(map(str, kept['seed'].sort()))})",
            "kept by": f"{selection} accuracy" if selection else "",
            "diverged": str(part.filter(stop_reason="diverged").height),
            "validation accuracy before tuning": _spread(kept["untuned_accuracy"]),
            "validation accuracy of the kept": _spread(kept["validation_accuracy"]),
            "test accuracy of the kept": _spread(kept["test_accuracy"]),
        })  # fmt: skip
    return TextTable.of("Tuning", rows)


def _tuned_parameters(runs: pl.DataFrame, of_model: int | None) -> str:
    """Write how many parameters a run tunes, with their share of the model's if it is known."""
    counts = runs["tuned_parameters"].drop_nulls().unique().sort()
    if not of_model:
        return wording.listed([f"{count:,}" for count in counts])
    shares = [f"{count:,} ({count / of_model:.2g} of the model's)" for count in counts]
    return wording.listed(shares)


def _spread(values: pl.Series) -> str:
    known = values.drop_nulls().sort().to_list()
    return " to ".join(dict.fromkeys(map(wording.number, (*known[:1], *known[-1:]))))


def _prompting(store: Store, study: Study, runs: pl.DataFrame) -> TextTable:

    def sampling(model: str, method: str) -> dict[str, Any]:
        for run_id in runs.filter(model=model, method=method)["run_id"][:1]:
            if store.exists(name := f"prompts/{run_id}.json"):
                with store.reading(name, "as a prompt with its sampling"):
                    return dict(json.loads(store.read_text(name))["sampling"])
        return {}

    rows = [
        {
            "method": method.name,
            "kind": method.kind,
            "model": backbone.name,
            "seeds": ", ".join(map(str, method.seeds)),
            "temperature": f"{method.temperature:g}",
            "other sampling values": ", ".join(
                f"{name} {_shown(value)}"
                for name, value in sampling(backbone.name, method.name).items()
                if name != "temperature"
            ),
            "answer tokens": str(method.answer_tokens),
            "shown first": method.shown_first,
            "an answer without a label counts as": wording.UNPARSED.get(
                str(method.unparsed), str(method.unparsed)
            ),
        }
        for method in prompted_methods(study.methods)
        for backbone in study.backbones
    ]
    return TextTable.of("Prompting", rows)


def prompts(store: Store, runs: pl.DataFrame) -> TextTable:
    """Show the prompt of each prompted classifier, of its first run, as the model reads it."""
    rows = []
    by = ["model", "method", "dataset"]
    for (model, method, _), part in runs.group_by(by, maintain_order=True):
        name = f"prompts/{part['run_id'][0]}.json"
        if store.exists(name):
            with store.reading(name, "as a prompt with its sampling"):
                asked = json.loads(store.read_text(name)).get("prompt")
            if asked:
                rows.append({"model": str(model), "method": str(method), "prompt": asked})
    return TextTable.of("Prompts, as the model reads them; {text} is the sentence", rows)


def piloted(store: Store, study: Study) -> tuple[TextTable, list[str]]:
    """Show the ways of asking that an audit's pilot tried, and caution that one was chosen."""
    chosen = {(m.kind, m.prompt_format, m.read) for m in prompted_methods(study.methods)}
    rows: list[dict[str, str]] = []
    if store.exists(name := schema.PILOT_FILE):
        with store.reading(name, "as what a pilot found"):
            rows = [
                {
                    "asked": f"{way['kind']} {way['prompt_format']}",
                    "read by": way["read"],
                    "right": f"{round(way['accuracy'] * way['sentences'])} of {way['sentences']}",
                    "accuracy to expect": f"{way['expected']:.2f}",
                    "without a label": f"{way['unread']:.0%}",
                    "chosen": wording.YES_NO[
                        (way["kind"], way["prompt_format"], way["read"]) in chosen
                    ],
                }
                for way in json.loads(store.read_text(name))
            ]
    said = [
        f"The way of asking was chosen among {len(rows)}, by their answers to a few other "
        "sentences: another prompt may treat groups otherwise, and no interval covers that. The "
        "best of several on so few sentences is too good by chance, so that what is expected of "
        "each is nearer to what all of them reach; those that are not told apart were chosen by a "
        "fixed preference."
    ] * (len(rows) > 1 and bool(chosen))
    return TextTable.of("Ways of asking that a pilot tried, the chosen one first", rows), said


def _unread(counts: pl.DataFrame) -> TextTable:
    of_all, share = pl.col("run_id") == "all", pl.col("share")
    low, high = (share.filter(~of_all).min(), share.filter(~of_all).max())
    ends = counts.with_columns(low=low.over(schema.KEYS), high=high.over(schema.KEYS))
    return table(
        "Answers that hold no label",
        ends.filter(of_all),
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


def _unanswered(counts: pl.DataFrame) -> TextTable:
    def share(row: Mapping[str, Any]) -> str:
        return f"{(row['cut'] + row['filtered']) / row['answers']:.2%}"

    return table(
        "Answers that were cut off or filtered, by group",
        counts,
        {
            **same("model", "method", "probe", "attribute", "group"),
            "answers": count("answers"),
            "cut off": count("cut"),
            "filtered": count("filtered"),
            "share": share,
        },
    )


def probe_sizes(composition: pl.DataFrame, estimates: pl.DataFrame) -> list[TextTable]:
    """Count each group's sentences by label, and say who is in the mean."""
    place = ["probe", "attribute", "group"]
    judged = gap_rows(estimates)
    members = judged.group_by(place).agg(in_mean=(pl.col("condition") == "").all())
    sizes = composition.join(members, on=place, how="left", nulls_equal=True)
    inside = {**wording.YES_NO, None: "extra"}
    columns: dict[str, Cell] = {
        "group": worded(wording.spaced, "group"),
        **{label: count(name) for name, label in label_columns(composition).items()},
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
    """Show each run of the table `runs`, without keys that are the same throughout."""
    shown = [name for name in runs.columns if name not in _LEFT_OUT]
    names = [name for name in shown if name not in schema.KEYS or runs[name].n_unique() > 1]

    def text(value: Any, name: str) -> str:
        said = _shown(value)
        measured = isinstance(value, float) and name not in _SETTINGS
        return f"{value:.4f}" if measured and "e-" in said else said

    rows = (tuple(map(text, row, names)) for row in runs.select(names).iter_rows())
    return TextTable("Every run", tuple(map(wording.spaced, names)), tuple(rows))


def options(study: Study) -> TextTable:
    """List every resolved option of the study but resources, which change no result."""
    content = study.model_dump(mode="json", exclude={"resources"})
    title = f"Every resolved option: {study.profile} profile"
    return TextTable(title, ("option", "value"), tuple(_flat(content)))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, dict) and value:
        parts = value.items()
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = enumerate(value)
    else:
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
    return without_folder(str(value))


def without_folder(text: str) -> str:
    """Cut the folder off an absolute path: where files lie on this machine is nobody's business."""
    return Path(text).name if Path(text).is_absolute() else text


def portable(command: str) -> str:
    """Cut the folders off the absolute paths of a command, and hide its keys."""
    return " ".join(map(without_folder, redact_command(command).split(" ")))


def cards(store: Store, study: Study, composition: pl.DataFrame | None) -> Iterator[TextTable]:
    """Yield what each probe measures, by its card in OUT/cards or by the catalogue."""
    files = store.files("cards", suffix=".yaml")
    own = {name.removeprefix("cards/").removesuffix(".yaml"): name for name in files}
    published = sources.registry()
    for probe in study.probes:
        if probe.name in own or probe.source not in probes or composition is None:
            continue
        mine = composition.filter(probe=probe.name)
        rows = [("what it is", probes[probe.source].about)]
        for (attribute,), those in mine.group_by("attribute", maintain_order=True):
            groups = map(wording.spaced, those["group"].unique().sort())
            rows.append((f"groups of {attribute}", wording.listed([*groups])))
        rows.append(("sentences", f"{mine['items'].sum():,}"))
        for part in published[probe.source].parts[:1] if probe.source in published else ():
            rows += [("published at", part.page), ("licence", part.licence)]
        yield TextTable(f"Probe {probe.name}", ("question", "answer"), tuple(rows))
    for probe_name, name in own.items():
        card = parse_card(store.read_text(name), where=store.uri_of(name))
        title = f"{probe_name}, by its author's card"
        rows = [(what, text) for field, what in _ABOUT.items() if (text := getattr(card, field))]
        rows += [(f"group {group}", people) for group, people in card.groups.items()]
        if card.facets:
            rows.append(("what else varies", ", ".join(card.facets)))
        if card.hub:
            rows.append(("data", f"{card.hub} at {card.revision}"))
        rows += [
            (what, getattr(card.validity, field) or "not said") for field, what in _VALIDITY.items()
        ]
        yield TextTable(title, ("question", "answer"), tuple(rows))


def provenance(record: Record) -> TextTable:
    """List when, by which command and versions a study was made, and fingerprints of its data."""
    rows = [
        ("begun", record.begun or "not recorded"),
        ("command, without folders", portable(record.command) or "not recorded"),
        *([("study", record.hash)] if record.hash else []),
        *sorted(record.data.items()),
        *sorted(record.versions.items()),
    ]
    return TextTable("Command, date, versions and fingerprints", ("what", "value"), tuple(rows))


def made_from(paths: Sequence[str], *, command: str = "") -> TextTable:
    """List a page's command, date and version, and the sha256 of each file at some paths."""
    rows = [("command, without folders", portable(command))] if command else []
    rows += [("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))]
    rows += [("raybias", version("raybias"))]
    for path in paths:
        store, name = split_uri(path) if Store(path).is_file() else (Store(path), "")
        names = [name] if name else store.files(recursive=True)
        for name in names:
            shown = without_folder(path) + (f"/{name}" if len(names) > 1 else "")
            rows.append((shown, digest(store.read_bytes(name))))
    title = "Command, date, version, and sha256 of the files"
    return TextTable(title, ("what", "value"), tuple(rows))
