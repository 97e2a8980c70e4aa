"""What is said of gaps is what was shown: in the widest scope that shows it, and no wider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raybias
from raybias.measures.prediction_rows import WIDTHS, gap_rows
from raybias.report.doubts import doubts
from raybias.report.estimates import gaps_table
from raybias.report.headline import conclusion, findings, ranked
from raybias.report.judged import Judged
from raybias.schema import LIKELIHOOD
from support.commands import exit_code
from support.stats_data import crossed

SMALL = pytest.mark.filterwarnings("ignore")
#: Words of each of three groups, runs and templates of a probe.
DESIGNS = st.tuples(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 3), (2, 2), (1, 1)]),
    st.integers(1, 3), st.integers(6, 14), st.integers(0, 10_000), st.sampled_from([0.0, 0.5]),
)  # fmt: skip


def test_a_reading_that_cannot_do_the_task_is_no_classifier_of_its_own() -> None:
    """Beside the answers of a prompted model, the likelihoods of the same prompts."""
    own = raybias.measure(probe((2, 1, 1), 3, 60, 5, 0.5), metric="selection_rate")
    refused_reading = own.filter(pl.col("model") != "all").with_columns(
        method=pl.col("method") + LIKELIHOOD,
        reason=pl.lit("it cannot do the task: 99.8% of its answers are 'positive'"),
        **{name: pl.lit(None, own.schema[name]) for name in ("p", "q", "significant", "survives")},
    )
    both = Judged.of(pl.concat([own, refused_reading]))
    assert conclusion(both) == conclusion(Judged.of(own))
    assert "of 2 classifiers" not in " ".join(findings(both))


def probe(
    words: tuple[int, ...], runs: int, templates: int, seed: int, shift: float
) -> pl.DataFrame:
    """Predictions of a classifier that says 0 more often of group 0, or of nobody (shift 0)."""
    random = np.random.default_rng(seed)
    frames = []
    for group, n in enumerate(words):
        for word in range(n):
            rate = 0.2 + shift * (group == 0)
            wrong = random.random((runs, templates, 1, 1)) < rate
            one = crossed(np.where(wrong, 0, 1).astype(int))
            named = {"group": str(group), "term": f"{group}.{word}"}
            items = pl.format("{}.{}", "item_id", pl.lit(f"{group}.{word}"))
            frames.append(
                one.with_columns(item_id=items, **{k: pl.lit(v) for k, v in named.items()})
            )
    return pl.concat(frames)


@SMALL
@settings(max_examples=12, deadline=None)
@given(DESIGNS, st.sampled_from(["widest", "sentences", "runs"]))
def test_a_finding_is_said_for_the_widest_scope_that_shows_it(
    design: tuple[tuple[int, ...], int, int, int, float], scope: str
) -> None:
    estimates = raybias.measure(probe(*design), metric="selection_rate")
    judged = Judged.of(estimates, scope)
    gaps = gap_rows(estimates)
    most = WIDTHS.get(scope, 2)
    shown = gaps.filter("survives", pl.col("scope").replace_strict(WIDTHS) <= most)
    said = " ".join(conclusion(judged))
    assert said.startswith("No ") == shown.is_empty()
    for part in ranked(judged):
        row = part.row(0, named=True)
        own = shown.filter(group=row["group"], score=row["score"])
        assert row["scope"] == max(own["scope"], key=WIDTHS.get)
    text = " ".join([said, *findings(judged)])
    several = design[1] > 1
    assert several or "seeds" not in text.replace("other seeds are not known", "")
    if len(design[0]) == 2 and not shown.is_empty():
        # The difference between two groups, and not half of it.
        first = ranked(judged)[0].row(0, named=True)
        assert f"{200 * abs(first['value']):.1f} points" in said
        assert "than the groups' mean" not in said
    wording_shown = gaps.filter("survives", scope="wording").height
    if "For these words" in said and scope == "widest" and (gaps["scope"] == "wording").any():
        assert not wording_shown or "for other words that is not shown" in said


@SMALL
@settings(max_examples=12, deadline=None)
@given(DESIGNS)
def test_a_row_says_for_what_a_finding_of_the_headline_is_not_shown(
    design: tuple[tuple[int, ...], int, int, int, float],
) -> None:
    estimates = raybias.measure(probe(*design), metric="selection_rate")
    judged = Judged.of(estimates)
    shown = gaps_table(estimates, judged)
    rows = [dict(zip(shown.headers, row, strict=True)) for row in shown.rows]
    for row in rows:
        found = gap_rows(estimates).filter("survives", group=row["group"])
        own = judged.gaps.filter(group=row["group"]).row(0, named=True)
        narrower = WIDTHS[own["scope"]] - 1
        if own["significant"] or found.is_empty():
            assert "not significant for" not in row["reading"]
        elif max(WIDTHS[scope] for scope in found["scope"]) == narrower:
            other = {"sentences": "sentences", "wording": "words"}[own["scope"]]
            assert row["reading"] == f"not significant for other {other}"


@SMALL
def test_one_word_groups_and_few_events_are_told_of_files_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe((1, 2, 2), 1, 12, 3, 0.0).write_parquet(tmp_path / "p.parquet")
    assert exit_code("measure", tmp_path / "p.parquet", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    told = (
        "under `wording` is of that word",
        "confirm them with more before",
        "other seeds are not known",
    )
    page, statement = (
        (tmp_path / "out" / name).read_text() for name in ("report.html", "statement.html")
    )
    for text in (printed, page, statement):
        assert all(each in text for each in told)
        assert "seeds and sentences" not in text
        assert "seeds, sentences" not in text


@SMALL
def test_rows_count_as_independent_only_without_templates() -> None:
    random = np.random.default_rng(0)
    people = pl.DataFrame({"group": ["a", "b"] * 50, "label": random.integers(0, 2, 100),
                           "pred": random.integers(0, 2, 100)})  # fmt: skip
    estimates = raybias.measure(people)
    assert any("--cluster" in said for said in doubts(estimates, Judged.of(estimates)))
    estimates = raybias.measure(people.with_columns(template_id=pl.int_range(100).cast(str)))
    assert not any("--cluster" in said for said in doubts(estimates, Judged.of(estimates)))


@SMALL
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 6))
def test_rows_of_a_cluster_are_worth_one(seed: int, copies: int) -> None:
    """Copied rows have the intervals of single ones, if they are said to be of one person."""
    random = np.random.default_rng(seed)
    person = pl.DataFrame({
        "group": ["a"] * 60 + ["b"] * 40 + ["c"] * 12, "person": [f"p{n}" for n in range(112)],
        "label": random.integers(0, 2, 112), "pred": random.integers(0, 2, 112),
    })  # fmt: skip
    copied = pl.concat([person] * copies)
    single, wide, narrow = (
        gap_rows(raybias.measure(frame, metric="selection_rate", cluster=cluster), "widest")
        for frame, cluster in ((person, "person"), (copied, "person"), (copied, ""))
    )
    assert set(wide["scope"]) == {"clusters"}
    assert wide["units"].to_list() == single["units"].to_list() == [60, 40, 12]
    for end in ("value", "low", "high", "p"):
        assert wide[end].to_list() == pytest.approx(single[end].to_list())
    width = pl.col("high") - pl.col("low")
    assert (narrow.select(width) < 0.85 * wide.select(width)).to_series().all()
    # One row of each person: the same interval as without the column, but for Welch's terms.
    alone = gap_rows(raybias.measure(person, metric="selection_rate"), "widest")
    assert single.select(width).to_series().to_list() == pytest.approx(
        alone.select(width).to_series().to_list(), rel=0.06
    )


def test_a_cluster_column_that_lacks_or_is_empty_is_refused() -> None:
    people = pl.DataFrame(
        {"group": ["a", "b"], "who": ["x", None], "label": [0, 1], "pred": [1, 0]}
    )
    with pytest.raises(raybias.BadInput, match="has no column 'nobody'"):
        raybias.measure(people, cluster="nobody")
    with pytest.raises(raybias.BadInput, match="is empty"):
        raybias.measure(people, cluster="who")
