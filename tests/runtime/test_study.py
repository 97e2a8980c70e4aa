"""The study driver's own rules, without a cluster: resuming, errors, shards, verdict (2 s)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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

import raybias.runtime.study
from raybias import schema
from raybias.cli.start import verdict
from raybias.config import Study, parse_study
from raybias.errors import (
    ConfigError,
    ModelError,
    OutputError,
    RaybiasError,
    StorageError,
    WorkFailed,
)
from raybias.methods.base import Answered, Compute, Reader, Shard, predictions, shard_of
from raybias.planning.preflight import check_inputs, check_references
from raybias.planning.prepared import PreparedStudy
from raybias.planning.workload import shards_of
from raybias.probes.published.planted import Plant
from raybias.runtime.ray_session import root_error, translating_errors
from raybias.schema import OutputSpec
from raybias.storage import Store
from raybias.study_record import Record, begin, make_record, read_record, resumed

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


def test_a_record_reads_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    # Counted when the study is planned, and no part of what it is.
    begin(store, replace(record(), parameters={"m": 124_439_808}))
    assert read_record(store) == replace(record(), parameters={"m": 124_439_808})
    content = yaml.safe_load(store.read_text("study.yaml"))
    assert content["command"] == "raybias run mine.yaml"
    assert content["hash"] == record().hash
    assert {"python", "torch", "ray", "raybias"} <= set(content["versions"])
    assert content["study"]["methods"][0]["restore_best"] is True, "every option is resolved"


def test_resources_change_nothing_but_the_first_shard_size_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = record(resources={"rows_per_shard": 100})
    begin(store, first)
    again = resumed(store, record(resources={"rows_per_shard": 7, "replicas_max": 3}))
    assert again.study.resources.rows_per_shard == 100
    assert again.study.resources.replicas_max == 3
    assert again.hash == first.hash


def test_shards_that_a_plan_chose_stay_too(tmp_path: Path) -> None:
    store, rows = Store(tmp_path), {"m": {"soft_prompt": 4096}}
    begin(store, replace(record(), rows_per_shard=rows))
    again = resumed(store, record(resources={"rows_per_shard": 7}))
    assert again.study.resources.rows_per_shard is None
    assert again.rows_per_shard == rows
    assert again.hash == record().hash


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (record(limit=3), "limit is None, now 3"),
        (record(profile="paper"), "profile is 'strict', now 'paper'"),
        (record(methods=[{"keep": 2}]), "methods.0.keep is 5, now 2"),
        (record({**DATA, "probe mine": "89"}), "data.probe mine is '0123', now '89'"),
        (record(backbones=["a", "b"]), "backbones is ["),
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


@pytest.mark.parametrize("content", ["", "study: 3", "- a", "{", "study: {name: x}"])
def test_an_out_that_raybias_did_not_write_is_refused(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(OutputError, match=r"holds no study\.yaml"):
        read_record(store)
    store.write_text("study.yaml", content)
    with pytest.raises(RaybiasError) as raised:
        resumed(store, record())
    assert raised.value.exit_code == 2


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


def item_table(rows: int) -> pa.Table:
    item = dict.fromkeys(schema.ITEMS.names, "x") | {"label": 1}
    return pa.Table.from_pylist([{**item, "item_id": f"i{i}"} for i in range(rows)], schema.ITEMS)


class Known(Reader):
    """A classifier whose logits are known."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits

    def prepare(self, run: None, items: pa.Table) -> Compute:
        labels = self.logits.argmax(1).tolist()
        return lambda: Answered(predictions(items, scores=self.logits, labels=labels), 0)


def answered(shard: Shard, items: pa.Table, logits: np.ndarray) -> pa.Table:
    return shard_of(Known(logits), None, shard, items, TUNED.schema)().table


def test_logits_that_are_not_finite_are_refused_by_item() -> None:
    shard = Shard("p", "r", "m", "k", "d", 0, 3, "predictions")
    logits = np.zeros((3, 3), np.float32)
    logits[1, 2] = np.nan
    with pytest.raises(WorkFailed, match=r"1 of 3 items .* the first is i1"):
        answered(shard, item_table(3), logits)


def wrapped(cause: Exception) -> RayTaskError:
    """As Ray hands a task's error to its caller."""
    trace = f"Traceback (most recent call last):\n  File x\n{type(cause).__name__}: {cause}"
    return RayTaskError("task", trace, cause).as_instanceof_cause()


MENDABLE = ModelError("no such weights", where="opt", cure="check the id")


