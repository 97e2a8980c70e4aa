"""Two arms: what is found, what is not, what is matched, how sure, the gate, and policies."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

import raybias
from raybias.measures.compare import COMPARED, VERDICTS
from raybias.measures.compare_answers import matched
from raybias.measures.compare_gaps import ANSWERS, Blend, band_level, compare_predictions
from raybias.stats.intervals import Rules
from support.commands import exit_code, refused
from support.documents import ROOT
from support.stats_data import crossed, gap_table

CONTRACT = ["probe", "attribute", "group", "rate", "change", "low", "high", "flips_up",
            "flips_down", "verdict"]  # fmt: skip


def arm(seeds: Sequence[int] = (1, 2, 3, 4), *, templates: int = 60) -> pl.DataFrame:
    """Neutral sentences of three groups that a model with noise of runs and templates reads."""
    shape = (templates, 3, 2)
    difficulty = np.random.default_rng(5).normal(0.2, 0.1, (templates, 1, 1))
    parts = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        wrong = random.random(shape) < (difficulty + random.normal(0, 0.03)).clip(0, 1)
        pred = np.where(wrong, random.choice([0, 2], shape), 1)
        run = pl.lit(f"m.d.lora.lr0.001.s{seed}")
        parts.append(crossed(pred[None]).with_columns(run_id=run, parsed=pl.lit(True)))
    return pl.concat(parts)


def turned(frame: pl.DataFrame, *, every: int = 3) -> pl.DataFrame:
    """The frame with every third template's sentences about the first group called negative."""
    hit = (pl.col("template_id").cast(pl.Int64) % every == 0) & (pl.col("group") == "0")
    return frame.with_columns(pred=pl.when(hit).then(pl.lit(0, pl.Int16)).otherwise("pred"))


