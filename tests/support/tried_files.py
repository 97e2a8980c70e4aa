"""Cases of files of each class, and what commands do: take a file, or refuse it in one line."""

from __future__ import annotations

import gzip
import io
import json
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
import yaml
from hypothesis import strategies as st

import raybias
from raybias.config import Backbone, PairProbe, QuestionProbe
from raybias.engine.backbone import load_backbone
from raybias.errors import BadInput
from raybias.probes import question_items
from raybias.runtime.serve.app import Serving, app
from support import hostile, question_data
from support.answer_data import bbq_line
from support.foreign.make import questions
from support.pair_data import answers, pair_scores
from support.tried import (
    PREDICTIONS,
    STUDY,
    checked,
    fill,
    folder,
    planned,
    taken,
    within_a_minute,
    write_study,
)

TSV = hostile.csv_bytes(
    pl.DataFrame(
        {
            **{"y_true": [0, 1, 2, 2], "y_pred": [0, 1, 0, 2], "category": "grouped_age"},
            **{"group": ["a", "b", "a", "b"], "text": ["A.", "B.", "C.", "D."], "model": "m"},
            **{"run_id": 1, "dataset": "sst5", "num_params": 1},
        }
    ),
    separator="\t",
)
SCORES = pair_scores(types=("age", "gender"), pairs=3, styles=("original", "prefix_1"))
ANSWERS = answers(pairs=2, styles=("original", "prefix_1"), prompts=("represent",))
SHEET = pl.DataFrame(
    {
        **{"pair_id": ["1", "2"], "style": ["formal", "formal"], "label": ["same", "different"]},
        **{name: ["a", "b"] for name in ("original_more", "sent_more")},
        **{name: ["c", "d"] for name in ("original_less", "sent_less")},
    }
)

#: The name and content of a file.
File = tuple[str, bytes]


def of_files(files: dict[str, bytes], *words: str) -> bool:
    """Run a command in a folder of files, where OUT is `out`."""
    with folder() as place, pytest.MonkeyPatch.context() as patch:
        fill(place, files)
        patch.chdir(place)
        return taken(*words, out=place / "out")


def study_file(data: bytes) -> bool:
    with folder() as place:
        study = write_study(place, data)
        return checked(study) and planned(study)


def training_file(file: File) -> bool:
    name, data = file
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        (place / "mine" / "train.csv").unlink()
        (place / "mine" / f"train.{name.partition('.')[2]}").write_bytes(data)
        return checked(study)


def probe_file(file: File) -> bool:
    return of_files(dict([file]), "probes", "write", f"./{file[0]}", "--out", "out/x.parquet")


def pair_file(file: File) -> bool:
    styles = ("--style", "original", "--style", "prefix_1", "--out", "out/x.csv")
    return of_files(dict([file]), "probes", "write", "pairs", "--data", file[0], *styles)


def measured_file(file: File) -> bool:
    return of_files(dict([file]), "measure", file[0], "--out", "out")


def prediction_file(file: File) -> bool:
    of_files(dict([file]), "measure", file[0], "--target", "0.1")
    return measured_file(file)


def triple_files(files: tuple[bytes, bytes]) -> bool:
    named = dict(zip(("x.json", "dev.json"), files, strict=True))
    return of_files(named, "measure", "x.json", "--items", "dev.json", "--out", "out")


def annotated(case: tuple[str, File]) -> bool:
    """Sheets of annotators whose names are those of columns."""
    annotator, (name, data) = case
    own = f"{annotator}.{name.partition('.')[2]}"
    files = {"sheets/0.csv": hostile.csv_bytes(SHEET), own: data}
    return of_files(files, "annotate", "import", "sheets/0.csv", own, "--out", "out")


def checked_card(case: tuple[bytes, str, bytes]) -> bool:
    card, name, data = case
    return of_files({name: data, "card.yaml": card}, "probes", "check", "card.yaml")


