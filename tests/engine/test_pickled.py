"""Pickled weights are refused by studies, and converted once, where that is asked for."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from raybias import convert
from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.errors import BadInput
from raybias.planning.preflight import resolve_models
from support import backbones


def pickled(folder: Path, *, parts: int = 1) -> dict[str, torch.Tensor]:
    """An OPT as its hub has it: weights by torch.save, of which two are one tensor."""
    backbones.save("opt", folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    weights = dict(model.state_dict())
    assert weights["lm_head.weight"] is not None
    names = sorted(weights)
    for n in range(parts):
        name = "pytorch_model.bin"
        if parts > 1:
            name = f"pytorch_model-{n + 1:05}-of-{parts:05}.bin"
        torch.save({key: weights[key] for key in names[n::parts]}, folder / name)
    return weights


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 3])
def test_pickled_weights_are_converted_to_the_bit(parts: int, tmp_path: Path) -> None:
    weights = pickled(tmp_path / "opt", parts=parts)
    study: Any = SimpleNamespace(checkpoints={"opt": Backbone(id=str(tmp_path / "opt"))})
    with pytest.raises(
        BadInput, match=r"weights are pickled .*raybias data convert .* --out FOLDER"
    ):
        resolve_models(study)
    done = convert(str(tmp_path / "opt"), tmp_path / "made" / "opt")
    made = Path(done.folder)
    held: dict[str, torch.Tensor] = {}
    for file in made.glob("*.safetensors"):
        held |= load_file(file)
    assert held.keys() == weights.keys()
    assert all(torch.equal(held[name], tensor) for name, tensor in weights.items())
    assert done.tensors == len(held)
    record = json.loads((made / "converted.json").read_text())
    for file in (tmp_path / "opt").glob("*.bin"):
        assert record["sha256"][file.name] == hashlib.sha256(file.read_bytes()).hexdigest()
    loaded = load_backbone(Backbone(id=str(made), dtype="float32", bos="prepend"))
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert list(made.parent.iterdir()) == [made]
    for wrong, said in ((made, "has safetensors"), (tmp_path / "opt", "is there already")):
        out = made if "already" in said else tmp_path / "again"
        with pytest.raises(BadInput, match=said):
            convert(str(wrong), out)


class Malicious:
    """What runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.long
@pytest.mark.parametrize("way", ["torch", "pickle", "damaged"])
def test_a_pickle_with_more_than_weights_runs_nothing(way: str, tmp_path: Path) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "opt"
    pickled(folder)
    file = folder / "pytorch_model.bin"
    if way == "torch":
        torch.save({"weight": torch.ones(2), "more": Malicious(mark)}, file)
    elif way == "pickle":
        file.write_bytes(pickle.dumps({"weight": Malicious(mark)}))
    else:
        file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(BadInput, match=r"no weights alone, or is damaged \("):
        convert(str(folder), tmp_path / "out")
    assert not mark.exists()
    assert sorted(tmp_path.iterdir()) == [folder]


def test_the_process_gives_up_network_and_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pickle would find, shown by a probe in the unpickler's place."""
    from raybias.engine import conversion as room
    from raybias.engine import unpickle

    probe = tmp_path / "probe.py"
    probe.write_text(
        f"import json, os, resource, runpy, socket\n"
        f"gone = runpy.run_path({unpickle.__file__!r})['give_up'](1000)\n"
        "names = [name for _, name in socket.if_nameindex()]\n"
        "most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]\n"
        "print(json.dumps([gone, names, most, 'HF_TOKEN' in os.environ]))\n"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(unpickle, "__file__", str(probe))
    gone, names, most, secret = room._read_apart("here", tmp_path, [tmp_path / "pytorch_model.bin"])
    assert not secret
    assert most == 2000 + 2**30
    assert names == ["lo"] if gone else names