@pytest.mark.parametrize(
    "error",
    [
        wrapped(MENDABLE),
        wrapped(wrapped(MENDABLE)),
        WorkerGroupError("worker 0 failed", {0: MENDABLE}),
        WorkerGroupError("worker 1 failed", {1: wrapped(MENDABLE)}),
    ],
)
def test_our_own_error_comes_out_of_any_wrapping(error: Exception) -> None:
    with pytest.raises(ModelError) as raised, translating_errors("tuning"):
        raise error
    assert str(raised.value) == str(MENDABLE)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero\nand more"),
        wrapped(ZeroDivisionError("division by zero")),
        wrapped(wrapped(ZeroDivisionError("division by zero"))),
        WorkerGroupError("worker 0 failed", {0: ZeroDivisionError("division by zero")}),
    ],
)
def test_any_other_error_becomes_one_line(error: Exception) -> None:
    said = str(root_error(error, "tuning opt"))
    assert said.startswith("tuning opt: ZeroDivisionError: division by zero; Ray's logs are in ")
    assert "\n" not in said
    assert root_error(UserCodeException(""), "scoring").exit_code == 1


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


def test_a_place_that_fails_before_any_work_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: Store, name: str, data: bytes) -> None:
        raise StorageError("cannot write", where=name, cure="make room")

    monkeypatch.setattr(Store, "write_bytes", refuse)
    with pytest.raises(OutputError, match=r"study\.yaml: cannot write; make room") as raised:
        begin(Store("out"), record())
    assert raised.value.exit_code == 2


def test_an_error_of_rays_own_says_what_it_was() -> None:
    """Ray Data raises what went wrong in its own code from an empty error."""
    error = KeyError("shape")
    error.__cause__ = SystemException()
    assert "scoring: KeyError: 'shape'" in str(root_error(error, "scoring"))


TRUTH = {"quixlan": 0.2, "other": 0.0}
PLANT = Plant("origin", "quixlan", "negative_fpr", {"negative_fpr": TRUTH, "positive_fpr": TRUTH})


def scope_rows(*flagged: tuple[str, str, float], scope: str = "wording") -> pl.DataFrame:
    """Gaps of two groups, of which those named are significant under a scope."""
    keys = dict.fromkeys(schema.KEYS, "planted")
    rows = [
        {
            **keys, "kind": "predictions", "statistic": "gap", "condition": "",
            "attribute": "origin", "group": group, "score": rate, "value": gap, "scope": each,
            "low": gap - 0.1, "high": gap + 0.1, "survives": flag and each == scope,
        }
        for each in ("runs", "wording")
        for group in TRUTH
        for rate in ("negative_fpr", "positive_fpr")
        for flag, gap in [next(((True, v) for g, r, v in flagged if (g, r) == (group, rate)),
                               (False, 0.0))]
    ]  # fmt: skip
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"age": ["old", "yuong"]}, "probe mine, reference_groups: age has no group 'yuong'; did"),
        ({"race": ["old"]}, "no items on the attribute 'race'; attributes are age"),
        ({"age": ["old", "unmarked"]}, "lists 'unmarked', which is no group"),
        ({"age": []}, "'age' names no group"),
    ],
)
def test_reference_groups_are_checked_before_any_work(
    chosen: dict[str, list[str]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = pl.DataFrame({"attribute": ["age"] * 3, "group": ["old", "young", schema.UNMARKED]})
    mine = {"source": "file", "name": "mine", "data": "mine.csv"}
    check_references(
        study(probes=[{**mine, "reference_groups": {"age": ["old"]}}]), {"mine": items}
    )
    monkeypatch.setattr("raybias.planning.prepared.read_items", lambda study: {"mine": items})
    # Neither a model nor a training sentence is there to be looked at.
    with pytest.raises(ConfigError, match=message):
        check_inputs(PreparedStudy.of(study(probes=[{**mine, "reference_groups": chosen}])))


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
    said = verdict(found, PLANT)
    assert (
        "Of the other groups' 2 gaps, narrower intervals would have flagged 1 under runs." in said
    )
    # Without a verdict, since nothing varies: none is none, and any other is one too many.
    for gap, passes in ((0.0, True), (0.1, False)):
        other = pl.col("group") == "other"
        constant = scope_rows(right).with_columns(
            value=pl.when(other).then(gap).otherwise("value"),
            survives=pl.when(~other).then("survives"),
        )
        if passes:
            assert verdict(constant, PLANT)
        else:
            with pytest.raises(WorkFailed, match="flagged: other"):
                verdict(constant, PLANT)


def test_what_a_killed_driver_left_is_freed_before_the_inventory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas may hold every GPU, and a plan asks one of each node for its memory."""
    done: list[str] = []

    def asked(address: str | None, *, dtypes: bool) -> Any:
        done.append("inventory")
        raise WorkFailed("far enough")

    monkeypatch.setattr(raybias.runtime.study, "connected", lambda address: nullcontext(False))
    prepared = SimpleNamespace(study=SimpleNamespace(undecided=False))
    monkeypatch.setattr(raybias.runtime.study, "prepare", lambda *_, command: prepared)
    monkeypatch.setattr(raybias.runtime.study, "read_inventory", asked)
    monkeypatch.setattr("raybias.runtime.owners.delete_left", done.append)
    for out in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
        with pytest.raises(WorkFailed, match="far enough"):
            raybias.runtime.study.run_study(study(), out, address="local")
    first, _, again, _, other, _ = done
    assert done[1::2] == ["inventory"] * 3
    assert first == again != other
    assert not (tmp_path / "one").exists()
