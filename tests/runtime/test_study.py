"""The study driver's own rules, without a cluster: resuming, errors, shards, verdict (2 s)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray.data.exceptions import SystemException
from ray.exceptions import RayTaskError, UserCodeException
from ray.train import ControllerError, WorkerGroupError

from raybias import schema
from raybias.cli.start import verdict
from raybias.config import Study, parse_study
from raybias.errors import ModelError, OutputError, StorageError, WorkFailed
from raybias.methods.base import Answered, Compute, Reader, Shard, predictions, shard_of
from raybias.planning.workload import shards_of
from raybias.probes.published.planted import Plant
from raybias.runtime.ray_session import root_error, translating_errors
from raybias.schema import OutputSpec
from raybias.storage import Store
from raybias.study_record import (
    Record,
    begin,
    make_record,
    of_finished,
    read_record,
    resumed,
)

DATA = {"probe mine": "0123", "sst5 train": "4567"}


TUNED = OutputSpec("predictions", schema.PREDICTIONS)
RUN = {"run_id": "r", "model": "m", "method": "k", "dataset": "d"}


def study(**changes: Any) -> Study:
    content: dict[str, Any] = {
        "name": "mine",
        "backbones": ["facebook/opt-125m"],
        "training": [{"source": "sst5", "data": "somewhere"}],
        "probes": [{"source": "file", "name": "mine", "data": "mine.csv"}],
    }
    return parse_study({**content, **changes})


def record(data: dict[str, str] | None = None, **changes: Any) -> Record:
    return make_record(study(**changes), data or DATA, command="raybias run mine.yaml")


def test_a_record_reads_back_and_resources_are_no_part_of_what_a_study_is(tmp_path: Path) -> None:
    store, rows = Store(tmp_path), {"m": {"soft_prompt": 4096}}
    # Counted or chosen when the study is planned.
    first = replace(record(), parameters={"m": 124_439_808}, rows_per_shard=rows)
    begin(store, first)
    found = read_record(store)
    assert replace(found, begun="") == first
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", found.begun)
    assert resumed(store, first).begun == found.begun
    content = yaml.safe_load(store.read_text("study.yaml"))
    assert content["command"] == "raybias run mine.yaml"
    assert content["hash"] == record().hash
    assert {"python", "torch", "ray", "raybias"} <= set(content["versions"])
    assert content["study"]["methods"][0]["restore_best"] is True, "every option is resolved"
    again = resumed(store, record(resources={"rows_per_shard": 7, "replicas_max": 3}))
    assert (again.rows_per_shard, again.study.resources.rows_per_shard) == (rows, None)
    assert again.study.resources.replicas_max == 3
    assert again.hash == first.hash
    other = replace(again, command="raybias run mine.yaml --address auto", versions={"torch": "3"})
    assert resumed(store, other).command == first.command
    assert replace(of_finished(store, other), begun="") == first
    sized = Store(tmp_path / "sized")
    begin(sized, record(resources={"rows_per_shard": 100}))
    again = resumed(sized, record(resources={"rows_per_shard": 7}))
    assert again.study.resources.rows_per_shard == 100, "the first shard size stays"


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (record(limit=3), "limit is None, now 3"),
        (record(profile="paper"), "profile is 'strict', now 'paper'"),
        (record(methods=[{"keep": 2}]), "methods.0.keep is 5, now 2"),
        (record({**DATA, "probe mine": "89"}), "data.probe mine is '0123', now '89'"),
        (
            record(backbones=["a", "b"]),
            "(backbones.opt-125m is no longer in the study; backbones.a was",
        ),
        (
            make_record(study().pinned({"opt-125m": "89abcdef" * 5}), DATA, command=""),
            "backbones.0.revision is None, now 89abcdef89ab..",
        ),
    ],
)
def test_another_study_in_out_is_refused_with_the_difference(
    tmp_path: Path, other: Record, shown: str
) -> None:
    store = Store(tmp_path)
    begin(store, record())
    before = store.read_text("study.yaml")
    with pytest.raises(OutputError) as raised:
        resumed(store, other)
    assert shown in str(raised.value)
    assert store.read_text("study.yaml") == before
    assert other.hash != record().hash


@given(st.dictionaries(st.sampled_from("pqr"), st.integers(1, 50)), st.integers(1, 20))
def test_shards_cover_every_row_once(items: dict[str, int], rows_per_shard: int) -> None:
    runs = [{"run_id": name, "model": "m", "method": "k", "dataset": "d"} for name in ("a", "b")]
    shards = shards_of(runs, items, rows_per_shard, TUNED)
    assert len({shard.file for shard in shards}) == len(shards)
    covered = [
        (shard.run_id, shard.probe, row)
        for shard in shards
        for row in range(shard.first_row, shard.first_row + shard.rows)
    ]
    wanted = [(r["run_id"], p, row) for r in runs for p, n in items.items() for row in range(n)]
    assert sorted(covered) == sorted(wanted)


class Known(Reader):
    """A classifier whose logits are known, one of them no number."""

    def prepare(self, run: None, items: pa.Table) -> Compute:
        logits = np.array([[0, 0, 0], [0, 0, np.nan], [0, 0, 0]], np.float32)
        return lambda: Answered(predictions(items, scores=logits, labels=[0, 0, 0]), 0)


def test_logits_that_are_not_finite_are_refused_by_item() -> None:
    shard = Shard("p", "r", "m", "k", "d", 0, 3, "predictions")
    item = dict.fromkeys(schema.ITEMS.names, "x") | {"label": 1}
    rows = [{**item, "item_id": f"i{n}"} for n in range(3)]
    items = pa.Table.from_pylist(rows, schema.ITEMS)
    with pytest.raises(WorkFailed, match=r"1 of 3 items .* the first is i1"):
        shard_of(Known(), None, shard, items, TUNED.schema)()


def wrapped(cause: Exception) -> RayTaskError:
    """As Ray hands a task's error to its caller."""
    trace = f"Traceback (most recent call last):\n  File x\n{type(cause).__name__}: {cause}"
    return RayTaskError("task", trace, cause).as_instanceof_cause()


