"""What was measured, on what and with which rules: the facts of a study as rows to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Backbone, Study
from raybias.report import words
from raybias.schema import LABELS

_NUMBER: Final = re.compile(r"none|[+-]?[0-9][0-9,]*(\.[0-9]+)?(e[+-]?[0-9]+)?")


@dataclass(frozen=True)
class Facts:
    """A titled table for the page."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def kind(self, column: int) -> str:
        """`number` or `text`, for the alignment of a column."""
        values = [row[column] for row in self.rows if row[column]]
        numeric = all(_NUMBER.fullmatch(value) for value in values)
        return "number" if values and numeric else "text"


def backbones(study: Study, runs: pl.DataFrame) -> Facts:
    """Each frozen model, and the token ids that its runs used."""
    rows = []
    for backbone in study.backbones:
        part = runs.filter(pl.col("model") == backbone.name)
        rows.append(
            (
                backbone.name,
                backbone.id,
                _revision(backbone),
                backbone.dtype,
                backbone.bos,
                _one(part, "prompt_token_id"),
                _verbalizer(study, part),
            )
        )
    headers = ("model", "id", "revision", "dtype", "BOS", "prompt token", "label words (token id)")
    return Facts("Backbones", headers, tuple(rows))


def training(study: Study, runs: pl.DataFrame) -> Facts:
    """Each (model, training set): how many seeds ran, were kept, diverged."""
    final = runs.filter(pl.col("stage") == "final")
    rows = []
    sources = {section.name: section for section in study.training}
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        section = sources.get(str(key[2]))
        kept = part.filter(pl.col("selected").fill_null(False))
        rows.append(
            (
                *(str(name) for name in key),
                section.source if section else "",
                words.listed([f"{rate:g}" for rate in part["learning_rate"].unique().sort()]),
                str(part.height),
                f"{kept.height} (seeds {', '.join(map(str, kept['seed'].sort()))})",
                str(part.filter(pl.col("stop_reason") == "diverged").height),
                _spread(kept, "validation_accuracy"),
                _spread(kept, "test_accuracy"),
            )
        )
    headers = (
        "model", "method", "training set", "source", "learning rate", "seeds run", "kept",
        "diverged", "validation accuracy of the kept", "test accuracy of the kept",
    )  # fmt: skip
    return Facts("Tuning", headers, tuple(rows))


def probe_sizes(cells: pl.DataFrame, gaps: pl.DataFrame) -> list[Facts]:
    """Per probe and attribute: sentences of each group by label, and whether it is in the mean."""
    per_run = cells.group_by(*schema.KEYS, "run_id", "attribute", "group", "label").agg(
        pl.col("n").sum()
    )
    sizes = per_run.group_by("probe", "attribute", "group", "label").agg(pl.col("n").max())
    inside = gaps.group_by("probe", "attribute", "group").agg(pl.col("in_mean").all())
    tables = []
    for probe, attribute in words.probe_order(gaps):
        rows = []
        part = inside.filter(probe=probe, attribute=attribute).sort("group")
        for group, in_mean in part.select("group", "in_mean").iter_rows():
            counts = dict(
                sizes.filter(probe=probe, attribute=attribute, group=group)
                .select("label", "n")
                .iter_rows()
            )
            numbers = [counts.get(label, 0) for label in range(len(LABELS))]
            shown = (f"{n:,}" for n in (*numbers, sum(numbers)))
            rows.append((str(group), *shown, "yes" if in_mean else "no"))
        headers = ("group", *LABELS, "all", "in the mean")
        tables.append(Facts(f"Sentences of {probe}: {attribute}", headers, tuple(rows)))
    return tables


def options(study: Study) -> Facts:
    """Every resolved option of the study, resources left out: they change no result."""
    content = study.model_dump(mode="json", exclude={"resources"})
    return Facts("Every resolved option", ("option", "value"), tuple(_flat(content)))


def accuracy_rows(accuracy: pl.DataFrame, chance: Mapping[tuple[str, str], float | None]) -> Facts:
    """Accuracy on the probes beside what guessing the commonest label would give."""
    keys = words.naming_keys(accuracy)
    rows = []
    for row in accuracy.iter_rows(named=True):
        level = chance.get((row["probe"], row["attribute"]))
        rows.append(
            (
                *(str(row[key]) for key in keys),
                row["probe"],
                row["attribute"],
                words.number(row["mean"]),
                words.number(row["sd"]),
                "one label only" if level is None else words.number(level),
                str(row["n_runs"]),
                f"{row['n_items']:,}",
            )
        )
    headers = (*keys, "probe", "attribute", "accuracy", "sd over runs", "chance", "runs", "items")
    return Facts("Accuracy on the probes", headers, tuple(rows))


def plain(title: str, frame: pl.DataFrame) -> Facts:
    """Any table as it is, numbers to three digits; columns with one value throughout are left."""
    kept = [c for c in frame.columns if c not in schema.KEYS or frame[c].n_unique() > 1]
    rows = tuple(tuple(_shown(value) for value in row) for row in frame.select(kept).iter_rows())
    return Facts(title, tuple(column.replace("_", " ") for column in kept), rows)


def _revision(backbone: Backbone) -> str:
    if backbone.revision:
        return backbone.revision
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


def _spread(part: pl.DataFrame, column: str) -> str:
    values = part[column].drop_nulls()
    if values.is_empty():
        return ""
    low, high = (words.number(end) for end in values.sort().to_list()[:: max(len(values) - 1, 1)])
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
