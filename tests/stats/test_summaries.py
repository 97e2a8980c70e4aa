"""Terms, templates, spans, extremes, sizes and corpus rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from raybias import schema, stats
from raybias.errors import DataError
from support.stats_data import predictions


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_a_groups_gap_is_the_weighted_mean_of_its_terms(seed: int, runs: int) -> None:
    table = predictions(seed=seed, runs=runs, terms=True, extras=True)
    cells = stats.cells(table)
    gaps = stats.gaps(cells)
    members = stats.members(gaps)
    terms = stats.by_term(stats.term_cells(table), stats.rates(cells), members)
    assert not terms["group"].is_in(schema.EXTRA_GROUPS).any()
    by = [*schema.KEYS, "attribute", "group", "rate"]
    n = pl.col("n_items")
    summed = terms.group_by(by).agg(mean=(pl.col("gap") * n).sum() / n.sum())
    both = summed.join(gaps, on=by)
    assert both.height == gaps.height
    assert (both["mean"] - both["gap"]).abs().max() < 1e-12
    if runs == 1:
        assert terms["low"].null_count() == terms.height
    else:
        assert (terms["low"] <= terms["gap"]).all()


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
def test_templates_by_hand() -> None:
    table = predictions(runs=2)
    cells = stats.cells(table)
    found = stats.by_template(cells, stats.members(stats.gaps(cells)))
    assert found.height == 2 * 3 * (4 + 4)  # models, groups, templates of either rate
    for row in found.sample(12, seed=1).iter_rows(named=True):
        label = {"negative_fpr": 0, "positive_fpr": 2}[row["rate"]]
        values = []
        for _, part in table.filter(model=row["model"], template_id=row["template_id"]).group_by(
            "run_id"
        ):
            rate = {g: (p["pred"] == label).mean() for (g,), p in part.group_by("group")}
            values.append(rate[row["group"]] - np.mean(list(rate.values())))
        assert row["gap"] == pytest.approx(np.mean(values), abs=1e-12)
        assert row["n_runs"] == 2
    top = stats.largest(found, "template_id", k=1)
    assert top.height == 6
    means = found.group_by("rate", "group", "template_id").agg(pl.col("gap").mean())
    for row in top.iter_rows(named=True):
        mine = means.filter(rate=row["rate"], group=row["group"])
        assert abs(row["gap"]) == pytest.approx(mine["gap"].abs().max())


def test_accuracy_over_all_attributes() -> None:
    first, second = predictions(runs=2), predictions(runs=2, seed=1, attribute="shape")
    table = pl.concat([first, second])
    found = stats.accuracies(stats.cells(table))
    assert found["attribute"].to_list() == ["colour", "shape", "all"] * 2
    whole = found.filter(model="m1", attribute="all").row(0, named=True)
    runs = [
        (part["pred"] == part["label"]).mean()
        for _, part in table.filter(model="m1").group_by("run_id")
    ]
    assert (whole["mean"], whole["sd"]) == pytest.approx((np.mean(runs), np.std(runs, ddof=1)))
    assert whole["n_items"] == (first.height + second.height) / 4


def test_extremes_and_mean_spans() -> None:
    gaps = pl.concat(
        [
            stats.gaps(stats.cells(predictions(models=3).with_columns(probe=pl.lit(probe))))
            for probe in ("p", "q")
        ]
    ).filter(rate="negative_fpr")
    value = {"a": -0.2, "b": 0.1, "c": 0.1}
    gaps = gaps.with_columns(gap=pl.col("group").replace_strict(value, return_dtype=pl.Float64))
    gaps = gaps.with_columns(
        gap=pl.when((pl.col("model") == "m2") & (pl.col("probe") == "q"))
        .then(-pl.col("gap") / 2)
        .otherwise("gap")
    )
    found = {row["group"]: row for row in stats.extremes(gaps).iter_rows(named=True)}
    assert {g: row["n_extreme"] for g, row in found.items()} == {"a": 6, "b": 3, "c": 3}
    assert (found["a"]["n_lowest"], found["a"]["n_highest"]) == (5, 1)
    assert (found["b"]["n_pairs"], found["b"]["share"]) == (6, 0.5), "equals share the place"
    same = gaps.with_columns(gap=0.0 * pl.col("gap"))
    none = stats.extremes(same)
    assert set(stats.spans(same).select("lowest", "highest").rows()) == {(None, None)}
    assert none.select("n_extreme", "n_pairs").unique().rows() == [(0, 6)]
    assert set(stats.spans(gaps)["highest"]) == {"b, c", "a"}
    means = stats.spans_mean(stats.spans(gaps))
    assert means["model"].to_list() == ["m0", "m1", "m2"]
    assert means["rank"].to_list() == [1, 1, 3]
    assert means["mean_span"].to_list() == pytest.approx([0.3, 0.3, 0.225])
    assert means["n_probes"].unique().to_list() == [2]


def test_published_sizes_are_table_5_but_for_its_slip(shared: Path) -> None:
    folder = shared / "data" / "regard_published"
    sizes = stats.composition(stats.read_counts(sorted(folder.glob("regard_*.tsv.gz"))).cells)
    printed = pl.read_csv(shared / "paper_tables" / "004_table5_dataset_stats_as_printed.csv")
    printed = printed.filter(pl.col("dataset") == "regard", pl.col("group") != "TOTAL")
    differ = []
    for row in printed.iter_rows(named=True):
        ours = sizes.filter(group=row["group"]).row(0, named=True)
        assert ours["predictions"] == 5 * ours["items"] == row["total"]
        assert ours["fraction"] == pytest.approx(row["fraction"], abs=5e-4)
        differ += [
            (row["group"], label, row[label], ours[f"predictions_{label}"])
            for label in schema.LABELS
            if row[label] != ours[f"predictions_{label}"]
        ]
    assert differ == [("pacific_islander", "positive", 440, 350)]


def corpus(marked: dict[str, int]) -> pl.DataFrame:
    rows = [
        ("race", group, f"{group}-{i}", noun, n, bare)
        for group, n in marked.items()
        for i in range(2)
        for noun, bare in (("man", 700), ("woman", 300))
    ]
    return pl.DataFrame(rows, schema=pl.Schema(schema.CORPUS), orient="row")


def test_corpus_rates_and_their_rank_correlation() -> None:
    random = np.random.default_rng(3)
    marked = dict(zip("abcdef", (5, 100, 20, 1, 50, 8), strict=True))
    rates = stats.marked_rates(corpus(marked), where="x")
    total = 1000 + 4 * sum(marked.values())
    assert dict(rates.select("group", "marked_rate").iter_rows()) == pytest.approx(
        {group: 4 * n / total for group, n in marked.items()}
    )
    table = predictions(groups=tuple("abcdef"), attribute="race", extras=True)
    cells = stats.cells(table)
    gaps = stats.gaps(cells, reference_groups={"race": list("abcdef")})
    noise = random.normal(size=gaps.height)
    gaps = gaps.with_columns(gap=pl.Series(noise))
    marks = stats.markedness(cells, stats.members(gaps))
    found = stats.corpus_correlations(rates, gaps, marks)
    assert set(found["effect"]) == {"gap", "marking_effect"}
    row = found.filter(model="m0", rate="negative_fpr", effect="gap").row(0, named=True)
    values = gaps.filter(model="m0", rate="negative_fpr").sort("group")["gap"].to_numpy()
    x = rates["marked_rate"].to_numpy()
    assert row["rho"] == pytest.approx(scipy_stats.spearmanr(x, values).statistic)
    exact = scipy_stats.permutation_test(
        (x,), lambda p: scipy_stats.spearmanr(p, values).statistic,
        permutation_type="pairings", n_resamples=np.inf,
    )  # fmt: skip
    assert row["p_value"] == pytest.approx(exact.pvalue)
    assert row["low"] <= row["rho"] <= row["high"]
    assert row["n_groups"] == 6
    assert found.equals(stats.corpus_correlations(rates, gaps, marks))
    few = rates.filter(pl.col("group").is_in(["a", "b", "c"]))
    assert stats.corpus_correlations(few, gaps, marks).is_empty()


def test_impossible_corpus_counts_are_named() -> None:
    bad = corpus({"a": 3}).with_columns(bare=pl.lit(-1, pl.Int64))
    with pytest.raises(DataError, match=r"c\.parquet: 'a', 'a-0', 'man' has no or negative counts"):
        stats.marked_rates(bad, where="c.parquet")
