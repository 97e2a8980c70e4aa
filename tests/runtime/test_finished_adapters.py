"""Adapters are models: those that raybias tuned say what they said in their study, PEFT's merge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import polars as pl
import pytest
import torch
import transformers

import raybias
from raybias.config import Backbone, Study, load_study
from raybias.engine.backbone import load_pretrained
from raybias.engine.checkpoint import model_hashes
from raybias.engine.context import ON_CPU
from raybias.engine.encoder import load_tokenizer, verbalizer_ids
from raybias.engine.published import PublishedClassifier, has_trained_head
from raybias.errors import ConfigError, ModelError, RaybiasError
from raybias.schema import LABELS
from support import classifiers, studies

TUNED = studies.TUNED | {"seeds": [1], "learning_rates": [3e-2]}
METHODS: list[dict[str, Any]] = [
    {"kind": "soft_prompt", "prompt_length": 4, **TUNED},
    {"kind": "prefix", "prompt_length": 4, **TUNED},
    {"kind": "lora", "name": "lora", **TUNED},
    {"kind": "lora", "name": "words", "head": "label_tokens", "template": "{text} it was", **TUNED},
    {"kind": "full", **TUNED},
]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of every method that tunes, done."""
    folder = tmp_path_factory.mktemp("tuned")
    file = studies.save(folder)
    study = load_study(file)
    content = study.model_dump(mode="json") | {"methods": METHODS}
    raybias.run(Study.model_validate(content), out=folder / "out", address="none")
    return folder


def predictions(out: Path) -> pl.DataFrame:
    frame = pl.concat(
        [pl.read_parquet(path) for path in sorted(out.rglob("predictions/**/*.parquet"))]
    )
    return frame.sort("item_id").select("method", "item_id", "pred", "scores")


def classify(
    model: Path, folder: Path, *, bos: str = "tokenizer", weights: str = "auto", **method: Any
) -> pl.DataFrame:
    """What the method classify says of the study's probe with a finished model."""
    probe = studies.MINE | {"data": str(folder / "probe.csv")}
    study = Study.model_validate(
        {
            "name": "finished",
            "backbones": [{"id": str(model), "name": "finished", "bos": bos, "dtype": weights}],
            "methods": [{"kind": "classify", **method}],
            "probes": [probe],
            "resources": {"rows_per_shard": 16, "deterministic": True},
        }
    )
    out = model.parent / f"of-{model.name}"
    raybias.plan(study)
    raybias.run(study, out=out, address="none")
    return predictions(out)


@pytest.mark.parametrize("name", ["soft_prompt", "prefix", "lora", "words", "full"])
def test_what_a_study_tuned_says_what_it_said(name: str, tuned: Path) -> None:
    (adapter,) = (tuned / "out/adapters").glob(f"tiny.sentences.{name}.*")
    expected = predictions(tuned / "out").filter(method=name)
    found = classify(adapter, tuned)
    assert expected["pred"].n_unique() > 1
    assert found["pred"].to_list() == expected["pred"].to_list()
    assert found["scores"].to_list() == expected["scores"].to_list()


