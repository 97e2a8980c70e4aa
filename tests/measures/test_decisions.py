"""Decisions about people: the mixed model's estimates, and intervals over decisions."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.formula.api as smf

import raybias
from raybias import schema
from raybias.errors import DataError
from raybias.measures.entries.decisions import DECISIONS
from raybias.measures.kind import measure

AGES, GENDERS = ("20", "60", "90"), ("male", "female")
FIRST = "age=60; gender=male"


def answers(decisions: int, seed: int, reference: str | None = FIRST) -> pl.DataFrame:
    """Every person in every decision, asked with two prompts; effects differ by decision."""
    random = np.random.default_rng(seed)
    rows = []
    for d in range(decisions):
        base, old = random.normal(0, 1), random.normal(-0.5, 0.3)
        for age, gender in product(AGES, GENDERS):
            y = base + old * (age == "90") + 0.2 * (gender == "female") + random.normal(0, 0.3)
            person = f"age={age}; gender={gender}"
            for prompt, shift in (("a", 0.1), ("b", -0.1)):
                rows.append(("m", "p", f"d{d}", f"d{d}/{person}", person, reference,
                             -1 + y + shift, -1.0, prompt))  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.DECISION_ANSWERS), orient="row")


def test_balanced_estimates_are_the_mixed_models() -> None:
    given = answers(30, seed=1)
    found = measure(DECISIONS, given.sample(fraction=1, shuffle=True, seed=3))
    people = pl.col("person").str.extract_groups(r"age=(?<age>\w+); gender=(?<gender>\w+)")
    data = given.with_columns(people.struct.unnest(), y=pl.col("favourable") + 1)
    frame = pd.DataFrame(data.select("y", "age", "gender", "decision_id").to_dict(as_series=False))
    formula = "y ~ C(age, Treatment('60')) + C(gender, Treatment('male'))"
    effects = smf.mixedlm(formula, frame, groups="decision_id").fit().fe_params
    for row in found.iter_rows(named=True):
        (effect,) = (v for name, v in effects.items() if f"[T.{row['group']}]" in name)
        assert row["value"] == pytest.approx(effect, abs=1e-9)
        assert row["units"] == 30
    assert found["group"].to_list() == ["20", "90", "female"]
    assert found["condition"].to_list() == ["reference:60"] * 2 + ["reference:male"]


def test_intervals_are_students_over_decisions() -> None:
    given = answers(12, seed=2, reference=None)
    (row,) = measure(DECISIONS, given).filter(group="90").to_dicts()
    y = given.with_columns(
        y=pl.col("favourable") - pl.col("unfavourable"), age=pl.col("person").str.slice(4, 2)
    )
    wide = y.pivot("age", index="decision_id", values="y", aggregate_function="mean")
    differences = (wide["90"] - wide.select(AGES).mean_horizontal()).to_numpy()
    error = differences.std(ddof=1) / np.sqrt(12)
    assert row["condition"] == "mean_of_groups"
    assert row["value"] == pytest.approx(differences.mean())
    assert row["high"] - row["value"] == pytest.approx(2.200985160 * error)


def test_files_are_read_by_the_command_and_refused_in_one_line(tmp_path: Path) -> None:
    given = answers(3, seed=4)
    given.write_csv(tmp_path / "a.csv")
    given.write_parquet(tmp_path / "b.parquet")
    one = raybias.measure([tmp_path / "a.csv"], out=tmp_path / "out")
    assert one.equals(raybias.measure([tmp_path / "b.parquet"]))
    assert pl.read_csv(tmp_path / "out/estimates.csv").columns == schema.ESTIMATES.names
    with pytest.raises(DataError, match="more than once"):
        raybias.measure([tmp_path / "a.csv", tmp_path / "b.parquet"])
    given.with_columns(person=pl.lit("old")).write_csv(tmp_path / "a.csv")
    with pytest.raises(DataError, match="person 'old' does not say whose groups"):
        raybias.measure([tmp_path / "a.csv"])
