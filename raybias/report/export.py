"""Write the numbers for others: results and samples of lm-evaluation-harness, a model card.

OUT/results.json has the shape of lm-eval's results: a task is one attribute of one probe under one
classifier; a standard error is "N/A", since intervals need not be even. OUT/tables/model_card.md is
the section "Bias, Risks, and Limitations" of a model card (Mitchell et al. 2019).
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.config import Study
from raybias.errors import DataError
from raybias.measures.prediction_rows import KIND, gap_rows, under
from raybias.measures.reading import read
from raybias.methods.options import AskingOptions
from raybias.report import wording
from raybias.report.accuracy import accuracies, chance_of
from raybias.report.estimates import gaps_table, parts_of
from raybias.report.judged import Judged
from raybias.report.outs import as_reported, read_estimates
from raybias.report.rendering import TextTable, markdown_text
from raybias.schema import ALL, LIKELIHOOD
from raybias.stats.conclusive import is_refused
from raybias.stats.redrawn import have_seeds
from raybias.stats.scopes import SCOPES
from raybias.storage import Store
from raybias.study_record import Record, read_record, read_runs
from raybias.table_rules import read_checked

#: Versions of results.json and of a sample; raise one when a key changes its meaning.
SCHEMA_VERSION: Final = 3
SAMPLE_VERSION: Final = 1
#: Ways of scoring pairs that give mean probabilities.
_PROBABILITIES: Final = ("bias_bench", "prepend")
_PLACES: Final = range(3)
#: File, and a line of it.
Sample = tuple[str, dict[str, Any]]


def write_results(store: Store, study: Study, record: Record, estimates: pl.DataFrame) -> None:
    """Write OUT/results.json from the estimates that are defined; `configs` have `no_verdict`."""
    results: dict[str, dict[str, Any]] = {}
    configs: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, int]] = {}
    for task, name, row in one_scope_each(estimates, study):
        numbers = results.setdefault(task, {"alias": task})
        if row["value"] is not None:
            numbers |= {f"{name},none": row["value"], f"{name}_stderr,none": "N/A"}
        if row["low"] is not None:
            numbers |= {f"{name}_low,none": row["low"], f"{name}_high,none": row["high"]}
        keys = (*schema.KEYS, "attribute") if row["kind"] == KIND else ("model", "probe")
        configs.setdefault(task, {key: row[key] for key in keys})
        if name == "acc":
            samples[task] = {"original": row["n"], "effective": row["n"]}
        if is_refused(row["reason"]):
            configs[task]["no_verdict"] = row["reason"]
    shots = {method.name: method.count_shots(len(study.labels)) for method in study.methods}
    shots |= {f"{name}{LIKELIHOOD}": n for name, n in shots.items()}
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
        "config": {
            "study": study.name,
            "profile": study.profile,
            "statistics": study.statistics.model_dump(mode="json"),
            "study_hash": record.hash,
        },
        "schema_version": SCHEMA_VERSION,
        "package_versions": dict(record.versions),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
    store.write_text("results.json", text + "\n")


def one_scope_each(
    estimates: pl.DataFrame, study: Study
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the task, the metric's name and the row of gaps, accuracies and answers' scores."""
    accuracy = estimates.filter(score="accuracy", statistic="rate", group=ALL)
    for name, part in (
        ("acc", under(accuracy, SCOPES, study.statistics.scope)),
        ("{score}_gap:{group}", gap_rows(estimates, study.statistics.scope)),
    ):
        for row in part.iter_rows(named=True):
            task = ".".join(row[key] for key in (*schema.KEYS, "attribute") if row[key])
            yield task, name.format(**row), row
    # Of other kinds, those whose scope is one unit.
    one = ~pl.col("scope").str.contains(",")
    for row in estimates.filter(pl.col("kind") != KIND, one).iter_rows(named=True):
        # A difference is from its condition; another score is in it.
        parts = ["model", "probe", "method", "attribute"]
        parts += [] if row["statistic"] == "difference" else ["condition"]
        prompt = "" if row["style"] == ALL else row["style"]
        metric = ":".join(filter(None, (row["score"], row["group"], prompt)))
        yield ".".join(row[part] for part in parts if row[part]), metric, row


