"""Write estimates in the schema of Every Eval Ever (evaleval.org), a file a model.

raybias does not know who evaluates, nor how they are related to the model: those fields say so.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

from raybias.config import Backbone, Study
from raybias.measures.kind import kinds
from raybias.measures.prediction_rows import KIND
from raybias.probes import sources
from raybias.providers.base import Provider
from raybias.report import wording
from raybias.report.described import portable, without_folder
from raybias.report.export import file_name, one_scope_each
from raybias.report.outs import read_estimates
from raybias.stats.metric import metrics
from raybias.storage import Store
from raybias.study_record import Record, read_record

SCHEMA_VERSION: Final = "0.3.0"
_KEYS: Final = ("method", "dataset", "probe", "style", "condition", "attribute", "group")


def write_evaluations(out: Store, target: Store) -> list[str]:
    """Write MODEL.json for each model of an OUT; return the files' names.

    A result is an estimate with its interval; tests and verdicts are among its `details`.
    """
    record = read_record(out)
    study = record.study
    results: dict[str, list[dict[str, Any]]] = {}
    published = sources.registry()
    pages = {name: each.parts[0].page for name, each in published.items()}
    source_of = {each.name: each.source for each in (*study.probes, *study.pairs, *study.questions)}
    estimates = read_estimates(out)
    with wording.describing(study):
        for task, name, row in one_scope_each(estimates, study):
            if row["value"] is not None:
                page = pages.get(source_of.get(row["probe"], ""))
                found = _result(task, name, row, page, level=study.statistics.level)
                results.setdefault(row["model"], []).append(found)
    written = []
    for backbone in study.backbones:
        if backbone.name in results:
            content = _log(backbone, study, record, results[backbone.name])
            text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
            written.append(f"{file_name(backbone.name)}.json")
            target.write_text(written[-1], text + "\n")
    return written


def _log(
    backbone: Backbone, study: Study, record: Record, results: list[dict[str, Any]]
) -> dict[str, Any]:
    now = f"{time.time():.0f}"
    served = isinstance(backbone, Provider)
    revision = {} if backbone.revision is None else {"revision": backbone.revision}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{study.name}/{backbone.name}/{now}",
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_name": study.name,
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
            "additional_details": {"profile": study.profile, "study_hash": record.hash},
        },
        "eval_library": {
            "name": "raybias",
            "version": record.versions.get("raybias", "unknown"),
            "additional_details": {**record.versions, "command": portable(record.command)},
        },
        "model_info": {
            "name": backbone.name,
            "id": without_folder(backbone.id),
            "additional_details": {
                "deployment_type": "externally_managed" if served else "self_deployed",
                "model_availability": "unknown" if served else "open_weights",
                "dtype": backbone.dtype,
                **revision,
            },
        },
        "evaluation_results": results,
    }


def _result(
    task: str, name: str, row: dict[str, Any], page: str | None, *, level: float
) -> dict[str, Any]:
    source: dict[str, Any] = {"dataset_name": row["probe"] or "predictions", "source_type": "other"}
    if page is not None:
        source |= {"source_type": "url", "url": [page]}
    details = {key: str(row[key]) for key in (*_KEYS, "scope", "p", "q", "survives", "reason")
               if row[key] not in (None, "")}  # fmt: skip
    uncertainty: dict[str, Any] = {"num_samples": row["n"]} if row["n"] is not None else {}
    if row["low"] is not None:
        uncertainty["confidence_interval"] = {
            "lower": row["low"], "upper": row["high"], "confidence_level": level,
            "method": f"{row['scope']} redrawn",
        }  # fmt: skip
    return {
        "evaluation_result_id": f"{task}/{name}",
        "evaluation_name": task,
        "source_data": source,
        "metric_config": _metric(name, row),
        "score_details": {"score": row["value"], "details": details, "uncertainty": uncertainty},
    }


def _metric(name: str, row: dict[str, Any]) -> dict[str, Any]:
    score, gap = row["score"], row["statistic"] in ("gap", "difference")
    about, bounds, benefit = "", None, False
    if row["kind"] == KIND and score in metrics:
        metric = wording.metric(score)
        about = metric.formula or metric.about
        # Higher accuracy, or a ratio nearer to 1, is better whatever outcome is favourable.
        of_outcome = metric.is_outcome and metric.contrast is None
        benefit = (metric if of_outcome else metrics[score]).above == "benefit"
        if metric.share is not None:
            bounds = (-1.0, 1.0) if gap else (0.0, 1.0)
    elif score in kinds[row["kind"]].scores:
        known = kinds[row["kind"]].scores[score]
        about, bounds = f"{known.formula}; {known.source}", known.bounds
    if gap:
        about = f"{about}; less that of the background: the nearer to 0, the less bias".lstrip("; ")
    ends = (
        {"score_type": "continuous", "min_score": bounds[0], "max_score": bounds[1]}
        if bounds
        else {}
    )
    return {
        "metric_id": f"raybias.{score}{'.gap' if gap else ''}",
        "metric_name": name,
        "evaluation_description": about or score,
        "lower_is_better": gap or not benefit,
        **ends,
    }
