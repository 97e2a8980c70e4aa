"""OUT/results.json: the same numbers in the shape of lm-evaluation-harness results.

A task is one attribute of one probe under one classifier; an error is the standard
error over runs, so it covers the noise of tuning and not that of the sentences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import sqrt
from typing import Any

import polars as pl

from raybias import schema, stats
from raybias.config import Study
from raybias.storage import Store
from raybias.study_record import Record


def write_results(
    store: Store, study: Study, record: Record, tables: Mapping[str, pl.DataFrame]
) -> None:
    """Write OUT/results.json from the tables of gaps and accuracies.

    Undefined gaps are left out; an error of a single run is "N/A", as lm-eval writes it.
    """
    results: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, int]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for row in tables["accuracy"].iter_rows(named=True):
        task = _task(row)
        results[task] = {"alias": task, **_metric("acc", row["mean"], row["sd"], row["n_runs"])}
        samples[task] = {"original": row["n_items"], "effective": row["n_items"]}
        configs[task] = {
            **{key: row[key] for key in schema.KEYS},
            "attribute": row["attribute"],
            "n_runs": row["n_runs"],
        }
    for row in tables["gaps"].iter_rows(named=True):
        name = f"{row['rate']}_gap:{row['group']}"
        metric = _metric(name, row["gap"], row["sd"], row["n_runs"])
        results.setdefault(_task(row), {"alias": _task(row)}).update(metric)
    shots = {method.name: method.shots for method in study.methods}
    shots |= {f"{name}{stats.LIKELIHOOD}": n for name, n in shots.items()}
    content = {
        "results": results,
        "configs": configs,
        "versions": dict.fromkeys(results, 1),
        "n-shot": {task: shots.get(config["method"], 0) for task, config in configs.items()},
        "higher_is_better": {task: {"acc": True} for task in results},
        "n-samples": samples,
        "config": {"study": study.name, "profile": study.profile, "study_hash": record.hash},
        "package_versions": dict(record.versions),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
    store.write_text("results.json", text + "\n")


def _task(row: Mapping[str, Any]) -> str:
    return ".".join(str(row[key]) for key in (*schema.KEYS, "attribute") if row[key])


def _metric(name: str, value: float | None, sd: float | None, n_runs: int) -> dict[str, Any]:
    if value is None:
        return {}
    error: float | str = "N/A" if sd is None or n_runs < 2 else sd / sqrt(n_runs)
    return {f"{name},none": value, f"{name}_stderr,none": error}
