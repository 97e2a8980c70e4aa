"""GGUF files and pickled weights become folders of safetensors, where that is asked for."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
import transformers
from gguf.quants import quantize
from safetensors.torch import load_file

from raybias import convert
from raybias.config import Backbone
from raybias.config.study import Resources, load_study, parse_study
from raybias.engine.backbone import load_backbone
from raybias.engine.checkpoint import converted_hashes, file_hashes, source_of
from raybias.engine.encoder import load_tokenizer
from raybias.errors import BadInput
from raybias.planning.prepared import resolve_models
from support import backbones

PIECES = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "th", "Ġth", "Ġthe"]
MERGES = ["t h", "Ġ th", "Ġth e"]
VOCABULARY = ["<|end|>", "<|turn|>", *PIECES]
TEMPLATE = "{% for m in messages %}<|turn|>{{ m['content'] }}{% endfor %}"


def write_llama(path: Path, *, architecture: str = "llama", left_out: str = "") -> Path:
    """A random LLaMA of two layers: matrices in Q4_1, norms in float32."""
    config = backbones.CONFIGS["llama"]()
    config.vocab_size = len(VOCABULARY)
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config)
    writer = gguf.GGUFWriter(path, architecture)
    facts = {
        "file_type": gguf.LlamaFileType.MOSTLY_Q4_1, "context_length": 64, "rope_freq_base": 10_000,
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size, "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads, "layer_norm_rms_eps": config.rms_norm_eps,
        "vocab_size": len(VOCABULARY), "tokenizer_model": "gpt2", "token_list": VOCABULARY,
        "token_types": [3, 3, *[1] * len(PIECES)], "token_merges": MERGES, "bos_token_id": 1,
        "eos_token_id": 0, "chat_template": TEMPLATE,
    }  # fmt: skip
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for ours, tensor in model.state_dict().items():
        name, values = names.get_name(ours, try_suffixes=(".weight",)), tensor.numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
        elif name != left_out:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_becomes_a_folder_with_its_logits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_llama(tmp_path / "tiny.gguf")
    with pytest.raises(
        BadInput, match=r"is a GGUF file.*raybias data convert .*tiny.gguf --out FOLDER"
    ):
        load_tokenizer(Backbone(id=str(file)))
    done = convert(str(file), tmp_path / "made" / "tiny")
    made = Path(done.folder)
    assert (done.quantisation, done.tensors) == ("Q4_1", 3 + 2 * 9)
    assert [each.name for each in made.parent.iterdir()] == ["tiny"]
    record = json.loads((made / "converted.json").read_text())
    assert record["sha256"] == {"tiny.gguf": hashlib.sha256(file.read_bytes()).hexdigest()}
    loaded = load_backbone(Backbone(id=str(made), dtype="float32"))
    own = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**own)
    model = transformers.AutoModelForCausalLM.from_pretrained(**own, dtype=torch.float32)
    (row,) = loaded.encoder.encode(["the cat sat on the mat"])
    assert row == tokenizer("the cat sat on the mat")["input_ids"]
    assert loaded.encoder.chat([{"role": "user", "content": "a"}]) == "<|turn|>a"
    with torch.no_grad():
        logits, expected = (each(torch.tensor([row])).logits for each in (loaded.model, model))
    assert torch.equal(logits, expected)
    with pytest.raises(BadInput, match="is there already"):
        convert(str(file), made)


def test_the_quantisation_is_part_of_the_name(tmp_path: Path) -> None:
    for name in ("tiny", "tiny.q4_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "converted.json").write_text('{"quantisation": "Q4_1"}')
    assert Backbone(id=str(tmp_path / "tiny")).name == "tiny-Q4_1"
    assert Backbone(id=str(tmp_path / "tiny.q4_1")).name == "tiny.q4_1"
    assert Backbone(id=str(tmp_path / "tiny"), name="mine").name == "mine"
    # A study's paths are relative to its file.
    content = "{name: s, backbones: [{id: tiny}], methods: [{kind: zero_shot}], probes: [planted]}"
    study = tmp_path / "study.yaml"
    study.write_text(content.replace("[planted]", "[{source: planted}]"))
    (backbone,) = load_study(study).backbones
    assert (backbone.name, backbone.id) == ("tiny-Q4_1", str(tmp_path / "tiny"))
    recorded = load_study(study).model_dump(mode="json")
    (tmp_path / "tiny" / "converted.json").unlink()
    assert parse_study(recorded).backbones[0].name == "tiny-Q4_1"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("missing", "is not there"),
        ("other", "cannot load this GGUF file .*magic"),
        ("cut", "cannot load this GGUF file"),
        ("header", "cannot load this GGUF file"),
        ("architecture", r"cannot load this GGUF file \(.*wavtokenizer-dec"),
        ("lacking", r"cannot load this GGUF file \(model.layers.1.mlp.up_proj.weight is missing"),
    ],
)
def test_a_wrong_file_is_one_line_and_leaves_nothing(way: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    if way != "missing":
        write_llama(
            file,
            architecture="wavtokenizer-dec" if way == "architecture" else "llama",
            left_out="blk.1.ffn_up.weight" if way == "lacking" else "",
        )
    if way == "other":
        file.write_bytes(b"GGML" + file.read_bytes()[4:])
    if way in ("cut", "header"):
        file.write_bytes(file.read_bytes()[: -1000 if way == "cut" else 40])
    with pytest.raises(BadInput, match=said) as caught:
        convert(str(file), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.gguf"] * (way != "missing")


@pytest.mark.long
def test_pickled_weights_are_converted_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an OPT, of which two are one tensor, in three files."""
    folder = backbones.save("opt", tmp_path / "opt")
    weights = dict(transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict())
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    for n in range(3):
        part = {key: weights[key] for key in names[n::3]}
        torch.save(part, folder / f"pytorch_model-{n + 1:05}-of-00003.bin")
    pickled = Backbone(id=str(tmp_path / "opt"))
    study: Any = SimpleNamespace(checkpoints={"opt": pickled}, resources=Resources(convert=False))
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
    # A study converts them in the cache, once for the same files.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    again = Path(source_of(pickled, weights=True))
    assert again == Path(source_of(pickled, weights=True))
    assert again.is_relative_to(tmp_path / "cache")
    for name, tensor in load_backbone(pickled).model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    hashes = file_hashes(tmp_path / "opt")
    assert record["sha256"].items() <= hashes.items()
    assert converted_hashes(pickled).keys() == {file.name for file in again.glob("*.safetensors")}
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


