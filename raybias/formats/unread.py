"""Say what a file is that holds no answers raybias reads, and what to give instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raybias.formats import first_keys, keys_of

_TABLE: Final = (
    "write a CSV with the columns label, group and pred, a row per answer, then "
    "`raybias measure FILE.csv`"
)
_SAMPLES: Final = (
    "give samples_TASK.jsonl of `--log_samples`, of a task of BBQ or CrowS-Pairs, in its folder"
)
#: Keys of a JSON object, or of the first of JSON Lines; what has them, and what to give instead.
_FORMATS: Final = (
    (("results", "higher_is_better"), "lm-eval's results", _SAMPLES),
    (("doc", "filtered_resps"), "lm-eval's samples of another task", _SAMPLES),
    (
        ("eval", "status"),
        "inspect's log of another task, or without samples",
        "give a log of inspect_evals/bbq that has its samples",
    ),
    (
        ("adapter_spec", "scenario_spec"),
        "HELM's description of a run",
        "give scenario_state.json beside it, with BBQ's questions as --items",
    ),
    (("evalId", "results"), "promptfoo's results", _TABLE),
    (("promptIdx", "testIdx"), "promptfoo's results", _TABLE),
    (("testCases", "metricsScores"), "deepeval's test run", _TABLE),
    (("test_results",), "deepeval's results", _TABLE),
    (
        ("custom_id", "response"),
        "OpenAI's batch output",
        f"join it by custom_id with the label and group of each prompt: {_TABLE}",
    ),
    (
        ("custom_id", "body"),
        "OpenAI's batch input, without answers",
        "give the answers, joined by custom_id with the label and group of each prompt",
    ),
    (
        ("version", "data"),
        "StereoSet's items, without scores",
        "give predictions_MODEL.json, with this file as --items",
    ),
)
#: Files that a message names.
_NAMED: Final = 5
_UNKNOWN: Final = "holds no answers in a format that is known"
_CURE: Final = "give it as its authors published it, or a Parquet or CSV file of answers"


@dataclass(frozen=True)
class Unread:
    """A file whose answers are not read: what it is (empty if unknown), the problem, the cure."""

    what: str
    problem: str
    cure: str


def describe_unread(data: bytes, name: str) -> Unread:
    """Recognise a file of another format by the keys of its JSON, or by its name.

    data: content of the file, unpacked; empty if its name alone says that it is not read.
    name: the file's name.
    """
    if name.endswith(".eval"):
        keys = frozenset(("eval", "status"))
    else:
        keys = first_keys(data) or keys_of(data) or frozenset()
    for marks, what, cure in _FORMATS:
        if keys.issuperset(marks):
            return Unread(what, f"is {what}, which holds no answers that are read", cure)
    return Unread("", _UNKNOWN, _CURE)


def list_unread(unread: Mapping[str, Unread]) -> str:
    """List the first names of files, each with what it is."""
    names = [f"{name} ({file.what})" if file.what else name for name, file in unread.items()]
    more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
