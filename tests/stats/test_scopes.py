"""Scopes: gaps taken apart by template, words, equal runs, null studies."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from benchmarks.calibrate import Design, simulate
from raybias import schema
from raybias.config import Statistics
from raybias.stats.components import MeanEstimate
from raybias.stats.counts import count_cells
from raybias.stats.gaps import GAP_KEYS
from raybias.stats.metric import metric_rates
from raybias.stats.null_check import null_check
from raybias.stats.scopes import GapTable, rate_tables
from raybias.stats.word_deals import word_counts
from raybias.stats.word_variance import WordVariance, word_variances
from support.stats_data import analysed, crossed, gaps, predictions, word_cells


def tables_of(frame: pl.DataFrame) -> list[GapTable]:
    groups = frame.select("probe", "attribute", "group").unique()
    inside = groups.with_columns(in_mean=pl.lit(True))
    return [each.less_mean() for each in rate_tables(count_cells(frame), inside)]


def study(
    *, studies: int = 1, runs: int = 5, templates: int = 30, word_sd: float = 0.0
) -> pl.DataFrame:
    """Neutral sentences whose error rates vary by run, template, template x group and word."""
    random = np.random.default_rng(11)
    parts = []
    for model in range(studies):
        rate = (
            0.3
            + random.normal(0, 0.03, (runs, 1, 1, 1))
            + random.normal(0, 0.1, (1, templates, 1, 1))
            + random.normal(0, 0.2, (1, templates, 3, 1))
            + random.normal(0, word_sd, (1, 1, 3, 3))
        )
        wrong = random.random((runs, templates, 3, 3)) < rate.clip(0, 1)
        parts.append(crossed(np.where(wrong, 0, 1)).with_columns(model=pl.lit(f"m{model}")))
    return pl.concat(parts)


def test_the_mean_over_templates_is_the_gap_of_a_run() -> None:
    frame = predictions(seed=3, templates=9, terms=True)
    per_run = metric_rates(count_cells(frame))
    for table in tables_of(frame):
        rates = per_run.filter(model=table.keys[0], score=table.score).sort("group", "run_id")
        values_GR = rates["value"].to_numpy().reshape(len(table.groups), -1)
        expected_GR = values_GR - values_GR.mean(axis=0)
        np.testing.assert_allclose(table.values_GRT.mean(axis=2), expected_GR, atol=1e-12)


@pytest.mark.parametrize("runs", [1, 4])
def test_one_run_and_equal_runs_are_judged_over_templates(runs: int) -> None:
    one = study(runs=1, templates=80)
    frame = pl.concat([one.with_columns(run_id=pl.lit(str(run))) for run in range(runs)])
    (table, *_) = tables_of(frame)
    found = table.estimates(None)
    assert list(found) == ["sentences"]
    means_GT = table.values_GRT.mean(axis=1)
    expected = reference.t.interval(
        0.95,
        means_GT.shape[1] - 1,
        loc=means_GT.mean(axis=1),
        scale=reference.sem(means_GT, axis=1),
    )
    np.testing.assert_allclose(found["sentences"].interval(0.95), expected, rtol=1e-9)


def test_the_variance_of_words_is_found_and_widens_every_group() -> None:
    plain, worded = study(studies=40), study(studies=40, word_sd=0.1)
    for frame, expected in ((plain, 0.0), (worded, 0.01)):
        found = [v.variance for key, v in word_variances(word_cells(frame)).items()
                 if key[-1] == "negative_fpr"]  # fmt: skip
        assert np.mean(found) == pytest.approx(expected, abs=0.0015)
    single = worded.filter((pl.col("group") != "0") | (pl.col("term") == "0"))
    for table in tables_of(single)[:1]:
        words = word_variances(word_cells(single))[table.place]
        assert words.words == {"0": 1, "1": 3, "2": 3}
        estimates = table.estimates(words)
        added = estimates["wording"].variance - estimates["sentences"].variance
        share = np.array([4 + (1 + 1) / 3, 1 + 4 / 3 + 1 / 3, 1 + 4 / 3 + 1 / 3]) / 9
        np.testing.assert_allclose(added, words.variance * share, rtol=1e-9)


def test_words_that_lack_sentences_are_compared_by_their_means() -> None:
    """Against loops over the templates of one group; the truth over many such groups."""
    frame = study(studies=60, templates=20, word_sd=0.1)
    random = np.random.default_rng(5)
    cells = frame.select("model", "template_id", "term").unique(maintain_order=True)
    kept = cells.filter(pl.Series(random.random(cells.height) < 0.7))
    frame = frame.join(kept, on=kept.columns, how="semi")
    found = {key[0]: v for key, v in word_variances(word_cells(frame), ["negative_fpr"]).items()}
    assert np.mean([v.variance for v in found.values()]) == pytest.approx(0.01, abs=0.0015)
    one = frame.filter(pl.col("model") == "m0")
    squares = []
    for group in ("0", "1", "2"):
        part = (
            one.filter(group=group).group_by("term", "template_id").agg(pl.col("pred").eq(0).mean())
        )
        wide = part.pivot("template_id", index="term", values="pred").drop("term").to_numpy()
        n_words, n_templates = wide.shape
        means = np.nanmean(wide, axis=1)
        weight = n_templates / (~np.isnan(wide)).sum(axis=1)
        parts = np.nan_to_num((wide - means[:, None]) * weight[:, None])
        noise = np.mean([
            ((parts[a] - parts[b]) ** 2).sum() / 2 / n_templates / (n_templates - 1)
            for a in range(n_words) for b in range(a)
        ])  # fmt: skip
        squares.append((means.var(ddof=1), noise))
    between, noise = np.mean(squares, axis=0)
    assert found["m0"].variance + found["m0"].noise == pytest.approx(between, rel=1e-9)
    assert found["m0"].noise == pytest.approx(noise, rel=1e-9)
    assert found["m0"].freedom == 6


@given(
    words=st.lists(st.integers(1, 4), min_size=2, max_size=6).filter(lambda n: max(n) > 1),
    ratio=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    beyond=st.sampled_from([0.0, 0.5, 3.0]),
)
@settings(max_examples=30, deadline=None)
def test_words_are_the_units_of_a_t_test_beside_what_else_varies(
    words: list[int], ratio: float, beyond: float
) -> None:
    """Where nothing varies beyond the noise that words' means hold, the interval is Student's."""
    n, freedom, noise = len(words), sum(words) - len(words), 0.01
    groups = tuple(map(str, range(n)))
    table = GapTable((), "r", groups, np.ones(n, bool), np.zeros((n, 2, 2)))
    sizes = dict(zip(groups, words, strict=True))
    found = WordVariance(noise * (ratio - 1), noise, freedom, 1e12, sizes)
    held = [noise * sum(((g == h) - 1 / n) ** 2 / words[h] for h in range(n)) for g in range(n)]
    narrow = MeanEstimate(np.zeros(n), np.array(held) * (1 + beyond), np.full(n, 1e12))
    wide = found.added_to(narrow, table)
    expected = np.array(held) * (ratio + beyond)
    tied = ratio + beyond == 0
    np.testing.assert_allclose(wide.variance, narrow.variance if tied else expected)
    assert (wide.freedom >= freedom * (1 - 1e-9)).all()
    if ratio and not beyond:
        reach = reference.t.ppf(0.975, freedom) * np.sqrt(expected)
        np.testing.assert_allclose(wide.interval(0.95)[1], reach, rtol=1e-6)


def test_a_gap_is_corrected_among_all_gaps_of_its_scope() -> None:
    frame = predictions(runs=4, terms=True)
    # No group of the second attribute has two words.
    other = frame.with_columns(
        attribute=pl.lit("shape"), term=pl.col("group"), item_id="shape." + pl.col("item_id")
    )
    whole = pl.concat([frame, other])
    found = analysed(count_cells(whole), words=word_cells(whole), scope="widest")
    assert {*found.gaps["scope"]} == {"wording", "sentences"}
    both = found.gaps.join(found.scopes, on=[*GAP_KEYS, "scope"], nulls_equal=True, suffix="_all")
    assert both.height == found.gaps.height
    for name in ("q", "significant", "survives"):
        assert both[name].equals(both[f"{name}_all"])


def test_predictions_without_templates_are_judged_over_runs_alone() -> None:
    frame = predictions().with_columns(template_id=pl.lit(None, pl.String))
    analysis = analysed(count_cells(frame), words=word_cells(frame), scope="widest")
    assert set(analysis.scopes["scope"]) == set(analysis.gaps["scope"]) == {"runs"}
    assert analysis.components.is_empty()
    asked = gaps(count_cells(frame), scope="sentences")
    assert set(asked["reason"]) == {"templates not known, or one"}


NO_WORDS = pl.DataFrame(schema=pl.Schema(schema.WORD_CELLS))


def test_a_group_effect_is_shuffled_away_and_runs_alone_are_found_wanting() -> None:
    design = Design("check", templates=40, word=0.0)
    tables, _ = simulate(design, 30, gaps=(0.2, 0, 0, 0, 0, 0))
    every = [table for table, _ in tables.tables()]
    found = null_check(every, NO_WORDS, Statistics.under("strict"))
    flagged = found.filter(score="meaningless_flagged")
    shares = dict(flagged.select("scope", "value").iter_rows())
    assert shares["runs"] > 0.15
    assert 0.01 < shares["sentences"] < 0.08
    # No word is known that could be dealt.
    assert [*shares] == ["runs", "sentences"]


@given(
    seed=st.integers(0, 10_000),
    templates=st.integers(2, 7),
    groups=st.integers(2, 4),
    kept=st.sampled_from([0.6, 1.0]),
)
@settings(max_examples=30, deadline=None)
def test_words_that_keep_their_groups_give_the_gaps_that_were_studied(
    seed: int, templates: int, groups: int, kept: float
) -> None:
    names = tuple("abcd"[:groups])
    frame = predictions(seed=seed, models=1, templates=templates, groups=names, terms=True)
    cells = frame.select("template_id", "term").unique(maintain_order=True)
    some = cells.filter(pl.Series(np.random.default_rng(seed).random(cells.height) <= kept))
    frame = frame.join(some, on=["template_id", "term"], how="semi")
    counts = word_counts(word_cells(frame), tables_of(frame))
    variances = word_variances(word_cells(frame))
    for table in tables_of(frame):
        if table.place not in counts:
            continue
        words = counts[table.place]
        places_G1 = np.arange(len(table.groups))[:, None]
        dealt_1GW = np.asarray(words.group_W == places_G1, float)[None]
        rates_GT = words.rates(dealt_1GW)[0]
        gaps_GT = rates_GT - rates_GT.mean(axis=0)
        np.testing.assert_allclose(gaps_GT, table.values_GRT.mean(axis=1), atol=1e-12)
        if table.place in variances:
            narrow = table.estimates(None)["sentences"]
            wide = variances[table.place].added_to(narrow, table)
            found = words.added_to(narrow, dealt_1GW)
            np.testing.assert_allclose(found.variance[0], wide.variance, rtol=1e-9)
            np.testing.assert_allclose(found.freedom[0], wide.freedom, rtol=1e-9)


def test_words_are_dealt_whole_and_names_of_groups_alone_are_not() -> None:
    frame = study(templates=8)
    lone = frame.filter((pl.col("group") != "0") | (pl.col("term") == "0"))
    words = word_counts(word_cells(lone), tables_of(lone)[:1])
    (known,) = words.values()
    dealt_DGW = known.deal(np.random.default_rng(0), 300)
    assert (dealt_DGW.sum(axis=1) == 1).all()
    assert (dealt_DGW.sum(axis=2) == [1, 3, 3]).all()
    # Each word comes to each group as often as the group has words.
    np.testing.assert_allclose(
        dealt_DGW.mean(axis=0), np.repeat([[1], [3], [3]], 7, axis=1) / 7, atol=0.1
    )
    single = frame.filter(pl.col("term").is_in(["0", "10", "20"]))
    unknown = frame.with_columns(
        term=pl.when(pl.col("group") != "0").then("term").otherwise(pl.lit(None, pl.String))
    )
    for other in (single, unknown):
        cells = word_cells(other.filter(pl.col("term").is_not_null()))
        assert not word_counts(cells, tables_of(other))


def test_under_wording_meaningless_words_are_flagged_at_the_level_if_words_vary() -> None:
    """Also if a group has an effect, which is dealt with its words."""
    frame = study(studies=12, word_sd=0.15).with_columns(
        pred=pl.when(pl.col("group") == "0").then(0).otherwise("pred").cast(pl.Int16)
    )
    tables = [each for each in tables_of(frame) if each.score == "negative_fpr"]
    found = null_check(tables, word_cells(frame), Statistics.under("strict"))
    shares = dict(found.filter(score="meaningless_flagged").select("scope", "value").iter_rows())
    assert shares["sentences"] < 0.08
    assert 0.01 < shares["wording"] < 0.08
