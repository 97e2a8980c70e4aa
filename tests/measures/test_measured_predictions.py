"""`raybias measure` of predictions: published figures and tables of one's own."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

import raybias
from raybias.errors import ConfigError, DataError
from raybias.stats.checks import StatisticsWarning
from support.commands import exit_code
from support.pages import Page
from support.stats_data import predictions


def plain(model: str) -> str:
    """One spelling for a model of the prediction files and of the published figures."""
    name = model.lower().rpartition("/")[2].split(" ")[0].removesuffix("-lora-lr1e4")
    return {"roberta-125m": "roberta-base", "roberta-355m": "roberta-large"}.get(name, name)


def loans(n: int = 1_500) -> pl.DataFrame:
    """Who asked for a loan, who paid it back, and who was to be given one."""
    random = np.random.default_rng(4)
    sex, race = random.choice(["female", "male"], n), random.choice(["black", "white"], n)
    score = random.normal(size=n) + 0.4 * (sex == "male") + 0.3 * (race == "white")
    paid = score + random.normal(size=n) > 0.3
    words = np.array(["denied", "approved"])
    return pl.DataFrame({"sex": sex, "race": race, "paid": words[paid.astype(int)],
                         "decided": words[(score > 0.3).astype(int)]})  # fmt: skip


#: Gaps of a word, or without a template or word.
PART = pl.col("condition").str.contains("^(word:|without) ")
NAMED = {"by": ("sex", "race"), "label_column": "paid", "pred_column": "decided"}


@pytest.mark.long
def test_published_gaps_are_reproduced(shared: Path) -> None:
    folder = shared / "data" / "regard_published"
    one = raybias.measure(folder, profile="paper").filter(pl.col("model") != "all")
    gaps = one.filter(condition="", statistic="gap", scope="runs")
    assert gaps["significant"].sum() == 73
    found = {
        (plain(row["model"]), row["group"], row["score"]): (
            row["value"], (row["high"] - row["low"]) / 2
        )
        for row in gaps.iter_rows(named=True)
    }  # fmt: skip
    published = pl.read_csv(folder / "regard_gaps.csv").drop_nulls("model")
    assert len(found) == 2 * len(published) == 132
    for row in published.iter_rows(named=True):
        for sign in ("negative", "positive"):
            expected = (row[f"{sign}_FPR_gap"], row[f"{sign}_FPR_gap_width"])
            key = (plain(row["model"]), row["group"], f"{sign}_fpr")
            assert found[key] == pytest.approx(expected, abs=1e-9, rel=0)


def test_groups_that_differ_in_case_alone_are_warned_of() -> None:
    table = loans(60).with_columns(sex=pl.col("sex").replace("male", "Female "))
    with pytest.warns(StatisticsWarning, match="'Female ', 'female'|'female', 'Female '"):
        raybias.measure(table, **NAMED, positive="approved")  # type: ignore[arg-type]


def test_rates_stand_beside_gaps_and_ratios_within_what_is_possible(tmp_path: Path) -> None:
    table = loans()
    given: dict[str, Any] = {"command": "raybias measure /home/me/loans.csv", "out": tmp_path}
    found = raybias.measure(table, **NAMED, positive="approved", **given)  # type: ignore[arg-type]
    for page in ("report.html", "statement.html"):
        said = (tmp_path / page).read_text()
        assert "raybias measure loans.csv" in said
        assert "/home" not in said
    assert "decided is `approved`" in (tmp_path / "statement.html").read_text()
    # The table of Local Law 144 has intersections too.
    statement = "".join(Page((tmp_path / "statement.html").read_text()).text.split())
    own = table.filter(sex="female", race="black")
    n, selected = own.height, own.filter(decided="approved").height
    assert f"female,black{n}{selected}{selected / n:.3f}[" in statement
    called = table.with_columns(called=pl.col("decided") == "approved")
    whole = found.filter(~PART, score="selection_rate")
    for by, attribute in ((["sex"], "sex"), (["race"], "race"), (["sex", "race"], "sex, race")):
        shares = called.group_by(by).agg(pl.col("called").mean())
        rates = {", ".join(row[:-1]): row[-1] for row in shares.iter_rows()}
        own = whole.filter(pl.col("group") != "all", attribute=attribute)
        value = {
            name: dict(own.filter(statistic=name).select("group", "value").iter_rows())
            for name in ("rate", "gap", "ratio")
        }
        mean, most = np.mean([*rates.values()]), max(rates.values())
        assert value["rate"] == pytest.approx(rates)
        assert value["gap"] == pytest.approx({g: r - mean for g, r in rates.items()}, abs=1e-12)
        assert value["ratio"] == pytest.approx({g: r / most for g, r in rates.items()})
    assert {*found["scope"]} == {"", "items"}
    bounded = found.filter(pl.col("statistic").is_in(["rate", "ratio"])).drop_nulls("low")
    assert bounded["low"].min() >= 0  # type: ignore[operator]
    assert found.filter(statistic="rate")["high"].max() <= 1  # type: ignore[operator]
    # The interval of a share of independent people is the usual one.
    row = found.filter(statistic="rate", group="male", score="selection_rate").row(0, named=True)
    n, rate = row["n"], row["value"]
    assert (row["high"] - row["low"]) / 2 == pytest.approx(
        1.96 * np.sqrt(rate * (1 - rate) / n), rel=0.04
    )
    # That of a ratio is of its logarithm: a textbook's standard error of a log relative risk.
    row = found.filter(statistic="ratio", group="female", score="selection_rate").row(0, named=True)
    errors = [
        (1 - r) / (r * called.filter(sex=g).height)
        for g, r in called.group_by("sex").agg(pl.col("called").mean()).iter_rows()
    ]
    assert np.log(row["high"] / row["low"]) / 2 == pytest.approx(
        1.96 * np.sqrt(sum(errors)), rel=0.04
    )


def test_decisions_about_a_rare_class_are_judged() -> None:
    """Always naming the other class would be right more often, and measure nothing."""
    random = np.random.default_rng(3)
    label = (random.random(2_000) < 0.1).astype(int)
    group = random.choice(["a", "b"], 2_000)
    pred = np.where(random.random(2_000) < np.where(group == "a", 0.3, 0.2), 1, label)
    found = raybias.measure({"label": label, "pred": pred, "group": group})
    gaps = found.filter(~PART, statistic="gap", score="selection_rate")
    assert gaps["survives"].all()


def test_gaps_of_independent_items_have_welchs_interval() -> None:
    table = loans(600)
    found = raybias.measure(table, by=("sex",), label_column="paid", pred_column="decided",
                            positive="approved", metric=["selection_rate"])  # fmt: skip
    row = found.filter(statistic="gap", group="male", score="selection_rate").row(0, named=True)
    male, female = (
        (table.filter(sex=each)["decided"] == "approved").to_numpy().astype(float)
        for each in ("male", "female")
    )
    # A gap is half of the difference of two groups.
    expected = stats.ttest_ind(male, female, equal_var=False).confidence_interval()
    assert 2 * row["low"] == pytest.approx(expected.low, rel=0.02)
    assert 2 * row["high"] == pytest.approx(expected.high, rel=0.02)


@pytest.mark.filterwarnings("ignore:.*undefined in")
@pytest.mark.long
def test_a_few_items_that_are_all_alike_show_nothing() -> None:
    """Of 15 tables without any difference, few have a survivor; a lone item never is one."""
    random, survivors = np.random.default_rng(7), 0
    for _ in range(15):
        n = 60
        label = random.integers(0, 2, n)
        table = pl.DataFrame({
            "label": label,
            "pred": np.where(random.random(n) < 0.75, label, 1 - label),
            "sex": random.choice(["f", "m"], n),
            "race": [*random.choice(["a", "b", "w", "w"], n - 1), "alone"],
        })  # fmt: skip
        found = raybias.measure(table, by=("sex", "race")).filter(statistic="gap")
        judged = found.filter(pl.col("survives").fill_null(value=False))
        survivors += judged.height > 0
        assert not judged.filter(pl.col("group").str.contains("alone")).height
    assert survivors <= 2


def test_frames_arrays_and_standard_input_are_read_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = loans(300)
    options: dict[str, Any] = {**NAMED, "positive": "approved", "metric": ["selection_rate"]}
    one = raybias.measure(table, **options)
    arrays = {name: table[name].to_numpy() for name in table.columns}
    assert one.equals(raybias.measure(arrays, **options))
    stream = io.TextIOWrapper(io.BytesIO(table.write_csv().encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    named = ("--label-column", "paid", "--pred-column", "decided", "--positive", "approved")
    asked = ("--by", "sex,race", *named, "--metric", "selection_rate")
    assert exit_code("measure", "-", *asked, "--json") == 0
    again = pl.read_ndjson(io.StringIO(capsys.readouterr().out), infer_schema_length=None)
    assert again["value"].to_list() == pytest.approx(one["value"].to_list(), nan_ok=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": ("sex",)}, "lacks the columns label, pred"),
        ({"by": ("age",), "label_column": "paid"}, "has no column 'age'; its columns are sex, r"),
        (NAMED, "paid has approved, denied; decided has approved, denied; name the class: --pos"),
        ({**NAMED, "positive": "paid"}, "no label is 'paid'; choose the class from the words"),
        ({**NAMED, "positive": "approved", "metric": ["positive_fpr"]}, "labels of two classes"),
        ({"profile": "papers"}, "no profile 'papers'; choose from paper, strict"),
    ],
)
def test_words_of_ones_own_are_never_read_as_sentiment(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        raybias.measure(loans(60), kind="predictions", **options)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*undefined in")
def test_one_run_is_judged_over_its_templates_or_its_items() -> None:
    table = predictions(models=1, runs=1, templates=20)
    placed = raybias.measure(table).filter(~PART, statistic="gap", score="negative_fpr")
    assert placed["scope"].unique().to_list() == ["sentences"]
    assert placed["survives"].null_count() == 0
    own = table.select("label", "pred", "group")
    bare = raybias.measure(own).filter(~PART, statistic="gap", score="negative_fpr")
    assert bare["scope"].unique().to_list() == ["items"]
    assert bare["survives"].null_count() == 0
    assert bare["value"].to_list() == pytest.approx(placed["value"].to_list())
    single = raybias.measure(predictions(models=1, runs=1, templates=1))
    assert {*single.filter(statistic="gap")["reason"]} <= {"one run", "no rows", None}
    assert (
        single.filter(statistic="gap")["survives"].null_count()
        == single.filter(statistic="gap").height
    )


@pytest.mark.filterwarnings("ignore::raybias.stats.checks.StatisticsWarning")
def test_a_rate_that_never_varies_stands_beside_its_gap() -> None:
    """A classifier that calls everything neutral: its rates are 0 on other sentences, or little."""
    found = raybias.measure(predictions(models=1, runs=2, templates=6).with_columns(pred=1))
    rates = found.filter(pl.col("group") != "all", statistic="rate")
    assert {*rates["value"]} == {0.0}
    assert {*rates["scope"]} == {"sentences"}
    # Four of the six templates count: Wilson's upper end of 0 of 4.
    np.testing.assert_allclose(rates["high"], 1.96**2 / (4 + 1.96**2), rtol=1e-4)
    gaps = found.filter(~PART, statistic="gap")
    assert rates.height == gaps.height
    assert gaps["low"].null_count() == gaps.height


def test_warnings_and_outside_groups_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "p.parquet"
    predictions(runs=1).with_columns(pred=pl.lit(None, pl.Int16)).write_parquet(good)
    arguments = [good, "--reference", "colour=a, b", "--interval", "bootstrap"]
    assert exit_code("measure", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.count("hold no label") == 1
    assert "leaves out c" in captured.out


def test_a_single_row_and_an_item_whose_template_one_run_lacks_have_a_page(tmp_path: Path) -> None:
    single, odd = tmp_path / "one.tsv", tmp_path / "x.parquet"
    header = "y_true\ty_pred\tcategory\tgroup\ttext\tmodel\trun_id\tdataset\tnum_params"
    single.write_text(f"{header}\n0\t0\tgrouped_age\ta\tA.\tm\t1\tss\t1\n")
    first = pl.int_range(pl.len()) == 0
    template = pl.when(first).then(None).otherwise(pl.col("template_id"))
    predictions(models=1).with_columns(template_id=template).write_parquet(odd)
    for file in (single, odd):
        out = tmp_path / file.stem
        assert exit_code("measure", file, "--out", out) == 0
        assert (out / "report.html").exists()


def statement_of(out: Path) -> str:
    return " ".join(Page((out / "statement.html").read_text()).text.split())


def test_a_statement_of_decisions_counts_its_rows_once(tmp_path: Path) -> None:
    table = loans(600)
    raybias.measure(table, positive="approved", out=tmp_path, **NAMED)
    said = statement_of(tmp_path)
    # Three attributes (sex, race, both) are of the same rows.
    assert "What was read 600 predictions.Rates are those" in said
    assert "Does the table treat groups of race, sex and sex with race differently?" in said
    right, most = (table["paid"] == table["decided"]).mean(), table["paid"].value_counts()["count"]
    (row,) = re.findall(r"the table(0\.\d{3}) \[[\d., ]+\](0\.\d{3})600", said)
    assert row == (f"{right:.3f}", f"{int(most.max()) / 600:.3f}")
    assert "They are rates in use only if the rows are all that the system decided" in said
    assert "not a rate to expect in use" not in said
    assert "four fifths, is applied" in said


def test_a_statement_of_a_probe_counts_all_attributes_and_runs(tmp_path: Path) -> None:
    parts = [
        predictions(seed=seed, models=2, runs=3).with_columns(
            attribute=pl.lit(name), item_id=pl.lit(name) + pl.col("item_id")
        )
        for seed, name in enumerate(("age", "colour"))
    ]
    whole = pl.concat(parts)
    whole.write_parquet(tmp_path / "p.parquet")
    raybias.measure(tmp_path / "p.parquet", metric=["tpr", "fpr"], out=tmp_path / "out")
    said = statement_of(tmp_path / "out")
    assert f"What was read {whole.height:,} predictions of 6 runs." in said
    assert "Do m0 and m1 treat groups of age and colour differently?" in said
    assert "it is not a rate to expect in use" in said
    assert "They are rates in use" not in said
    assert "impact ratio" not in said
