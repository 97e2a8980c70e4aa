"""Small ragged tables of every kind through `measure`, `report` and `compare`.

Values equal plain arithmetic (`support.plain`) and lie within their intervals, whatever a table
lacks; what is refused is refused in one line, and leaves nothing.
`pytest --hypothesis-profile long` tries hundreds of tables of each kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import raybias
from raybias.stats.checks import StatisticsWarning
from support import plain, ragged
from support.commands import refused
from support.pages import Page
from support.ragged import SHAPES, Shape
from support.tried import printed, taken

#: An eighth of the examples of a profile for each kind and command. A table takes a second, so that
#: a failing one is shown as it is found, not as small as can be.
RAGGED = settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=max(3, settings().max_examples // 8),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
#: By kind, the least and the greatest of a statistic and its interval, if it has bounds.
BOUNDS = {
    ("predictions", "rate"): (0, 1),
    ("predictions", "gap"): (-1, 1),
    ("predictions", "difference"): (-1, 1),
    ("pairs", "rate"): (0, 100),
    ("pairs", "difference"): (-100, 100),
    ("coreference", "rate"): (0, 100),
    ("coreference", "difference"): (-100, 100),
    ("options", "rate"): (0, 1),
    ("options", "score"): (-1, 1),
    ("triples", "score"): (0, 100),
    ("sentences", "score"): (0, 1),
}
#: What `measure` calls what a table of predictions does not name; its model is the file's name.
UNNAMED = {"model": "table", "attribute": "group", "style": "original", "method": ""}
#: Of success, and of gates that do not pass.
CODES = (0, 3, 4, 5)
#: The models that are compared, of a table with several or with none that is named.
FIRST = ("m0", "m1", "table")
POLICY = "policy.yaml"
#: What a page must not show.
NO_NUMBERS = {"nan", "NaN", "None", "inf", "-inf"}
OPTIONS = {
    "predictions": [[], [], ["--scope", "runs"], ["--metric", "all"], ["--margin", "0.02"],
                    ["--background", "pooled"], ["--interval", "bootstrap"]],
}  # fmt: skip


def rows_of(*words: object, out: Path) -> list[dict[str, Any]] | None:
    """The rows that a command prints as JSON; None if it refuses, in one line."""
    shown = printed(*words, "--json", "--out", out, out=out, codes=CODES)
    if shown is None:
        return None
    return [json.loads(line, parse_constant=pytest.fail) for line in shown.splitlines()]


def check_row(kind: str, row: dict[str, Any]) -> None:
    """An interval has two ends, holds its value, and stays within the bounds of the quantity."""
    value, low, high = row["value"], row["low"], row["high"]
    assert (low is None) == (high is None), row
    assert low is None or value is not None, row
    least, most = BOUNDS.get((kind, row["statistic"]), (-math.inf, math.inf))
    if low is not None:
        assert low - 1e-9 <= value <= high + 1e-9, row
    # Ends of gaps of words, and of other differences, are not cut at what these can be.
    whole = kind != "predictions" or row["statistic"] == "rate" or not row["condition"]
    for number in (value, low, high) if whole else (value,):
        assert number is None or least - 1e-9 <= number <= most + 1e-9, row
    for name in ("p", "q"):
        assert row[name] is None or 0 <= row[name] <= 1, row


def text_of_pages(out: Path) -> str:
    """What the pages of a folder say, which shows nothing that is no number."""
    shown = " ".join(Page(path.read_text("utf-8")).text for path in out.rglob("*.html"))
    assert NO_NUMBERS.isdisjoint(shown.split())
    return shown


def with_names(table: pl.DataFrame) -> pl.DataFrame:
    """A table with what `measure` calls what it does not name."""
    lacking = {name: pl.lit(value) for name, value in UNNAMED.items() if name not in table.columns}
    return table.with_columns(**lacking)


def check_values(values: plain.Values, rows: list[dict[str, Any]]) -> None:
    """Every score that plain arithmetic gives has a row, and each row of it has this value."""
    found: dict[plain.Key, list[float | None]] = {}
    for row in rows:
        place = {name: row[name] for name in plain.NAMES}
        key = plain.key(row["model"], row["score"], row["statistic"], **place)
        found.setdefault(key, []).append(row["value"])
    for key, value in values:
        known = found.get(key, [None])
        expected = None if value is None else pytest.approx(value, abs=1e-9)
        assert known == [expected] * len(known), key


@pytest.mark.parametrize("kind", ragged.MAKERS)
@RAGGED
@given(SHAPES, st.sampled_from([[], ["--profile", "paper"]]), st.data())
def test_values_are_plain_arithmetic_within_their_intervals(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    shape: Shape,
    profile: list[str],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("ragged")
    table = ragged.MAKERS[kind](shape)
    path, out = ragged.write(table, folder / "table"), folder / "out"
    options = data.draw(st.sampled_from(OPTIONS.get(kind, [[]])))
    positive = {}
    if kind == "predictions" and (shape.form, shape.classes) == ("words", 2):
        positive = {"positive": "class 1"}
        options = [*options, "--positive", "class 1"]
    rows = rows_of("measure", path, *profile, *options, out=out)
    if rows is None:
        return
    for row in rows:
        check_row(kind, row)
    shown = text_of_pages(out)
    rates = [row for row in rows if kind == "predictions" and row["statistic"] == "rate"]
    lacking = [row for row in rates if row["value"] is None and row["score"] != "unread"]
    assert {row["reason"] for row in lacking} <= {"no rows"}
    assert not lacking or "no rows" in shown
    if rows and ("--positive" in options or not options):
        filled = {
            name: pl.lit(value) for name, value in UNNAMED.items() if name not in table.columns
        }
        check_values(plain.VALUES[kind](table.with_columns(**filled), **positive), rows)
    # A folder of `measure` is no study, and is left as it was.
    assert not taken("report", out, out=out)


def arms(kind: str, shape: Shape, folder: Path) -> Iterator[object]:
    """Two models of a table; of one model, two tables of the same items."""
    table = ragged.MAKERS[kind](shape)
    path = ragged.write(table, folder / "base")
    yield path
    if shape.models > 1:
        yield from (path, "--base", "model=m0", "--candidate", "model=m1")
    else:
        other = ragged.MAKERS[kind](replace(shape, answers=1))
        yield ragged.write(other, folder / "candidate")


@pytest.mark.parametrize("kind", ragged.MAKERS)
@RAGGED
@given(SHAPES, st.sampled_from([[], ["--gate", "margin=0.05"], ["--policy", POLICY]]))
def test_changes_are_the_candidate_less_the_base(
    kind: str, tmp_path_factory: pytest.TempPathFactory, shape: Shape, judged: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("compared")
    out = folder / "out"
    (folder / POLICY).write_text("margin: 0.02\nrules: [{name: any, tier: critical}]\n")
    judged = [str(folder / word) if word == POLICY else word for word in judged]
    rows = rows_of("compare", *arms(kind, shape, folder), *judged, out=out)
    for row in rows or []:
        change, low, high = row["change"], row["low"], row["high"]
        assert (low is None) == (high is None), row
        assert low is None or low - 1e-9 <= change <= high + 1e-9, row
        known = None not in (row["base"], row["candidate"])
        assert (change is not None) == known, row
        assert not known or change == pytest.approx(row["candidate"] - row["base"], abs=1e-9), row
        # Scores that do not measure bias, such as accuracy, have no verdict.
        assert row["verdict"] or kind in ("options", "triples"), row
    shown = text_of_pages(out)
    if kind == "predictions" and rows is not None:
        table = with_names(ragged.predictions(shape)).filter(pl.col("model").is_in(FIRST))
        lacking = [key for key, value in plain.predictions(table) if value is None]
        assert not lacking or "No rows" in shown, lacking


def coreference_of_one_side() -> pl.DataFrame:
    """Answers of two models to pro sentences alone, of which no pair is whole."""
    table = ragged.coreference(Shape(models=2, right=0.5))
    return table.filter(condition="pro")


def test_answers_of_which_no_pair_is_whole_are_said_to_have_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ragged.write(coreference_of_one_side(), tmp_path / "table")
    with pytest.warns(StatisticsWarning, match="no rows that can be compared"):
        raybias.measure(path, kind="coreference")
    words = ["compare", path, path, "--base", "model=m0", "--candidate", "model=m1"]
    line = refused(capsys, *words, "--out", tmp_path / "out")
    assert "has no scores of pairs that can be compared" in line


@pytest.mark.filterwarnings("ignore:the models did not read the same sentences")
@pytest.mark.parametrize("unit", ["", "person"])
def test_models_may_lack_items_where_no_templates_are_known(
    unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of items or clusters are numbered within a model, and are no fact of an item."""
    table = ragged.predictions(Shape(models=2)).with_columns(person=pl.col("item_id"))
    table = table.filter((pl.col("model") == "m0") | (pl.col("item_id") != "i1"))
    for model in ("m0", "m1"):
        ragged.write(table.filter(model=model), tmp_path / model)
    whole = raybias.measure(table, cluster=unit)
    apart = raybias.measure([tmp_path / "m0.csv", tmp_path / "m1.csv"], cluster=unit)
    assert {*whole["model"]} >= {"m0", "m1"}
    assert whole.equals(apart)
    line = refused(capsys, "compare", tmp_path / "m0.csv", tmp_path / "m1.csv")
    assert "the runs of m0 -> m1 do not hold the same items" in line


def test_a_share_of_extremes_lies_in_its_interval() -> None:
    """Also that of groups which are an end together, each of which counts as one when redrawn."""
    rates = {"a": (1, 1), "b": (1, 1), "c": (0, 1), "d": (0, 0)}
    rows = [
        {"model": model, "group": group, "label": n % 2, "pred": pred, "template_id": f"t{n}"}
        for model in ("m0", "m1")
        for group, found in rates.items()
        for n, pred in enumerate(found * 2)
    ]
    found = raybias.measure(pl.DataFrame(rows)).filter(score="selection_rate_extreme")
    numbers = {row[0]: row[1:] for row in found.select("group", "value", "low", "high").rows()}
    assert numbers["a"] == numbers["b"] == (0.5, 0.5, 1.0)
    for value, low, high in numbers.values():
        assert low <= value <= high
