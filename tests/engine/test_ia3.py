"""Packed (IA)3 equals separate PEFT runs, and PEFT opens what it saves."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
import transformers
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.packed_layers import head_modules, target_layers
from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.errors import ModelError
from raybias.methods import EarlyStop
from raybias.methods.tuned import options_for
from raybias.schema import LABELS
from raybias.storage import Store
from support import classifiers
from support.ia3 import Ia3, Ia3Options

KINDS = ("roberta", "opt_projected", "gpt2", "llama")
METHOD = Ia3(
    batch_size=6,
    eval_every=10,
    validation_rows=0,
    max_steps=20,
    early_stop=EarlyStop(after_step=10**6, window=2),
    seeds=(1, 2, 3),
    keep=2,
    restore_best=False,
)


def unit(seed: int) -> Trial:
    return Trial(f"s{seed}", seed, 3e-3, "final", weight_decay=0, stop_window=2)


def tuner(kind: str, folder: Path, seeds: tuple[int, ...], *, budget: int = 4096) -> PackedTuner:
    path = folder / kind
    spec = classifiers.spec_of(kind, path)
    trainer = METHOD.trainer(ModelContext(spec, LABELS, Execution(budget)))
    return PackedTuner(
        trainer,
        METHOD.recipe,
        [unit(seed) for seed in seeds],
        train=classifiers.token_set(trainer.classifier, 40, seed=5),
        validation=classifiers.token_set(trainer.classifier, 21, seed=6),
    )


def base_model(kind: str, folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / kind, num_labels=3, pad_token_id=0
    )


def plain_logits(model: peft.PeftModel, rows: list[tuple[int, ...]]) -> torch.Tensor:
    padded = [torch.tensor(row) for row in rows]
    tokens_RT = torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)
    last_R = torch.tensor([len(row) - 1 for row in rows])
    mask_RT = (torch.arange(tokens_RT.shape[1]) <= last_R[:, None]).long()
    return model(input_ids=tokens_RT, attention_mask=mask_RT).logits


def plain_run(kind: str, folder: Path, seed: int, packed: PackedTuner) -> dict[str, torch.Tensor]:
    """(IA)3 as PEFT's users write it, with PEFT's own targets for the architecture."""
    trainer, train = packed.trainer, packed.train
    config = peft.IA3Config(
        task_type="SEQ_CLS", modules_to_save=head_modules(trainer.classifier) or None
    )
    config.fan_in_fan_out = kind == "gpt2"
    model = peft.get_peft_model(base_model(kind, folder), config).eval()
    start = trainer.init_weights(seed)
    named = {}
    for name, tensor in model.named_parameters():
        plain = name.replace(".default", "").replace(".modules_to_save", "")
        plain = plain.removeprefix("base_model.model.")
        if tensor.requires_grad:
            named[plain] = tensor
    assert named.keys() == start.keys()
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(start[name])
    optimizer = torch.optim.AdamW(named.values(), lr=3e-3, weight_decay=0)
    for step in range(METHOD.max_steps or 0):
        numbers = batch_of_step(seed, step, rows=len(train.rows), batch_size=METHOD.batch_size)
        logits_RL = plain_logits(model, [train.rows[n] for n in numbers])
        loss = cross_entropy(logits_RL, torch.tensor([train.labels[n] for n in numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in named.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pack_equals_separate_peft_runs(kind: str, tmp_path: Path) -> None:
    packed = tuner(kind, tmp_path, (1, 2, 3), budget=200)
    results = classifiers.finished(packed)
    assert list(results) == ["s1", "s2", "s3"]
    for seed in (1, 2, 3):
        plain = plain_run(kind, tmp_path, seed, packed)
        for name, tensor in plain.items():
            torch.testing.assert_close(results[f"s{seed}"].weights[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_peft_opens_an_adapter_and_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    packed = tuner(kind, tmp_path, (1,))
    trainer, store = packed.trainer, Store(str(tmp_path))
    (result,) = classifiers.finished(packed).values()
    trainer.save(store, "adapter", result.weights, {})
    rows = list(packed.validation.rows)
    (expected_NL,) = trainer.logits([result.weights], [trainer.prepare(rows)])
    again = trainer.load(store, "adapter")
    assert again.keys() == result.weights.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in result.weights.items())
    opened = peft.PeftModel.from_pretrained(base_model(kind, tmp_path), store.uri_of("adapter"))
    with torch.no_grad():
        logits_NL = plain_logits(opened.eval(), rows)
    torch.testing.assert_close(expected_NL, logits_NL, atol=1e-5, rtol=1e-5)


def test_an_adapter_of_another_backbone_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    trainer = tuner("llama", tmp_path, (1,)).trainer
    trainer.save(store, "adapter", trainer.init_weights(1), {})
    with pytest.raises(ModelError, match=r"lacks base_model\.model\.model\.decoder.*ia3_l"):
        tuner("opt", tmp_path, (1,)).trainer.load(store, "adapter")
    with pytest.raises(ModelError, match="no such adapter"):
        trainer.load(store, "elsewhere")


def test_named_targets_are_matched_and_checked(tmp_path: Path) -> None:
    named = Ia3(target=("k_proj", "fc2"), feed_forward=("fc2",))
    classifier = classifiers.load("opt", tmp_path, named)
    names = {
        path.rpartition(".")[2]
        for path in target_layers(classifier, options_for(Ia3Options, named))
    }
    assert names == {"k_proj", "fc2"}
    wrong = named.model_copy(update={"target": ("k_prj",)})
    with pytest.raises(ModelError, match="ia3 target 'k_prj' matches no linear layer"):
        target_layers(classifier, options_for(Ia3Options, wrong))
    with pytest.raises(ValidationError, match="feed_forward names fc1, which is not in target"):
        Ia3(target=("k_proj",), feed_forward=("fc1",))
