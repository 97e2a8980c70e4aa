"""Two arms of options, triples, decisions, sentences or embeddings: changes, and how sure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import raybias
from raybias import schema
from raybias.errors import DataError
from raybias.measures.compare import Units
from raybias.measures.compare_scores import compare_scores
from raybias.measures.kind import kinds, measure
from raybias.stats.intervals import Rules
from support.answer_data import option_answers
from support.commands import exit_code, refused
from support.report_outs import pair_study, write_pair_out

KEYS = ("model", "probe", "method", "attribute", "condition", "group", "style", "score")
#: The column that names a unit.
UNITS = {
    "options": "template_id",
    "triples": "term",
    "decisions": "decision_id",
    "sentences": "template_id",
    "associations": "item_id",
}


def options(units: int, bias: float, seed: int) -> pl.DataFrame:
    """Eight questions a template; the stereotype is answered with probability 0.4 and `bias`.

    Three of ten ambiguous questions are answered by unknown, and seven of ten others right.
    """
    random = np.random.default_rng(seed)
    rows = []
    for unit in range(units):
        for number in range(8):
            polarity = schema.POLARITIES[number % 2]
            ambiguous = number < 4
            follows = random.random() < 0.4 + bias
            pred = 0 if follows == (polarity == "neg") else 1
            if ambiguous and random.random() < 0.3:
                pred = 2
            label = 2 if ambiguous else number // 2 % 2
            if not ambiguous and random.random() < 0.7:
                pred = label
            rows.append(("m", "bbq", "", "Age", f"t{unit:03}", f"{unit}-{number}",
                         schema.CONTEXTS[not ambiguous], polarity, label, 2, 0, pred, None, "", "")
                        )  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.OPTION_ANSWERS), orient="row")


def triples(units: int, bias: float, seed: int) -> pl.DataFrame:
    """Six triples a term, whose stereotype is preferred with probability 0.4 and `bias`."""
    random = np.random.default_rng(seed)
    rows = [
        ("m", "stereoset", "race", "intrasentence", f"t{unit:03}", f"{unit}-{number}",
         3.0 if random.random() < 0.4 + bias else 1.0, 2.0, 0.0)
        for unit in range(units) for number in range(6)
    ]  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.TRIPLE_SCORES), orient="row")


def decisions(units: int, bias: float, seed: int) -> pl.DataFrame:
    """Three ages in every decision, the last of which is `bias` logits ahead."""
    random = np.random.default_rng(seed)
    rows = []
    for unit in range(units):
        base, ahead = random.normal(), random.normal(bias, 0.3)
        for age in ("20", "60", "90"):
            y = base + ahead * (age == "90") + random.normal(0, 0.2)
            rows.append(("m", "p", f"d{unit:03}", f"{unit}-{age}", f"age={age}", "age=60",
                         y - 1.0, -1.0, ""))  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.DECISION_ANSWERS), orient="row")


def sentences(units: int, bias: float, seed: int) -> pl.DataFrame:
    """Four descriptors of nine sentences a template, with likelihoods `bias` further each."""
    random = np.random.default_rng(seed)
    rows = [
        ("m", "p", f"{unit}-{d}-{n}", "age", f"t{unit:03}", f"d{d}",
         random.normal() + 2 * bias * d - 5)
        for unit in range(units) for d in range(4) for n in range(9)
    ]  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.SENTENCE_SCORES), orient="row")


def associations(units: int, bias: float, seed: int) -> pl.DataFrame:
    """Targets of two sets, half of `units` each, the first of which lie closer to A by `bias`."""
    random = np.random.default_rng(seed)
    sizes = {"X": units // 2, "Y": units - units // 2, "A": 5, "B": 5}
    lean = {"X": bias, "Y": -bias, "A": 2.0, "B": -2.0}
    rows = [
        ("m", "p", "mean", "flowers", name, f"{name}{n}",
         [lean[name] + random.normal(0, 0.5), *random.normal(0, 1, 3)])
        for name, size in sizes.items() for n in range(size)
    ]  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.EMBEDDINGS), orient="row")


MADE: dict[str, Callable[[int, float, int], pl.DataFrame]] = {
    "options": options,
    "triples": triples,
    "decisions": decisions,
    "sentences": sentences,
    "associations": associations,
}


def planted(name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Answers of sixty units of a model with little bias, and of one with much."""
    little, much = {"decisions": (0.05, 1.5), "associations": (0.05, 0.9)}.get(name, (0.1, 0.5))
    return MADE[name](60, little, 1), MADE[name](60, much, 2)