@pytest.mark.parametrize(
    ("name", "message"), [("soft_prompt", "is a soft prompt"), ("prefix", "is a prefix")]
)
def test_a_prompt_that_peft_saved_is_read_by_the_studys_words(
    name: str, message: str, tuned: Path, tmp_path: Path
) -> None:
    (adapter,) = (tuned / "out/adapters").glob(f"tiny.sentences.{name}.*")
    base = transformers.AutoModelForCausalLM.from_pretrained(tuned / "tiny")
    model = peft.PeftModel.from_pretrained(base, adapter)
    model.save_pretrained(tmp_path / "prompt")
    assert not (tmp_path / "prompt/raybias.json").exists()
    expected = predictions(tuned / "out").filter(method=name)
    found = classify(tmp_path / "prompt", tuned, bos="prepend", weights="float32")
    assert found["pred"].to_list() == expected["pred"].to_list()
    with pytest.raises(ModelError, match=rf"{message} .* no other method"):
        load_pretrained(
            transformers.AutoModelForCausalLM, Backbone(id=str(tmp_path / "prompt")), ON_CPU
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {"target_modules": ["query", "value"]}),
        ("roberta", {"target_modules": "all-linear", "use_dora": True}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_rslora": True}),
        ("llama", {"target_modules": ["q_proj", "down_proj"], "rank_pattern": {"q_proj": 2}}),
    ],
)
def test_an_adapter_with_a_head_is_the_pipelines(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Merged into its base, whose own head has another size."""
    base = classifiers.save(kind, tmp_path / "base", ("NEG", "POS"))
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=3, ignore_mismatched_sizes=True
    )
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, init_lora_weights=False, **options)
    adapted = peft.get_peft_model(model, config).eval()
    for name, weight in adapted.named_parameters():
        if "modules_to_save" in name and weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    spec = Backbone(id=str(tmp_path / "adapter"))
    assert has_trained_head(spec)

    sentences = classifiers.texts(9)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        expected_NC = torch.cat(
            [adapted(**tokenizer(text, return_tensors="pt")).logits for text in sentences]
        ).softmax(-1)
    classifier = PublishedClassifier(spec)
    found_NC = classifier.outputs(classifier.encoder.encode(sentences))
    assert np.ptp(expected_NC.numpy(), axis=0).max() > 1e-3
    np.testing.assert_allclose(found_NC, expected_NC, atol=1e-5)
    # The base's files decide its answers too.
    before = model_hashes(spec)
    classifiers.edit_config(base, {"hidden_dropout_prob": 0.3, "resid_pdrop": 0.3})
    changed = {name for name, digest in model_hashes(spec).items() if before[name] != digest}
    assert changed == {"base/config.json"}


def test_an_adapter_of_a_causal_model_is_one(tuned: Path, tmp_path: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(tuned / "tiny")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False
    )
    adapted = peft.get_peft_model(base, config).eval()
    adapted.save_pretrained(tmp_path / "chat")
    spec = Backbone(id=str(tmp_path / "chat"))
    model, _ = load_pretrained(transformers.AutoModelForCausalLM, spec, ON_CPU)
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, adapted(tokens).logits)
    method = {"kind": "zero_shot", "seeds": [1]}
    probe = studies.MINE | {"data": str(tuned / "probe.csv")}
    study = Study.model_validate(
        {"name": "chat", "backbones": [spec.id], "methods": [method], "probes": [probe]}
    )
    results = raybias.run(study, out=tmp_path / "out", address="none")
    assert len(results.predictions.collect()) == 30
    with pytest.raises(
        RaybiasError, match="for the task CAUSAL_LM, without a classification head; use a prompted"
    ):
        classify(tmp_path / "chat", tuned)


def test_labels_of_a_prefix_are_what_peft_makes_of_every_sentence(tuned: Path) -> None:
    (adapter,) = (tuned / "out/adapters").glob("tiny.sentences.prefix.*")
    base = transformers.AutoModelForCausalLM.from_pretrained(tuned / "tiny")
    model = peft.PeftModel.from_pretrained(base, adapter).eval()
    encoder = load_tokenizer(Backbone(id=str(tuned / "tiny"), bos="prepend"))
    ids = list(verbalizer_ids(encoder.tokenizer, LABELS))
    rows = encoder.encode(pl.read_csv(tuned / "probe.csv")["text"].to_list())
    with torch.no_grad():
        expected_NL = torch.stack([model(torch.tensor([row])).logits[0, -1, ids] for row in rows])
    found = predictions(tuned / "out").filter(method="prefix")
    found = found.sort(pl.col("item_id").str.extract(r"(\d+)$").cast(pl.Int64))
    assert found["pred"].to_list() == expected_NL.argmax(-1).tolist()
    np.testing.assert_allclose(np.array(found["scores"].to_list()), expected_NL, atol=1e-5)


def _without_base(folder: Path, content: dict[str, Any]) -> None:
    content["base_model_name_or_path"] = None


def _with_base_elsewhere(folder: Path, content: dict[str, Any]) -> None:
    content["base_model_name_or_path"] = "/nowhere/base"


def _with_encoder(folder: Path, content: dict[str, Any]) -> None:
    content["peft_type"] = "P_TUNING"


def _pickled(folder: Path, content: dict[str, Any]) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def _cut_off(folder: Path, content: dict[str, Any]) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_base, "does not name the base model; write its hub id or folder"),
        (_with_base_elsewhere, "its base model /nowhere/base is not on this machine; write where"),
        (_with_encoder, "of the kind P_TUNING, which raybias does not read"),
        (_pickled, r"has? ?.*pickled weights \(adapter_model.bin\); save it"),
        (_cut_off, "is no whole file of safetensors"),
    ],
)
def test_an_adapter_that_cannot_be_read_is_one_line(
    spoil: Any, message: str, tuned: Path, tmp_path: Path
) -> None:
    (adapter,) = (tuned / "out/adapters").glob("tiny.sentences.lora.*")
    folder = tmp_path / "adapter"
    shutil.copytree(adapter, folder)
    (folder / "raybias.json").unlink()
    path = folder / "adapter_config.json"
    content = json.loads(path.read_text())
    spoil(folder, content)
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=message) as caught:
        classify(folder, tuned, labels={"negative": "a", "neutral": "b", "positive": "c"})
    assert "\n" not in str(caught.value)


def test_a_prompt_that_is_cut_off_is_one_line(tuned: Path, tmp_path: Path) -> None:
    (adapter,) = (tuned / "out/adapters").glob("tiny.sentences.soft_prompt.*")
    shutil.copytree(adapter, tmp_path / "prompt")
    (tmp_path / "prompt/raybias.json").unlink()
    _cut_off(tmp_path / "prompt", {})
    with pytest.raises(ModelError, match="is no whole file of safetensors"):
        classify(tmp_path / "prompt", tuned)
    with pytest.raises(ConfigError, match="`dtype` is of heads that others trained"):
        classify(adapter, tuned, dtype="bfloat16")
