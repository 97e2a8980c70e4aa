"""What was measured, on what and with which rules: the facts of a study as rows to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Backbone, Study
from raybias.methods import prompted_methods
from raybias.report import wording
from raybias.schema import LABELS
from raybias.study_record import Record

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
#: Of a hash that are shown; OUT/study.yaml has all.
_DIGITS: Final = 12
_NUMBER: Final = re.compile(r"none|[+-]?[0-9][0-9,]*(\.[0-9]+)?(e[+-]?[0-9]+)?%?")


@dataclass(frozen=True)
class SummaryTable:
    """A titled table for the page."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def kind(self, column: int) -> str:
        """`number` or `text`, for the alignment of a column."""
        values = [row[column] for row in self.rows if row[column]]
        numeric = all(_NUMBER.fullmatch(value) for value in values)
        return "number" if values and numeric else "text"


def backbones(study: Study, runs: pl.DataFrame, record: Record) -> SummaryTable:
    """Each frozen model with its commit or weights, and the token ids that its classifiers used."""
    headers = ["model", "id", "commit or sha256", "parameters", "dtype", "BOS"]
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
        ]
        if study.probes:
            part = runs.filter(pl.col("model") == backbone.name)
            row += [_one(part, "prompt_token_id"), _verbalizer(study, part)]
        rows.append(tuple(row))
    return SummaryTable("Backbones", tuple(headers), tuple(rows))


def training(study: Study, runs: pl.DataFrame) -> SummaryTable:
    """Each tuned (model, method, training set): how many seeds ran, were kept, diverged."""
    selections = {method.name: method.selection for method in study.methods}
    final = _tuned_runs(study, runs).filter(pl.col("stage") == "final")
    rows = []
    sources = {section.name: section for section in study.training}
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        section, selection = sources.get(str(key[2])), selections.get(str(key[1]))
        kept = part.filter(pl.col("selected").fill_null(False))
        rows.append(
            (
                *(str(name) for name in key),
                section.source if section else "",
                _values(part, "learning_rate"),
                _values(part, "weight_decay"),
                str(part.height),
                f"{kept.height} (seeds {', '.join(map(str, kept['seed'].sort()))})",
                f"{selection} accuracy" if selection else "",
                str(part.filter(pl.col("stop_reason") == "diverged").height),
                _spread(kept, "validation_accuracy"),
                _spread(kept, "test_accuracy"),
            )
        )
    headers = (
        "model", "method", "training set", "source", "learning rate", "weight decay", "seeds run",
        "kept", "kept by", "diverged", "validation accuracy of the kept",
        "test accuracy of the kept",
    )  # fmt: skip
    return SummaryTable("Tuning", headers, tuple(rows))


def prompting(
    study: Study, models: Sequence[str], sampling: Mapping[tuple[str, str], Mapping[str, Any]]
) -> SummaryTable:
    """Each prompted method: its runs, how answers are sampled, and what an unread one counts as.

    Parameters
    ----------
    sampling: by (model, method); the values that are not the study's are the model's own.
    """
    rows = []
    for method in prompted_methods(study.methods):
        for model in models:
            own = sampling.get((model, method.name), {})
            rows.append(
                (
                    method.name,
                    method.kind,
                    model,
                    ", ".join(map(str, method.seeds)),
                    f"{method.temperature:g}",
                    ", ".join(f"{k} {_shown(v)}" for k, v in own.items() if k != "temperature"),
                    str(method.answer_tokens),
                    method.shown_first,
                    wording.UNPARSED.get(str(method.unparsed), str(method.unparsed)),
                )
            )
    headers = (
        "method", "kind", "model", "seeds", "temperature", "other sampling values",
        "answer tokens", "shown first", "an answer without a label counts as",
    )  # fmt: skip
    return SummaryTable("Prompting", headers, tuple(rows))


