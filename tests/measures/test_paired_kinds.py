"""`raybias measure` on pairs: estimates, pages and figures of score files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.measures.entries.pairs import PAIRS
from raybias.measures.kind import measure
from raybias.stats.intervals import Rules
from support.commands import exit_code, refused
from support.pair_data import answers, pair_scores


@pytest.mark.long
def test_score_files_become_estimates_a_page_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    scores = pair_scores()
    scores.filter(bias_type="age").write_parquet(files / "a.parquet")
    # A CSV of the columns that are needed, numbers as text, a tie as an empty cell.
    scores.filter(pl.col("bias_type") != "age").write_csv(files / "b.csv")
    answers().write_csv(files / "c.csv")
    (files / "notes.csv").write_text("a,b\n1,2\n")
    assert exit_code("measure", files, "--out", tmp_path / "out") == 0
    assert "effects of styles over all pairs, in points" in capsys.readouterr().out
    found = pl.read_parquet(tmp_path / "out/estimates.parquet")
    assert set(found["kind"]) == {"pairs", "coreference"}
    names = {path.name for path in (tmp_path / "out/figures").glob("*.svg")}
    assert "pairs.over.all.pairs.svg" in names
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<figure") == len(names)
    assert "in/a.parquet" in page


def test_estimates_of_a_direction_are_those_of_its_pairs_alone() -> None:
    scores = pair_scores(pairs=30)
    found = measure(PAIRS, scores, Rules(bootstrap_draws=200))
    alone = measure(PAIRS, scores.filter(direction="stereo"), Rules(bootstrap_draws=200))
    for statistic in ("score", "difference"):
        one = {"score": "preference", "statistic": statistic, "condition": "stereo"}
        sides = found.filter(**one)
        assert sides.height
        styled = pl.col("style") != "all"
        whole = alone.filter(styled, **(one | {"condition": ""}))
        assert sides.drop("condition").equals(whole.drop("condition"))


SCORES = pair_scores(pairs=2)
ONE = pl.col("pair_id") == "1-001"


def changed(column: str, value: object, rows: pl.Expr = ONE) -> pl.DataFrame:
    return SCORES.with_columns(pl.when(rows).then(value).otherwise(column).alias(column))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (SCORES.drop("direction"), "lacks the column direction; pairs need"),
        (answers().drop("condition", "exact"), "lacks the columns condition, exact; coref"),
        (changed("style", pl.lit("shouted")), "row 10: style 'shouted' is not known; style is one"),
        (
            changed("direction", pl.lit("up")),
            "row 10: direction 'up' is none of stereo, antistereo",
        ),
        (SCORES.with_columns(preference=pl.lit(2)), "preference 2 is above 1"),
        (SCORES.with_columns(preference=pl.lit("yes")), "preference 'yes' is not a number"),
        (SCORES.with_columns(model=pl.lit(None, pl.String)), "row 1: model is missing"),
        (pl.concat([SCORES, SCORES.tail(1)]), "answers bias_bench question_answer 2-001 more than"),
        (SCORES.filter(pl.col("style") != "original"), "has the style 'prefix_1' but not 'orig"),
        (
            SCORES.filter(~(ONE & (pl.col("style") == "original"))),
            "pair '1-001' of 'toy-1M' is there under 'prefix_1' but not under 'original'",
        ),
        (
            changed("bias_type", pl.lit("age"), ONE & (pl.col("style") == "prefix_1")),
            "pair '1-001' has different bias types",
        ),
        (changed("cluster", pl.col("style")), "pair '1-001' has different clusters"),
        (SCORES.with_columns(preference=1 - pl.col("preference")), "and the scores "),
        (SCORES.head(0), "holds no rows"),
    ],
)
def test_bad_scores_are_one_line_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frame: pl.DataFrame, message: str
) -> None:
    for suffix, write in (("csv", frame.write_csv), ("parquet", frame.write_parquet)):
        file = tmp_path / f"scores.{suffix}"
        write(file)
        out = tmp_path / "out"
        assert message in refused(capsys, "measure", file, "--out", out)
        assert not out.exists()