MENDABLE = ModelError("no such weights", where="opt", cure="check the id")


def test_our_own_error_comes_out_of_any_wrapping() -> None:
    group = WorkerGroupError("worker 1 failed", {1: wrapped(MENDABLE)})
    for error in (wrapped(wrapped(MENDABLE)), group):
        with pytest.raises(ModelError) as raised, translating_errors("tuning"):
            raise error
        assert str(raised.value) == str(MENDABLE)


def test_any_other_error_becomes_one_line() -> None:
    error = wrapped(wrapped(ZeroDivisionError("division by zero\nand more")))
    said = str(root_error(error, "tuning opt"))
    assert said.startswith("tuning opt: ZeroDivisionError: division by zero; Ray's logs are in ")
    assert "\n" not in said
    assert root_error(UserCodeException(""), "scoring").exit_code == 1
    # Ray Data raises what went wrong in its own code from an empty error.
    rays_own = KeyError("shape")
    rays_own.__cause__ = SystemException()
    assert "scoring: KeyError: 'shape'" in str(root_error(rays_own, "scoring"))


FULL = OSError(28, "Error writing bytes to file")
GONE = OSError(
    "When getting information for key 'train' in bucket 'b': AWS Error NETWORK_CONNECTION during"
    " HeadObject operation: curlCode: 7, Could not connect to server; Details: ..."
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (WorkerGroupError("", {0: RuntimeError("reset"), 1: FULL}), "No space left on device"),
        (ControllerError(FULL), "make room; the same command then goes on"),
        (ControllerError(GONE), "curlCode: 7, Could not connect to server); check that it answers"),
    ],
)
def test_what_ray_could_not_store_names_its_cure(error: Exception, said: str) -> None:
    found = root_error(error, "tuning opt")
    assert isinstance(found, StorageError)
    assert str(found).startswith("tuning opt: cannot go on (")
    assert said in str(found)


TRUTH = {"quixlan": 0.2, "other": 0.0}
PLANT = Plant("origin", "quixlan", "negative_fpr", {"negative_fpr": TRUTH, "positive_fpr": TRUTH})


def scope_rows(*flagged: tuple[str, str, float], scope: str = "wording") -> pl.DataFrame:
    """Gaps of two groups, of which those named are significant under a scope."""
    keys = dict.fromkeys(schema.KEYS, "planted")
    gaps = {(group, rate): gap for group, rate, gap in flagged}
    rows = [
        {
            **keys, "kind": "predictions", "statistic": "gap", "condition": "",
            "attribute": "origin", "group": group, "score": rate, "value": gap, "scope": each,
            "low": gap - 0.1, "high": gap + 0.1,
            "survives": (group, rate) in gaps and each == scope,
        }
        for each in ("runs", "wording")
        for group in TRUTH
        for rate in ("negative_fpr", "positive_fpr")
        for gap in [gaps.get((group, rate), 0.0)]
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_the_demonstration_knows_what_was_planted() -> None:
    right = ("quixlan", "negative_fpr", 0.18)
    said = verdict(scope_rows(right), PLANT)
    assert "The planted gap was found: measured +0.180 [+0.080, +0.280]." in said
    # Both gaps of positive_fpr are 0, and one of them was planted as 0.2.
    assert "3 of 4 gaps under wording, 3 of 4 gaps under runs" in said
    assert verdict(scope_rows(right, ("quixlan", "positive_fpr", -0.1)), PLANT)
    for wrong in (
        scope_rows(),
        scope_rows(right, scope="runs"),
        scope_rows(("quixlan", "negative_fpr", -0.18)),
        scope_rows(("quixlan", "positive_fpr", 0.18)),
        scope_rows(right, ("other", "negative_fpr", -0.1)),
    ):
        with pytest.raises(WorkFailed):
            verdict(wrong, PLANT)
    # Narrower scopes may flag what they like: that is told, and is no failure.
    other = scope_rows(("other", "negative_fpr", 0.1), scope="runs").filter(scope="runs")
    found = pl.concat([other, scope_rows(right).filter(scope="wording")])
    assert "narrower intervals would have flagged 1 under runs." in verdict(found, PLANT)
    # Without a verdict, since nothing varies: none is none, and any other is one too many.
    other = pl.col("group") == "other"
    constant = scope_rows(right).with_columns(survives=pl.when(~other).then("survives"))
    assert verdict(constant, PLANT)
    with pytest.raises(WorkFailed, match="flagged: other"):
        verdict(constant.with_columns(value=pl.when(other).then(0.1).otherwise("value")), PLANT)
