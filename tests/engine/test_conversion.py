"""GGUF files and pickled weights become folders of safetensors, where that is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import quantize
from safetensors.torch import load_file

from raybias import convert
from raybias.config import Backbone
from raybias.config.study import load_study, parse_study
from raybias.engine.backbone import load_backbone
from raybias.engine.encoder import load_tokenizer
from raybias.errors import BadInput
from raybias.planning.prepared import resolve_models
from support import backbones

TEXT = "the cat sat on the mat"
PIECES = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "th", "Ġth", "Ġthe"]
MERGES = ["t h", "Ġ th", "Ġth e"]
VOCABULARY = ["<|end|>", "<|turn|>", *PIECES]
TEMPLATE = "{% for m in messages %}<|turn|>{{ m['content'] }}{% endfor %}"
LAYERS, WIDTH, HEADS, INNER = 2, 64, 4, 96


def write_llama(path: Path, *, architecture: str = "llama", left_out: str = "") -> Path:
    """A random LLaMA of two layers: matrices in Q4_1, norms in float32."""
    writer = gguf.GGUFWriter(path, architecture)
    facts = {
        "file_type": gguf.LlamaFileType.MOSTLY_Q4_1, "block_count": LAYERS, "context_length": 64,
        "embedding_length": WIDTH, "feed_forward_length": INNER, "head_count": HEADS,
        "head_count_kv": HEADS // 2, "rope_freq_base": 10_000, "layer_norm_rms_eps": 1e-5,
        "vocab_size": len(VOCABULARY), "tokenizer_model": "gpt2", "token_list": VOCABULARY,
        "token_types": [3, 3, *[1] * len(PIECES)], "token_merges": MERGES, "bos_token_id": 1,
        "eos_token_id": 0, "chat_template": TEMPLATE,
    }  # fmt: skip
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    random = np.random.default_rng(7)
    key = WIDTH // 2
    inside = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (key, WIDTH), "attn_v": (key, WIDTH),
        "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(VOCABULARY), WIDTH),
        "output_norm": (WIDTH,),
        **{f"blk.{n}.{name}": shape for n in range(LAYERS) for name, shape in inside.items()},
    }
    for name, shape in shapes.items():
        if name == left_out:
            continue
        values = random.normal(scale=0.3, size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
            continue
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same_as_file(folder: Path, file: Path, text: str) -> None:
    """The converted folder has the tokens and logits of transformers' own load of the file."""
    loaded = load_backbone(Backbone(id=str(folder), dtype="float32"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    (row,) = loaded.encoder.encode([text])
    assert row == tokenizer(text)["input_ids"]
    assert tokenizer.chat_template == loaded.tokenizer.chat_template
    tokens = torch.tensor([row])
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens).logits, model(tokens).logits)


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
    assert (done.quantisation, done.tensors) == ("Q4_1", 2 + 9 * LAYERS)
    assert [each.name for each in made.parent.iterdir()] == ["tiny"]
    record = json.loads((made / "converted.json").read_text())
    assert record["sha256"] == {"tiny.gguf": hashlib.sha256(file.read_bytes()).hexdigest()}
    same_as_file(made, file, TEXT)
    assert load_tokenizer(Backbone(id=str(made))).chat([{"role": "user", "content": "a"}]) == (
        "<|turn|>a"
    )
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
            left_out="blk.1.ffn_up" if way == "lacking" else "",
        )
    if way == "other":
        file.write_bytes(b"GGML" + file.read_bytes()[4:])
    if way in ("cut", "header"):
        file.write_bytes(file.read_bytes()[: 20_000 if way == "cut" else 40])
    with pytest.raises(BadInput, match=said) as caught:
        convert(str(file), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.gguf"] * (way != "missing")


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
def test_pickled_weights_are_converted_to_the_bit(tmp_path: Path) -> None:
    weights = pickled(tmp_path / "opt", parts=3)
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
@pytest.mark.parametrize("way", ["torch", "damaged"])
def test_a_pickle_with_more_than_weights_runs_nothing(way: str, tmp_path: Path) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "opt"
    pickled(folder)
    file = folder / "pytorch_model.bin"
    if way == "torch":
        torch.save({"weight": torch.ones(2), "more": Malicious(mark)}, file)
    else:
        file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(BadInput, match=r"no weights alone, or is damaged \("):
        convert(str(folder), tmp_path / "out")
    assert not mark.exists()
    assert sorted(tmp_path.iterdir()) == [folder]
