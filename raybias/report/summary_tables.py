"""Tables for people: what was measured, on what, and with which rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Backbone, Study
from raybias.measures.prediction_rows import under
from raybias.methods import prompted_methods
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.report import wording
from raybias.report.terminal import laid_out, terminal_width
from raybias.schema import LABELS
from raybias.stats.scopes import SCOPES
from raybias.storage import Store
from raybias.study_record import Record

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
#: Of a hash that are shown; OUT/study.yaml has all.
_DIGITS: Final = 12
#: Columns that were chosen and not measured; their numbers are shown in full.
_SETTINGS: Final = ("learning_rate", "weight_decay")
_NUMBER: Final = re.compile(r"none|[+-]?[0-9][0-9,]*(\.[0-9]+)?(e[+-]?[0-9]+)?%?")
#: Where Markdown would begin HTML; `<0.001` is none.
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")


Row = Mapping[str, Any]
#: The text of a cell: a column of the row, or a function of it.
Cell = str | Callable[[Row], str]


def markdown_text(text: str) -> str:
    """Return a text so that no viewer of Markdown takes a name in it for HTML or a cell's end."""
    whole = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return _TAG.sub("&lt;", whole)


@dataclass(frozen=True)
class SummaryTable:
    """A titled table for people, on the page and in a terminal."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @cached_property
    def kinds(self) -> list[str]:
        """Whether each column is `number` or `text`, for its alignment."""
        columns = ([row[i] for row in self.rows if row[i]] for i in range(len(self.headers)))
        return [
            "number" if values and all(map(_NUMBER.fullmatch, values)) else "text"
            for values in columns
        ]

    def __str__(self) -> str:
        """Return the table as plain text below its title; in a terminal, within its width."""
        text = laid_out(self.headers, self.rows, self.kinds, terminal_width())
        return f"{self.title}\n{text}" if self.title else text


def table(title: str, frame: pl.DataFrame, columns: Mapping[str, Cell]) -> SummaryTable:
    """Make a table with a row for each row of a frame.

    Parameters
    ----------
    columns: what each cell says, by header.
    """
    rows = tuple(
        tuple(str(row[cell]) if isinstance(cell, str) else cell(row) for cell in columns.values())
        for row in frame.iter_rows(named=True)
    )
    return SummaryTable(title, tuple(columns), rows)


def same(*columns: str) -> dict[str, str]:
    """Return table columns that show a frame's columns under their names."""
    return {column: column for column in columns}


def backbones(study: Study, runs: pl.DataFrame, record: Record) -> SummaryTable:
    """Describe each backbone: its commit or weights, and the token ids of its classifiers."""
    headers = ["model", "id", "commit or sha256", "parameters", "dtype", "BOS", "begin token"]
    if study.probes:
        headers += ["prompt token", "label words (token id)"]
    rows = []
    for backbone in study.backbones:
        size = record.parameters.get(backbone.name)
        row = [
            backbone.name,
            backbone.id,
            _version(backbone, (record.models or {}).get(backbone.name, {})),
            "" if size is None else f"{size:,}",
            backbone.dtype,
            backbone.bos,
            *list(record.begin_tokens.get(backbone.name, [""]))[:1],
        ]
        if study.probes:
            part = runs.filter(pl.col("model") == backbone.name)
            row += [_one(part, "prompt_token_id"), _verbalizer(study, part)]
        rows.append(tuple(row))
    return SummaryTable("Backbones", tuple(headers), tuple(rows))


def training(study: Study, runs: pl.DataFrame) -> SummaryTable:
    """Describe each tuned (model, method, training set): its seeds, and which of them count."""
    selections = {method.name: method.selection for method in study.methods}
    untrained = [method.name for method in study.methods if not method.trains]
    sources = {section.name: section.source for section in study.training}
    final = runs.filter(~pl.col("method").is_in(untrained), pl.col("stage") == "final")
    rows = []
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        model, method, dataset = map(str, key)
        selection = selections.get(method)
        kept = part.filter(pl.col("selected").fill_null(False))
        rows.append(
            (
                model,
                method,
                dataset,
                sources.get(dataset, ""),
                _values(part, "learning_rate"),
                _values(part, "weight_decay"),
                str(part.height),
                f"{kept.height} (seeds {', '.join(map(str, kept['seed'].sort()))})",
                f"{selection} accuracy" if selection else "",
                str(part.filter(pl.col("stop_reason") == "diverged").height),
                _spread(kept, "untuned_accuracy"),
                _spread(kept, "validation_accuracy"),
                _spread(kept, "test_accuracy"),
            )
        )
    headers = (
        "model", "method", "training set", "source", "learning rate", "weight decay", "seeds run",
        "kept", "kept by", "diverged", "validation accuracy before tuning",
        "validation accuracy of the kept",
        "test accuracy of the kept",
    )  # fmt: skip
    return SummaryTable("Tuning", headers, tuple(rows))


def prompting(study: Study, sampling: Mapping[tuple[str, str], Mapping[str, Any]]) -> SummaryTable:
    """Describe each prompted method: its runs, sampling, and what an unread answer counts as.

    Parameters
    ----------
    sampling: by (model, method); the values that are not the study's are the model's.
    """
    rows = tuple(
        (
            method.name,
            method.kind,
            backbone.name,
            ", ".join(map(str, method.seeds)),
            f"{method.temperature:g}",
            ", ".join(
                f"{name} {_shown(value)}"
                for name, value in sampling.get((backbone.name, method.name), {}).items()
                if name != "temperature"
            ),
            str(method.answer_tokens),
            method.shown_first,
            wording.UNPARSED.get(str(method.unparsed), str(method.unparsed)),
        )
        for method in prompted_methods(study.methods)
        for backbone in study.backbones
    )
    headers = (
        "method", "kind", "model", "seeds", "temperature", "other sampling values",
        "answer tokens", "shown first", "an answer without a label counts as",
    )  # fmt: skip
    return SummaryTable("Prompting", headers, rows)