def tables(
    base: pl.DataFrame, candidate: pl.DataFrame, *metrics: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    rules = Rules.under("strict", metrics=metrics or ("negative_fpr",))
    arms = [frame.with_columns(run_id=pl.col("run_id").str.extract(r"(\d+)$"))
            for frame in (base, candidate)]  # fmt: skip
    return compare_predictions(list(matched(*arms)), rules, margin=0.02)


def written(folder: Path, name: str, frame: pl.DataFrame) -> str:
    path = folder / f"{name}.parquet"
    frame.write_parquet(path)
    return str(path)


def test_a_candidate_that_leaves_harmful_answers_unread_passes_no_gate(tmp_path: Path) -> None:
    base = turned(arm())
    harmed = (pl.col("pred") == 0) & (pl.col("group") == "0")
    unread = base.with_columns(
        pred=pl.when(harmed).then(None).otherwise("pred"), parsed=harmed.not_()
    )
    changes, answers = tables(base, unread)
    found = {row["group"]: row for row in changes.iter_rows(named=True)}
    assert found["0"]["verdict"] == "unread"
    assert found["0"]["reason"].startswith("unread answers on 0 rose from 0% to ")
    share = base.select(harmed.mean()).item()
    assert answers.select("base_unread", "candidate_unread").row(0) == (0, pytest.approx(share))
    paths = [written(tmp_path, *each) for each in (("base", base), ("candidate", unread))]
    assert exit_code("compare", *paths, "--gate", "margin=0.02") == 5
    # The same answers, read and harmless, are what a better candidate gives.
    healed = base.with_columns(pred=pl.when(harmed).then(pl.lit(1, pl.Int16)).otherwise("pred"))
    assert tables(base, healed)[0].filter(group="0")["verdict"].to_list() == ["better"]


def test_planted_flips_are_found_and_counted() -> None:
    base = arm()
    candidate = turned(base)
    changes, answers = tables(base, candidate)
    found = {row["group"]: row for row in changes.iter_rows(named=True)}
    assert found["0"]["verdict"] == "worse"
    assert found["0"]["low"] > 0
    one, other = (frame.sort("run_id", "item_id")["pred"].to_numpy() for frame in (base, candidate))
    differ = one != other
    here = base.sort("run_id", "item_id").with_columns(differ=pl.Series(differ))
    turned_items = here.filter(pl.col("differ"))["item_id"].n_unique()
    assert (found["0"]["flips_up"], found["0"]["flips_down"]) == (turned_items, 0)
    assert (found["1"]["flips_up"], found["1"]["flips_down"]) == (0, 0)
    assert answers["between"].item() == pytest.approx(differ.mean())
    assert answers["p_even"].item() < 0.01
    back = tables(candidate, base)[0].filter(group="0")
    assert back["verdict"].item() == "better"
    assert back["value"].item() == pytest.approx(-found["0"]["value"])


def test_items_that_no_template_makes_pairs_of_are_pairs_of_arms(tmp_path: Path) -> None:
    random, n = np.random.default_rng(0), 1200
    base = pl.DataFrame({"item_id": map(str, range(n)), "group": ["a", "b"] * (n // 2)})
    base = base.with_columns(model=pl.lit("m"), label=pl.Series(random.integers(0, 2, n)))
    right = pl.Series(random.random(n) < 0.8)
    base = base.with_columns(pred=pl.when(right).then("label").otherwise(1 - pl.col("label")))
    turned = pl.Series(np.isin(np.arange(n), random.choice(n, 30, replace=False)))
    after = base.with_columns(pred=pl.when(turned).then(1 - pl.col("pred")).otherwise("pred"))
    base.write_csv(tmp_path / "base.csv")
    after.write_csv(tmp_path / "after.csv")
    changes = raybias.compare(tmp_path / "base.csv", tmp_path / "after.csv").changes
    differ = base.with_columns(differ=after["pred"] - base["pred"]).filter(label=0)
    each = differ.group_by("group").agg(pl.col("differ").var() / pl.len())["differ"]
    # A group's gap changes by half of the difference of two independent means of pairs.
    half = stats.norm.isf(0.05 / 3 / 2) * np.sqrt(each.sum()) / 2
    # Labels of two classes are no sentiment: three rates of the last one are compared.
    assert {*changes["score"]} == {"selection_rate", "tpr", "fpr"}
    row = changes.row(by_predicate=(pl.col("group") == "a") & (pl.col("score") == "fpr"))
    low, high = (row[changes.columns.index(end)] for end in ("low", "high"))
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)


def test_an_identical_pair_is_equivalent_and_the_order_of_rows_does_not_matter() -> None:
    base, candidate = arm(), arm(seeds=(1, 2, 3, 5))
    many = arm((1, 2), templates=150)
    changes, answers = tables(many, many)
    assert changes["verdict"].unique().to_list() == ["equivalent"]
    assert changes["still"].unique().to_list() == ["no answer differs"]
    assert answers["between"].item() == 0
    mixed = candidate.sample(fraction=1, shuffle=True, seed=3)
    for straight, shuffled in zip(tables(base, candidate), tables(base, mixed), strict=True):
        assert straight.equals(shuffled)
    assert changes.schema == COMPARED
    assert answers.schema == ANSWERS


def test_seeds_of_one_model_are_not_told_apart() -> None:
    for base, candidate in (((1,), (2,)), ((1, 2, 3, 4), (5, 6, 7, 8)), ((1, 2), (3, 4, 5))):
        verdicts = tables(arm(base), arm(candidate))[0]["verdict"]
        assert {*verdicts} <= {"cannot tell", "equivalent"}
    needs = tables(arm((1,)), turned(arm((2,)), every=1))[0].filter(group="0")
    assert needs.select("verdict", "reason").row(0) == (
        "cannot tell", "two runs or more of each arm",
    )  # fmt: skip


def test_sentences_too_few_to_tell_words_apart_say_what_is_lacking() -> None:
    """Each word for a group on templates of its own, as few sentences of many leave it."""
    own = pl.col("template_id").cast(pl.Int64) % 2 == pl.col("term").cast(pl.Int64) % 10
    base, candidate = (arm(seeds, templates=12).filter(own) for seeds in ((1, 2), (3, 4)))
    changes, _ = tables(base, candidate)
    assert {*changes["verdict"]} <= {"cannot tell", "equivalent"}
    assert changes.filter(verdict="cannot tell")["reason"].str.len_chars().min() > 0


def test_flips_that_no_gap_shows_are_told() -> None:
    base = arm(templates=400)
    sides = pl.col("item_id").hash(seed=1) % 2 == 0
    swapped = base.with_columns(
        pred=pl.when(sides, pl.col("pred") == 1).then(pl.lit(2, pl.Int16)).otherwise("pred")
    )
    changes, answers = tables(base, swapped)
    assert {*changes["verdict"]} == {"equivalent"}
    row = answers.row(0, named=True)
    assert row["masked"]
    assert row["between"] > row["within"]
    assert row["p_even"] > 0.01
    runs = base.sort("item_id").partition_by("run_id")
    floor = [(a["pred"] != b["pred"]).mean() for a, b in itertools.combinations(runs, 2)]
    swapped_runs = swapped.sort("item_id").partition_by("run_id")
    floor += [(a["pred"] != b["pred"]).mean() for a, b in itertools.combinations(swapped_runs, 2)]
    assert row["within"] == pytest.approx(np.mean(floor))


def test_flips_of_single_runs_are_tested_as_mcnemar_does() -> None:
    base, candidate = arm((1,)), arm((2,))
    (row, *_) = tables(base, candidate)[0].filter(group="1").iter_rows(named=True)
    events = [frame.filter(group="1").sort("item_id")["pred"].to_numpy() == 0
              for frame in (base, candidate)]  # fmt: skip
    counts = [[int(((events[0] == a) & (events[1] == b)).sum()) for b in (0, 1)] for a in (0, 1)]
    assert (row["flips_up"], row["flips_down"]) == (counts[0][1], counts[1][0])
    assert row["p_flips"] == pytest.approx(mcnemar(counts, exact=True).pvalue)


def test_the_level_of_a_band_is_known_for_opposite_and_for_independent_groups() -> None:
    random = np.random.default_rng(0)
    opposite = random.normal(size=(1, 4, 30)) * np.array([1, -1])[:, None, None]
    level = band_level(Blend((gap_table(opposite),), None), 0.95, key=("a",))
    assert level == pytest.approx(0.95, abs=0.002)
    hadamard = np.array(
        [[(-1) ** bin(i & j).count("1") for j in range(8)] for i in range(1, 6)], float
    )
    level = band_level(Blend((gap_table(hadamard[:, None, :]),), None), 0.95, key=("b",))
    # Sidak's.
    assert level == pytest.approx(0.95 ** (1 / 5), abs=0.001)


@pytest.mark.long
def test_the_gate_and_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = written(tmp_path, "base", arm())
    worse = written(tmp_path, "worse", turned(arm()))
    other = written(tmp_path, "other", arm((5, 6, 7, 8)))
    out = tmp_path / "out"
    assert exit_code("compare", base, base, "--gate", "margin=0.05") == 0
    assert exit_code("compare", base, other, "--gate", "margin=0.02") == 4
    assert exit_code("compare", base, worse, "--gate", "margin=0.02", "--out", str(out)) == 3
    assert exit_code("compare", base, worse) == 0
    assert exit_code("compare", base, worse, "--gate", "margin=0.9") == 0
    assert "Equivalent: of 6 gaps, 6 changed by less than 0.9." in capsys.readouterr().out
    assert exit_code("compare", base, worse, "--gate", "0.02") == 2
    assert {path.name for path in out.iterdir()} == {
        "compare.csv", "compare.md", "compare.json", "compare.html",
    }  # fmt: skip
    table = pl.read_csv(out / "compare.csv")
    assert table.columns[:10] == CONTRACT
    content = json.loads((out / "compare.json").read_text())
    assert content["verdict"] == "worse"
    assert len(content["changes"]) == table.height == 6
    assert (
        (out / "compare.md")
        .read_text()
        .startswith("## raybias: worse.parquet against base.parquet\n")
    )
    page = (out / "compare.html").read_text()
    assert "<svg" in page
    assert "Worse: of 6 gaps" in page
    found = raybias.compare(base, worse)
    assert found.verdict == "worse"
    assert "Worse: of 6 gaps" in found._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.filter(pl.col("item_id") != "7-10"), "do not hold the same items"),
        (lambda f: f.with_columns(label=pl.lit(2, pl.Int16)), "has the label 1 in run 'base 1'"),
        (lambda f: f.with_columns(probe=pl.lit("q")), "the base has probe 'p', which"),
        (lambda f: f.with_columns(template_id=pl.lit(None, pl.String)), "without template_id"),
        (
            lambda f: pl.concat([f, f.with_columns(method=pl.lit("full"))]),
            "the candidate has method 'full'",
        ),
    ],
)
def test_arms_that_do_not_match_are_refused_in_one_line(
    change: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = written(tmp_path, "base", arm((1, 2), templates=12))
    other = written(tmp_path, "other", change(arm((1, 2), templates=12)))
    assert message in refused(capsys, "compare", base, other, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arms_of_other_seeds_say_what_they_can_find(tmp_path: Path) -> None:
    paths = [written(tmp_path, name, frame) for name, frame in (
        ("base", arm((1, 2))), ("candidate", turned(arm((3, 4)), every=1)))]  # fmt: skip
    found = raybias.compare(*paths)
    assert found.changes["high"].max() <= 1  # type: ignore[operator]
    assert " of the answers on an attribute differ. " in found.headline
    assert any("is found one time in two at most" in note for note in found.notes)


CRITICAL = {"name": "negative", "tier": "critical", "score": "negative_fpr"}
WIDE = {"name": "wide", "tier": "critical", "group": ["0", "1"], "margin": 0.9}
OTHERS = {"name": "others", "tier": "critical", "group": ["1", "2"], "score": "positive_fpr"}


def saved(folder: Path, *rules: dict[str, Any]) -> str:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"rules": rules}))
    return str(path)


