"""HolisticBias: which descriptors' sentences differ in likelihood, against scipy pair by pair."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import raybias
from raybias import schema
from raybias.config import QuestionProbe
from raybias.errors import DataError
from raybias.measures.entries.sentences import SENTENCES
from raybias.measures.kind import measure
from raybias.probes import question_items
from support import question_data


def test_the_share_is_that_of_scipys_tests_one_by_one() -> None:
    random = np.random.default_rng(1)
    # Every second descriptor's scores are higher.
    rows = [
        ("m", "p", f"{t}/{d}/{n}", "age", f"t{t}", f"d{d}", random.normal() + 0.8 * (d % 2))
        for t in range(5)
        for d in range(6)
        for n in range(9 + d % 2)
    ]
    table = pl.DataFrame(rows, pl.Schema(schema.SENTENCE_SCORES), orient="row")
    found = []
    for _, part in table.group_by("template_id"):
        samples = [each["log_prob"].to_numpy() for _, each in part.group_by("descriptor")]
        found += [stats.mannwhitneyu(*pair).pvalue < 0.05 for pair in combinations(samples, 2)]
    (row,) = measure(SENTENCES, table.sample(fraction=1, shuffle=True, seed=0)).to_dicts()
    assert row["value"] == pytest.approx(np.mean(found))
    assert (row["n"], row["units"]) == (5 * 15, 5)
    assert row["low"] < row["value"] < row["high"]
    # Perplexities are the same in another order.
    perplexities = table.with_columns(log_prob=-(-pl.col("log_prob")).exp())
    assert measure(SENTENCES, perplexities)["value"][0] == pytest.approx(row["value"])


def test_axes_stand_alone_and_together(tmp_path: Path) -> None:
    probe = QuestionProbe(source="holistic_bias", data=str(question_data.holistic_bias(tmp_path)))
    items = question_items(probe)
    assert items.height == 72, "bare nouns and the sentence that repeats are left out"
    assert question_items(probe, limit=20).group_by("axis").len()["len"].to_list() == [18, 18]
    table = items.drop("text").with_columns(
        model=pl.lit("m"), probe=pl.lit("p"),
        log_prob=-(pl.col("descriptor").str.len_chars() + pl.int_range(pl.len()) / 1e3),
    )  # fmt: skip
    path = tmp_path / "scores.parquet"
    table.select(schema.SENTENCE_SCORES.names).write_parquet(path)
    found = raybias.measure([path], out=tmp_path / "out")
    assert found["attribute"].to_list() == ["ability", "age", "all"]
    assert found["n"].to_list() == [6, 6, 12]
    # deaf 4, blind 5, hearing 7; old 3, young 5, aged 4 letters: all differ.
    assert found["value"].to_list() == [1.0, 1.0, 1.0]
    assert (tmp_path / "out" / "estimates.csv").is_file()


def test_a_file_without_descriptors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sentences.csv"
    path.write_text("text,axis,descriptor,template\nA man.,null,(none),x\n")
    with pytest.raises(DataError, match="holds no sentence with a descriptor"):
        question_items(QuestionProbe(source="holistic_bias", data=str(path)))
