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
from raybias.storage import Store
from support import question_data, studies
from support.endpoint import KEY, Endpoint, label_of, save_study, serving
from support.imitations import SERVERS, Imitation, error
from support.pages import page_of
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


def asked_about_groups(folder: Path, server: Endpoint, **method: object) -> Path:
    """A study that asks an endpoint without a key about a probe of three colours."""
    studies.write_probe(folder)
    asked = {"endpoint": server.url, "model": "m", "key_variable": None, "repeat": 0, "retries": 0}
    chosen = {"kind": "zero_shot", "temperature": 0, "unparsed": "invalid", **method}
    return studies.write(
        folder, "asked", backbones=[asked], probes=[studies.MINE], methods=[chosen],
        resources={"rows_per_shard": 10},
    )  # fmt: skip


@pytest.mark.parametrize("unparsed", ["invalid", "random"])
def test_prompts_that_a_filter_refuses_are_counted_by_group(tmp_path: Path, unparsed: str) -> None:
    out, red = tmp_path / "out", set[str]()

    def refuse(text: str) -> Any:
        refused = any(each in text for each in red)
        return error(400, "filtered", code="content_filter", param="prompt") if refused else None

    with serving(Endpoint(key=None, respond=Imitation(filtered=refuse))) as server:
        study = asked_about_groups(tmp_path, server, unparsed=unparsed, seeds=[1])
        probe = pl.read_csv(tmp_path / "probe.csv")
        texts = probe.filter(group="red")["text"].to_list()
        red.update(f"Text: {each}\n" for each in texts[:4])
        run(study, out, *NO_RAY)
    rows = predictions(out)
    assert rows.height == 30
    withheld = rows.filter(unread="filtered")
    assert (withheld.height, set(withheld["group"])) == (4, {"red"})
    assert withheld["pred"].null_count() == withheld.height
    assert not withheld["parsed"].any()
    counts = pl.read_csv(out / "tables/unanswered.csv")
    assert dict(counts.select("group", "filtered").iter_rows()) == {"red": 4, "blue": 0, "green": 0}
    assert counts["cut"].sum() == 0
    page = page_of(Store(out)).text
    assert "a filter of contents withheld 4 of 30 answers, which have no label" in page
    assert "red 4 of 10" in page


@pytest.mark.parametrize(
    ("answer", "unread"),
    [
        ("One could call it negative if", "cut"),
        ("It is not sad. One could call it negative if", "cut"),
        ("", "cut"),
        ("Negative. One could also say that", None),
        ("negative", None),
        ("negative or positive. One could also say that", "several"),
    ],
)
def test_a_cut_answer_is_unread_unless_a_whole_sentence_names_its_label(
    tmp_path: Path, answer: str, unread: str | None
) -> None:
    server = Imitation(message={"content": answer}, choice={"finish_reason": "length"})
    with serving(Endpoint(key=None, respond=server)) as served:
        run(asked_about_groups(tmp_path, served), tmp_path / "out", *NO_RAY)
    assert set(predictions(tmp_path / "out")["unread"]) == {unread}
    page = page_of(Store(tmp_path / "out")).text
    assert ("30 of 30 answers ended at their limit of 16 tokens" in page) == (unread == "cut")
    assert ("Raise answer_tokens" in page) == (unread == "cut")
    assert ("30 of 30 answers reached their limit of tokens before" in page) == (not answer)


def test_what_an_endpoint_refused_is_on_the_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(Endpoint(key=None, respond=SERVERS["OpenAI, reasoning"])) as server:
        run(asked_about_groups(tmp_path, server), out, *NO_RAY)
    page = page_of(Store(out)).text
    assert "m takes no temperature: its answers are sampled as its server does" in page
    assert "max_completion_tokens, no temperature" in page


def test_a_budget_holds_where_a_server_counts_no_tokens(tmp_path: Path) -> None:
    with serving(Endpoint(key=None, respond=Imitation(usage=False))) as server:
        study = asked_about_groups(tmp_path, server)
        with pytest.raises(RaybiasError, match=r"budget.tokens of 900 is reached: \d+ spent"):
            run(study, tmp_path / "out", *NO_RAY, "--set", "backbones.0.budget.tokens=900")
        asked = len(server.asked)
        assert 0 < asked < 30
        run(study, tmp_path / "out", *NO_RAY)
        assert len(server.asked) == 30
    page = page_of(Store(tmp_path / "out")).text
    assert "m does not count the tokens of 30 of 30 requests" in page


@pytest.mark.parametrize("kind", ["option_answer", "coreference"])
def test_questions_that_a_filter_refuses_are_answered_by_nothing(tmp_path: Path, kind: str) -> None:
    server = Imitation(filtered=lambda text: error(400, "filtered", code="content_filter"))
    with serving(Endpoint(key=None, respond=server)) as served:
        asked = {"endpoint": served.url, "model": "m", "key_variable": None, "repeat": 0}
        studies.pairs(tmp_path)
        question_data.bbq(tmp_path)
        bbq = {"questions": [{"source": "bbq", "data": "Age.jsonl"}]}
        wino = {"pairs": [{"source": "winobias", "data": "winobias"}]}
        study = studies.write(
            tmp_path, "asked", backbones=[asked], methods=[{"kind": kind}],
            **(bbq if kind == "option_answer" else wino),
        )  # fmt: skip
        run(study, tmp_path / "out", *NO_RAY)
    folder = "options" if kind == "option_answer" else "coreference"
    answers = pl.read_parquet(tmp_path / f"out/{folder}/**/*.parquet")
    assert answers["answer"].null_count() == answers.height > 0
    page = page_of(Store(tmp_path / "out")).text
    assert f"a filter of contents withheld {answers.height:,} of {answers.height:,}" in page