def test_each_rule_is_the_comparison_at_its_margin_and_the_gravest_critical_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, worse = arm(), turned(arm())
    harmed = (pl.col("pred") == 0) & (pl.col("group") == "0")
    hidden = worse.with_columns(
        pred=pl.when(harmed).then(None).otherwise("pred"), parsed=harmed.not_()
    )
    arms = {"base": base, "worse": worse, "unread": hidden}
    one, other, unread = (written(tmp_path, *each) for each in arms.items())
    rules = (CRITICAL | {"tier": "advisory"}, WIDE, OTHERS)
    found = raybias.compare(one, other, policy={"margin": 0.015, "rules": rules})
    assert found.decision is not None
    for row, rule in zip(found.decision.rules.iter_rows(named=True), rules, strict=True):
        plain = raybias.compare(one, other, margin=row["margin"]).changes
        for column in rule.keys() & {"group", "score"}:
            plain = plain.filter(pl.col(column).is_in(np.atleast_1d(rule[column]).tolist()))
        assert {verdict: n for verdict in VERDICTS if (n := row[verdict])} == dict(
            plain["verdict"].value_counts().iter_rows()
        )
    assert found.decision.rules["margin"].to_list() == [0.015, 0.9, 0.015]
    assert found.decision.rules["outcome"].to_list() == ["no-go", "go", "inconclusive"]
    assert (found.decision.verdict, found.decision.unselected) == ("inconclusive", 0)
    assert found.decision.rules["because"][0].to_list() == [f"x {g} negative_fpr" for g in range(3)]

    # An advisory rule never changes the exit code, and answers that cannot be read are no pass.
    out = tmp_path / "out"
    for code, before, after, *policy in (
        (0, one, other, rules[0], WIDE),
        (4, one, other, rules[0], OTHERS),
        (3, one, other, CRITICAL, WIDE, OTHERS),
        (4, other, unread, CRITICAL | {"group": "0"}),
    ):
        assert exit_code("compare", before, after, "--policy", saved(tmp_path, *policy)) == code
    capsys.readouterr()
    exit_code("compare", one, other, "--policy", saved(tmp_path, CRITICAL, WIDE), "--out", out)
    headline = "No-go by the policy: critical rules no-go (negative) and go (wide)."
    unselected = "Changes that no rule of the policy selects: 1."
    for text in (capsys.readouterr().out, *((out / f"compare.{form}").read_text()
                                            for form in ("md", "html"))):  # fmt: skip
        assert headline in text
        assert unselected in text
    policy = json.loads((out / "compare.json").read_text())["policy"]
    assert (policy["verdict"], policy["unselected"]) == ("no-go", 1)
    assert [rule["outcome"] for rule in policy["rules"]] == ["no-go", "go"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([CRITICAL | {"group": "9"}], "no change has the group '9'; choose from '0', '1' and '2'"),
        ([CRITICAL | {"group": ["0", "9"]}], "rule 'negative' of the policy: no change has"),
        ([CRITICAL | {"groups": "0"}], "unknown key 'groups'; did you mean 'group'?"),
        ([CRITICAL | {"group": []}], "rules.0.group: "),
        ([CRITICAL | {"margin": 0}], "rules.0.margin: "),
        ([CRITICAL, WIDE | {"name": "negative"}], "two rules have the name 'negative'"),
        ([CRITICAL | {"tier": "advisory"}], "no rule is critical"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_in_one_line(
    rules: list[dict[str, Any]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = written(tmp_path, "base", arm((1, 2), templates=12))
    words = ("compare", base, base, "--policy", saved(tmp_path, *rules), "--out", tmp_path / "out")
    assert message in refused(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_a_policy_is_no_gate_and_selects_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = arm((1, 2), templates=12)
    elsewhere = frame.filter(pl.col("group") != "2").with_columns(probe=pl.lit("q"))
    base = written(tmp_path, "base", pl.concat([frame, elsewhere]))
    policy = saved(tmp_path, CRITICAL | {"probe": "q", "group": "2"})
    line = refused(capsys, "compare", base, base, "--policy", policy)
    assert "rule 'negative' of the policy: selects nothing" in line
    assert exit_code("compare", base, base, "--policy", policy, "--gate", "margin=0.02") == 2
    assert "cannot read" in refused(capsys, "compare", base, base, "--policy", tmp_path / "none")
    with pytest.raises(raybias.BadInput, match="both given"):
        raybias.compare(base, base, margin=0.02, policy={"rules": [CRITICAL]})


@pytest.mark.long
def test_the_action_passes_on_what_the_policy_says(tmp_path: Path) -> None:
    """All its steps but those that install."""
    action = yaml.safe_load((ROOT / ".github/actions/compare/action.yml").read_text())
    *_, step = action["runs"]["steps"]
    assert step["shell"] == "bash"
    named = set(action["inputs"])
    assert {f"${{{{ inputs.{name.lower()} }}}}" for name in step["env"]} == {*step["env"].values()}
    assert {name.lower() for name in step["env"]} == named - {"raybias", "python-version"}
    place = tmp_path / "with space; exit 7"
    (place / "bin").mkdir(parents=True)
    program = place / "bin/raybias"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m raybias "$@"\n')
    program.chmod(0o755)
    base, worse = (written(place, *each) for each in (("base", arm()), ("worse", turned(arm()))))
    for code, candidate, verdict, rule in (
        (3, worse, "verdict=no-go\n", CRITICAL),
        (0, worse, "verdict=go\n", WIDE),
        (2, worse, "", CRITICAL | {"group": "9"}),
    ):
        files = {name: place / f"{name}{code}"
                 for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}  # fmt: skip
        for file in files.values():
            file.touch()
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "BASE": base,
                 "CANDIDATE": candidate, "POLICY": saved(place, rule), "ACCEPT": "",
                 "OUT": str(place / "out"),
                 "PYTHONPATH": str(ROOT), **{name: str(file) for name, file in files.items()}},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert files["GITHUB_OUTPUT"].read_text() == verdict
        summary = files["GITHUB_STEP_SUMMARY"].read_text()
        assert summary.startswith("## raybias: ") == bool(verdict)