def write_samples(out: Store, target: Store) -> list[str]:
    """Write answers to BBQ-shaped questions and CrowS-Pairs as samples; see `raybias.export`."""
    lines: dict[str, list[str]] = {}
    for file, sample in [*_of_options(out), *_of_pairs(out)]:
        known = lines.setdefault(file, [])
        whole = {"doc_id": len(known), **sample, "filter": "none", "schema_version": SAMPLE_VERSION}
        known.append(json.dumps(whole, ensure_ascii=False))
    if not lines:
        raise DataError(
            "has no answers to questions with three options, and no scores of pairs",
            where=out.uri,
            cure="finish a study that has `questions` or `pairs`",
        )
    for file, texts in lines.items():
        target.write_text(file, "\n".join(texts) + "\n")
    return [*lines]


def _of_options(out: Store) -> Iterator[Sample]:
    if not out.exists("options"):
        return
    study = read_record(out).study
    methods = {
        (backbone.name, each.name): each
        for backbone in study.backbones
        for each in study.methods_of(backbone)
    }
    answers = read([out.uri_of("options")], "options")["options"]
    for probe in answers["probe"].unique(maintain_order=True):
        table = read_checked(out, f"items/{probe}.parquet", schema.OPTION_ITEMS)
        items = {row["item_id"]: row for row in table.iter_rows(named=True)}
        for row in answers.filter(probe=probe).iter_rows(named=True):
            if row["item_id"] not in items:
                raise _other_items(out, row)
            item, method = items[row["item_id"]], methods.get((row["model"], row["method"]))
            if len(item["options"]) != len(_PLACES) or not isinstance(method, AskingOptions):
                continue
            chat = method.prompt_format == "chat"
            prompts = method.requests(item, chat=chat)
            asked = next((each for each in prompts if each.prompt == row["prompt"]), None)
            scores = row["scores"]
            if asked is None or (scores and len(scores) < len(asked.places)):
                raise _other_items(out, row)
            text = f"{asked.text}\n{asked.cue}".rstrip() if chat else asked.text + asked.cue
            # What an endpoint withheld is no text.
            shown = [scores[place] for place in asked.places] if scores else [row["answer"] or ""]
            until = {"until": [], "do_sample": False}
            follows = asked.following(chat=chat) if scores else [until]
            requests = [(text, each) for each in follows]
            said = [[str(each), "False"] for each in shown] if scores else shown
            right = float(row["pred"] == row["label"])
            yield (
                _file(row["model"], probe, row["method"], row["prompt"]),
                {"doc": _document(item), "target": str(row["label"]), **_requests(requests, said),
                 "metrics": ["acc"], "acc": right},
            )  # fmt: skip


def _other_items(out: Store, row: Mapping[str, Any]) -> DataError:
    """Return what is said of an answer to a question that OUT does not ask."""
    return DataError(
        f"the answer of {row['model']!r} to {row['item_id']!r} under the prompt {row['prompt']!r}"
        f" fits no question of items/{row['probe']}.parquet",
        where=out.uri_of("options"),
        cure="run the study again, which answers what is missing",
    )


def _document(item: dict[str, Any]) -> dict[str, Any]:
    groups = ["other"] * len(_PLACES)
    if item["target"] is not None:
        groups[item["target"]] = "stereotyped"
    groups[item["unknown"]] = "unknown"
    options = {f"ans{n}": item["options"][n] for n in _PLACES}
    return {
        "example_id": item["item_id"].removeprefix(f"{item['category']}/"),
        "question_index": item["template_id"],
        "question_polarity": item["polarity"],
        "context_condition": item["context"],
        "category": item["category"],
        "answer_info": {name: [text, groups[n]] for n, (name, text) in enumerate(options.items())},
        "additional_metadata": {"stereotyped_groups": ["stereotyped"]},
        "context": item["text"],
        "question": item["question"],
        **options,
        "label": item["label"],
    }


