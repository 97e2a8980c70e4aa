"""Quantised checkpoints: read as the quantised model itself computes, tuned beside its weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from raybias.config import Backbone, parse_study
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import ModelContext, load_backbone
from raybias.engine.context import Execution
from raybias.engine.model_shape import model_shape
from raybias.errors import ModelError
from raybias.methods import Full, ZeroShot
from raybias.methods.base import Run
from raybias.planning.inventory import Inventory, Node, decide_dtypes
from raybias.runtime.predict.shards import keep_ways
from raybias.schema import LABELS
from raybias.storage import Store
from raybias.testing import inputs
from support import prompting
from support.documents import ROOT, blocks
from support.prompting import plain
from support.quantised import needs_torchao, quantise
from support.reading import labelled

pytestmark = needs_torchao


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("quantised")
    full = prompting.save("llama", folder / "full")
    (shown,) = (b for b in blocks(ROOT / "docs/precision.md") if b.language == "python")
    code = shown.text.replace("some/model", str(full)).replace("bfloat16", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code.replace("model-int8", str(folder / "int8")), {})
    return {32: full, 8: folder / "int8", 4: quantise(full, folder / "int4", 4)}


@pytest.mark.long
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_model_is_read_the_fast_way_and_as_it_computes(
    models: dict[int, Path], bits: int, tmp_path: Path
) -> None:
    spec = Backbone(id=str(models[bits]), name="small")
    context = ModelContext(spec, LABELS, Execution(300))
    texts = prompting.texts(9)
    ours = EngineAnswers(load_backbone(spec, context.execution))
    found, _ = ours.likelihoods([(text, " positive") for text in texts])
    how = ZeroShot(seeds=(1,), temperature=0, prompt_format="raw").reader(context, Store("."))
    said = labelled(how, Run("run", seed=1), texts, texts)
    peer = prompting.Peer(models[bits])
    for text, value, answer in zip(texts, found, said["texts"], strict=True):
        assert value == pytest.approx(peer.likelihood(text, " positive"), abs=1e-4)
        assert answer == peer.says(plain(how.method).first(text, LABELS), 3)
    keep_ways(Store(tmp_path), context)
    records = [json.loads(each.read_text()) for each in tmp_path.glob("readers/small.*.json")]
    assert {each["purpose"] for each in records} == {"generation", "log-probabilities"}
    assert all(each["fastest"] for each in records)
    assert all(each["quantised"].startswith("torchao Int") for each in records)
    assert model_shape(spec).weight_bytes < model_shape(Backbone(id=str(models[32]))).weight_bytes


def test_a_study_takes_the_dtype_of_a_quantised_checkpoint(models: dict[int, Path]) -> None:
    study = parse_study(
        {
            "name": "s",
            "backbones": [{"id": str(models[8])}, {"id": str(models[32])}],
            "methods": [{"kind": "zero_shot"}],
            "probes": [{"source": "planted"}],
        }
    )
    node = Node(cpus=8, memory=2**35, gpus=1, gpu="A100", gpu_memory=2**34)
    decided, _ = decide_dtypes(study, Inventory(nodes=(node,), source="a test"))
    assert [each.dtype for each in decided.backbones] == ["float32", "bfloat16"]


def test_what_quantised_weights_cannot_do_is_refused(models: dict[int, Path]) -> None:
    spec = Backbone(id=str(models[8]))
    with pytest.raises(ModelError, match=r"torchao Int8WeightOnlyConfig\), and method full"):
        Full().check(inputs(spec))
    with pytest.raises(ModelError, match="computes in float32, not in bfloat16; leave its dtype"):
        load_backbone(spec.model_copy(update={"dtype": "bfloat16"}))