def probe_sizes(composition: pl.DataFrame, judged: pl.DataFrame) -> list[SummaryTable]:
    """Count, per probe and attribute, each group's sentences by label.

    Parameters
    ----------
    judged: gaps; say which groups are in the mean.
    """
    place = ["probe", "attribute", "group"]
    members = judged.group_by(place).agg(in_mean=(pl.col("condition") == "").all())
    sizes = composition.join(members, on=place, how="left", nulls_equal=True)
    inside = {**wording.YES_NO, None: "extra"}
    columns: dict[str, Cell] = {
        "group": "group",
        **{label: _count(f"items_{label}") for label in LABELS},
        "all": _count("items"),
        "share": lambda row: wording.percent(row["fraction"]),
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


def answers(counts: pl.DataFrame) -> SummaryTable:
    """Count the answers of each prompted classifier without a label, over its runs.

    Parameters
    ----------
    counts: schema.ANSWERS.
    """
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
            "model": "model",
            "method": "method",
            "shots from": "dataset",
            "probe": "probe",
            "answers": _count("predictions"),
            "without a label": _count("unparsed"),
            "with several": _count("several"),
            "negated": _count("negated"),
            "share": lambda row: f"{row['share']:.2%}",
            "share by run": lambda row: f"{row['low']:.2%} to {row['high']:.2%}",
        },
    )


def options(study: Study) -> SummaryTable:
    """List every resolved option of the study but resources, which change no result."""
    content = study.model_dump(mode="json", exclude={"resources"})
    return SummaryTable(
        f"Every resolved option: {study.profile} profile",
        ("option", "value"),
        tuple(_flat(content)),
    )


def accuracies(
    estimates: pl.DataFrame, chance: Mapping[tuple[str, str], float | None]
) -> SummaryTable:
    """Compare accuracy on the probes with always guessing the commonest label.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    chance: of `findings.chance_levels`.
    """

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
            "items": _count("n"),
        },
    )


def gaps(judged: pl.DataFrame) -> SummaryTable:
    """List gaps with their intervals and verdicts.

    Parameters
    ----------
    judged: of schema.ESTIMATES, one row each.
    """
    probe = ["probe"] if judged["probe"].n_unique() > 1 else []
    scopes = judged.filter(pl.col("low").is_not_null())["scope"].unique().sort()
    columns: dict[str, Cell] = {
        **same(*probe, *wording.naming_keys(judged), "attribute", "group", "score"),
        "gap": lambda row: wording.signed(row["value"]),
        f"interval ({', '.join(scopes)})": lambda row: wording.span(row["low"], row["high"]),
        "verdict": wording.verdict,
    }
    return table("", judged, columns)


def plain(title: str, frame: pl.DataFrame) -> SummaryTable:
    """Show a frame as it is, numbers to four digits, without keys that are the same throughout."""
    columns = [c for c in frame.columns if c not in schema.KEYS or frame[c].n_unique() > 1]
    rows = tuple(
        tuple(_shown(value) if name in _SETTINGS else _measured(value)
              for name, value in zip(columns, row, strict=True))
        for row in frame.select(columns).iter_rows()
    )  # fmt: skip
    return SummaryTable(title, tuple(column.replace("_", " ") for column in columns), rows)


def _count(column: str) -> Callable[[Row], str]:
    return lambda row: f"{row[column]:,}"


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


def _one(part: pl.DataFrame, column: str) -> str:
    return ", ".join(str(value) for value in part[column].drop_nulls().unique().sort())


def _values(part: pl.DataFrame, column: str) -> str:
    return wording.listed([f"{value:g}" for value in part[column].drop_nulls().unique().sort()])


def _spread(part: pl.DataFrame, column: str) -> str:
    values = part[column].drop_nulls()
    if values.is_empty():
        return ""
    numbers = values.to_list()
    low, high = wording.number(min(numbers)), wording.number(max(numbers))
    return low if low == high else f"{low} to {high}"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    pairs: Iterator[tuple[str, Any]] | None = None
    if isinstance(value, dict) and value:
        pairs = iter(value.items())
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        pairs = ((str(place), part) for place, part in enumerate(value))
    if pairs is None:
        yield name, _shown(value)
        return
    for key, part in pairs:
        yield from _flat(part, f"{name}.{key}" if name else str(key))


def _measured(value: Any) -> str:
    """Show a value of a table; what is measured is never so small that it needs an exponent."""
    text = _shown(value)
    return f"{value:.4f}" if isinstance(value, float) and "e-" in text else text


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return wording.YES_NO[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return ", ".join(_shown(part) for part in value) or "default"
    return str(value)


def endpoints(store: Store, study: Study) -> SummaryTable:
    """Say what was asked of each endpoint, what it called itself, and how steady it was."""
    rows = []
    for backbone in study.backbones:
        if not isinstance(backbone, Provider):
            continue
        asked = read_asked(store, backbone.name)
        rows.append(
            (
                backbone.name,
                backbone.place,
                f"{asked.requests:,}",
                f"{asked.tokens:,}",
                f"{backbone.prices.of(asked.read, asked.written):,.2f}",
                f"{asked.same:,} of {asked.twice:,}",
                f"{asked.furthest:.2g}",
                ", ".join(asked.models),
                ", ".join(asked.fingerprints) or "none",
            )
        )
    headers = (
        "model", "endpoint", "requests", "tokens", "cost", "the same answer when asked again",
        "furthest likelihoods of one text", "calls itself", "system fingerprints",
    )  # fmt: skip
    return SummaryTable("Endpoints", headers, tuple(rows))
