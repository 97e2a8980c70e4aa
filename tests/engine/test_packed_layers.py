"""Adapted layers and whole models: how rows are packed and padded, and which layers are adapted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from raybias.engine.adapters.base import AdapterTrainer, TrainingBatch, stack_weights
from raybias.engine.adapters.full import FullTrainer
from raybias.engine.adapters.lora import LoraOptions, LoraTrainer
from raybias.engine.adapters.packed_layers import target_layers
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.engine.packing import Placed, pack, stack
from raybias.errors import ModelError
from raybias.methods import EarlyStop, Full, Lora, Tuned
from raybias.methods.tuned import options_for
from raybias.schema import LABELS
from raybias.storage import Store
from support import classifiers
from support.ia3 import Ia3, Ia3Options

METHOD = Lora(rank=4, dropout=0)
FULL = Full(
    batch_size=6, eval_every=5, validation_rows=0, max_steps=15, seeds=(3,), keep=1,
    early_stop=EarlyStop(after_step=10**6), restore_best=False, dropout_after_first_eval=True,
)  # fmt: skip


def trainer_of(kind: str, folder: Path, method: Tuned = METHOD) -> AdapterTrainer:
    spec = classifiers.spec_of(kind, folder / kind)
    return method.trainer(ModelContext(spec, LABELS, Execution()))


def test_padding_changes_no_logits_of_a_model_that_reads_the_last_position(tmp_path: Path) -> None:
    classifier = classifiers.load("xlnet", tmp_path, FULL)
    assert classifier.pads_left
    assert not classifiers.load("gpt2", tmp_path, FULL).pads_left
    trainer = FullTrainer(classifier, FULL)
    rows = [[1, 5, 6, 7], [1, 8], [1, 9, 10, 11, 12, 13, 14]]
    keyed = [Placed(0, each) for each in trainer.prepare(rows)]
    with torch.no_grad():
        together = classifier(*classifier.read(stack(keyed)))
        for each, logits_L in zip(keyed, together, strict=True):
            (alone_L,) = classifier(*classifier.read(stack([each])))
            torch.testing.assert_close(logits_L, alone_L, atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match="padded at the right"):
        LoraTrainer(classifier, LoraOptions())


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_a_state_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(kind, tmp_path, FULL)
    rows = classifiers.token_set(trainer.classifier, 40, seed=5)
    trials = [Trial("s3", 3, 1e-3, "final", weight_decay=1e-3, stop_window=2)]
    first, second, third = (
        PackedTuner(trainer, FULL.recipe, trials, train=rows, validation=rows) for _ in range(3)
    )
    whole = classifiers.finished(third)["s3"]
    first.advance()
    second.load_state("s3", first.state("s3"))
    resumed = classifiers.finished(second)["s3"]
    assert whole.losses == resumed.losses
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())


@pytest.mark.parametrize(
    ("kind", "packs"), [("opt", True), ("llama", True), ("bert", False), ("bloom", False)]
)
def test_rows_share_sequences_where_the_model_takes_them_packed(
    kind: str, packs: bool, tmp_path: Path
) -> None:
    trainer = trainer_of(kind, tmp_path)
    assert trainer.packs == packs
    ways = trainer.classifier.execution.ways
    assert {each.fastest for each in ways.values()} == (set() if kind == "bert" else {packs})


@pytest.mark.parametrize("counts", [(3, 3, 3), (3, 0, 3), (2, 4, 1)])
def test_runs_share_a_pass_as_they_do_on_a_gpu(counts: tuple[int, ...], tmp_path: Path) -> None:
    """Every row has the logits that it has alone and unpacked, with the same dropout."""
    method = METHOD.model_copy(update={"dropout": 0.3})
    trainer = trainer_of("opt", tmp_path, method)
    weights = [trainer.init_weights(seed) for seed in range(3)]
    for run in weights:
        for name, tensor in run.items():
            run[name] = torch.randn_like(tensor)
    rows = classifiers.token_set(trainer.classifier, 12, seed=7).rows
    training = [TrainingBatch(run, rows, (0,) * 12, s, 5, True) for s, run in enumerate(weights)]
    assert trainer.packs
    sequences = pack(rows, max_tokens=max(map(len, rows)) * 3, share=False)
    placed = [Placed(s, sequences[n]) for s, count in enumerate(counts) for n in range(count)]
    together, stacked = stack(placed[::-1]), stack_weights(weights)
    packed = [
        dict(zip(together.rows, trainer.forward(together, stacked, mode), strict=True))
        for mode in (None, training)
    ]
    trainer.packs = False
    for found, mode in zip(packed, (None, training), strict=True):
        for s, row in found:
            (alone,) = pack([rows[row]], max_tokens=0)
            single = stack([Placed(s, replace(alone, members=(row,)))])
            (expected,) = trainer.forward(single, stacked, mode)
            torch.testing.assert_close(found[s, row], expected, atol=1e-4, rtol=1e-4)


def test_targets_are_matched_and_checked(tmp_path: Path) -> None:
    def names(method: Tuned) -> set[str]:
        options = options_for(Ia3Options if isinstance(method, Ia3) else LoraOptions, method)
        layers = target_layers(classifier.model, options, classifier.encoder.spec)
        return {path.rpartition(".")[2] for path in layers}

    classifier = classifiers.load("bert", tmp_path, METHOD)
    assert names(METHOD.model_copy(update={"target": "peft_default"})) == {"query", "value"}
    with pytest.raises(ModelError, match=r"'q_prj' matches no linear layer; choose among dense"):
        names(METHOD.model_copy(update={"target": ("query", "q_prj")}))
    with pytest.raises(ModelError, match="is an encoder"):
        classifiers.load("bert", tmp_path, METHOD.model_copy(update={"head": "label_tokens"}))
    named = Ia3(target=("k_proj", "fc2"), feed_forward=("fc2",))
    classifier = classifiers.load("opt", tmp_path, named)
    assert names(named) == {"k_proj", "fc2"}
    with pytest.raises(ModelError, match="ia3 target 'k_prj' matches no linear layer"):
        names(named.model_copy(update={"target": ("k_prj",)}))
    with pytest.raises(ValidationError, match="feed_forward names fc1, which is not in target"):
        Ia3(target=("k_proj",), feed_forward=("fc1",))


def test_an_adapter_of_another_backbone_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    trainer = trainer_of("llama", tmp_path, Ia3())
    trainer.save(store, "adapter", trainer.init_weights(1), {})
    with pytest.raises(ModelError, match=r"lacks base_model\.model\.model\.decoder.*ia3_l"):
        trainer_of("opt", tmp_path, Ia3()).load(store, "adapter")
    with pytest.raises(ModelError, match="no such adapter"):
        trainer.load(store, "elsewhere")
