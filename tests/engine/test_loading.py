"""A checkpoint that lacks weights is refused, never filled up; a mirror stands for the hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from raybias.config import Backbone
from raybias.config.parts import Adequacy, Rewriting
from raybias.engine.backbone import load_backbone, load_pretrained
from raybias.engine.checkpoint import fetched, locate, source_of
from raybias.engine.classifier import Classifier, load_classifier
from raybias.engine.context import Execution
from raybias.engine.masked_scores import load_masked
from raybias.engine.rewriter import AdequacyModel, Rewriter
from raybias.errors import ModelError
from raybias.methods import Full, Lora
from raybias.schema import LABELS
from support import backbones, pair_models, rewriters
from support.mirrored import mirror

Tensors = dict[str, torch.Tensor]


def spec(folder: Path) -> Backbone:
    return Backbone(id=str(folder), dtype="float32", bos="prepend")


def causal(folder: Path) -> object:
    return load_backbone(spec(folder))


def head(folder: Path) -> Classifier:
    return load_classifier(spec(folder), Full(head="classification"), LABELS)


def rewriter(folder: Path) -> object:
    judge = Adequacy(model=str(rewriters.save_judge(folder.parent / "whole_judge")))
    return Rewriter(Rewriting(model=str(folder), adequacy=judge), style="formal")


#: What reads a checkpoint, and what it is said to need.
LOADS: dict[str, tuple[Callable[[Path], object], str]] = {
    "causal": (causal, "a causal language model"),
    "tokens": (
        lambda folder: load_classifier(spec(folder), Lora(head="label_tokens"), LABELS),
        "a causal language model",
    ),
    "head": (head, "a classifier"),
    "masked": (lambda folder: load_masked(spec(folder)), "a masked language model"),
    "rewriter": (rewriter, "a sequence-to-sequence model"),
    "judge": (lambda folder: AdequacyModel(Adequacy(model=str(folder))), "a classifier"),
    "embedder": (
        lambda folder: AdequacyModel(Adequacy(model=str(folder), kind="embedding")),
        "an encoder",
    ),
}


def halved(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not second(name)}


def renamed(tensors: Tensors) -> Tensors:
    return {f"old.{name}" if second(name) else name: each for name, each in tensors.items()}


def second(name: str) -> bool:
    """Whether a tensor belongs to the second block."""
    return any(f".{part}.1." in name for part in ("h", "layer", "layers", "block"))


CASES = [
    *(("causal", kind) for kind in ("opt", "gpt2", "llama", "bloom")),
    *(("tokens", kind) for kind in ("opt", "llama")),
    *(("head", kind) for kind in ("opt", "gpt2", "qwen2", "bert", "roberta")),
    *(("masked", kind) for kind in ("bert", "roberta")),
    ("rewriter", "t5"),
    ("judge", "judge"),
    ("embedder", "judge"),
]
SAVES = {"t5": rewriters.save_t5, "judge": rewriters.save_judge}


@pytest.mark.parametrize(("reader", "kind"), CASES)
def test_weights_that_a_checkpoint_lacks_are_named_and_counted(
    reader: str, kind: str, tmp_path: Path
) -> None:
    load, needs = LOADS[reader]
    if reader == "masked":
        folder = pair_models.save(kind, tmp_path)
    else:
        folder = SAVES.get(kind, partial(backbones.save, kind))(tmp_path / kind)
    load(folder)
    prefix = "bert." if reader == "embedder" else ""
    whole = load_file(folder / "model.safetensors")
    lost = [name.removeprefix(prefix) for name in sorted(filter(second, whole))]
    for change in (renamed, halved):
        save_file(change(whole), folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError) as refused:
            load(folder)
        said = str(refused.value)
        assert f"checkpoint lacks {lost[0]}, {lost[1]}, ... ({len(lost)} of the " in said
        assert f"weights that {needs} needs)" in said
        assert (", and holds old." in said) == (change is renamed)


def test_what_is_new_by_design_may_be_missing(tmp_path: Path) -> None:
    # BERT's masked-language checkpoints hold no pooler, which its classifiers read.
    bert = head(backbones.save("bert", tmp_path / "bert"))
    assert {name for name in bert.head if "pooler" in name}
    # GPT-2's head is tied to its embeddings and written once.
    gpt2 = backbones.save("gpt2", tmp_path / "gpt2")
    assert not any("lm_head" in name for name in load_file(gpt2 / "model.safetensors"))
    causal(gpt2)
    # Without the tie it is a weight that the checkpoint lacks.
    config = transformers.AutoConfig.from_pretrained(gpt2)
    config.tie_word_embeddings = False
    config.save_pretrained(gpt2)
    with pytest.raises(ModelError, match=r"lacks lm_head\.weight \(1 of the 29 weights"):
        causal(gpt2)


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    opt = backbones.save("opt", tmp_path / "opt")
    config = transformers.AutoConfig.from_pretrained(opt)
    config.ffn_dim = 48
    config.save_pretrained(opt)
    for load in (causal, head):
        with pytest.raises(ModelError, match=r"layers\.0\.fc1\.bias as \[64\], .* asks for \[48\]"):
            load(opt)


def test_weights_go_from_the_files_to_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_move(*_: object) -> None:
        raise AssertionError("the model was whole on the CPU")

    backbones.save("llama", tmp_path)
    monkeypatch.setattr(transformers.PreTrainedModel, "to", no_move)
    half = spec(tmp_path).model_copy(update={"dtype": "bfloat16"})
    model, _ = load_pretrained(transformers.AutoModelForCausalLM, half, Execution(device="meta"))
    tensors = [*model.parameters(), *model.buffers()]
    assert {each.device.type for each in tensors} == {"meta"}
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pipe_among_a_models_files_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match=f"{name} is a pipe or device, not a file"):
        load_backbone(Backbone(id=str(tmp_path)))


ID = "example/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with the tiny model as example/tiny, and a cache of the hub that is empty."""
    backbones.save("opt", tmp_path / "tiny")
    (tmp_path / "tiny" / "pytorch_model.bin").write_bytes(b"never read")
    return mirror({ID: tmp_path / "tiny"}, COMMIT, tmp_path, monkeypatch)[ID]


def test_a_model_is_located_without_its_weights_and_fetched_with_them(
    bucket: Path, tmp_path: Path
) -> None:
    found = locate("example/tiny", None)
    assert found.commit == COMMIT
    assert found.snapshot.is_relative_to(tmp_path / "cache")
    assert (found.snapshot / "config.json").is_file()
    assert not (found.snapshot / "model.safetensors").exists()
    # What the driver pins is what every node fetches.
    spec = Backbone(id="example/tiny", name="tiny", revision=COMMIT, dtype="float32")
    # A worker whose machine nothing was fetched to loads the same model.
    mirrored = load_backbone(spec).model.state_dict()
    plain = load_backbone(Backbone(id=str(bucket))).model.state_dict()
    assert all(torch.equal(mirrored[name], plain[name]) for name in plain)
    here = Path(fetched(spec))
    assert here == found.snapshot == Path(source_of(spec))
    assert not (here / "pytorch_model.bin").exists()
    assert not list(here.glob(".*"))
    weights = here / "model.safetensors"
    assert weights.read_bytes() == (bucket / weights.name).read_bytes()
    before = weights.stat().st_mtime_ns
    fetched(spec)
    assert weights.stat().st_mtime_ns == before, "it is copied once"


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
