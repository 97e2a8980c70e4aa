"""What commands do with a file of each class: whether they take it; they refuse it in one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path

import polars as pl

from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.errors import BadInput
from raybias.runtime.serve.app import Serving, app
from support import hostile, inputs
from support.pair_data import answers, pair_scores
from support.report_outs import GROUPS
from support.tried import (
    PREDICTIONS,
    STUDY,
    checked,
    fill,
    folder,
    planned,
    small_out,
    taken,
    within_a_minute,
    write_study,
)

TSV = inputs.csv_bytes(
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
CORPUS = pl.DataFrame(
    [("origin", group, group, "man", 3, 50) for group in GROUPS[:3]],
    schema=["attribute", "group", "term", "noun", "marked", "bare"],
    orient="row",
)


def study_file(data: bytes) -> bool:
    with folder() as place:
        study = write_study(place, data)
        return checked(study) and planned(study)


def training_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        (place / "mine" / "train.csv").unlink()
        (place / "mine" / f"train.{name.partition('.')[2]}").write_bytes(data)
        return checked(study)


def probe_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        return taken("probes", "write", str(place / name), "--out", f"{out}/x.parquet", out=out)


def pair_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        styles = ("--style", "original", "--style", "prefix_1")
        source = ("probes", "write", "pairs", "--data", str(place / name))
        return taken(*source, *styles, "--out", f"{out}/x.csv", out=out)


def prediction_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        taken("measure", str(place / name), "--target", "0.1")
        return taken("measure", str(place / name), "--out", str(out), out=out)


def measured_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        return taken("measure", str(place / name), "--out", str(out), out=out)


def triple_files(files: tuple[bytes, bytes]) -> bool:
    with folder() as place:
        for name, data in zip(("x.json", "dev.json"), files, strict=True):
            (place / name).write_bytes(data)
        out, words = place / "out", (str(place / "x.json"), "--items", str(place / "dev.json"))
        return taken("measure", *words, "--out", str(out), out=out)


def annotated(files: tuple[str, tuple[str, bytes]]) -> bool:
    """Sheets of annotators whose names are those of columns."""
    annotator, (name, data) = files
    with folder() as place:
        sheet = place / "sheet.csv"
        sheet.write_bytes(inputs.csv_bytes(SHEET))
        file = place / f"{annotator}.{name.partition('.')[2]}"
        file.write_bytes(data)
        out = place / "out"
        return taken("annotate", "import", str(sheet), str(file), "--out", str(out), out=out)


def corpus_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        out = fill(place / "out", small_out())
        (place / name).write_bytes(data)
        return taken("report", str(out), "--corpus", str(place / name), out=out)


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
        for command in ("measure", "design"):
            taken(command, str(out), out=out)
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
    with folder() as place:
        for number, run in enumerate([runs[0], hostile.CONTRADICTIONS[what](runs[1])]):
            (place / f"{number}.parquet").write_bytes(inputs.parquet_bytes(run))
        for command in (("measure",), ("measure", "--target", "0.1"), ("compare", str(place))):
            assert not taken(*command, str(place)), f"{what} was taken by {command[0]}"
    return False


def contradictory_scores(row: int) -> bool:
    """A preference for the side that scores lower."""
    turned = pl.when(pl.int_range(pl.len()) == row).then(1 - pl.col("preference"))
    table = SCORES.with_columns(preference=turned.otherwise("preference"))
    with folder() as place:
        (place / "x.csv").write_bytes(inputs.csv_bytes(table))
        return taken("measure", str(place / "x.csv"))