#: Makes what pickles hold and safetensors cannot.
WRONG: dict[str, Callable[[], dict[Any, Any]]] = {
    "number": lambda: {"weight": 3.0},
    "key": lambda: {3: torch.ones(3)},
    "meta": lambda: {"weight": torch.ones(3, device="meta")},
    "quantised": lambda: {"weight": torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)},
    "sparse": lambda: {"weight": torch.eye(3).to_sparse()},
    "dtype": lambda: {"weight": torch.ones(3, dtype=torch.complex32)},
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("torch", r"holds more than weights \(posix.system\)"),
        ("pickle", "holds more than weights"),
        ("damaged", "cannot be read as weights|holds more than weights, or is damaged"),
        ("tensor", "holds Tensor, not tensors by name"),
        ("number", "holds float as 'weight', not a tensor"),
        ("key", "holds a tensor as 3, which is no name"),
        ("meta", "holds 'weight' without its values"),
        ("quantised", "holds 'weight' as a quantised tensor"),
        ("sparse", "holds 'weight' as a sparse tensor"),
        ("dtype", "holds 'weight' as torch.complex32"),
    ],
)
def test_a_pickle_with_more_than_weights_runs_nothing(
    way: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, folder = tmp_path / "mark", backbones.save("opt", tmp_path / "opt")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    more = {"more": Malicious(mark)} if way == "torch" else {}
    torch.save({"weight": torch.ones(2000), **more}, file)
    if way == "pickle":
        file.write_bytes(pickle.dumps({"weight": Malicious(mark)}))
    if way == "damaged":
        file.write_bytes(file.read_bytes()[:3000])
    if way == "tensor":
        torch.save(torch.ones(3), file)
    if way in WRONG:
        torch.save(WRONG[way](), file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for attempt in (
        lambda: convert(str(folder), tmp_path / "out"),
        lambda: load_backbone(Backbone(id=str(folder))),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        # torch advises to load the file without its check.
        assert "weights_only" not in str(caught.value)
    assert not mark.exists()
    assert not (tmp_path / "out").exists()
    assert not [*(tmp_path / "cache").glob("**/converted/*")]