def compared(
    name: str, base: pl.DataFrame, candidate: pl.DataFrame, margin: float = 0.02, **rules: Any
) -> pl.DataFrame:
    changes, _ = compare_scores(kinds[name], base, candidate, Rules(**rules), margin=margin)
    return changes


def values(name: str, answers: pl.DataFrame) -> dict[tuple[str, ...], float]:
    """The scores of one arm as `measure` gives them, by their names."""
    rows = measure(kinds[name], answers).select(*KEYS, "value").rows()
    return {row[:-1]: row[-1] for row in rows}


@pytest.mark.parametrize("name", MADE)
def test_changes_are_differences_of_two_measures_with_plain_jackknifes(name: str) -> None:
    kind, units = kinds[name], 14
    base, candidate = MADE[name](units, 0.1, 1), MADE[name](units, 0.3, 2)
    changes, others = compare_scores(kind, base, candidate, Rules(), margin=0.02)
    before, after = values(name, base), values(name, candidate)
    assert changes.height + others.height == len(before) > 0
    column = UNITS[name]
    targets = base if name != "associations" else base.filter(pl.col("set").is_in(["X", "Y"]))
    left_out = [
        (values(name, base.filter(pl.col(column) != unit)),
         values(name, candidate.filter(pl.col(column) != unit)))
        for unit in targets[column].unique().sort()
    ]  # fmt: skip
    for rows, level in ((changes, 1 - 0.05 / changes.height), (others, 0.95)):
        for row in rows.iter_rows(named=True):
            score = kind.scores[row["score"]]
            key = tuple(row[name] for name in KEYS)
            assert row["base"] * score.whole == pytest.approx(before[key])
            assert row["candidate"] * score.whole == pytest.approx(after[key])
            assert row["value"] * score.whole == pytest.approx(after[key] - before[key])
            without = np.array([two[key] - one[key] for one, two in left_out]) / score.whole
            error = np.sqrt((units - 1) * without.var())
            if score.name == "icat" or error < 1e-9:
                continue
            reach = stats.t.ppf((1 + level) / 2, units - 1) * error
            least, most = score.bounds or (-np.inf, np.inf)
            ends = np.clip(
                [row["value"] - reach, row["value"] + reach],
                least / score.whole - row["base"],
                most / score.whole - row["base"],
            )
            assert (row["low"], row["high"]) == pytest.approx(tuple(ends))


@pytest.mark.parametrize("name", MADE)
def test_a_planted_change_is_worse_its_reverse_better_and_none_is_equivalent(name: str) -> None:
    fair, biased = planted(name)
    away = compared(name, fair, biased)
    # Most answers are right if the context tells, and the age of 20 is like that of 60.
    moved = (pl.col("condition") != "disambig") & (pl.col("group") != "20")
    assert {*away.filter(moved)["verdict"]} == {"worse"}
    assert {*compared(name, biased, fair).filter(moved)["verdict"]} == {"better"}
    unit = kinds[name].units.removesuffix("s")
    same = compared(name, fair, fair, margin=0.5)
    assert {*same["verdict"]} == {"equivalent"}
    assert {*same["value"]} == {0.0}
    assert {*same["still"]} == {f"no {unit}'s outcome changes"}
    # Few units may hide what they do not show.
    few = compared(name, MADE[name](12, 0.1, 1), MADE[name](12, 0.1, 1))
    assert {*few["verdict"]} == {"cannot tell"}
    assert few["reason"].str.contains(f"{kinds[name].units} or more").all()


