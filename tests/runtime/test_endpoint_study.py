"""A study of a model behind an endpoint: exactly once, within its budget, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import raybias
from raybias.errors import RaybiasError
from support.endpoint import KEY, Endpoint, label_of, save_study, serving
from support.studies import NO_RAY, run

pytestmark = pytest.mark.long

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")

MAIN = "from raybias.cli import main; main()"


def notes(out: Path) -> dict[str, Any]:
    """What all processes noted that asked."""
    found = [json.loads(each.read_text()) for each in out.glob("endpoints/tiny/*.json")]
    counts = {name: sum(each[name] for each in found) for name in ("requests", "twice", "same")}
    both = ("models", "fingerprints")
    sums = {name: dict(sum((Counter(each[name]) for each in found), Counter())) for name in both}
    return {**counts, **sums}


def predictions(out: Path, files: str = "predictions/mine/*.parquet") -> pl.DataFrame:
    return pl.read_parquet(out / files).sort("run_id", "item_id")


def test_an_endpoint_is_asked_once_for_each_row_and_never_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(Endpoint(answer=label_of)) as server:
        study = save_study(tmp_path, server)
        plan = str(raybias.plan(raybias.load_study(study)))
        assert not server.asked
        printed = run(study, out, *NO_RAY)
        once = len(server.asked)
        run(study, out, *NO_RAY, "--set", "backbones.0.at_once=2")
        assert len(server.asked) == once
    assert "ask tiny (zero_shot): mine 30 items" in plan
    assert f"at {server.url}, 4 requests at once" in plan
    assert "36" in plan  # 30 prompts, and a fifth of them again
    rows = predictions(out)
    assert rows.height == 2 * 30
    assert rows.select("run_id", "item_id").is_unique().all()
    words = {0: "negative", 1: "neutral", 2: "positive"}
    for row in rows.iter_rows(named=True):
        assert words[row["pred"]] in row["answer"]
    asked = notes(out)
    # Greedy prompts of two seeds are one run; reasoning takes two prompts.
    assert asked["requests"] == once == 30 + 30 * 2 + asked["twice"]
    assert 0 < asked["same"] == asked["twice"] < 45
    assert asked["models"] == {"tiny-2026": once}
    assert asked["fingerprints"] == {"fp_1": once}
    page = (out / "report.html").read_text()
    assert "tiny-2026" in page
    assert "fp_1" in page
    written = [file.read_bytes() for file in tmp_path.rglob("out/**/*") if file.is_file()]
    assert not any(KEY.encode() in each for each in (*written, printed.encode()))


def test_a_budget_and_faults_stop_a_study_that_then_goes_on(tmp_path: Path) -> None:
    out, server = tmp_path / "out", Endpoint(answer=label_of)

    def stopped(*options: str) -> str:
        with pytest.raises(RaybiasError) as error:
            run(study, out, *NO_RAY, *alone, *options)
        assert KEY not in str(error.value)
        return str(error.value)

    alone = ("--set", "answers=null")
    with serving(server):
        study = save_study(tmp_path, server, repeat=0, retries=0)
        said = stopped("--set", "backbones.0.budget.requests=25")
        assert "budget.requests of 25 is reached: 20 spent" in said
        assert len(server.asked) == 20
        # 20 requests cost 20 * (7 + 2 * 3) millionths.
        said = stopped("--set", "backbones.0.budget.money=0.0003")
        assert "budget.money of 0.0003 is reached: 0.00026 spent" in said
        assert len(server.asked) == 20
        server.fault = lambda number: "500" if number == 25 else None
        assert "fails (Error code: 500 - it is 500)" in stopped()
        run(study, out, *NO_RAY, *alone)
    assert predictions(out).height == 2 * 30
    assert predictions(out).select("run_id", "item_id").is_unique().all()


def test_a_killed_driver_loses_what_was_under_way_and_asks_no_row_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = (*NO_RAY, "--set", "answers=null")
    driver: subprocess.Popen[bytes]

    def kill(number: int) -> None:
        # One or two shards of ten rows are there, by which method came first; others are begun.
        if number == 26:
            driver.kill()

    with serving(Endpoint(answer=label_of, fault=kill)) as server:
        study = save_study(tmp_path, server, repeat=0, at_once=2)
        words = ["run", str(study), "--out", str(out), *options]
        driver = subprocess.Popen([sys.executable, "-c", MAIN, *words], stdout=subprocess.DEVNULL)
        assert driver.wait(600) == -9
        first, there = len(server.asked), predictions(out, "parts/predictions/mine/*/*.parquet")
        assert there.height in (10, 20)
        assert 26 <= first <= 26 + 2
        said = run(study, out, *options)
        again = len(server.asked) - first
    rows = predictions(out)
    assert rows.height == 2 * 30
    assert rows.select("run_id", "item_id").is_unique().all()
    assert rows.join(there, on=rows.columns, how="semi", nulls_equal=True).height == there.height
    # One prompt for each row of two runs, two for those of the run that reasons.
    spent = there.height + there.filter(method="cot").height
    assert again == 30 + 2 * 30 - spent
    assert KEY not in said
