"""Whatever a file holds: one line or a result, never a traceback, and never part of an OUT.

`pytest --hypothesis-profile long --hypothesis-show-statistics` tries over ten thousand files and
says how many of each input were taken and refused.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings

from raybias.config import Backbone, QuestionProbe, load_study, parse_study
from raybias.engine.backbone import load_backbone
from raybias.errors import BadInput
from raybias.probes import question_items
from raybias.runtime.serve.app import Serving, app
from raybias.runtime.study import prepare
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import begin
from support import prompting, question_data
from support.answer_data import bbq_file, option_answers, predictions, questions, stereoset
from support.hostile import Files, corrupted, csv_bytes, dumped, parquet_bytes
from support.pages import files_in
from support.pair_data import answers, pair_scores
from support.report_outs import pair_study, write_pair_out
from support.tried import (
    PREDICTIONS,
    STUDY,
    fill,
    small_out,
    taken,
    within_a_minute,
    write_study,
)


class Input(NamedTuple):
    """Whole files, what reads them (words of commands, or functions), which of them to corrupt."""

    files: Callable[[], Files]
    reads: tuple[str | Callable[[], object], ...]
    which: tuple[str, ...] = ("",)
    share: int = 2
    """Of all cases."""


#: Stands for the folder in files that say where they are.
HERE = b"/HERE/IS/THE/FOLDER"


@contextmanager
def folder(files: Files) -> Iterator[Path]:
    with TemporaryDirectory() as name, chdir(name):
        here = str(Path.cwd()).encode()
        yield fill(Path(), {name: data.replace(HERE, here) for name, data in files.items()})


def every_one(reads: tuple[str | Callable[[], object], ...]) -> bool:
    """Whether all took what is in the working folder."""
    took = [
        taken(*read.split(), out=Path("out")) if isinstance(read, str) else called(read)
        for read in reads
    ]
    return all(took)


def called(function: Callable[[], object]) -> bool:
    try:
        with within_a_minute(), redirect_stderr(io.StringIO()):
            function()
    except BadInput:
        return False
    return True


def made(make: Callable[[Path], object]) -> Files:
    """The files that a function writes into a folder."""
    with folder({}) as place:
        make(place)
        here = str(Path.cwd()).encode()
        return {name: data.replace(here, HERE) for name, data in files_in(place).items()}


def in_full(place: Path) -> None:
    """The study with every option as it is by default."""
    write_study(place, **parse_study(STUDY).model_dump(mode="json"))


def of_a_model(place: Path) -> None:
    prompting.save("opt", place / "model")
    methods = [
        {"kind": "soft_prompt", "learning_rates": [0.01], "seeds": [1], "keep": 1},
        *({"kind": "full", "seeds": [1], "keep": 1}, {"kind": "zero_shot"}),
        {"kind": "pair_score", "scores": ["bias_bench"]},
    ]
    backbones = [{"id": "model", "name": "m", "dtype": "float32"}]
    write_study(place, backbones=backbones, methods=methods)


def begun(place: Path) -> None:
    """A study, and its OUT as it is when its runs are tuned."""
    store = Store("out")
    begin(store, prepare(load_study(write_study(place)), store).record)
    run = {"run_id": "r", "model": "m", "method": "lora", "dataset": "mine", "stage": "final",
           "steps": 1, "selected": True}  # fmt: skip
    runs = [{**dict.fromkeys(RUNS.names), **run}]
    store.write_table("runs.parquet", pa.Table.from_pylist(runs, schema=RUNS))


def finished_pairs(place: Path) -> None:
    write_pair_out(place / "out", pair_study())


def log(name: str, least: int) -> Files:
    """The beginning of a log that lm-eval, inspect or HELM wrote."""
    data = gzip.decompress((Path(__file__).parents[1] / "support/foreign" / name).read_bytes())
    if name.endswith(".jsonl.gz"):
        data = b"\n".join(data.splitlines()[:least])
    else:
        tree = json.loads(data)
        kept = {key: tree[key][:least] for key in ("samples", "request_states") if key in tree}
        data = json.dumps(tree | kept).encode()
    asked = "\n".join(map(json.dumps, questions())).encode()
    return {f"m/{name.removesuffix('.gz')}": data, "Age.jsonl": asked}


def winogender() -> Files:
    rows = [f"nurse.owner.0.{each}.txt\tA nurse saw the owner before {word} left."
            for each, word in (("male", "he"), ("female", "she"))]  # fmt: skip
    return {
        "all_sentences.tsv": "\n".join(["sentid\tsentence", *rows]).encode(),
        "occupations-stats.tsv": b"occupation\tbls_pct_female\nnurse\t88\n",
    }


RUN = "run study.yaml --out out"
PLAN = "plan study.yaml --assume cpus=2,memory=8GiB --out out"
#: Files that are measured each by itself.
MEASURED = {
    "x.parquet": parquet_bytes(PREDICTIONS),
    "mine.csv": csv_bytes(
        PREDICTIONS.select("label", "pred", "group", "template_id", "run_id", score=0.5)
    ),
    "regard_m.tsv": "\n".join(
        "\t".join(row.split())
        for row in (
            "y_true y_pred category group text model run_id dataset num_params",
            "0 0 grouped_age a A. m 1 sst5 1",
            "1 1 grouped_age b B. m 1 sst5 1",
            "2 0 grouped_age a C. m 1 sst5 1",
        )
    ).encode(),
    "scores.parquet": parquet_bytes(
        pair_scores(types=("age", "gender"), pairs=3, styles=("original", "prefix_1"))
    ),
    "coreference.csv": csv_bytes(
        answers(pairs=2, styles=("original", "prefix_1"), prompts=("represent",))
    ),
    "options.parquet": parquet_bytes(option_answers(12, 3, 0)),
    "bbq.jsonl": bbq_file(),
    "bbq.jsonl.gz": gzip.compress(bbq_file()),
}
SHEET = b"""\
pair_id,style,label,original_more,sent_more,original_less,sent_less
1,formal,same,a,b,c,d
2,formal,different,b,c,d,e
"""
CARD = {
    **{"kind": "label", "file": "x.csv", "about": "what", "harm": "higher is worse"},
    **{"columns": {"text": "t"}, "values": {"attribute": "age"}, "groups": {"a": "x", "b": "y"}},
    "codes": {"label": {"0": "neutral", "1": "positive"}},
}
#: Published questions: (source, file, what makes it).
QUESTIONS: tuple[tuple[Any, str, Callable[[Path], Path]], ...] = (
    ("bbq", "Age.jsonl", question_data.bbq),
    ("stereoset", "dev.json", question_data.stereoset),
    ("discrim_eval", "explicit.csv", question_data.discrim_eval),
    ("holistic_bias", "sentences.csv", question_data.holistic_bias),
    ("options", "mine.yaml", question_data.card),
)
FOREIGN = {"samples_bbq.jsonl.gz": 4, "samples_crows_pairs_english.jsonl.gz": 6,
           "inspect_bbq.json.gz": 3, "scenario_state.json.gz": 12}  # fmt: skip

INPUTS = {
    "study": Input(lambda: made(write_study), (RUN, PLAN), ("study.yaml",), 8),
    "study in full": Input(lambda: made(in_full), (RUN, PLAN), ("study.yaml",), 8),
    "data of a study": Input(
        lambda: made(write_study), (RUN,), ("mine/", "probe.csv", "pairs.csv"), 6
    ),
    "model": Input(
        lambda: made(of_a_model),
        (RUN, PLAN, lambda: load_backbone(Backbone(id="model", dtype="float32"))), ("model/",), 4,
    ),
    **{
        name: Input(lambda files={name: data}: files, (f"measure {name} --out out",))
        for name, data in MEASURED.items()
    },
    "predictions to plan by": Input(
        lambda: {"x.parquet": MEASURED["x.parquet"]}, ("measure x.parquet --target 0.1",)
    ),
    "triples": Input(
        lambda: {"x.json": json.dumps(predictions(stereoset(3, 2), 0)).encode(),
                 "dev.json": json.dumps(stereoset(3, 2)).encode()},
        ("measure x.json --items dev.json --out out",),
    ),
    **{
        source: Input(
            partial(made, make),
            (lambda source=source, file=file: question_items(
                QuestionProbe(source=source, data=file)),),
        )
        for source, file, make in QUESTIONS
    },
    "winogender": Input(winogender, ("probes write winogender --data . --out out/x.csv",)),
    "card": Input(
        lambda: {"card.yaml": dumped(CARD),
                 "x.csv": b"t,label,group\na b,0,a\na c,1,a\nd b,0,b\nd c,1,b\n"},
        ("probes check card.yaml",), ("",), 4,
    ),
    **{
        name: Input(
            partial(log, name, least),
            (f"measure m/{name.removesuffix('.gz')} --out out"
             + " --items Age.jsonl" * ("crows" not in name),),
            ("m/",), 1,
        )
        for name, least in FOREIGN.items()
    },
    "annotations": Input(
        lambda: {"0.csv": SHEET, "anna.csv": SHEET},
        ("annotate import 0.csv anna.csv --out out",), ("anna",),
    ),
    "OUT": Input(
        lambda: {f"out/{name}": data for name, data in small_out().items()},
        ("measure out", "measure out --target 0.1", "compare out out", "report out",
         lambda: app(Serving(out="out", anyone=True))),
        ("out/",), 1,
    ),
    "OUT of pairs": Input(
        lambda: made(finished_pairs), ("measure out", "report out"), ("out/",), 1
    ),
    "OUT that goes on": Input(lambda: made(begun), (RUN,), ("out/",), 4),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", INPUTS)
def test_a_file_gives_a_result_or_one_line(name: str) -> None:
    """The fuzz begins at input that passes every check."""
    files, reads, which, share = INPUTS[name]
    whole = files()
    with folder(whole):
        assert every_one(reads)

    cases = max(2, settings.default.max_examples * share // 24)  # type: ignore[union-attr]

    @settings(
        max_examples=cases, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(corrupted(whole, which))
    def tried(case: Files) -> None:
        with folder(case):
            event("taken" if every_one(reads) else "refused")

    tried()