def test_as_far_from_no_bias_on_the_other_side_is_neither_worse_nor_better() -> None:
    low, high = triples(60, -0.2, 1), triples(60, 0.4, 2)
    (row,) = compared("triples", low, high).filter(score="ss").to_dicts()
    assert row["verdict"] == "cannot tell"
    assert row["reason"].endswith("it moved, but whether away from no bias is not known")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "score", "group", "shift", "true"),
    [
        # 0.7 of all answers are not unknown, and follow the stereotype or counter it.
        ("options", "bbq", "", 0.1, 0.7 * 2 * 0.1),
        ("triples", "ss", "", 0.1, 0.1),
        # min(ss, 1 - ss) / 0.5, of ss 0.5 less a kink and 0.6.
        ("triples", "icat", "", 0.1, -0.2),
        ("decisions", "more_favourable", "90", 0.1, 0.1),
    ],
)
def test_intervals_of_changes_cover_the_truth(
    name: str, score: str, group: str, shift: float, true: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The bound for units that were not sampled takes most of the time, and no part in intervals.
    monkeypatch.setattr(Units, "reach", lambda *_: 1.0)
    held, tables = 0, 300
    start = 0.2 if score == "icat" else 0.1
    for seed in range(tables):
        arms = MADE[name](20, start, 2 * seed), MADE[name](20, start + shift, 2 * seed + 1)
        number = {"options": 6, "triples": 2, "decisions": 2}[name]
        rows = compared(name, *arms, level=1 - 0.05 * number).filter(score=score, group=group)
        row = rows.row(0, named=True)
        held += row["low"] <= true <= row["high"]
    assert 0.92 <= held / tables <= 0.985


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 40), st.integers(1, 6), st.integers(0, 10_000),
    st.sampled_from([0.0, 0.5, 1.0]), st.booleans(),
)  # fmt: skip
def test_ragged_answers_are_compared_or_have_a_reason(
    items: int, templates: int, seed: int, unparsed: float, prompts: bool
) -> None:
    answers = option_answers(items, templates, seed, unparsed=unparsed)
    answers = answers.with_columns(model=pl.lit("m"))
    random = np.random.default_rng(seed)
    other = answers.with_columns(pred=pl.Series(random.integers(0, 3, items), dtype=pl.Int8))
    if prompts:
        answers, other = (
            pl.concat(arm.with_columns(prompt=pl.lit(name)) for name in "ab")
            for arm in (answers, other)
        )
    changes, others = compare_scores(kinds["options"], answers, other, Rules(), margin=0.05)
    before, after = values("options", answers), values("options", other)
    for row in [*changes.to_dicts(), *others.to_dicts()]:
        key = tuple(row[name] for name in KEYS)
        found = [before.get(key), after.get(key)]
        if None not in found:
            assert row["value"] == pytest.approx(found[1] - found[0])
            assert row["low"] is None or row["low"] - 1e-9 <= row["value"] <= row["high"] + 1e-9
        else:
            assert row["value"] is None
    assert changes.filter(pl.col("value").is_null(), verdict="equivalent").is_empty()
    assert not changes["verdict"].null_count()
    if prompts:
        assert {*changes.filter(style="all")["scope"]} == {"templates, prompts"}
        narrow = compared("options", answers, other, scope="sentences")
        assert {*narrow["scope"]} == {"templates"}


def test_a_candidate_that_no_longer_answers_biased_questions_is_unread() -> None:
    base = options(60, 0.5, 1)
    silent = (pl.col("polarity") == "neg") & (pl.col("pred") == 0)
    quiet = base.with_columns(pred=pl.when(~silent).then("pred"))
    found = compared("options", base, quiet, margin=0.05).filter(condition="ambig", score="bbq")
    assert found["verdict"].to_list() == ["unread"]
    assert found["reason"][0].startswith("unread answers (polarity neg) rose from 0% to ")


def written(folder: Path, **frames: pl.DataFrame) -> list[str]:
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet")
    return [str(folder / f"{name}.parquet") for name in frames]


