"""Cards, question files and logs of other harnesses as fuzz cases."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml
from hypothesis import strategies as st

from support import hostile, question_data
from support.answer_data import bbq_line
from support.tried import folder

_SAID: Final = {"about": "what", "harm": "higher is worse"}
_TEXTS: Final = ["a b", "a c", "d b", "d c"]
#: A whole card of each kind, and its rows.
CARDS: Final[dict[str, tuple[dict[str, Any], pl.DataFrame]]] = {
    "label": (
        {"columns": {"text": "t"}, "values": {"attribute": "age"}, "groups": {"a": "x", "b": "y"},
         "codes": {"label": {"0": "neutral", "1": "positive"}}},
        pl.DataFrame({"t": _TEXTS, "label": ["0", "1"] * 2, "group": ["a", "a", "b", "b"]}),
    ),
    "pair": (
        {"columns": {"cluster": "by"}, "values": {"bias_type": "age"}},
        pl.DataFrame({"sent_more": _TEXTS, "sent_less": _TEXTS[::-1], "by": ["p", "p", "q", "q"]}),
    ),
    "triple": (
        {"values": {"domain": "age", "term": "old"}},
        pl.DataFrame(
            {"stereotype": _TEXTS, "anti_stereotype": _TEXTS[::-1], "unrelated": ["e"] * 4}
        ),
    ),
    "options": (
        {"parts": {"id": "(?P<template_id>[a-z]+)-(?P<item_id>[0-9]+)-(?P<context>[a-z]+)"},
         "columns": {"options": "choices", "follows": "biased"}, "values": {"category": "age",
         "unknown": "2"}, "codes": {"polarity": {"bad": "neg", "good": "nonneg"}}},
        pl.DataFrame(
            {"id": [f"t-{n}-{'dis' * (n % 2) + 'ambig'}" for n in range(4)],
             "polarity": ["bad", "bad", "good", "good"], "text": _TEXTS, "question": ["who?"] * 4,
             "choices": [str(["Ann", "Bo", "no"])] * 4, "label": ["no", "Ann"] * 2,
             "biased": ["Ann", "Ann", "Bo", "Bo"]}
        ),
    ),
    "decision": (
        {"people": ["age"], "reference": {"age": "60"}},
        pl.DataFrame(
            {"decision_id": ["1", "1", "2", "2"], "text": _TEXTS, "age": ["20", "60"] * 2}
        ),
    ),
}  # fmt: skip
#: A card, and the file that it is about.
CardCase = tuple[bytes, str, bytes]
_FOREIGN: Final = Path(__file__).parent / "foreign"


def card_cases(kind: str) -> st.SearchStrategy[CardCase]:
    """A hostile card of whole rows, or a whole card of hostile rows."""
    fields, rows = CARDS[kind]
    tree = {"kind": kind, "file": "x.csv", **_SAID, **fields}
    cards = st.one_of(
        hostile.yaml_files(tree),
        hostile.json_files(json.dumps(tree).encode()),
        hostile.damaged(yaml.safe_dump(tree).encode()),
    )
    files = hostile.table_files(rows)
    return st.one_of(
        cards.map(lambda card: (card, "x.csv", hostile.csv_bytes(rows))),
        files.map(lambda file: (hostile.dumped({**tree, "file": file[0]}), *file)),
    )


@st.composite
def changed_lines(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """Lines of JSON, one of which is changed."""
    number = draw(st.integers(0, len(lines) - 1))
    changed = draw(hostile.json_files(lines[number])).replace(b"\n", b" ")
    return b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


def _packed(name: str) -> bytes:
    return gzip.decompress((_FOREIGN / name).read_bytes())


def _small_log() -> bytes:
    log = json.loads(_packed("inspect_bbq.json.gz"))
    return json.dumps({**log, "samples": log["samples"][:3]}).encode()


def _small_state() -> bytes:
    state = json.loads(_packed("scenario_state.json.gz"))
    return json.dumps({**state, "request_states": state["request_states"][:4]}).encode()


def log_cases() -> st.SearchStrategy[tuple[str, bytes]]:
    """A log that lm-eval, inspect or HELM wrote, changed."""
    samples = _packed("samples_bbq.jsonl.gz").splitlines()[:4]
    pairs = _packed("samples_crows_pairs_english.jsonl.gz").splitlines()
    return st.one_of(
        changed_lines(pairs).map(lambda data: ("pairs.jsonl", data)),
        changed_lines(samples).map(lambda data: ("samples.jsonl", data)),
        hostile.damaged(b"\n".join(samples)).map(lambda data: ("samples.jsonl", data)),
        hostile.json_files(_small_log()).map(lambda data: ("log.json", data)),
        hostile.json_files(_small_state()).map(lambda data: ("scenario_state.json", data)),
    )


def question_cases() -> st.SearchStrategy[tuple[str, str, bytes]]:
    """A published file of a probe, changed: its source, its name and its content."""
    lines = [json.dumps(bbq_line(n, context="c", question="q")).encode() for n in range(4)]
    with folder() as place:
        triples = question_data.stereoset(place).read_bytes()
        decisions = pl.read_csv(question_data.discrim_eval(place), infer_schema=False).head(4)
        sentences = pl.read_csv(question_data.holistic_bias(place), infer_schema=False).head(4)
    pronouns = pl.DataFrame(
        {"sentid": [f"nurse.owner.0.{each}.txt" for each in ("male", "female")],
         "sentence": [f"A nurse saw the owner before {each} left." for each in ("he", "she")]}
    )  # fmt: skip
    return st.one_of(
        (changed_lines(lines) | hostile.damaged(b"\n".join(lines))).map(
            lambda data: ("bbq", "Age.jsonl", data)
        ),
        (hostile.json_files(triples) | hostile.damaged(triples)).map(
            lambda data: ("stereoset", "dev.json", data)
        ),
        hostile.table_files(decisions).map(lambda file: ("discrim_eval", *file)),
        hostile.table_files(sentences).map(lambda file: ("holistic_bias", *file)),
        hostile.damaged(hostile.csv_bytes(pronouns, separator="\t")).map(
            lambda data: ("winogender", "all_sentences.tsv", data)
        ),
    )
