"""Full fine-tuning equals transformers and torch as a textbook uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.full import FullTrainer
from raybias.engine.adapters.lora import LoraOptions, LoraTrainer
from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.keyed_draws import KeyedDropout
from raybias.engine.packing import Placed, stack
from raybias.errors import ModelError
from raybias.methods import EarlyStop, Full
from raybias.storage import Store
from support import classifiers

METHOD = Full(
    learning_rates=(1e-3,),
    batch_size=6,
    eval_every=5,
    validation_rows=0,
    max_steps=15,
    early_stop=EarlyStop(after_step=10**6, window=2),
    seeds=(1, 2),
    keep=1,
    restore_best=False,
    dropout_after_first_eval=True,
    # Key biases have no gradient but rounding, which a smaller epsilon would blow up.
    eps=1e-4,
)


def unit(seed: int) -> Trial:
    return Trial(f"s{seed}", seed, 1e-3, "final", weight_decay=1e-3, stop_window=2)


def tuner(
    kind: str, folder: Path, seeds: tuple[int, ...], method: Full = METHOD, *, budget: int = 4096
) -> PackedTuner:
    classifier = classifiers.load(kind, folder, method, tokens=budget)
    return PackedTuner(
        FullTrainer(classifier, method),
        method.recipe,
        [unit(seed) for seed in seeds],
        train=classifiers.token_set(classifier, 40, seed=5),
        validation=classifiers.token_set(classifier, 21, seed=6),
    )


def plain_run(
    kind: str, folder: Path, seed: int, packed: PackedTuner, *, dropped: int
) -> dict[str, torch.Tensor]:
    """One model, padded batches, `dropped` steps with dropout."""
    train, trainer = packed.train, packed.trainer
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / kind, num_labels=3, pad_token_id=0
    )
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(trainer.init_weights(seed)[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3, eps=1e-4)
    for step in range(15):
        numbers = batch_of_step(seed, step, rows=len(train.rows), batch_size=6)
        rows = [torch.tensor(train.rows[n]) for n in numbers]
        # XLNet's own tokenizer pads at the left.
        side = "left" if kind == "xlnet" else "right"
        tokens_RT, mask_RT = (
            torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_side=side)
            for each in (rows, [torch.ones_like(row) for row in rows])
        )
        model.train(step < dropped)
        with KeyedDropout(seed, "dropout", step):
            logits_RL = model(input_ids=tokens_RT, attention_mask=mask_RT).logits
        loss = cross_entropy(logits_RL, torch.tensor([train.labels[n] for n in numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["bert", "roberta", "opt", "gpt2", "xlnet"])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_equals_plain_torch(kind: str, keeps: bool, tmp_path: Path) -> None:
    method = METHOD.model_copy(update={"dropout_after_first_eval": keeps})
    packed = tuner(kind, tmp_path, (1, 2), method, budget=64)
    results = classifiers.finished(packed)
    assert list(results) == ["s1", "s2"]
    # The released code loses dropout at its first evaluation, here after step 5.
    plain = plain_run(kind, tmp_path, 2, packed, dropped=15 if keeps else 5)
    for name, tensor in plain.items():
        torch.testing.assert_close(results["s2"].weights[name], tensor.detach(), atol=1e-5, rtol=0)


def test_padding_changes_no_logits_of_a_model_that_reads_the_last_position(tmp_path: Path) -> None:
    classifier = classifiers.load("xlnet", tmp_path, METHOD)
    assert classifier.pads_left
    assert not classifiers.load("gpt2", tmp_path, METHOD).pads_left
    trainer = FullTrainer(classifier, METHOD)
    rows = [[1, 5, 6, 7], [1, 8], [1, 9, 10, 11, 12, 13, 14]]
    keyed = [Placed(0, 0, each) for each in trainer.prepare(rows)]
    with torch.no_grad():
        together = classifier(*classifier.read(stack(keyed)))
        for each, logits_L in zip(keyed, together, strict=True):
            (alone_L,) = classifier(*classifier.read(stack([each])))
            torch.testing.assert_close(logits_L, alone_L, atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match="padded at the right"):
        LoraTrainer(classifier, LoraOptions())


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_a_state_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    whole = classifiers.finished(tuner(kind, tmp_path, (3,)))["s3"]
    first, second = tuner(kind, tmp_path, (3,)), tuner(kind, tmp_path, (3,))
    first.advance()
    second.load_state("s3", first.state("s3"))
    resumed = classifiers.finished(second)["s3"]
    assert whole.losses == resumed.losses
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())


@pytest.mark.parametrize(
    ("kind", "head"), [("roberta", "classification"), ("opt", "classification"),
                       ("xlnet", "classification"), ("gpt2", "label_tokens")],
)  # fmt: skip
def test_transformers_opens_a_checkpoint(kind: str, head: str, tmp_path: Path) -> None:
    packed = tuner(kind, tmp_path, (1,), METHOD.model_copy(update={"head": head}))
    (result,) = classifiers.finished(packed).values()
    store = Store(str(tmp_path))
    packed.trainer.save(store, "tuned", result.weights, {})
    rows = packed.validation.rows
    (expected_NL,) = packed.trainer.logits([result.weights], [packed.trainer.prepare(rows)])
    tokens = list(packed.trainer.classifier.label_ids)
    auto = transformers.AutoModelForSequenceClassification
    auto = transformers.AutoModelForCausalLM if tokens else auto
    opened = auto.from_pretrained(store.path("tuned")).eval()
    with torch.no_grad():
        for row, expected_L in zip(rows, expected_NL, strict=True):
            (logits,) = opened(input_ids=torch.tensor([row])).logits
            logits_L = logits[-1, tokens] if tokens else logits
            torch.testing.assert_close(logits_L, expected_L, atol=1e-5, rtol=1e-5)
    again = packed.trainer.load(store, "tuned")
    assert all(torch.equal(again[name], tensor) for name, tensor in result.weights.items())


def test_part_of_the_validation_set_is_drawn_anew_each_time(tmp_path: Path) -> None:
    part = METHOD.model_copy(update={"validation_rows": 9, "restore_best": True})
    packed = tuner("bert", tmp_path, (1,), part)
    (result,) = classifiers.finished(packed).values()
    assert all(round(9 * share, 6) == int(round(9 * share, 6)) for share in result.accuracies)
    whole = classifiers.finished(tuner("bert", tmp_path, (1,)))["s1"]
    assert result.losses != whole.losses
    assert result.weights_step == 5 * result.losses.index(min(result.losses[1:]))


def test_the_learning_rate_rises_and_falls() -> None:
    cosine = METHOD.model_copy(update={"schedule": "cosine", "warmup": 0.1})
    shares = [cosine.recipe.rate_share(step, 100) for step in range(101)]
    assert shares[0] == 0
    assert shares[5] == pytest.approx(0.5)
    assert shares[10] == 1
    assert shares[55] == pytest.approx(0.5)
    assert shares[100] == pytest.approx(0)
    assert {METHOD.recipe.rate_share(step, 100) for step in range(100)} == {1}