@pytest.mark.parametrize("name", MADE)
def test_two_files_are_compared_gated_and_shown(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fair, biased = planted(name)
    files = written(tmp_path, base=fair, candidate=biased.with_columns(model=pl.lit("n")))
    out = tmp_path / "out"
    assert exit_code("compare", *files, "--gate", "margin=0.3", "--out", out) == 3
    said = capsys.readouterr().out
    units = kinds[name].units
    assert f"Intervals of {name} cover {units}: {units} are redrawn" in said
    assert ("template" in said) == (units == "templates")
    assert "<svg" in (out / "compare.html").read_text()
    assert exit_code("compare", *files, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = raybias.compare(*files)
    assert found.changes["model"].unique().to_list() == ["m -> n"]
    assert [row["change"] for row in rows] == found.changes["value"].to_list()
    told = json.loads((out / "compare.json").read_text())
    assert len(told["others"]) == found.others.height
    assert exit_code("compare", files[0], files[0], "--gate", "margin=0.6") == 0
    assert exit_code("compare", files[0], files[0], "--gate", "margin=0.001") == 4


def test_a_policy_selects_scores_by_condition(tmp_path: Path) -> None:
    base, candidate = planted("options")
    mixed = pl.concat([base.filter(context="disambig"), candidate.filter(context="ambig")])
    files = written(tmp_path, base=base, candidate=mixed)
    for condition, verdict, code in (("disambig", "go", 0), ("ambig", "no-go", 3)):
        rule = {"name": "r", "tier": "critical", "condition": [condition], "score": ["bbq"],
                "margin": 0.3}  # fmt: skip
        policy = {"rules": [rule]}
        decision = raybias.compare(*files, policy=policy).decision
        assert decision is not None
        assert decision.verdict == verdict
        place = tmp_path / "policy.json"
        place.write_text(json.dumps(policy))
        assert exit_code("compare", *files, "--policy", place) == code


def test_arms_that_do_not_match_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = options(5, 0.1, 1), options(5, 0.1, 2)
    frames = {
        "fewer": other.filter(pl.col("item_id") != "3-2"),
        "relabelled": other.with_columns(
            label=pl.when(pl.col("item_id") == "3-2").then(1).otherwise("label").cast(pl.Int8)
        ),
        "others": other.with_columns(probe=pl.lit("kobbq")),
        "triples": triples(5, 0.1, 1),
        "base": one,
    }
    paths = dict(zip(frames, written(tmp_path, **frames), strict=True))
    for name, message in (
        ("fewer", "the base has item_id '3-2', which the other arm lacks"),
        ("relabelled", "Age 3-2 has the label 2 in the base and 1 in the candidate"),
        ("others", "the base has probe 'bbq', which the other arm lacks"),
        ("triples", "the base has options, and the candidate triples"),
    ):
        words = ("compare", paths["base"], paths[name], "--out", tmp_path / "out")
        assert message in refused(capsys, *words)
        assert not (tmp_path / "out").exists()
    line = refused(capsys, "compare", paths["base"], paths["base"], "--base", "style=x")
    assert "'style' does not tell options apart; choose by model, method, probe, prompt" in line
    line = refused(capsys, "compare", paths["base"], paths["base"], "--base", "model=x")
    assert "has no options with the model 'x'; it has 'm'" in line


def test_outs_with_several_kinds_are_compared_as_a_whole(tmp_path: Path) -> None:
    arms = []
    for name, bias in (("one", 0.05), ("two", 0.5)):
        store = write_pair_out(tmp_path / name, pair_study())
        answers = options(30, bias, 1).with_columns(model=pl.lit("toy-1M"))
        store.write_table("options/a/00000000.parquet", answers.to_arrow())
        arms.append(tmp_path / name)
    found = raybias.compare(*arms)
    assert {*found.changes["kind"]} == {"pairs", "coreference", "options"}
    assert "worse" in {*found.changes.filter(kind="options")["verdict"]}
    assert "worse" not in {*found.changes.filter(kind="pairs")["verdict"]}
    asked = {"model": "toy-1M", "method": ""}
    part = raybias.compare(*arms, base_is=asked, candidate_is=asked)
    assert {*part.changes["kind"]} == {"options"}
    assert part.notes[0] == "Not compared, since --base names none of it: scores of pairs."
    with pytest.raises(DataError, match="the base has options and scores of pairs, and the cand"):
        raybias.compare(*arms, candidate_is=asked)


def test_published_answers_are_compared_as_they_are_measured(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/stereoset"
    files = [folder / f"predictions_{name}_race.json.gz" for name in ("gpt2", "bert-base-cased")]
    items = folder / "race.json.gz"
    found = raybias.compare(*files, items=items, out=tmp_path / "stereoset")
    rows = pl.concat([found.changes, found.others])
    base, candidate = (raybias.measure(file, items=items) for file in files)
    both = base.join(candidate, on="score").sort("score")
    assert (100 * rows.sort("score")["value"]).to_list() == pytest.approx(
        (both["value_right"] - both["value"]).to_list()
    )
    ages = shared / "data/bbq/preds_Age.jsonl.gz"
    arms = {f"{arm}_is": {"model": f"unifiedqa-t5-11b_pred_{name}"}
            for arm, name in (("base", "race"), ("candidate", "arc"))}  # fmt: skip
    told = raybias.compare(ages, ages, **arms).changes
    (row,) = told.filter(condition="ambig", score="bbq").to_dicts()
    assert (row["base"], row["candidate"]) == (
        pytest.approx(0.298, abs=1e-3),
        pytest.approx(0.489, abs=1e-3),
    )
    assert row["verdict"] == "worse"
