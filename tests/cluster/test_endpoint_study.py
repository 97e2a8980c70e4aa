"""A study of a model behind an endpoint, on real Ray: exactly once, whatever the endpoint does."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import ray
import yaml

import raybias
from raybias.errors import RaybiasError
from support import prompting
from support.endpoint import KEY, Endpoint, serving
from support.method_study import run

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")
pytestmark = pytest.mark.cluster


def label_of(body: dict[str, Any]) -> str:
    """An answer that depends on the question alone."""
    said = body["messages"][-1]["content"]
    return f"It is {('negative', 'neutral', 'positive')[len(said) % 3]}."


def save(folder: Path, server: Endpoint, **backbone: object) -> Path:
    """A study of two methods on an endpoint, whose key is in a file."""
    (folder / "key").write_text(f"{KEY}\n")
    pl.DataFrame(
        {
            "text": prompting.texts(30),
            "label": [n // 5 % 3 for n in range(30)],
            "attribute": "colour",
            "group": [("red", "blue", "green")[n % 3] for n in range(30)],
            "template_id": [f"t{n // 3}" for n in range(30)],
        }
    ).write_csv(folder / "probe.csv")
    content = {
        "name": "endpoint",
        "backbones": [
            {"endpoint": server.url, "model": "tiny", "key_file": "key", "at_once": 4,
             "retries": 1, "timeout_s": 1, "repeat": 0.2, "prices": {"read": 1, "written": 2},
             **backbone},
        ],
        "methods": [
            {"kind": "zero_shot", "seeds": [1, 2], "temperature": 0, "unparsed": "invalid"},
            {"kind": "cot", "seeds": [1], "unparsed": "invalid"},
        ],
        "probes": [{"source": "file", "name": "mine", "data": "probe.csv"}],
        "resources": {"rows_per_shard": 10},
        "answers": str(folder / "answers"),
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def notes(out: Path) -> list[dict[str, Any]]:
    return [json.loads(each.read_text()) for each in out.glob("endpoints/tiny/*.json")]


def predictions(out: Path) -> pl.DataFrame:
    files = sorted(out.glob("predictions/mine/*/*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files]).sort("run_id", "item_id")


def test_an_endpoint_is_asked_once_for_each_row_and_never_tells_its_key(
    tmp_path: Path, ray_cluster: None, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with serving(Endpoint(answer=label_of)) as server:
        study = save(tmp_path, server)
        plan = str(raybias.plan(raybias.load_study(study)))
        printed = run(study, out)
        once = len(server.asked)
        # Another OUT that shares the answers asks nothing, and has the same rows.
        run(study, tmp_path / "other")
        assert len(server.asked) == once
    assert predictions(tmp_path / "other").equals(predictions(out))
    assert "ask tiny (zero_shot)" in plan
    assert server.url in plan
    assert "money" in plan
    rows = predictions(out)
    assert rows.height == 3 * 30
    assert rows.select("run_id", "item_id").is_unique().all()
    words = {0: "negative", 1: "neutral", 2: "positive"}
    for row in rows.iter_rows(named=True):
        assert words[row["pred"]] in row["answer"]
    # 30 rows twice and 30 rows with two prompts each, and what was asked once more.
    (asked,) = sum_notes(out)
    assert asked["requests"] == once == 30 * 2 + 30 * 2 + asked["twice"]
    assert 0 < asked["same"] == asked["twice"] < 60
    assert asked["models"] == {"tiny-2026": once}
    assert asked["fingerprints"] == {"fp_1": once}
    seeds = Counter(body.get("seed") for body in server.asked)
    assert seeds[None] > 60  # Greedy answers have none.
    page = (out / "report.html").read_text()
    assert "tiny-2026" in page
    assert "fp_1" in page
    # What Ray knows and logs, and what processes show of themselves.
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    places = [*out.rglob("*"), *session.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]
    processes = psutil.Process().children(recursive=True)
    places += [Path(f"/proc/{each.pid}/environ") for each in processes]
    for place in places:
        with suppress(OSError):
            assert KEY.encode() not in place.read_bytes(), place
    said = printed + capfd.readouterr().err
    assert KEY not in said


def sum_notes(out: Path) -> list[dict[str, Any]]:
    """The notes of all processes that asked, as one."""
    found = notes(out)
    counts = {name: sum(each[name] for each in found) for name in ("requests", "twice", "same")}
    both = ("models", "fingerprints")
    sums = {name: dict(sum((Counter(each[name]) for each in found), Counter())) for name in both}
    return [{**counts, **sums}]


def test_a_budget_and_a_fault_stop_a_study_that_then_goes_on(
    tmp_path: Path, ray_cluster: None
) -> None:
    out, server = tmp_path / "out", Endpoint(answer=label_of)

    def stopped(*options: str) -> RaybiasError:
        with pytest.raises(RaybiasError) as error:
            run(study, out, *options)
        assert KEY not in str(error.value)
        return error.value

    with serving(server):
        study = save(tmp_path, server, repeat=0, retries=0)
        assert "budget.requests of 25 is reached" in str(
            stopped("--set", "backbones.0.budget.requests=25")
        )
        assert len(server.asked) == 20
        server.fault = lambda number: "500" if number > 25 else None
        assert "fails" in str(stopped())
        server.fault = lambda number: None
        run(study, out)
    assert predictions(out).height == 3 * 30
    assert predictions(out).select("run_id", "item_id").is_unique().all()
