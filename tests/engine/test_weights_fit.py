"""A checkpoint of another model is refused by its headers; heads that a model drops are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from raybias.config import Backbone
from raybias.engine.backbone import check_loads, load_backbone, load_pretrained
from raybias.engine.classifier import is_of_head
from raybias.engine.context import ON_CPU
from raybias.errors import ModelError
from support import backbones

Tensors = dict[str, torch.Tensor]


def spec(folder: Path) -> Backbone:
    return Backbone(id=str(folder), dtype="float32")


def change_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def narrow(part: str, dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    """Cast the weights whose names have a part."""
    return lambda whole: {n: each.to(dtype) if part in n else each for n, each in whole.items()}


@pytest.mark.parametrize("kind", ["opt", "gpt2", "llama"])
@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_integers_without_a_quantisation_are_refused(
    kind: str, dtype: torch.dtype, name: str, tmp_path: Path
) -> None:
    folder = backbones.save(kind, tmp_path / kind)
    change_weights(folder, narrow(".1.", dtype))
    said = rf"weights\) as {name}, and its config\.json has no quantization_config"
    for attempt in (check_loads, load_backbone):
        with pytest.raises(ModelError, match=said):
            attempt(spec(folder))


@pytest.mark.parametrize(
    ("kind", "field"),
    [("opt", "num_hidden_layers"), ("gpt2", "n_layer"), ("bert", "num_hidden_layers")],
)
def test_weights_of_a_layer_that_the_config_lacks_are_refused(
    kind: str, field: str, tmp_path: Path
) -> None:
    folder = backbones.save(kind, tmp_path / kind)
    assert check_loads(spec(folder)) == []
    change_config(folder, **{field: 1})
    with pytest.raises(
        ModelError, match=r"holds .*\.1\..* which the model of its config\.json does"
    ):
        check_loads(spec(folder))
    change_config(folder, **{field: 3})
    with pytest.raises(ModelError, match=r"checkpoint lacks .*\.2\."):
        check_loads(spec(folder))


def test_heads_and_buffers_of_older_checkpoints_are_named_or_passed_over(tmp_path: Path) -> None:
    folder = backbones.save("bert", tmp_path / "bert")
    heads = {
        "cls.seq_relationship.weight": torch.ones(2, 32),
        "bert.pooler.dense.weight": torch.ones(32, 32),
        "bert.embeddings.position_ids": torch.ones(1, 8, dtype=torch.int64),
    }
    # BERT's first checkpoints call the weights of norm layers gamma and beta.
    change_weights(
        folder,
        lambda whole: heads | {
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): each
            for name, each in whole.items()
        },
    )  # fmt: skip
    assert check_loads(spec(folder)) == ["bert.pooler.dense", "cls.seq_relationship"]
    gpt2 = backbones.save("gpt2", tmp_path / "gpt2")
    mask = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8)}
    change_weights(gpt2, lambda whole: whole | mask)
    assert check_loads(spec(gpt2)) == []
    llama = backbones.save("llama", tmp_path / "llama")
    classifier = AutoModelForSequenceClassification
    assert check_loads(spec(llama), classifier, is_new=is_of_head, labels=5) in ([], ["lm_head"])


@pytest.mark.parametrize("kind", [*backbones.CONFIGS])
def test_headers_say_what_a_load_does(kind: str, tmp_path: Path) -> None:
    """The same of whole checkpoints, in one file or several; those of the zoo are not refused."""
    folder = backbones.save(kind, tmp_path / kind)
    if kind in backbones.ENCODERS:
        assert check_loads(spec(folder)) == []
        return
    model, _ = load_pretrained(AutoModelForCausalLM, spec(folder), ON_CPU)
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len([*(tmp_path / "parts").glob("*.safetensors")]) > 1
    for each in (folder, tmp_path / "parts"):
        assert check_loads(spec(each)) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "is no index of weights"),
        ({"weight_map": []}, "is no index of weights"),
        ({"weight_map": {"a": 3}}, "is no index of weights"),
        ({"weight_map": {}}, "names no files"),
        ({"weight_map": {"a": "/etc/passwd"}}, "names '/etc/passwd', which is no file of this"),
        ({"weight_map": {"a": "../b.safetensors"}}, "names '../b.safetensors', which is no file"),
        ({"weight_map": {"a": "config.json"}}, "names 'config.json', which is no safetensors"),
        ({"weight_map": {"a": "gone.safetensors"}}, "lacks gone.safetensors, which"),
    ],
)
def test_an_index_names_files_of_its_folder(content: Any, said: str, tmp_path: Path) -> None:
    folder = backbones.save("opt", tmp_path / "opt")
    weights = folder / "model.safetensors"
    weights.rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=said):
        check_loads(spec(folder))


@pytest.mark.parametrize("data", [b"", b"x" * 1000, b"\xff" * 8 + b"{}"])
def test_safetensors_have_a_header(data: bytes, tmp_path: Path) -> None:
    folder = backbones.save("opt", tmp_path / "opt")
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors is no whole file of safetensors \("):
        check_loads(spec(folder))
