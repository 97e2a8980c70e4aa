"""Tables with more than two classes: each class on its own, and summed up over classes."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from scipy.stats import false_discovery_control
from sklearn.metrics import recall_score

import raybias
from raybias.config.study import Interval
from raybias.errors import ConfigError, DataError
from raybias.schema import PREDICTIONS
from raybias.stats.checks import StatisticsWarning
from raybias.stats.classes import labels_metadata
from support.commands import exit_code
from support.stats_data import predictions

JUDGED = ("value", "low", "high", "p", "mde", "n", "units", "reason", "significant")
#: Share of women in each of 28 occupations, and by how much the recall of women is higher.
SHARES = np.linspace(0.09, 0.93, 28)
PLANTED = np.round(0.5 * (SHARES - 0.5) + 0.06 * np.sin(7 * np.arange(28)), 2)


def measured(table: Any, **options: Any) -> pl.DataFrame:
    """The estimates of a table, without warnings of rates that are not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        return raybias.measure(table, **options)


def biographies(answers: int = 1_000) -> pl.DataFrame:
    """As many biographies of each gender and occupation as shares say, with planted recalls."""
    rows = []
    for job, (share, gap) in enumerate(zip(SHARES, PLANTED, strict=True)):
        for gender, part, sign in (("women", share, 0.5), ("men", 1 - share, -0.5)):
            n = round(answers * part)
            right = round(n * (0.75 + sign * gap))
            called = [job] * right + [(job + 1 + k) % 28 for k in range(n - right)]
            rows += [(f"job {job:02d}", f"job {other:02d}", gender) for other in called]
    return pl.DataFrame(rows, ["label", "pred", "gender"], orient="row")


def test_recalls_of_28_occupations_are_scikit_learns() -> None:
    table = biographies()
    found = measured(table, by="gender")
    jobs = sorted(table["label"].unique())
    recall = {}
    for gender, part in (
        ("men", table.filter(gender="men")),
        ("women", table.filter(gender="women")),
    ):
        recall[gender] = recall_score(part["label"], part["pred"], labels=jobs, average=None)
        rates = found.filter(score="tpr", statistic="rate", group=gender)
        assert rates["condition"].to_list() == [f"class {job}" for job in jobs]
        assert rates["value"].to_numpy() == pytest.approx(recall[gender])
    apart = recall["women"] - recall["men"]
    gaps = found.filter(score="tpr", statistic="gap", group="women")
    assert gaps["value"].to_numpy() == pytest.approx(apart / 2)
    whole = {row["score"]: row for row in found.filter(group="all").iter_rows(named=True)}
    root = math.sqrt((apart**2).mean())
    assert whole["rms_tpr_gap"]["value"] == pytest.approx(root)
    assert whole["range_tpr_gap"]["value"] == pytest.approx(np.ptp(apart))
    for name in ("rms_tpr_gap", "range_tpr_gap"):
        row = whole[name]
        assert row["condition"] == "over 28 classes"
        assert row["low"] < whole[f"{name}_less_noise"]["value"] < row["value"] < row["high"]
        assert row["scope"] == "items"
    # What De-Arteaga and others found: women are missed where they are few.
    assert np.corrcoef(apart, SHARES)[0, 1] > 0.9
    assert apart == pytest.approx(PLANTED, abs=0.06)
    tested = gaps.filter(pl.col("survives"))
    assert {*np.sign(tested["value"])} == {-1.0, 1.0}


