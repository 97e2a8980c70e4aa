"""Classes of tables of others: words, numbers, booleans and floats, in every column its own."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raybias
from raybias.errors import ConfigError, DataError
from raybias.stats.checks import StatisticsWarning
from support.commands import exit_code
from support.stats_data import two_years

RATES = ("selection_rate", "tpr", "fpr")
#: Ways to write the other class and the class, in one column.
CODES: dict[str, tuple[Any, Any]] = {
    "numbers": (0, 1),
    "floats": (0.0, 1.0),
    "one and two": (1, 2),
    "minus one and one": (-1, 1),
    "booleans": (False, True),
    "Excel": ("FALSE", "TRUE"),
    "texts of numbers": ("0.0", "1.0"),
    "words": ("no", "yes"),
    "other words": ("denied", "approved"),
    "capitals": ("Denied", "Approved"),
    "dots": ("<=50K.", ">50K."),
    "no dots": ("<=50K", ">50K"),
}


@st.composite
def outcomes(draw: st.DrawFn) -> list[tuple[str, bool, bool]]:
    """The group, label and prediction of some people."""
    row = st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans())
    return draw(st.lists(row, min_size=1, max_size=40))


def textbook(rows: Sequence[tuple[str, bool, bool]], *, positive: bool) -> dict[str, Any]:
    """The rates of each group and score; a group without rows that count has none."""
    found = {}
    for group in {row[0] for row in rows}:
        mine = [(label == positive, pred == positive) for g, label, pred in rows if g == group]
        parts = {
            "selection_rate": [pred for _, pred in mine],
            "tpr": [pred for label, pred in mine if label],
            "fpr": [pred for label, pred in mine if not label],
        }
        for score, some in parts.items():
            found[group, score] = sum(some) / len(some) if some else None
    return found


def rates(table: Any, **options: Any) -> dict[str, Any]:
    """The rates of each group and score that raybias finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        found = raybias.measure(table, metric=RATES, **options)
    shown = found.filter(pl.col("group") != "all", statistic="rate")
    return {(row["group"], row["score"]): row["value"] for row in shown.iter_rows(named=True)}


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(
    outcomes(), st.sampled_from([*CODES]), st.sampled_from([*CODES]), st.booleans(), st.booleans()
)
def test_rates_are_the_textbooks_or_refused(
    rows: list[tuple[str, bool, bool]], label: str, pred: str, positive: bool, named: bool
) -> None:
    """Whatever two columns of codes, and whether their class is named in one word or in each."""
    codes = [CODES[label][positive], CODES[pred][positive]]
    table = pl.DataFrame(
        {
            "group": [row[0] for row in rows],
            "label": [str(CODES[label][row[1]]) for row in rows],
            "pred": [str(CODES[pred][row[2]]) for row in rows],
        }
    )
    # Of fewer values nobody could tell one pair of codes from another.
    shows_all = {(row[1], row[2]) for row in rows} == {*product((False, True), repeat=2)}
    words = {"label": codes[0], "pred": codes[1]} if named or not shows_all else codes[:1]
    try:
        found = rates(table, positive=words)
    except (ConfigError, DataError):
        assert not (named and shows_all)
    else:
        assert found == pytest.approx(textbook(rows, positive=positive))


@pytest.mark.parametrize("kind", ["numbers", "floats", "booleans", "Excel", "texts of numbers"])
@pytest.mark.parametrize(
    "positive", [None, 0, 1, 0.0, 1.0, False, True, "0", "1.0", "TRUE", np.int64(1)]
)
def test_a_number_or_boolean_is_what_it_says(kind: str, positive: Any) -> None:
    rows = [("ab"[n % 2], n % 3 == 0, n % 5 < 2) for n in range(30)]
    table = {
        "group": [row[0] for row in rows],
        "label": [CODES[kind][row[1]] for row in rows],
        "pred": [CODES[kind][row[2]] for row in rows],
    }
    meant = positive is None or str(positive).lower() in ("1", "1.0", "true")
    assert rates(table, positive=positive) == pytest.approx(textbook(rows, positive=meant))


