"""`raybias gaps`: Kohankhaki2024's published figures, and what a user sees."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polars as pl
import pytest

import raybias
from raybias.cli import main
from raybias.errors import ConfigError
from raybias.storage import Store
from support.pages import page_of
from support.stats_data import predictions, prompted

CONTRACT = ["model", "attribute", "group", "rate", "gap", "low", "high", "half_width", "n_runs",
            "significant"]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The command line's exit code."""
    monkeypatch.setattr(sys, "argv", ["raybias", "gaps", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def plain(model: str) -> str:
    """One spelling for a model of the prediction files and of the published figures."""
    name = model.lower().rpartition("/")[2].split(" ")[0].removesuffix("-lora-lr1e4")
    return {"roberta-125m": "roberta-base", "roberta-355m": "roberta-large"}.get(name, name)


@pytest.mark.long
def test_published_gaps_are_reproduced(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared / "data" / "regard_published"
    assert run(monkeypatch, folder, "--profile", "paper", "--out", tmp_path) == 0
    ours = pl.read_csv(tmp_path / "gaps.csv")
    assert ours.columns[:10] == CONTRACT
    assert ours["interval"].unique().to_list() == ["normal"]
    found = {
        (plain(row["model"]), row["group"], row["rate"]): (row["gap"], row["half_width"])
        for row in ours.iter_rows(named=True)
    }
    published = pl.read_csv(folder / "regard_gaps.csv").drop_nulls("model")
    assert len(found) == 2 * len(published) == 132
    for row in published.iter_rows(named=True):
        for sign in ("negative", "positive"):
            expected = (row[f"{sign}_FPR_gap"], row[f"{sign}_FPR_gap_width"])
            key = (plain(row["model"]), row["group"], f"{sign}_fpr")
            assert found[key] == pytest.approx(expected, abs=1e-9, rel=0)
    spans = pl.read_csv(tmp_path / "spans.csv")
    assert spans.height == 22
    for row in spans.iter_rows(named=True):
        sign = row["rate"].removesuffix("_fpr")
        theirs = published.filter(
            pl.col("model").map_elements(plain, pl.String) == plain(row["model"])
        )[f"{sign}_FPR_gap"]
        assert row["span"] == pytest.approx(theirs.max() - theirs.min(), abs=1e-9, rel=0)
    extremes = pl.read_csv(tmp_path / "extremes.csv").filter(group="white")
    assert dict(extremes.select("rate", "n_extreme").iter_rows()) == {
        "negative_fpr": 5, "positive_fpr": 8,
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"{name}.csv" for name in ("gaps", "accuracy", "spans", "spans_mean", "extremes",
                                     "composition", "by_term", "scopes", "by_family", "components",
                                     "leave_one_out", "null_check", "over_models", "reliability",
                                     "withheld")),
        "figures", "evidence", "report.html",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "answer.svg", "gaps.regard.race.negative_fpr.svg", "gaps.regard.race.positive_fpr.svg",
        "spans.race.svg",
    }  # fmt: skip
    page = page_of(Store(tmp_path)).text
    assert "In 7 of 11 classifiers, sentences about white are wrongly called positive less" in page
    assert "No verdict for 4 classifiers, of which no gap is judged." in page
    assert "Wrongly called negative, in percentage points" in page
    assert len(list((tmp_path / "evidence").iterdir())) == 6
    accuracy = pl.read_csv(tmp_path / "accuracy.csv")
    assert accuracy.columns[:5] == ["model", "attribute", "mean", "sd", "n_runs"]
    assert accuracy["n_runs"].to_list() == [5] * 11


@pytest.mark.long
def test_strict_shows_what_loses_significance(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from raybias import stats

    files = sorted((shared / "data" / "regard_published").glob("regard_*.tsv.gz"))
    cells = stats.read_counts(files).cells
    white = pl.col("significant").filter(group="white", rate="positive_fpr").sum()
    counts = [
        stats.gaps(cells, interval=interval, adjust="none").select(white).item()  # type: ignore[arg-type]
        for interval in ("normal", "t")
    ]
    assert counts == [7, 6]
    assert run(monkeypatch, *files, "--scope", "runs") == 0
    output = capsys.readouterr().out
    assert "race: mean over african_american, american_indian, asian, hispanic" in output
    lost = re.search(r"(\d+) lose significance against the papers' rule:\n((?:  .*\n)+)", output)
    assert lost is not None
    assert len(lost[2].splitlines()) == int(lost[1])
    paper, strict = (
        stats.gaps(cells, interval=i, adjust=a)["significant"].sum()  # type: ignore[arg-type]
        for i, a in (("normal", "none"), ("t", "benjamini_hochberg"))
    )
    # Of the classifiers that can do the task; the four others have no verdict to lose.
    assert (paper, strict, int(lost[1])) == (73, 58, 12)
    assert "38 of 84 gaps are significant, 31 after correction" in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("scope", "given", "significant"),
    [("wording", "widest", 5), ("wording", "wording", 5), ("sentences", "sentences", 25)],
)
def test_gaps_csv_is_judged_under_the_scope_that_is_asked_for(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, given: str,
    significant: int,
) -> None:  # fmt: skip
    files = sorted((shared / "data" / "regard_published").glob("regard_*.tsv.gz"))
    assert run(monkeypatch, *files, "--scope", given, "--margin", "0.05", "--out", tmp_path) == 0
    gaps = pl.read_csv(tmp_path / "gaps.csv")
    assert gaps.columns[-3:] == ["scope", "mde", "equivalent"]
    assert set(gaps["scope"]) == {scope}
    assert gaps["significant"].sum() == significant
    scopes = pl.read_csv(tmp_path / "scopes.csv").filter(scope=scope)
    keys = ["model", "group", "rate"]
    columns = ["low", "high", "p_value", "q_value", "mde", "equivalent", "survives"]
    one, other = (table.sort(keys).select(keys + columns) for table in (gaps, scopes))
    assert one.equals(other)
    # Schuirmann's two one-sided tests: an interval at 90% within the margin is within at 95% too,
    # unless it is wider than that.
    inside = gaps.filter((pl.col("low") > -0.05) & (pl.col("high") < 0.05))
    assert inside["equivalent"].all()
    assert 0 < gaps["equivalent"].sum() < gaps.height


def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "p.parquet"
    predictions().write_parquet(good)
    out = tmp_path / "out"
    for arguments in (
        [tmp_path / "nothing.tsv"],
        [good, "--reference", "colour=a,purple"],
        [good, "--reference", "colour"],
    ):
        assert run(monkeypatch, *arguments, "--out", out) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert captured.err.startswith("raybias: ")
    assert not out.exists()


def test_a_profile_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    predictions().write_parquet(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match="no profile 'papers'; choose from paper, strict"):
        raybias.gaps([tmp_path / "p.parquet"], profile="papers")  # type: ignore[arg-type]


def test_warnings_and_outside_groups_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "p.parquet"
    predictions(runs=1).with_columns(pred=pl.lit(None, pl.Int8)).write_parquet(good)
    arguments = [good, "--reference", "colour=a, b", "--interval", "bootstrap"]
    assert run(monkeypatch, *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.count("hold no label") == 1
    assert "colour: mean over a, b; compared with it but not in it: c" in captured.out


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@pytest.mark.parametrize("profile", ["paper", "strict"])
def test_unreadable_answers_have_no_verdict_and_are_named_first(
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for method, readable in (("zero_shot", 0.1), ("few_shot", 0.9)):
        table = prompted(method=method, readable=readable)
        # Right wherever it can be read, but for one sentence in ten.
        right = (pl.int_range(pl.len()) % 10 > 0) & pl.col("parsed")
        table = table.with_columns(pred=pl.when(right).then("label").otherwise("pred"))
        table.write_parquet(tmp_path / f"{method}.parquet")
    assert run(monkeypatch, tmp_path, "--profile", profile) == 0
    said = capsys.readouterr().out
    verdict = said.index("m0, zero_shot: ")
    assert said.index("No verdict for ") < verdict < said.index("gaps are significant")
    assert re.search(r"m0, zero_shot: [89]\d\.\d% of its answers name no label", said)
    assert "m0, few_shot:" not in said
    with pytest.warns(match="hold no label"):
        found = raybias.gaps([tmp_path], profile=profile)  # type: ignore[arg-type]
    without = found.filter(pl.col("no_verdict").str.contains("name no label word"))
    assert without["method"].unique().to_list() == ["zero_shot"]
    assert without["gap"].null_count() < without.height


def test_one_file_needs_no_list(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    predictions().write_parquet(file)
    assert raybias.gaps(str(file)).equals(raybias.gaps([file]))


def test_a_single_row_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "one.tsv", tmp_path / "out"
    header = "y_true\ty_pred\tcategory\tgroup\ttext\tmodel\trun_id\tdataset\tnum_params"
    file.write_text(f"{header}\n0\t0\tgrouped_age\ta\tA.\tm\t1\tss\t1\n")
    assert run(monkeypatch, file, "--out", out) == 0
    assert (out / "report.html").exists()


def test_an_item_whose_template_one_run_lacks_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pl.int_range(pl.len()) == 0
    template = pl.when(first).then(None).otherwise(pl.col("template_id"))
    predictions(models=1).with_columns(template_id=template).write_parquet(tmp_path / "x.parquet")
    assert run(monkeypatch, tmp_path / "x.parquet", "--out", tmp_path / "out") == 0
    assert (tmp_path / "out/report.html").exists()