def probe_sizes(composition: pl.DataFrame, gaps: pl.DataFrame) -> list[SummaryTable]:
    """Per probe and attribute: sentences of each group by label, and whether it is in the mean."""
    members = gaps.group_by("probe", "attribute", "group").agg(pl.col("in_mean").all())
    sizes = composition.join(
        members, on=["probe", "attribute", "group"], how="left", nulls_equal=True
    )
    tables = []
    for probe, attribute in wording.probe_order(gaps):
        rows = []
        part = sizes.filter(probe=probe, attribute=attribute)
        for row in part.sort(pl.col("in_mean").is_null(), "group").iter_rows(named=True):
            counts = (row[f"items_{label}"] for label in LABELS)
            shown = (f"{n:,}" for n in (*counts, row["items"]))
            inside = "extra" if row["in_mean"] is None else "yes" if row["in_mean"] else "no"
            share = row["fraction"]
            rows.append((row["group"], *shown, "" if share is None else f"{share:.1%}", inside))
        headers = ("group", *LABELS, "all", "share", "in the mean")
        tables.append(SummaryTable(f"Sentences of {probe}: {attribute}", headers, tuple(rows)))
    return tables


def answers(table: pl.DataFrame) -> SummaryTable:
    """How many answers of each prompted classifier held no label, over its runs."""
    rows = []
    whole = table.filter(pl.col("run_id") == "all")
    shares = (
        table.filter(pl.col("run_id") != "all")
        .group_by(schema.KEYS)
        .agg(low=pl.col("share").min(), high=pl.col("share").max())
    )
    joined = whole.join(shares, on=schema.KEYS, nulls_equal=True, maintain_order="left")
    for row in joined.iter_rows(named=True):
        rows.append(
            (
                *(str(row[key]) for key in schema.KEYS[:4]),
                f"{row['predictions']:,}",
                f"{row['unparsed']:,}",
                f"{row['share']:.2%}",
                f"{row['low']:.2%} to {row['high']:.2%}",
            )
        )
    headers = ("model", "method", "shots from", "probe", "answers", "without a label", "share",
               "share by run")  # fmt: skip
    return SummaryTable("Answers that hold no label", headers, tuple(rows))


def options(study: Study) -> SummaryTable:
    """Every resolved option of the study, resources left out: they change no result."""
    content = study.model_dump(mode="json", exclude={"resources"})
    return SummaryTable("Every resolved option", ("option", "value"), tuple(_flat(content)))


def accuracy_rows(
    accuracy: pl.DataFrame, chance: Mapping[tuple[str, str], float | None]
) -> SummaryTable:
    """Accuracy on the probes beside what guessing the commonest label would give."""
    keys = wording.naming_keys(accuracy)
    rows = []
    for row in accuracy.iter_rows(named=True):
        level = chance.get((row["probe"], row["attribute"]))
        rows.append(
            (
                *(str(row[key]) for key in keys),
                row["probe"],
                row["attribute"],
                wording.number(row["mean"]),
                wording.number(row["sd"]),
                "one label only" if level is None else wording.number(level),
                str(row["n_runs"]),
                f"{row['n_items']:,}",
            )
        )
    headers = (*keys, "probe", "attribute", "accuracy", "sd over runs", "chance", "runs", "items")
    return SummaryTable("Accuracy on the probes", headers, tuple(rows))


def plain(title: str, frame: pl.DataFrame) -> SummaryTable:
    """Any table as it is, numbers to three digits; columns with one value throughout are left."""
    kept = [c for c in frame.columns if c not in schema.KEYS or frame[c].n_unique() > 1]
    rows = tuple(tuple(_shown(value) for value in row) for row in frame.select(kept).iter_rows())
    return SummaryTable(title, tuple(column.replace("_", " ") for column in kept), rows)


def _tuned_runs(study: Study, runs: pl.DataFrame) -> pl.DataFrame:
    others = [method.name for method in study.methods if not method.trains]
    return runs.filter(~pl.col("method").is_in(others))


def _version(backbone: Backbone, files: Mapping[str, str]) -> str:
    """The start of a local model's hash or of a hub model's commit, where OUT records it."""
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


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return ", ".join(_shown(part) for part in value) or "default"
    return str(value)
