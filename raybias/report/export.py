"""OUT/results.json: the same numbers in the shape of lm-evaluation-harness results.

A task is one attribute of one probe under one classifier. Numbers have intervals; a standard error
is "N/A", since intervals need not be even.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.config import Study
from raybias.measures.kind import ALL
from raybias.measures.prediction_rows import KIND, gap_rows, under
from raybias.stats.conclusive import is_refused
from raybias.stats.scopes import SCOPES
from raybias.storage import Store
from raybias.study_record import Record

#: Of this file; raised where a key changes its meaning.
SCHEMA_VERSION: Final = 3


def write_results(store: Store, study: Study, record: Record, estimates: pl.DataFrame) -> None:
    """Write OUT/results.json from estimates.

    What is not defined is left out. `configs` say by `no_verdict` why nothing is concluded of a
    classifier that cannot do its task.
    """
    results: dict[str, dict[str, Any]] = {}
    configs: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, int]] = {}
    of_answers = _estimated(estimates.filter(pl.col("kind") != KIND))
    for task, name, row in (*_of_predictions(estimates, study), *of_answers):
        results.setdefault(task, {"alias": task}).update(_of_interval(name, row))
        keys = (*schema.KEYS, "attribute") if row["kind"] == KIND else ("model", "probe")
        configs.setdefault(task, {key: row[key] for key in keys})
        if name == "acc":
            samples[task] = {"original": row["n"], "effective": row["n"]}
        if is_refused(row["reason"]):
            configs[task]["no_verdict"] = row["reason"]
    shots = {method.name: method.shots for method in study.methods}
    shots |= {f"{name}{stats.LIKELIHOOD}": n for name, n in shots.items()}
    content = {
        "results": results,
        "configs": configs,
        "versions": dict.fromkeys(results, 1),
        "n-shot": {
            task: shots.get(str(config.get("method")), 0) for task, config in configs.items()
        },
        "higher_is_better": {
            task: {"acc": True} for task, found in results.items() if "acc,none" in found
        },
        "n-samples": samples,
        "config": {"study": study.name, "profile": study.profile, "study_hash": record.hash},
        "schema_version": SCHEMA_VERSION,
        "package_versions": dict(record.versions),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
    store.write_text("results.json", text + "\n")


def _of_predictions(
    estimates: pl.DataFrame, study: Study
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the task, metric and row of each accuracy and gap, one row each."""
    accuracy = estimates.filter(score="accuracy", statistic="rate", group=ALL)
    for name, part in (
        ("acc", under(accuracy, SCOPES, "widest")),
        ("{score}_gap:{group}", gap_rows(estimates, study.statistics.scope)),
    ):
        for row in part.iter_rows(named=True):
            task = ".".join(row[key] for key in (*schema.KEYS, "attribute") if row[key])
            yield task, name.format(**row), row


def _estimated(estimates: pl.DataFrame) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the task, metric and row of each estimate, of all prompts those over units alone."""
    for row in estimates.iter_rows(named=True):
        if "," in row["scope"]:
            continue
        # A difference is from its condition; another score is in it.
        parts = ["model", "probe", "method", "attribute"]
        parts += [] if row["statistic"] == "difference" else ["condition"]
        prompt = "" if row["style"] == ALL else row["style"]
        metric = ":".join(filter(None, (row["score"], row["group"], prompt)))
        yield ".".join(row[part] for part in parts if row[part]), metric, row


def _of_interval(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number with its interval; an error is not known where intervals are not even."""
    if row["value"] is None:
        return {}
    found = {f"{name},none": row["value"], f"{name}_stderr,none": "N/A"}
    if row["low"] is not None:
        found |= {f"{name}_low,none": row["low"], f"{name}_high,none": row["high"]}
    return found
