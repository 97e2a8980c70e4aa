"""Rules of gaps where the truth is known: simulated designs, and labels made meaningless."""

from __future__ import annotations

import polars as pl
import pytest

from benchmarks import calibrate
from benchmarks.calibrate import Design, simulate
from raybias.config import Statistics
from raybias.stats.null_check import null_check

RULES = Statistics.under("strict")


def test_a_group_effect_is_shuffled_away_and_runs_alone_are_found_wanting() -> None:
    design = Design("check", templates=40, word=0.0)
    tables, _ = simulate(design, 30, gaps=(0.2, 0, 0, 0, 0, 0))
    found = null_check([table for table, _ in tables.tables()], {}, RULES)
    flagged = found.filter(score="meaningless_flagged")
    shares = dict(flagged.select("scope", "value").iter_rows())
    assert shares["runs"] > 0.15
    assert 0.01 < shares["sentences"] < 0.08
    assert [*shares] == ["runs", "sentences", "widest"]


@pytest.mark.long
@pytest.mark.parametrize(
    "design",
    [
        Design("words matter", word=0.03, words=(2, 2, 2, 2, 2, 2)),
        Design("uneven", missing=0.25, templates=20, word=0.01),
    ],
    ids=lambda design: design.name,
)
def test_intervals_hold_what_their_scope_promises(
    design: Design, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "DRAWN_TABLES", 20)
    monkeypatch.setattr(calibrate, "POWER_OF", ())
    found = calibrate.simulated_rules(design, studies=60)
    coverage = {
        row[0]: row[1] for row in found.filter(interval="t")["scope", "coverage"].iter_rows()
    }
    # 120 tables of six gaps that depend on one another: within three standard errors.
    assert 0.92 < coverage["runs"] < 0.98
    assert 0.92 < coverage["sentences"] < 0.99
    assert 0.92 < coverage["wording"] < 0.985
    assert found.filter(scope="widest")["flagged"].item() < 0.08


def test_every_rule_of_every_design_is_told() -> None:
    written = pl.concat(
        calibrate.simulated_rules(design, studies=1) for design in calibrate.DESIGNS
    )
    assert {*written["scope", "interval"].unique().iter_rows()} == {
        *((scope, "t") for scope in ("runs", "sentences", "wording", "widest")),
        *(("sentences", "span"), ("sentences", "bootstrap"), ("runs", "normal")),
    }
    is_drawn = pl.col("interval").is_in(["span", "bootstrap"])
    assert written.filter(is_drawn)["power_05"].null_count() == 2 * len(calibrate.DESIGNS)
    told = written.filter(~is_drawn)["coverage", "flagged", "with_survivor", "power_08"]
    assert told.null_count().row(0) == (0, 0, 0, 0)
