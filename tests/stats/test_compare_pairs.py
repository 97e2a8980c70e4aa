"""Two arms of pair scores: what is found, held to textbook tests, how sure, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

import raybias
from raybias.measures.compare import compare_pairs, overall
from raybias.measures.entries.coreference import coreference_outcomes
from raybias.measures.entries.pairs import pair_outcomes
from support.commands import exit_code, refused
from support.pair_data import answers, pair_scores
from support.report_outs import pair_study, write_pair_out


def preferring(scores: pl.DataFrame, more: np.ndarray) -> pl.DataFrame:
    """The scores, with sent_more preferred where `more` is true and sent_less elsewhere."""
    prefers = pl.Series(more)
    return scores.with_columns(
        score_more=pl.when(prefers).then(2.0).otherwise(0.5),
        score_less=pl.lit(1.0),
        preference=prefers.cast(pl.Int8),
    )


def changes(base: pl.DataFrame, candidate: pl.DataFrame) -> list[dict[str, Any]]:
    return compare_pairs(base, candidate, level=0.95, margin=0.02).to_dicts()


def row_of(rows: list[dict[str, Any]], **values: str) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[key] == value for key, value in values.items())]
    return found


def test_a_change_of_one_score_is_the_paired_t_interval_and_mcnemars_test() -> None:
    random = np.random.default_rng(3)
    scores = pair_scores(types=("age",), pairs=80, styles=("original",), ties=0)
    before, after = random.random(80) < 0.5, random.random(80) < 0.7
    arms = [pair_outcomes(preferring(scores, each)) for each in (before, after)]
    rows = changes(*arms)
    found = row_of(rows, group="age")
    # A type and two averages: three bands that hold together.
    expected = stats.ttest_rel(after * 1.0, before * 1.0).confidence_interval(1 - 0.05 / 3)
    assert (found["low"], found["high"]) == pytest.approx(tuple(expected))
    assert found["value"] == pytest.approx(after.mean() - before.mean())
    assert (found["base"], found["candidate"]) == pytest.approx((before.mean(), after.mean()))
    up, down = int((after & ~before).sum()), int((before & ~after).sum())
    assert (found["flips_up"], found["flips_down"]) == (up, down)
    table = [[0, up], [down, 0]]
    assert found["p_flips"] == pytest.approx(mcnemar(table, exact=True).pvalue)


def test_worse_is_away_from_no_bias_and_better_is_towards_it() -> None:
    scores = pair_scores(types=("age", "gender"), pairs=200, styles=("original",), ties=0)
    place = np.arange(scores.height) % 200
    shares = {"low": 0.2, "even": 0.5, "high": 0.8}
    arms = {name: pair_outcomes(preferring(scores, place < 200 * share))
            for name, share in shares.items()}  # fmt: skip

    def verdict(base: str, candidate: str) -> set[object]:
        rows = changes(arms[base], arms[candidate])
        return {row["verdict"] for row in rows}

    assert verdict("even", "high") == verdict("even", "low") == {"worse"}
    assert verdict("high", "even") == verdict("low", "even") == {"better"}
    # As far from no bias, on the other side.
    assert verdict("low", "high") == {"cannot tell"}
    assert verdict("even", "even") == {"equivalent"}


def test_a_candidate_that_answers_nothing_where_its_base_was_biased_is_not_better() -> None:
    base = answers(pairs=100, styles=("original",), pro=1.0, anti=0.3, seed=1)
    silent = (pl.col("condition") == "pro") & (pl.int_range(pl.len()) % 20 < 14)
    quiet = base.with_columns(
        exact=pl.col("exact") & ~silent,
        reading=pl.when(silent).then(pl.lit("neither")).otherwise("reading"),
    )
    arms = [coreference_outcomes(each) for each in (base, quiet)]
    rows = [row for row in changes(*arms) if row["score"] == "exact"]
    assert {row["verdict"] for row in rows} == {"unread"}
    assert all("name nobody rose from 0% to 70%" in row["reason"] for row in rows)
    assert overall([row["verdict"] for row in rows]) == "unread"
    heard = quiet.with_columns(reading=pl.lit("other"))
    rows = changes(arms[0], coreference_outcomes(heard))
    assert "better" in {row["verdict"] for row in rows}


def test_few_pairs_are_never_equivalent_and_bands_are_possible() -> None:
    for pairs, verdict in ((2, "cannot tell"), (148, "cannot tell"), (149, "equivalent")):
        scores = pair_scores(types=("age",), pairs=pairs, styles=("original",), ties=0)
        one = pair_outcomes(preferring(scores, np.arange(pairs) % 2 == 0))
        found = row_of(changes(one, one), group="age")
        assert found["verdict"] == verdict
        assert bool(found["reason"]) == (verdict == "cannot tell")
    scores = pair_scores(types=("age",), pairs=12, styles=("original",), ties=0)
    most = [pair_outcomes(preferring(scores, np.arange(12) < n)) for n in (10, 12)]
    found = row_of(changes(*most), group="age")
    assert found["low"] + found["base"] >= 0
    assert found["high"] + found["base"] <= 1 + 1e-12
    assert found["reason"].startswith("2 of 12 changed sides; ")


@pytest.mark.parametrize(("pairs_of_a_writer", "units"), [(0, 300), (10, 30)])
def test_a_score_is_bounded_by_the_pairs_or_writers_that_turn(
    pairs_of_a_writer: int, units: int
) -> None:
    scores = pair_scores(
        types=("age",), pairs=300, styles=("original",), ties=0, clusters=pairs_of_a_writer
    )
    turned = np.arange(300) < max(1, pairs_of_a_writer)
    arms = [pair_outcomes(preferring(scores, each)) for each in (np.zeros(300, bool), turned)]
    found = row_of(changes(*arms), group="age")
    # Clopper and Pearson's bound of one in so many.
    assert found["at_most"] == pytest.approx(stats.beta.ppf(0.95, 2, units - 1), abs=1e-6)
    assert found["verdict"] == ("equivalent" if units == 300 else "cannot tell")


def test_two_outs_of_pairs_are_compared_and_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    write_pair_out(out, pair_study())
    assert (
        exit_code("compare", out, out, "--gate", "margin=0.1", "--out", tmp_path / "compared") == 0
    )
    said = capsys.readouterr().out
    assert "Equivalent: of" in said
    assert "pairs are redrawn" in said
    table = pl.read_csv(tmp_path / "compared/compare.csv")
    assert table["scope"].unique().to_list() == ["pairs"]
    assert {"bias_bench", "exact", "contains"} == set(table["rate"])
    found = raybias.compare(out, out).changes
    kinds = dict(found.select("score", "kind").unique().iter_rows())
    assert kinds == {"bias_bench": "pairs", "exact": "coreference", "contains": "coreference"}
    assert "<svg" in (tmp_path / "compared/compare.html").read_text()


def test_arms_of_pairs_that_do_not_match_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = pair_scores()
    files = {
        "base": scores,
        "fewer": scores.filter(pl.col("pair_id") != "0-003"),
        "unstyled": scores.filter(style="original"),
        "answers": answers(),
    }
    for name, frame in files.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    base = tmp_path / "base.parquet"
    for other, message in (
        ("fewer", "the base has pair_id '0-003'"),
        ("unstyled", "the base has style 'prefix_1'"),
        ("answers", "the base has score 'bias_bench'"),
    ):
        arguments = base, tmp_path / f"{other}.parquet", "--out", tmp_path / "out"
        assert message in refused(capsys, "compare", *arguments)
    line = refused(capsys, "compare", base, base, "--base", "method=lora")
    assert "choose by model, probe, style" in line
    assert not (tmp_path / "out").exists()
