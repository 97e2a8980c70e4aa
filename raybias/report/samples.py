"""Write an OUT's answers as lm-evaluation-harness logs samples (`--log_samples`).

A file holds one task of one model, `MODEL/samples_TASK.jsonl`, a JSON object a line: the document,
what it was asked with, and the responses. Tasks are BBQ-shaped questions with options, and pairs as
of CrowS-Pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from raybias.errors import DataError
from raybias.measures import read
from raybias.methods.options import AskingOptions
from raybias.storage import Store
from raybias.study_record import read_record

#: Of a line; raised where a key changes its meaning.
SCHEMA_VERSION: Final = 1
#: The options of BBQ's questions.
_PLACES: Final = range(3)
#: File, and a line of it.
Sample = tuple[str, dict[str, Any]]


def write_samples(out: Store, target: Store) -> list[str]:
    """Write the samples of every model and task; return the files.

    Raises
    ------
    DataError: OUT has neither answers to questions with three options nor scores of pairs.
    """
    lines: dict[str, list[str]] = {}
    for file, sample in [*_of_options(out), *_of_pairs(out)]:
        known = lines.setdefault(file, [])
        whole = {"doc_id": len(known), **sample, "filter": "none", "schema_version": SCHEMA_VERSION}
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
        items = {row["item_id"]: row for row in _items(out, probe).iter_rows(named=True)}
        for row in answers.filter(probe=probe).iter_rows(named=True):
            item, method = items[row["item_id"]], methods.get((row["model"], row["method"]))
            if len(item["options"]) != len(_PLACES) or not isinstance(method, AskingOptions):
                continue
            chat = method.prompt_format == "chat"
            prompts = method.requests(item, chat=chat)
            (asked,) = (each for each in prompts if each.prompt == row["prompt"])
            text = f"{asked.text}\n{asked.cue}".rstrip() if chat else asked.text + asked.cue
            scores = row["scores"]
            shown = [scores[place] for place in asked.places] if scores else [row["answer"]]
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


def _document(item: dict[str, Any]) -> dict[str, Any]:
    """Write a question as BBQ does; its groups are those that answers are judged by."""
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
    folder = "pair_scores"
    if not out.exists(folder):
        return
    scores = read([out.uri_of(folder)], "pairs")["pairs"]
    for probe in scores["probe"].unique(maintain_order=True):
        texts = _items(out, probe).select("pair_id", "style", "sent_more", "sent_less")
        # Pairs that are not there would be of another OUT.
        joined = scores.filter(probe=probe).join(texts, on=["pair_id", "style"], how="inner")
        for row in joined.iter_rows(named=True):
            document = {
                "id": row["pair_id"],
                "sent_more": row["sent_more"],
                "sent_less": row["sent_less"],
                "stereo_antistereo": row["direction"],
                "bias_type": row["bias_type"],
            }
            requests = [("", row["sent_more"]), ("", row["sent_less"])]
            said = [[str(row[name]), "False"] for name in ("score_more", "score_less")]
            yield (
                _file(row["model"], probe, row["score"], row["style"]),
                {"doc": document, "target": "0", **_requests(requests, said),
                 "metrics": ["pct_stereotype"], "pct_stereotype": row["preference"]},
            )  # fmt: skip


def _requests(requests: list[tuple[str, Any]], said: list[Any]) -> dict[str, Any]:
    """Return what was asked and responded, as lm-eval keys them."""
    arguments = {
        f"gen_args_{n}": {"arg_0": text, "arg_1": after} for n, (text, after) in enumerate(requests)
    }
    return {"arguments": arguments, "resps": [[each] for each in said], "filtered_resps": said}


def _items(out: Store, probe: str) -> pl.DataFrame:
    return pl.DataFrame(out.read_table(f"items/{probe}.parquet"))


def _file(model: str, *task: str) -> str:
    folder, *names = (re.sub(r"[^\w.-]+", "_", each) for each in (model, *task) if each)
    return f"{folder}/samples_{'_'.join(names)}.jsonl"
