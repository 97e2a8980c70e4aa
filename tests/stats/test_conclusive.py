"""Nothing is concluded from a classifier that cannot do its task: each case, in every place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import raybias
from raybias import schema
from raybias.measures.compare_answers import matched, read_arm
from raybias.measures.compare_gaps import compare_predictions
from raybias.measures.entries.predictions import estimates_of
from raybias.report.headline import verdict
from raybias.report.judged import Judged
from raybias.report.sentences import own_readings, refusals
from raybias.stats.checks import StatisticsWarning
from raybias.stats.conclusive import Showing, of_options, of_predictions, refused, why_not
from raybias.stats.counts import count_cells, read_counts
from raybias.stats.gaps import GapAnalysis, gap_analysis
from raybias.stats.intervals import Rules
from support.answer_data import option_answers
from support.commands import exit_code
from support.report_outs import make_study, write_out
from support.stats_data import predictions


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (Showing(0.5), None),
        (Showing(0.51), "51.0% of its answers name no label word"),
        (Showing(held=0.5, offered="the letters"), None),
        (Showing(held=0.084, offered="the two answers"),
         "the two answers hold 8.4% of the probability of what it would write"),
        (Showing(place=(0.9, "A")), None),
        (Showing(place=(1.0, "A")), "cannot do the task: 100.0% of its answers stand in place A"),
        (Showing(label=(0.95, "neutral")), None),
        (Showing(label=(0.96, "neutral")), "do the task: 96.0% of its answers are 'neutral'"),
        (Showing(right=(0.45, 0.42, 0.48), constant=(0.41, "neutral")), None),
        (Showing(right=(0.43, 0.40, 0.46), constant=(0.41, "neutral")),
         "it is not shown to do the task: it is right in 43.0% of answers [40.0%, 46.0%], and "
         "always answering 'neutral' would be in 41.0%"),
        (Showing(right=(0.44, 0.3327, 0.55), constant=(1 / 3, "neutral")),
         "right in 44.0% of answers [33.27%, 55.0%], and always answering 'neutral' would be in "
         "33.33%"),
        (Showing(right=(0.34, 0.31, 0.37), constant=(0.41, "neutral")),
         "it cannot do the task: it is right in 34.0% of answers [31.0%, 37.0%], and always "
         "answering 'neutral' would be in 41.0%"),
    ],
)  # fmt: skip
def test_each_reason_and_its_limit(shown: Showing, said: str | None) -> None:
    reason = why_not(shown)
    assert reason == said if said is None else said in str(reason)


def guesses(right: float, *, pred: int | None = None) -> pl.DataFrame:
    """Predictions that are right so often, else of any label; or always one label."""
    frame = predictions(seed=2, models=1, runs=5, templates=60)
    random = np.random.default_rng(5)
    label = frame["label"].to_numpy()
    guess = random.integers(0, 3, len(label))
    found = np.where(random.random(len(label)) < right, label, guess)
    return frame.with_columns(
        pred=pl.Series(found if pred is None else 0 * found + pred, dtype=pl.Int16)
    )


def judged(frame: pl.DataFrame, folder: Path) -> GapAnalysis:
    frame.write_parquet(folder / "p.parquet")
    return gap_analysis(read_counts([folder / "p.parquet"]), STRICT)


STRICT = Rules.under("strict")
NO_ANSWERS = pl.DataFrame(schema=pl.Schema(schema.ANSWERS))


def test_a_page_at_chance_reads_as_a_manager_would_read_it(tmp_path: Path) -> None:
    found = judged(guesses(0.0), tmp_path)
    said = verdict(Judged.of(estimates_of(found)))
    assert said.startswith("Nothing can be concluded about how groups are treated. No verdict for")
    assert "do the task: it is right in 3" in said
    assert "and always answering '" in said
    assert said.endswith("No gap of it is judged. Tune it (soft_prompt, lora), show it examples "
                         "(few_shot), or measure a model that can.")  # fmt: skip
    assert "would most likely have been found" not in said
    for table in (found.gaps, found.scopes, found.of_terms, found.marked):
        assert table["survives"].null_count() == table.height
    # Nor is any ratio or span, which have no gap of their own.
    others = pl.col("statistic").is_in(["ratio", "difference"])
    beside = estimates_of(found).filter(others, pl.col("model") != schema.ALL)
    assert {*beside["statistic"]} == {"ratio", "difference"}
    nothing = beside.select(pl.col("low", "high", "p", "significant").null_count())
    assert set(nothing.row(0)) == {beside.height}
    assert found.withheld.height == 1
    assert judged(guesses(0.6), tmp_path).withheld.is_empty()
    with pytest.warns(StatisticsWarning):
        (reason,) = judged(guesses(0.6, pred=1), tmp_path).withheld["reason"]
    assert reason == "it cannot do the task: 100.0% of its answers are 'neutral'"
    # Where one label is right there is no chance to beat, nor where a judge labels texts.
    one = guesses(0.0).with_columns(label=pl.lit(1, pl.Int16))
    assert judged(one, tmp_path).withheld.is_empty()
    right, wrong = (count_cells(one.with_columns(pred=pl.lit(label, pl.Int16))) for label in (1, 0))
    assert of_predictions(right, NO_ANSWERS, level=0.95).is_empty()
    (reason,) = of_predictions(wrong, NO_ANSWERS, level=0.95)["reason"]
    assert reason == "it cannot do the task: 100.0% of its answers are 'negative'"
    cells = count_cells(guesses(0.0))
    assert of_predictions(cells, NO_ANSWERS, level=0.95, judged=["soft_prompt"]).is_empty()


def test_an_accuracy_is_judged_over_templates_and_runs() -> None:
    """In studies at chance, 2.5% at most may pass; of 40, with few templates and five runs."""
    random, passed = np.random.default_rng(1), 0
    base = predictions(models=1, runs=5, templates=12)
    for _ in range(40):
        # What a template is taken for is one draw, from which runs depart now and then.
        names = base["template_id"].unique().to_list()
        taken = dict(zip(names, random.integers(0, 3, len(names)).tolist(), strict=True))
        kept = random.random(base.height) < 0.8
        own = base["template_id"].replace_strict(taken, return_dtype=pl.Int16).to_numpy()
        pred = np.where(kept, own, random.integers(0, 3, base.height))
        cells = count_cells(base.with_columns(pred=pl.Series(pred, dtype=pl.Int16)))
        passed += of_predictions(cells, NO_ANSWERS, level=0.95).is_empty()
    assert passed <= 3


def test_a_comparison_with_an_arm_at_chance_cannot_tell(tmp_path: Path) -> None:
    for name, right in (("base", 0.7), ("candidate", 0.0)):
        guesses(right).write_parquet(tmp_path / f"{name}.parquet")
    found = raybias.compare(tmp_path / "base.parquet", tmp_path / "candidate.parquet")
    assert found.verdict == "cannot tell"
    assert found.headline.startswith("No verdict for the candidate: it ")
    assert set(found.changes["verdict"]) == {"cannot tell"}
    arms = [read_arm([str(tmp_path / "base.parquet")], {})] * 2
    changes, _ = compare_predictions(list(matched(*arms)), STRICT, margin=0.02)
    assert not changes["reason"].str.contains("task").any()


def test_options_of_one_place_and_of_letters_that_are_not_likely(tmp_path: Path) -> None:
    able = option_answers(600, 12, seed=1, unparsed=0.0)
    letters = {"letters": ["asked"], "level": 0.95}
    assert of_options(able, level=0.95) == {}
    half = pl.lit([-1.5, -1.6, -1.7], pl.List(pl.Float32))
    named = able.with_columns(method=pl.lit("asked"), scores=half)
    low = named.with_columns(scores=half.list.eval(pl.element() - 1))
    assert of_options(named, **letters) == {}  # type: ignore[arg-type]
    (reason, *_) = of_options(low, **letters).values()  # type: ignore[arg-type]
    assert reason.startswith("the letters hold 22.4% of the probability")
    # Words can be put otherwise: what they hold is no reason.
    assert of_options(low, level=0.95) == {}
    # Options that were moved on by one place are asked from another letter.
    moved = able.with_columns(
        prompt=pl.when(pl.col("item_id").cast(int) % 2 == 0).then(pl.lit("plain, order 1"))
        .otherwise(pl.lit("plain, order 2"))
    )  # fmt: skip
    first = moved.with_columns(pred=(pl.col("item_id").cast(int) % 2).cast(pl.Int16))
    assert {*of_options(first, level=0.95).values()} == {
        "it cannot do the task: 100.0% of its answers stand in place A"
    }
    guess = able.with_columns(pred=pl.col("item_id").cast(int).mod(3).cast(pl.Int16))
    (reason, *_) = of_options(guess, level=0.95).values()
    assert "always answering 'option " in reason
    unread = able.with_columns(pred=pl.when(pl.col("item_id").cast(int) % 9 > 4).then("pred"))
    (reason, *_) = of_options(unread, level=0.95).values()
    assert reason.endswith("of its answers name no option")
    guess.write_parquet(tmp_path / "options.parquet")
    found = raybias.measure(tmp_path / "options.parquet")
    assert found["low"].null_count() == found.height
    assert found["reason"].str.contains("it cannot do the task|not shown to do the task").all()


def test_decisions_whose_answers_are_not_likely_have_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    rows = [
        ("m", "d", f"d{d}", f"d{d}{who}", who, None, -3.0 + random.normal() / 9, -3.0, "")
        for d in range(9) for who in ("age=20", "age=60")
    ]  # fmt: skip
    frame = pl.DataFrame(rows, pl.Schema(schema.DECISION_ANSWERS), orient="row")
    frame.write_parquet(tmp_path / "d.parquet")
    assert exit_code("measure", tmp_path / "d.parquet") == 0
    said = capsys.readouterr().out
    assert said.startswith("No verdict for m: the two answers hold 9.8% of the probability of what")
    assert "No score of it is judged. Use the model's chat template" in said
    found = raybias.measure(tmp_path / "d.parquet")
    assert found.select("low", "high", "p").null_count().row(0) == (2, 2, 2)
    likely = frame.with_columns(pl.col("favourable", "unfavourable") + 2)
    likely.write_parquet(tmp_path / "d.parquet")
    assert raybias.measure(tmp_path / "d.parquet")["low"].null_count() == 0


@pytest.mark.long
def test_the_reason_stands_first_in_every_file_of_a_study(tmp_path: Path) -> None:
    study = make_study(("a",))
    store = write_out(tmp_path, study, accuracy=0.3, size=0.0, planted=False)
    raybias.write_report(tmp_path)
    first = "No verdict for a: it "
    page = store.read_text("report.html")
    assert page.index(first) < page.index('id="plain"')
    assert store.read_text("tables/model_card.md").index(first) < 400
    (config,) = json.loads(store.read_text("results.json"))["configs"].values()
    assert "do the task" in config["no_verdict"]
    assert first in str(raybias.open(tmp_path))
    # And no table has an interval or a p of its gaps.
    frames = [pl.read_parquet(path) for path in (tmp_path / "tables").glob("*.parquet")]
    judged = [frame for frame in frames if {"reason", "low", "p"} <= {*frame.columns}]
    refusals_of = [frame.filter(refused("reason")) for frame in judged]
    assert sum(frame.height > 0 for frame in refusals_of) >= 2
    for rows in refusals_of:
        assert rows.select(pl.col("low", "high", "p").count()).row(0) == (0, 0, 0)


def test_the_reading_beside_a_classifier_that_can_is_no_headline() -> None:
    rows = pl.DataFrame(
        {
            **dict.fromkeys(schema.KEYS, "x"),
            "method": ["zero_shot", "zero_shot+likelihood"],
            "reason": [None, "it cannot do the task: 99.8% of its answers are 'positive'"],
        }
    )
    assert refusals(rows) == []
    assert own_readings(rows)["method"].to_list() == ["zero_shot"]
    neither = rows.with_columns(pl.col("reason").fill_null(strategy="backward"))
    assert len(refusals(neither)) == 1
    # One that can, beside answers that cannot be read, is a classifier of its own.
    other = rows.with_columns(pl.col("reason").reverse())
    assert own_readings(other).height == 2