def _of_pairs(out: Store) -> Iterator[Sample]:
    if not out.exists("pair_scores"):
        return
    scores = read([out.uri_of("pair_scores")], "pairs")["pairs"]
    for probe in scores["probe"].unique(maintain_order=True):
        table = read_checked(out, f"items/{probe}.parquet", schema.PAIRS)
        texts = table.select("pair_id", "style", "sent_more", "sent_less")
        # Scores without their pair in this OUT are dropped.
        joined = scores.filter(probe=probe).join(texts, on=["pair_id", "style"], how="inner")
        for row in joined.iter_rows(named=True):
            likelihoods = [
                _as_log(row["score"], row[name]) for name in ("score_more", "score_less")
            ]
            # A pair that the rule could not score has no responses.
            if None in likelihoods:
                continue
            document = {
                "id": row["pair_id"],
                "sent_more": row["sent_more"],
                "sent_less": row["sent_less"],
                "stereo_antistereo": row["direction"],
                "bias_type": row["bias_type"],
            }
            requests = [("", row["sent_more"]), ("", row["sent_less"])]
            said = [[str(each), "False"] for each in likelihoods]
            yield (
                _file(row["model"], probe, row["score"], row["style"]),
                {"doc": document, "target": "0", **_requests(requests, said),
                 "metrics": ["pct_stereotype"], "pct_stereotype": row["preference"]},
            )  # fmt: skip


def _as_log(score: str, value: float | None) -> float | None:
    """Return a pair's score as lm-eval logs it: of a mean probability, its logarithm."""
    if value is None or score not in _PROBABILITIES:
        return value
    return math.log(max(value, sys.float_info.min))


def _requests(requests: list[tuple[str, Any]], said: list[Any]) -> dict[str, Any]:
    arguments = {
        f"gen_args_{n}": {"arg_0": text, "arg_1": after} for n, (text, after) in enumerate(requests)
    }
    return {"arguments": arguments, "resps": [[each] for each in said], "filtered_resps": said}


def _file(model: str, *task: str) -> str:
    return f"{file_name(model)}/samples_{file_name(*task)}.jsonl"


def file_name(*parts: str) -> str:
    """Join the names that are not empty, without what a file's name may not hold."""
    return "_".join(re.sub(r"[^\w.-]+", "_", each) for each in parts if each)


def summary_tables(
    estimates: pl.DataFrame,
    parts: Sequence[Mapping[str, Any]],
    composition: pl.DataFrame | None,
    judged: Judged,
) -> list[TextTable]:
    """Make the tables of a study's answer.

    `parts` are `estimates.parts_of` its pairs and questions, `composition` is that of its probes,
    and `judged` are the gaps on them.
    """
    shown = [one for part in parts for one in part["tables"]]
    if composition is not None:
        accuracy = accuracies(estimates, chance_of(composition), judged.scope)
        shown += [accuracy, gaps_table(estimates, judged)]
    return shown


def write_latex(out: Store, target: Store) -> list[str]:
    """Write the tables of a study's answer as summary_NUMBER.tex; return the files' names."""
    study = as_reported(out, read_record(out).study)
    estimates = read_estimates(out)
    composition = None
    if study.probes:
        wanted = schema.composition_of(study.labels)
        composition = read_checked(out, "tables/composition.parquet", wanted)
    has_seeds = not study.probes or have_seeds(read_runs(out))
    judged = Judged.of(estimates, study.statistics.scope, has_seeds=has_seeds)
    parts = parts_of(estimates.filter(pl.col("kind") != KIND), level=study.statistics.level)
    written = []
    with wording.describing(study):
        tables = summary_tables(estimates, parts, composition, judged)
    for number, each in enumerate(tables, start=1):
        written.append(f"summary_{number}.tex")
        target.write_text(written[-1], each.latex())
    return written


def write_model_card(
    store: Store,
    study: Study,
    tables: Sequence[TextTable],
    *,
    answer: Sequence[str],
    said: Sequence[str],
) -> None:
    """Write OUT/tables/model_card.md, the answer first."""
    models = ", ".join(backbone.name for backbone in study.backbones)
    card = [
        f"## Bias, Risks, and Limitations: {study.name}\n",
        f"Measured on {models} with raybias, profile {study.profile}.\n",
        *(f"{markdown_text(text)}\n" for text in answer),
    ]
    for each in tables:
        card += [f"### {markdown_text(each.title)}\n", each.markdown()]
    if said:
        listed = [f"- {markdown_text(text)}" for text in said]
        card += ["### Before you rely on it\n", *listed, ""]
    card.append(
        "Small numbers, or no significant ones, do not make a model fair: much that can be unfair"
        " is not measured here."
    )
    store.write_text("tables/model_card.md", "\n".join(card) + "\n")