def read_log(file: File) -> bool:
    name, data = file
    asked = "\n".join(map(json.dumps, questions())).encode()
    more = () if name == "pairs.jsonl" else ("--items", "Age.jsonl")
    files = {f"m/{name}": data, "Age.jsonl": asked}
    return of_files(files, "measure", f"m/{name}", *more, "--out", "out")


def read_questions(case: tuple[str, str, bytes]) -> bool:
    source, name, data = case
    with folder() as place, within_a_minute():
        (place / name).write_bytes(data)
        (place / "occupations-stats.tsv").write_text("occupation\tbls_pct_female\nnurse\t88\n")
        try:
            if source == "winogender":
                raybias.pair_items(PairProbe(source=source, data=str(place)))
            else:
                question_items(QuestionProbe(source=source, data=str(place / name)))
            return True
        except BadInput as error:
            said = str(error)
    assert not re.search(r"[\n\r]", said), said
    return False


def model(files: dict[str, bytes | None]) -> bool:
    """Plan and check a study of the model, and load it as a worker does."""
    with folder() as place:
        fill(place / "model", files)
        backbone = {"id": "model", "name": "m", "dtype": "float32"}
        methods = [
            {"kind": "soft_prompt", "learning_rates": [0.01], "seeds": [1], "keep": 1},
            {"kind": "full", "seeds": [1], "keep": 1},
            {"kind": "zero_shot"},
            {"kind": "pair_score", "scores": ["bias_bench"]},
        ]
        tree = {**STUDY, "backbones": [backbone], "methods": methods}
        study = write_study(place, hostile.dumped(tree))
        ready = checked(study) & planned(study)
        with within_a_minute(), redirect_stderr(io.StringIO()):
            try:
                load_backbone(Backbone(id=str(place / "model"), dtype="float32"))
            except BadInput:
                return False
        return ready


def damaged_out(files: dict[str, bytes | None]) -> bool:
    """What a finished OUT is asked for; of a study that can be run again."""
    with folder() as place:
        out = fill(place / "out", files)
        for options in ((), ("--target", "0.1")):
            taken("measure", str(out), *options, out=out)
        taken("compare", str(out), str(out), out=out)
        served(out)
        return taken("report", str(out), out=out)


def damaged_pair_out(files: dict[str, bytes | None]) -> bool:
    with folder() as place:
        out = fill(place / "out", files)
        taken("measure", str(out), out=out)
        return taken("report", str(out), out=out)


def served(out: Path) -> bool:
    """What `raybias serve` reads before it starts."""
    try:
        with within_a_minute(), redirect_stderr(io.StringIO()):
            app(Serving(out=str(out), anyone=True))
    except BadInput:
        return False
    return True


def run_again(files: dict[str, bytes | None]) -> bool:
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        here = str(place.resolve()).encode()
        fill(
            place / "out",
            {n: d and d.replace(b"/HERE/IS/THE/STUDY", here) for n, d in files.items()},
        )
        return checked(study)


def contradictory(what: str) -> bool:
    """Runs that do not hold the same items, or not as the same, are refused."""
    runs = PREDICTIONS.partition_by("run_id", maintain_order=True)
    both = (runs[0], hostile.CONTRADICTIONS[what](runs[1]))
    files = {f"p/{n}.parquet": hostile.parquet_bytes(run) for n, run in enumerate(both)}
    for command in (("measure",), ("measure", "--target", "0.1"), ("compare", "p")):
        assert not of_files(files, *command, "p"), f"{what} was taken by {command[0]}"
    return False


def contradictory_scores(row: int) -> bool:
    """A preference for the side that scores lower."""
    turned = pl.when(pl.int_range(pl.len()) == row).then(1 - pl.col("preference"))
    table = SCORES.with_columns(preference=turned.otherwise("preference"))
    return of_files({"x.csv": hostile.csv_bytes(table)}, "measure", "x.csv")


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
