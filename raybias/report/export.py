"""OUT/results.json: the same numbers in the shape of lm-evaluation-harness results.

A task is one attribute of one probe under one classifier; an error is the standard
error over runs, so it covers the noise of tuning and not that of the sentences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.config import Study
from raybias.measures.kind import ALL
from raybias.stats.conclusive import is_refused
from raybias.storage import Store
from raybias.study_record import Record

#: Of this file; raised where a key changes its meaning.
SCHEMA_VERSION: Final = 2


def write_results(
    store: Store,
    study: Study,
    record: Record,
    tables: Mapping[str, pl.DataFrame],
    estimates: pl.DataFrame | None = None,
) -> None:
    """Write OUT/results.json from the tables of gaps and accuracies, and from estimates.

    Undefined gaps are left out; an error of a single run is "N/A", as lm-eval writes it. `configs`
    say by `no_verdict` why nothing is concluded of a classifier that cannot do its task.
    """
    results: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, int]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for row in _rows(tables, "accuracy"):
        task = _task(row)
        results[task] = {"alias": task, **_metric("acc", row["mean"], row["sd"], row["n_runs"])}
        samples[task] = {"original": row["n_items"], "effective": row["n_items"]}
        configs[task] = {
            **{key: row[key] for key in schema.KEYS},
            "attribute": row["attribute"],
            "n_runs": row["n_runs"],
        }
    for row in _rows(tables, "gaps"):
        name = f"{row['rate']}_gap:{row['group']}"
        metric = _metric(name, row["gap"], row["sd"], row["n_runs"])
        results.setdefault(_task(row), {"alias": _task(row)}).update(metric)
        if is_refused(row["no_verdict"]) and _task(row) in configs:
            configs[_task(row)]["no_verdict"] = row["no_verdict"]
    for task, name, row in _estimated(estimates):
        results.setdefault(task, {"alias": task}).update(_of_interval(name, row))
        configs[task] = {"model": row["model"], "probe": row["probe"]}
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


def _rows(tables: Mapping[str, pl.DataFrame], name: str) -> Iterator[dict[str, Any]]:
    return tables[name].iter_rows(named=True) if name in tables else iter(())


def _estimated(estimates: pl.DataFrame | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the task, metric and row of each estimate, of all prompts those over units alone."""
    for row in () if estimates is None else estimates.iter_rows(named=True):
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


def _task(row: Mapping[str, Any]) -> str:
    return ".".join(str(row[key]) for key in (*schema.KEYS, "attribute") if row[key])


def _metric(name: str, value: float | None, sd: float | None, n_runs: int) -> dict[str, Any]:
    if value is None:
        return {}
    error: float | str = "N/A" if sd is None or n_runs < 2 else sd / sqrt(n_runs)
    return {f"{name},none": value, f"{name}_stderr,none": error}