def test_tests_of_one_rate_are_corrected_over_all_classes_and_groups() -> None:
    found = measured(biographies(60), by="gender").filter(statistic="gap")
    for score in ("tpr", "fpr", "error_share", "accuracy"):
        part = found.filter(pl.col("q").is_not_null(), score=score)
        assert part.height == (2 if score == "accuracy" else 56)
        assert part["q"].to_numpy() == pytest.approx(false_discovery_control(part["p"]))
        survives = part["significant"] & (part["q"] <= 0.05)
        assert part["survives"].equals(survives.alias("survives"))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The names of 3 to 6 classes, and the group, label and prediction of some people."""
    number = draw(st.integers(3, 6))
    words = ["nurse", "Dr. of law", "poet, dead", "ß", "class", "by x"]
    codes = draw(st.sampled_from([words, ["3", "4", "7", "10", "11", "20"], list("012345")]))
    names = codes[:number]
    group = st.sampled_from(["a", "b", "c"])
    one = st.tuples(group, st.sampled_from(names), st.sampled_from(names))
    rows = draw(st.lists(one, max_size=40))
    # So that both columns have more than two classes; and a fourth, that is no sentiment.
    return names, rows + [("a", name, name) for name in names[: max(3, number - 1)]]


def share(rows: Sequence[bool]) -> float | None:
    """The share of rows that are true; None of none."""
    return sum(rows) / len(rows) if rows else None


def reference(
    names: Sequence[str], rows: Sequence[tuple[str, str, str]]
) -> dict[tuple[str, str, str], float | None]:
    """The rates of each class, group and score, in loops."""
    found: dict[tuple[str, str, str], float | None] = {}
    for group in {row[0] for row in rows}:
        mine = [(label, pred) for other, label, pred in rows if other == group]
        for name in names:
            of_class = {
                "tpr": [pred == name for label, pred in mine if label == name],
                "fpr": [pred == name for label, pred in mine if label != name],
                "error_share": [pred == name for label, pred in mine if label != pred],
            }
            for score, some in of_class.items():
                found[f"class {name}", group, score] = share(some)
        found["", group, "accuracy"] = share([label == pred for label, pred in mine])
    return found


def summed(
    names: Sequence[str], rates: dict[tuple[str, str, str], float | None], groups: Sequence[str]
) -> dict[tuple[str, str], float]:
    """The root mean square and range of recall gaps of each group and of all, in loops."""
    by_group: dict[str, list[float]] = {group: [] for group in groups}
    by_pair: dict[tuple[str, str], list[float]] = {}
    for name in names:
        recalls = {group: rates[f"class {name}", group, "tpr"] for group in groups}
        known = {group: value for group, value in recalls.items() if value is not None}
        for group, value in known.items():
            if len(known) > 1:
                by_group[group].append(value - sum(known.values()) / len(known))
            for other, less in known.items():
                if group < other:
                    by_pair.setdefault((group, other), []).append(value - less)
    sums = {}
    for score, make, fewest in (
        ("rms_tpr_gap", lambda gaps: math.sqrt(sum(gap**2 for gap in gaps) / len(gaps)), 1),
        ("range_tpr_gap", lambda gaps: max(gaps) - min(gaps), 2),
    ):
        for group, gaps in by_group.items():
            if len(gaps) >= fewest:
                sums[group, score] = make(gaps)
        values = [make(gaps) for gaps in by_pair.values() if len(gaps) >= fewest]
        if values:
            sums["all", score] = max(values)
    return sums


@pytest.mark.long
@settings(deadline=None, max_examples=12)
@given(tables())
def test_rates_of_every_class_are_those_of_plain_loops(
    table: tuple[list[str], list[tuple[str, str, str]]],
) -> None:
    names, rows = table
    names = [name for name in names if any(name in row[1:] for row in rows)]
    if {*names} == {*"012"}:
        names = []
    frame = pl.DataFrame(rows, ["group", "label", "pred"], orient="row")
    found = measured(frame)
    if not names:
        assert "negative_fpr" in found["score"].to_list()
        return
    expected = reference(names, rows)
    rated = found.filter(pl.col("group") != "all", statistic="rate")
    shown = {
        (row["condition"], row["group"], row["score"]): row for row in rated.iter_rows(named=True)
    }
    assert {place: row["value"] for place, row in shown.items()} == pytest.approx(expected)
    assert all((row["reason"] == "no rows") == (row["value"] is None) for row in shown.values())
    for gap in found.filter(pl.col("score") == "tpr", statistic="gap").iter_rows(named=True):
        alike = [v for (c, _, s), v in expected.items() if (c, s) == (gap["condition"], "tpr")]
        known = [value for value in alike if value is not None]
        own = expected[gap["condition"], gap["group"], "tpr"]
        assert gap["value"] == (None if own is None else pytest.approx(own - np.mean(known)))
    sums = found.filter(pl.col("condition").str.starts_with("over "))
    plain = sums.filter(~pl.col("score").str.ends_with("less_noise"))
    groups = frame["group"].unique().sort().to_list()
    values = {(row["group"], row["score"]): row["value"] for row in plain.iter_rows(named=True)}
    assert values == pytest.approx(summed(names, expected, groups))
    inside = plain.filter(pl.col("low") > pl.col("value") + 1e-9, pl.col("high") < pl.col("value"))
    assert inside.is_empty()


@pytest.mark.parametrize(("seed", "interval"), [(0, "t"), (1, "t"), (2, "bootstrap")])
def test_one_class_that_is_named_has_the_rows_of_the_whole_table(
    seed: int, interval: Interval
) -> None:
    """Over runs, templates and words, and where a group never has a class."""
    random = np.random.default_rng(seed)
    frame = predictions(seed=seed, models=2, runs=3, terms=True)
    names = ["cook", "nurse", "poet", "smith"]
    numbers = {
        "label": random.integers(0, 4, frame["item_id"].n_unique())[
            frame["item_id"].rank("dense").to_numpy() - 1
        ],
        "pred": random.integers(0, 4, frame.height),
    }
    words = {column: [names[code] for code in codes] for column, codes in numbers.items()}
    table = frame.drop("label", "pred", "scores", "parsed", "answer", "unread", "family")
    table = table.with_columns(**{name: pl.Series(each) for name, each in words.items()})
    lacks = pl.when(group=table["group"][0]).then(pl.col("label").replace("poet", "cook"))
    table = table.with_columns(label=lacks.otherwise("label"))
    whole = measured(table, interval=interval)
    assert whole["scope"].is_in(["wording"]).any()
    for name in names:
        one = measured(table, positive=name, metric=["tpr", "fpr"], interval=interval)
        for statistic in ("rate", "gap"):
            places = (pl.col("group") != "all") & (pl.col("model") != "all")
            kept = pl.col("score").is_in(["tpr", "fpr"]) & places
            keys = ["model", "attribute", "group", "score", "scope"]
            mine = whole.filter(kept, condition=f"class {name}", statistic=statistic)
            alone = one.filter(kept, condition="", statistic=statistic)
            usual = ~alone["scope"].str.starts_with("families")
            columns = [*keys, *JUDGED]
            both = [part.select(columns).sort(keys) for part in (mine, alone.filter(usual))]
            assert both[0].height
            # Products of other shapes round otherwise.
            assert_frame_equal(both[0], both[1], abs_tol=1e-12)


def test_classes_of_all_files_are_numbered_alike(tmp_path: Path) -> None:
    """A word that one model alone uses is a class of every table."""
    table = biographies(40).with_columns(group="gender")
    other = table.with_columns(pred=pl.col("pred").replace("job 03", "none of these"))
    paths = [tmp_path / name for name in ("one.csv", "two.csv")]
    for path, frame in zip(paths, (table, other), strict=True):
        frame.write_csv(path)
    both = measured(paths)
    assert both["condition"].str.contains("class none of these").any()
    for path in paths:
        alone = measured([path]).filter(statistic="rate", score="tpr")
        mine = both.filter(statistic="rate", score="tpr", model=path.stem)
        kept = mine.filter(pl.col("condition").is_in(alone["condition"].to_list()))
        assert kept["value"].equals(alone["value"])


@pytest.mark.parametrize("kind", ["Int8", "Int16", "Int64"])
def test_a_file_that_names_its_classes_is_measured_by_them(tmp_path: Path, kind: str) -> None:
    frame = predictions(seed=1, models=1, runs=2)
    names = ["calm", "anger", "fear", "joy"]
    random = np.random.default_rng(0)
    label = pl.col("item_id").cast(int) % 4
    frame = frame.with_columns(label=label, pred=pl.Series(random.integers(0, 4, frame.height)))
    words = frame.with_columns(pl.col("label", "pred").replace_strict(dict(enumerate(names))))
    path = tmp_path / "p.parquet"
    dtype = getattr(pl, kind)
    table = frame.with_columns(pl.col("label", "pred").cast(dtype)).to_arrow()
    pq.write_table(table.replace_schema_metadata(labels_metadata(names)), path)
    found = measured([path])
    expected = measured(words.drop("scores", "parsed", "answer", "unread"), by="group")
    for part in (found, expected):
        assert part.filter(score="tpr", statistic="rate")["condition"].n_unique() == 4
    chosen = ["condition", "group", "score", "value"]
    rates = [
        part.filter(pl.col("group") != "all", statistic="rate").select(chosen).unique().sort(chosen)
        for part in (found, expected.with_columns(group=pl.col("group")))
    ]
    assert (
        rates[0]
        .filter(pl.col("condition") != "")
        .equals(rates[1].filter(pl.col("condition") != ""))
    )
    alone = measured([path], positive="fear", metric="tpr")
    one, fear = (
        part.filter(pl.col("group") != "all", statistic="rate", score="tpr", condition=condition)
        .sort("group", "scope")
        .select("group", "scope", "value", "low")
        for part, condition in ((alone, ""), (found, "class fear"))
    )
    assert one.equals(fear)
    with pytest.raises(ConfigError, match=r"--positive rage is no label.*calm, anger, fear, joy"):
        measured([path], positive="rage")
    again = measured([path], by="group", label_column="label").filter(score="tpr", statistic="rate")
    assert {*again["condition"]} == {f"class {name}" for name in names}


def test_the_second_of_two_named_classes_is_the_positive_one(tmp_path: Path) -> None:
    frame = predictions(seed=2, models=1).with_columns(pl.col("label", "pred").clip(0, 1))
    path = tmp_path / "p.parquet"
    schema = PREDICTIONS.with_metadata(labels_metadata(["harmless", "toxic"]))
    pq.write_table(frame.to_arrow().cast(PREDICTIONS).cast(schema), path)
    said: list[object] = []
    found = measured([path], report_classes=said.append)
    assert [*map(str, said)] == ["Rates are those of the class `toxic`."]
    assert {"selection_rate", "tpr", "fpr"} <= {*found["score"]}
    turned = measured([path], positive="harmless", metric="tnr")
    rates = [
        part.filter(statistic="rate", score=score).sort("group")["value"]
        for part, score in ((found, "tpr"), (turned, "tnr"))
    ]
    assert rates[0].equals(rates[1])
    wrong = frame.with_columns(label=pl.lit(2, pl.Int16))
    pq.write_table(wrong.to_arrow().cast(PREDICTIONS).cast(schema), path)
    with pytest.raises(DataError, match=r"row 1: label 2 is not 0 or 1"):
        measured([path])


WORDS = [*"xyz"] * 40


@pytest.mark.parametrize(
    ("label", "pred", "options", "message"),
    [
        (WORDS, [*"Xyz"] * 40, {}, "label has 'x' and pred has 'X', which differ in case"),
        (WORDS, [*"123"] * 40, {}, "label has x, y, z; pred has 1, 2, 3"),
        ([*"xy1"] * 40, WORDS, {}, "label 1|1 is no number|is no number, as others are"),
        ([0, 1] * 60, [1, 5, 9] * 40, {}, "label has 0, 1; pred has 1, 5, 9; .*--threshold"),
        (range(120), range(120), {}, "label has 120 different values, in 120 rows: too many"),
        ([*range(2_000)] * 2, [0] * 4_000, {}, r"2,000 different values, more than 1,000: too"),
        ([0.5, 1.5, 2.5] * 40, [0.5, 1.5, 2.5] * 40, {}, "do not tell which is the class"),
        (WORDS, WORDS, {"metric": "f2"}, "no metric 'f2'"),
        (WORDS, WORDS, {"metric": "fped"}, "'fped' is not of a table with 3 classes; .*--positive"),
        (WORDS, WORDS, {"metric": "positive_fpr"}, "'positive_fpr' is not of a table with 3"),
        (WORDS, WORDS, {"background": "pooled"}, "the background 'pooled' is of one class"),
        (WORDS, WORDS, {"positive": "x", "metric": "rms_tpr_gap"}, "more than two classes"),
        ([0, 1, 2] * 40, [0, 1, 2] * 40, {"metric": "error_share"}, "more than two classes"),
    ],
)
def test_what_has_no_classes_is_refused_in_one_line(
    label: Sequence[Any], pred: Sequence[Any], options: dict[str, Any], message: str
) -> None:
    table = {"group": ["a", "b"] * (len(label) // 2), "label": [*label], "pred": [*pred]}
    with pytest.raises((ConfigError, DataError), match=message) as refused:
        measured(table, **options)
    assert "\n" not in str(refused.value)


def test_a_page_and_the_printed_table_name_the_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "bios.csv", tmp_path / "out"
    biographies().write_csv(path)
    assert exit_code("measure", path, "--by", "gender", "--out", out) == 0
    shown = capsys.readouterr().out
    sentence = r"men whose label is job (\d\d): predicted job \1 (more|less) often, [+-]0\."
    page, statement = ((out / name).read_text() for name in ("report.html", "statement.html"))
    for text in (shown, page, statement):
        assert re.search(sentence, text)
        assert "over 28 classes" in text
        assert "predicted job 00 less often, of those whose label is job 00" in text
        assert "harm: predicted" not in text
        assert "benefit: predicted" not in text
    assert "label and pred have 28 classes" in shown
    assert "what wrong answers are called" in page
    stored = pl.read_csv(out / "estimates.csv")
    assert stored.filter(score="tpr", statistic="gap", condition="class job 09").height == 2


def test_a_change_of_one_class_is_found_and_named(tmp_path: Path) -> None:
    """A candidate that calls women with one job by another; both arms number classes alike."""
    item = pl.int_range(pl.len())
    base = biographies(300).with_columns(
        item_id=item.cast(pl.String), template_id=pl.format("t{}", item % 40), group="gender"
    )
    moved = pl.when(group="women", label="job 20").then(pl.lit("another job"))
    candidate = base.with_columns(pred=moved.otherwise("pred"))
    for name, frame in (("base", base), ("candidate", candidate)):
        frame.write_csv(tmp_path / f"{name}.csv")
    found = raybias.compare(tmp_path / "base.csv", tmp_path / "candidate.csv", out=tmp_path / "out")
    worse = found.changes.filter(verdict="worse")
    assert {*worse.select("condition", "score").iter_rows()} == {
        ("class job 20", "tpr"),
        ("class another job", "fpr"),
    }
    table = pl.read_csv(tmp_path / "out" / "compare.csv").filter(verdict="worse", rate="tpr")
    assert table["condition"].to_list() == ["class job 20"] * 2
    assert "job 20" in (tmp_path / "out" / "compare.html").read_text()
    assert found.answers.height == 1


def test_a_classifier_at_chance_has_no_verdict_and_its_classes_are_named(tmp_path: Path) -> None:
    """In a file with named classes, without templates, of which some answers hold no label."""
    names = ["calm", "anger", "fear", "joy"]
    frame = predictions(seed=1, models=1, runs=2)
    random = np.random.default_rng(0)
    item = pl.col("item_id").cast(int)
    guesses = pl.Series(random.integers(0, 4, frame.height))
    frame = frame.with_columns(
        label=item % 4,
        pred=pl.when(item % 6 > 0).then(guesses),
        parsed=item % 6 > 0,
        template_id=pl.lit(None, pl.String),
    )
    schema = PREDICTIONS.with_metadata(labels_metadata(names))
    table = frame.select(PREDICTIONS.names).to_arrow().cast(PREDICTIONS).cast(schema)
    pq.write_table(table, tmp_path / "p.parquet")
    found = measured([tmp_path / "p.parquet"])
    (reason,) = found.filter(score="withheld")["reason"]
    assert "always answering 'calm' would be in 25.0%" in reason
    gaps = found.filter(pl.col("condition").str.starts_with("class "), statistic="gap")
    assert gaps["survives"].null_count() == gaps.height > 0
    sums = found.filter(pl.col("condition") == "over 4 classes")
    assert sums["low"].null_count() == sums.height > 0
    # An answer without a label is an error that is called nothing.
    shares = found.filter(score="error_share", statistic="rate", scope="runs")
    whole = shares.group_by("group").agg(pl.col("value").sum())["value"]
    assert whole.min() < whole.max() <= 1 + 1e-12
