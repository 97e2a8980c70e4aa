"""Models of the hub from a bucket: copied once, without the hub, and the same as from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.engine.checkpoint import fetched, locate, source_of
from raybias.engine.context import Execution
from raybias.errors import ModelError
from support.mirrored import mirror
from support.tiny import save_model

ID = "example/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with the tiny model as example/tiny, and a cache of the hub that is empty."""
    save_model(tmp_path / "tiny")
    (tmp_path / "tiny" / "pytorch_model.bin").write_bytes(b"never read")
    return mirror({ID: tmp_path / "tiny"}, COMMIT, tmp_path, monkeypatch)[ID]


def test_a_model_is_located_without_its_weights_and_fetched_with_them(
    bucket: Path, tmp_path: Path
) -> None:
    found = locate("example/tiny", None)
    assert found.commit == COMMIT
    assert found.snapshot is not None
    assert found.snapshot.is_relative_to(tmp_path / "cache")
    assert (found.snapshot / "config.json").is_file()
    assert not (found.snapshot / "model.safetensors").exists()
    # What the driver pins is what every node fetches.
    spec = Backbone(id="example/tiny", name="tiny", revision=COMMIT, dtype="float32")
    here = Path(fetched(spec))
    assert here == found.snapshot == Path(source_of(spec))
    assert not (here / "pytorch_model.bin").exists()
    assert not list(here.glob(".*"))
    weights = here / "model.safetensors"
    assert weights.read_bytes() == (bucket / weights.name).read_bytes()
    before = weights.stat().st_mtime_ns
    fetched(spec)
    assert weights.stat().st_mtime_ns == before, "it is copied once"


def test_a_worker_whose_machine_nothing_was_fetched_to_loads_the_same_model(bucket: Path) -> None:
    specs = (Backbone(id="example/tiny", revision=COMMIT), Backbone(id=str(bucket)))
    mirrored, plain = (load_backbone(spec, Execution()).model.state_dict() for spec in specs)
    assert mirrored.keys() == plain.keys()
    assert all(torch.equal(mirrored[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("name", "revision", "problem"),
    [
        ("example/none", None, "is not in the mirror"),
        ("example/tiny", "other", "is not in the mirror"),
        ("example/tiny", COMMIT[::-1], "has no files of commit"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_the_mirror_lacks_is_one_line(name: str, revision: str | None, problem: str) -> None:
    with pytest.raises(ModelError, match=problem) as raised:
        locate(name, revision)
    assert len(str(raised.value).splitlines()) == 1
