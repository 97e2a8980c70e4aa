"""Trends of gaps with model size are scipy's line and Spearman's correlation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raybias.measures.prediction_rows import of_gaps
from raybias.stats.counts import read_counts
from raybias.stats.gaps import gap_analysis
from raybias.stats.intervals import Rules, estimates
from raybias.stats.size_trends import family_of, sizes_in_names, trend

SIZES = {"opt-125m": 125e6, "opt-1.3b": 1.3e9, "opt-6.7b": 6.7e9, "opt-13b": 13e9}
#: Names without a size; it is told.
TOLD = {"gpt2": 124e6, "other": 7e9}


def predictions() -> pl.DataFrame:
    """Answers of six models in two runs: the larger, the more often of `a` is called negative."""
    random = np.random.default_rng(3)
    rows = []
    for size, model in enumerate([*SIZES, *TOLD]):
        for run in range(2):
            for template in range(30):
                for group in ("a", "b", "c"):
                    wrong = random.random() < 0.1 + 0.1 * size * (group == "a")
                    rows.append({
                        "model": model, "method": "classify", "dataset": "", "probe": "mine",
                        "run_id": f"{model}.{run}", "item_id": f"{template}.{group}",
                        "attribute": "x", "group": group, "term": group,
                        "template_id": f"{template}", "label": 1 + template % 2,
                        "pred": 0 if wrong else 1 + template % 2,
                    })  # fmt: skip
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    path = tmp_path_factory.mktemp("trends") / "predictions.parquet"
    predictions().write_parquet(path)
    rules = Rules.under("strict", metrics=("negative_fpr",), sizes=TOLD, judged={"classify"})
    analysis = gap_analysis(read_counts([path]), rules)
    return pl.concat(estimates(part, "predictions") for part in of_gaps(analysis))


@pytest.mark.parametrize("family", ["", "opt"])
def test_the_trend_of_a_gap_is_scipys(found: pl.DataFrame, family: str) -> None:
    known = SIZES if family else SIZES | TOLD
    gaps = found.filter(statistic="gap", score="negative_fpr", scope="runs").filter(
        pl.col("model").is_in([*known]), pl.col("condition").fill_null("") == ""
    )
    for group in ("a", "b", "c"):
        own = dict(gaps.filter(group=group).select("model", "value").iter_rows())
        logarithms = np.log10([known[model] for model in known])
        values = [own[model] for model in known]
        line = stats.linregress(logarithms, values)
        reach = stats.t.ppf(0.975, len(known) - 2) * line.stderr
        rows = found.filter(group=group, model="all", condition=family)
        slope = rows.row(by_predicate=pl.col("score") == "negative_fpr_gap_slope", named=True)
        assert slope["value"] == pytest.approx(line.slope)
        assert slope["low"] == pytest.approx(line.slope - reach)
        assert slope["high"] == pytest.approx(line.slope + reach)
        assert (slope["scope"], slope["n"]) == ("models", len(known))
        rank = rows.row(
            by_predicate=pl.col("score") == "negative_fpr_gap_rank_correlation", named=True
        )
        assert rank["value"] == pytest.approx(stats.spearmanr(logarithms, values).statistic)
        assert rank["q"] >= rank["p"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=0, max_size=7))
def test_a_trend_needs_four_models_that_differ(pairs: list[tuple[int, int]]) -> None:
    sizes = np.array([10.0**size for size, _ in pairs])
    values = np.array([float(value) for _, value in pairs])
    made = trend(sizes, values, 0.95)
    differ = len(pairs) >= 4 and len({*sizes}) > 1 and len({*values}) > 1
    assert (made is not None) == differ
    if made is not None:
        assert made["low"] <= made["slope"] <= made["high"]
        exact = stats.spearmanr(sizes, values).statistic
        assert made["rank_correlation"] == pytest.approx(exact)
        assert 0 < made["p"] <= 1


def test_a_name_tells_size_and_family() -> None:
    names = ["opt-1.3b", "Llama-2-7b-chat-hf", "RoBERTa-355M", "gpt2", "Meta-Llama-3-8B"]
    assert sizes_in_names(pl.Series(names)) == {
        "opt-1.3b": 1.3e9, "Llama-2-7b-chat-hf": 7e9, "RoBERTa-355M": 355e6, "Meta-Llama-3-8B": 8e9,
    }  # fmt: skip
    assert [family_of(name) for name in names] == ["opt", "llama-2", "roberta", "", "meta-llama-3"]
