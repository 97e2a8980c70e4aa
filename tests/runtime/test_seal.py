"""A result that was lost, replaced or added since its study wrote it is reported, and refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

import raybias
from raybias import seal
from raybias.cli import app
from raybias.errors import DataError
from raybias.storage import Store

pytestmark = pytest.mark.long

STUDY = {
    "name": "sealed",
    "backbones": ["planted"],
    "methods": [{"kind": "zero_shot", "seeds": [1, 2, 3]}],
    "probes": [{"source": "planted"}],
    "limit": 40,
}
RUN = "predictions/planted/planted.none.zero_shot.s{}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    raybias.run(raybias.load_study(path), out=path.parent / "out", address="none")
    return path


@pytest.fixture
def out(study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(study.parent / "out", tmp_path / "out"))


def shard(out: Path, seed: int) -> Path:
    return out / f"{RUN.format(seed)}.parquet"


def test_what_a_study_wrote_is_sealed_and_what_changed_is_named(out: Path) -> None:
    raybias.write_report(out, verify=True)
    shard(out, 1).unlink()
    shutil.copy(shard(out, 2), shard(out, 3))
    shutil.copy(shard(out, 2), shard(out, 4))
    said = [f"{RUN.format(1)} is missing", f"{RUN.format(3)} was changed"]
    said.append(f"{RUN.format(4)} was added")
    assert seal.changes(Store(out)) == said
    with pytest.raises(DataError, match=r"OUT changed since its study wrote it: .*s1 is missing"):
        raybias.write_report(out, verify=True)


def test_a_page_of_changed_results_begins_with_a_caution(out: Path) -> None:
    frame = pl.read_parquet(shard(out, 1))
    frame.with_columns(pred=(pl.col("pred") + 1) % 3).write_parquet(shard(out, 1))
    judged = CliRunner().invoke(app, ["measure", str(out)])
    ended = CliRunner().invoke(app, ["report", str(out)])
    caution = f"OUT changed since its study wrote it: {RUN.format(1)} was changed."
    assert f"raybias: warning: {caution}" in ended.stderr
    assert f"raybias: warning: {caution}" in judged.stderr
    assert caution in (out / "report.html").read_text()
    refused = CliRunner().invoke(app, ["report", str(out), "--verify"])
    assert isinstance(refused.exception, DataError)
    compared = CliRunner().invoke(app, ["compare", str(out), str(out)])
    assert f"Of the base, {caution}" in compared.stdout
    assert f"Of the candidate, {caution}" in compared.stdout
    refused = CliRunner().invoke(app, ["compare", str(out), str(out), "--verify"])
    assert isinstance(refused.exception, DataError)
    alone = shutil.copy(shard(out, 2), out.parent / "alone.parquet")
    with pytest.raises(DataError, match=r"alone.parquet: is no study's output, so nothing shows"):
        raybias.compare(alone, alone, verify=True)


def test_a_study_that_goes_on_seals_what_it_computes_again_and_nothing_that_was_changed(
    study: Path, out: Path
) -> None:
    shard(out, 1).unlink()
    shutil.copy(shard(out, 2), shard(out, 3))
    with pytest.warns(seal.ChangedWarning):
        raybias.run(raybias.load_study(study), out=out, address="none")
    assert seal.changes(Store(out)) == [f"{RUN.format(3)} was changed"]
    shard(out, 3).unlink()
    raybias.run(raybias.load_study(study), out=out, address="none")
    raybias.write_report(out, verify=True)


def test_a_table_that_was_edited_and_a_lost_seal_are_refused(out: Path) -> None:
    (out / "tables/estimates.parquet").write_bytes((out / "tables/runs.parquet").read_bytes())
    with pytest.raises(DataError, match=r"tables/estimates.parquet was changed"):
        raybias.write_report(out, verify=True)
    (out / seal.NAME).unlink()
    with pytest.raises(DataError, match=r"has no seal.json, so nothing shows whether it changed"):
        raybias.write_report(out, verify=True)