@pytest.mark.parametrize(
    ("label", "pred", "positive", "message"),
    [
        ("words", "numbers", "yes", "label has no, yes; pred has 0, 1; .*label=yes,pred=1"),
        ("words", "numbers", None, "do not tell which is the class: label has no, yes; pred has"),
        ("capitals", "other words", "Approved", "--positive label=Approved,pred=approved"),
        ("no dots", "dots", ">50K", "--positive 'label=>50K,pred=>50K.'"),
        ("words", "words", "maybe", "no label is 'maybe'; choose the class from the words"),
        ("words", "words", ["yes", "no"], "every label is of the class"),
        ("words", "words", {"decided": "yes"}, "names the column 'decided', .*label, pred"),
        ("words", "numbers", {"label": "yes", "pred": 2}, "no pred is '2'; choose .*pred has 0, 1"),
        ("one and two", "numbers", None, "label has 1, 2; pred has 0, 1; .*label=2,pred=1"),
    ],
)
def test_words_that_a_column_lacks_are_refused_with_its_words(
    label: str, pred: str, positive: Any, message: str
) -> None:
    table = {
        "group": list("aabb"),
        "label": [CODES[label][n % 2] for n in range(4)],
        "pred": [CODES[pred][n // 2] for n in range(4)],
    }
    with pytest.raises(DataError, match=message):
        raybias.measure(table, positive=positive)


def test_a_class_that_one_column_spells_in_two_ways_is_refused() -> None:
    words = ["Approved", "approved ", "Denied", "Denied"]
    table = {"group": list("abab"), "label": words, "pred": words}
    with pytest.raises(DataError, match=r"both 'Approved' and 'approved'.*Approved,approved"):
        raybias.measure(table, positive="Approved")
    assert rates(table, positive=["Approved", "approved"])["a", "selection_rate"] == 0.5


def test_a_cure_is_a_command_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a refusal says to type is read as it is said, also by a shell."""
    labels, preds = ["no, never", "<=50K", ">50K"], ["<=50K.", ">50K.", "<=50K."]
    table = pl.DataFrame({"group": list("aabbab"), "label": labels * 2, "pred": preds * 2})
    table.write_csv(tmp_path / "table.csv")
    assert exit_code("measure", tmp_path / "table.csv", "--positive", ">50K") == 2
    cure = capsys.readouterr().err.partition("--positive ")[2]
    assert exit_code("measure", tmp_path / "table.csv", "--positive", *shlex.split(cure)) == 0
    assert "label is `>50K` and pred is `>50K.`" in capsys.readouterr().out
    named = '"label=no, never",pred=<=50K.'
    assert exit_code("measure", tmp_path / "table.csv", "--positive", named) == 0
    assert "label is `no, never` and pred is `<=50K.`" in capsys.readouterr().out


def test_codes_of_two_classes_are_never_sentiment() -> None:
    """German credit: 1 is good, 2 is bad; only 0, 1 and 2 together, or words, are sentiment."""
    codes = [1, 2, 2, 1, 2, 1]
    table = {"group": list("ababab"), "label": codes, "pred": codes[::-1]}
    said: list[object] = []
    found = raybias.measure(table, report_classes=said.append)
    assert {*found.filter(statistic="gap")["score"]} == {*RATES}
    sentence = "Rates are those of the class for which label is `2` and pred is `2`."
    assert [*map(str, said)] == [sentence]
    three = {**table, "label": [0, 1, 2, 0, 1, 2]}
    found = raybias.measure(three, report_classes=said.append)
    assert "negative_fpr" in {*found["score"]}
    assert "read as sentiment: 0 negative" in str(said[1])


def fpr_by(path: Path, column: str) -> dict[str, float]:
    """The textbook's false positive rates of deciles from 5 on."""
    frame = pd.read_csv(path)
    negative = frame[frame["two_year_recid"] == 0]
    return dict((negative["decile_score"] >= 5).groupby(negative[column]).mean())


@pytest.mark.parametrize(
    "named",
    [
        ("--pred-column", "decile_score", "--threshold", "5"),
        ("--pred-column", "score_text", "--positive", "1,Medium,High"),
        (
            "--pred-column",
            "score_text",
            "--positive",
            "two_year_recid=1,score_text=Medium,score_text=High",
        ),
    ],
)
def test_a_table_as_downloaded_is_read_by_one_command(
    named: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_years(tmp_path)
    asked = ("--by", "race,sex", "--label-column", "two_year_recid", "--metric", "fpr")
    assert exit_code("measure", path, *asked, *named, "--out", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "class for which two_year_recid is `1` and " in shown
    assert ("decile_score is at least 5" in shown) != ("`High` or `Medium`" in shown)
    assert "class for which two_year_recid is" in (tmp_path / "out/report.html").read_text()
    found = pl.read_parquet(tmp_path / "out/estimates.parquet").filter(
        statistic="rate", score="fpr"
    )
    for column in ("race", "sex"):
        mine = found.filter(attribute=column).select("group", "value")
        assert dict(mine.iter_rows()) == pytest.approx(fpr_by(path, column))
    assert found.filter(attribute="race, sex").height == 4


def test_a_column_of_many_values_is_cut_or_refused_before_work(tmp_path: Path) -> None:
    n = 400
    path = two_years(tmp_path, dob=[f"19{n}" for n in range(n)], name=[f"n{n}" for n in range(n)])
    options: dict[str, Any] = {
        "label_column": "two_year_recid",
        "pred_column": "decile_score",
        "threshold": 5,
    }
    for by, message in (
        ("age", r"age has 60 different numbers, and at most 20.*--cut age=\d+,\d+"),
        ("dob", "dob has 400 different numbers"),
        ("name", "name has 400 groups, and at most 200"),
        ("id", "has the column id twice, and they differ"),
        ("height", "has no column 'height'; its columns are id, race"),
    ):
        with pytest.raises(DataError, match=message):
            raybias.measure(path, by=by, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    found = rates(path, by="age", cut={"age": [25, 45]}, **options)
    frame = pd.read_csv(path)
    young = frame[frame["age"] < 25]["decile_score"] >= 5
    assert found["below 25", "selection_rate"] == pytest.approx(young.mean())
    assert {group for group, _ in found} == {"below 25", "25 to below 45", "45 and above"}
    ends = frame["age"].min() // 20 * 20 + 20, frame["age"].max() // 20 * 20
    same = {"age": [*range(ends[0], ends[1] + 1, 20)]}
    assert rates(path, by="age:20", **options) == rates(path, by="age", cut=same, **options)
    for width, message in ((0.1, "at most 200 are compared"), (500, "are in one group")):
        with pytest.raises(DataError, match=message):
            raybias.measure(path, by=f"age:{width}", **options)
    for cut, message in (
        ({"age": [45, 25]}, "the bounds of age do not rise"),
        ({"race": [1]}, "--cut names the column 'race', which --by does not"),
    ):
        with pytest.raises(ConfigError, match=message):
            raybias.measure(path, by="age", cut=cut, **options)


def test_scores_beyond_a_probability_need_a_threshold() -> None:
    table = {"group": list("aabb"), "label": [0, 1, 0, 1], "score": [20, 80, 60, 90]}
    with pytest.raises(DataError, match=r"row 1: score 20 is no score of class 1.*--threshold"):
        raybias.measure(table)
    assert rates(table, threshold=50)["b", "fpr"] == 1.0
    with pytest.raises(DataError, match=r"score is from 20 to 90: --threshold 0.5 parts nothing"):
        raybias.measure(table, threshold=0.5)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["nan", "M"], "'nan' of group may stand for a missing value"),
        (["NA", "None"], "'NA', 'None' of group may stand for a missing value"),
        (["0", "0.0"], "'0', '0.0' of group count as 2 groups"),
        (["all", "rest"], r"the group 'all' is called 'all \(group\)'"),
    ],
)
def test_groups_that_may_be_no_groups_are_warned_of(groups: list[str], message: str) -> None:
    table = {"group": groups * 4, "label": [0, 1, 1, 0] * 2, "pred": [0, 1, 0, 1] * 2}
    with pytest.warns(StatisticsWarning, match=message):
        raybias.measure(table)


def test_a_group_or_model_called_all_is_never_what_stands_for_all(tmp_path: Path) -> None:
    rows = [("all" if n % 3 else "rest", n % 2 == 0, n % 5 < 2) for n in range(30)]
    table = pl.DataFrame(
        {
            "group": [row[0] for row in rows],
            "label": [int(row[1]) for row in rows],
            "pred": [int(row[2]) for row in rows],
        }
    )
    table.write_csv(tmp_path / "all.csv")
    with pytest.warns(StatisticsWarning, match="is called"):
        found = raybias.measure(tmp_path / "all.csv", metric=["accuracy"])
    right = [(group, label == pred) for group, label, pred in rows]
    mean: Callable[[list[bool]], float] = lambda some: sum(some) / len(some)  # noqa: E731
    accuracy = found.filter(score="accuracy", statistic="rate", model="all (model)")
    assert dict(accuracy.select("group", "value").iter_rows()) == pytest.approx(
        {
            "all (group)": mean([hit for group, hit in right if group == "all"]),
            "rest": mean([hit for group, hit in right if group == "rest"]),
            "all": mean([hit for _, hit in right]),
        }
    )
    both = table.with_columns(group=pl.Series(["all", "all (group)"] * 15))
    with pytest.raises(DataError, match=r"has both 'all' and 'all \(group\)'; rename 'all'"):
        raybias.measure(both)


def test_a_folder_of_part_files_is_one_table(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "group": ["a", "b"] * 15,
            "label": [0, 1, 1] * 10,
            "pred": [1, 0, 1, 1, 0] * 6,
        }
    )
    table.write_csv(tmp_path / "table.csv")
    one = raybias.measure(tmp_path / "table.csv")
    for folder, write in (("table", pl.DataFrame.write_parquet), ("x.csv", pl.DataFrame.write_csv)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "_SUCCESS").touch()
        ending = "csv" if folder.endswith("csv") else "snappy.parquet"
        for n in range(3):
            part = table.slice(10 * n, 10)
            write(part, tmp_path / folder / f"part-0000{n}-ab-c000.{ending}")  # type: ignore[arg-type]
        found = raybias.measure(tmp_path / folder)
        assert found["model"].unique().to_list()[-1] in (folder.split(".")[0], "all")
        names = [name for name in one.columns if name != "model"]
        assert found.select(names).equals(one.select(names))
    part = tmp_path / "x.csv" / "part-00003-ab-c000.csv"
    table.drop("pred").write_csv(part)
    with pytest.raises(DataError, match=r"part-00003.*has other columns than the first file"):
        raybias.measure(tmp_path / "x.csv")


def test_a_folder_of_tables_has_a_model_for_each(tmp_path: Path) -> None:
    for model in ("m1", "m2"):
        pred = [1, 0, 1, 1] if model == "m1" else [0, 0, 1, 1]
        table = pl.DataFrame({"group": list("abab"), "label": [0, 1, 1, 0], "pred": pred})
        table.write_csv(tmp_path / f"{model}.csv")
    assert {"m1", "m2"} <= {*raybias.measure(tmp_path)["model"]}


def test_three_classes_from_0_and_around_0_are_not_matched_by_number() -> None:
    table = {"group": list("ab") * 9, "label": [0, 1, 2] * 6}
    around = {"pred": [-1, 0, 1] * 6}
    with pytest.raises(DataError, match=r"from 0 and around 0, .*: label has 0, 1, 2; pred has -1"):
        raybias.measure(pl.DataFrame(table | around))
