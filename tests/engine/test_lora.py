"""Packed LoRA equals separate PEFT runs, and PEFT opens what it saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.base import TrainingBatch, stack_weights
from raybias.engine.adapters.lora import LoraOptions, LoraTrainer
from raybias.engine.adapters.packed_layers import head_modules, target_layers
from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.packing import Placed, pack, stack
from raybias.errors import ModelError
from raybias.methods import EarlyStop, Lora
from raybias.methods.tuned import options_for
from raybias.storage import Store
from support import classifiers
from support.quantised import marked

KINDS = ("bert", "roberta", "opt_projected", "gpt2", "llama")
METHOD = Lora(
    rank=4,
    dropout=0,
    learning_rates=(1e-3,),
    batch_size=6,
    eval_every=10,
    validation_rows=0,
    max_steps=20,
    early_stop=EarlyStop(after_step=10**6, window=2),
    seeds=(1, 2, 3),
    keep=2,
    restore_best=False,
)


def unit(seed: int, rate: float = 1e-3) -> Trial:
    return Trial(f"lr{rate}.s{seed}", seed, rate, "final", weight_decay=1e-4, stop_window=2)


def tuner(
    kind: str, folder: Path, units: list[Trial], method: Lora = METHOD, *, budget: int = 4096
) -> PackedTuner:
    classifier = classifiers.load(kind, folder, method, tokens=budget)
    return PackedTuner(
        LoraTrainer(classifier, options_for(LoraOptions, method)),
        method.recipe,
        units,
        train=classifiers.token_set(classifier, 40, seed=5),
        validation=classifiers.token_set(classifier, 21, seed=6),
    )


def peft_model(kind: str, folder: Path, method: Lora) -> peft.PeftModel:
    """A PEFT model of the same backbone, whose values are yet to be set."""
    auto = transformers.AutoModelForSequenceClassification
    if method.head == "label_tokens":
        auto = transformers.AutoModelForCausalLM
    options = {} if method.head == "label_tokens" else {"num_labels": 3}
    base = auto.from_pretrained(folder / kind, pad_token_id=0, **options)
    classifier = classifiers.load(kind, folder, method)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if method.head == "label_tokens" else "SEQ_CLS",
        r=method.rank,
        lora_alpha=method.alpha,
        lora_dropout=method.dropout,
        target_modules=target_layers(classifier, options_for(LoraOptions, method)),
        modules_to_save=head_modules(classifier) or None,
    )
    return peft.get_peft_model(base, config)


def plain_logits(
    model: peft.PeftModel, rows: list[tuple[int, ...]], ids: list[int]
) -> torch.Tensor:
    tokens = [torch.tensor(row) for row in rows]
    tokens_RT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    last_R = torch.tensor([len(row) - 1 for row in rows])
    mask_RT = (torch.arange(tokens_RT.shape[1]) <= last_R[:, None]).long()
    logits = model(input_ids=tokens_RT, attention_mask=mask_RT).logits
    return logits[torch.arange(len(rows)), last_R][:, ids] if ids else logits


def plain_run(kind: str, folder: Path, seed: int, packed: PackedTuner, train: TokenSet) -> dict:
    """LoRA as PEFT's users write it: one run, padded batches, PEFT's own layers."""
    method, trainer = packed.recipe, packed.trainer
    model = peft_model(kind, folder, trainer.lora).eval()
    named = {name: t for name, t in model.named_parameters() if t.requires_grad}
    start = trainer.init_weights(seed)
    ours = {f"base_model.model.{name}": name for name in start}

    def own(name: str) -> str:
        plain = name.replace(".default", "").replace(".modules_to_save", "")
        return ours.get(plain) or ours[plain.removesuffix(".weight")]

    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(start[own(name)])
    assert {own(name) for name in named} == set(start)
    optimizer = torch.optim.AdamW(named.values(), lr=1e-3, weight_decay=1e-4)
    for step in range(method.max_steps or 0):
        numbers = batch_of_step(seed, step, rows=len(train.rows), batch_size=method.batch_size)
        ids = list(trainer.classifier.label_ids)
        logits_RL = plain_logits(model, [train.rows[n] for n in numbers], ids)
        loss = cross_entropy(logits_RL, torch.tensor([train.labels[n] for n in numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {own(name): tensor.detach() for name, tensor in named.items()}


@pytest.mark.parametrize("kind", [*KINDS, *marked("bert_int8", "llama_int4")])
def test_a_pack_equals_separate_peft_runs(kind: str, tmp_path: Path) -> None:
    seeds = (1, 2, 3)
    packed = tuner(kind, tmp_path, [unit(seed) for seed in seeds], budget=200)
    results = classifiers.finished(packed)
    assert len(results) == len(seeds)
    for seed in seeds:
        run = results[unit(seed).run_id]
        plain = plain_run(kind, tmp_path, seed, packed, packed.train)
        assert plain.keys() == run.weights.keys()
        for name, tensor in plain.items():
            # AdamW divides a gradient by its own size: what is rounded of a small one is a few
            # hundredths of a step of 1e-3.
            torch.testing.assert_close(run.weights[name], tensor, atol=3e-5, rtol=0)


def test_label_tokens_equal_peft_too(tmp_path: Path) -> None:
    method = METHOD.model_copy(update={"head": "label_tokens", "target": ("q_proj", "v_proj")})
    packed = tuner("llama", tmp_path, [unit(1), unit(2)], method)
    run = classifiers.finished(packed)[unit(2).run_id]
    alone = classifiers.finished(tuner("llama", tmp_path, [unit(2)], method))[unit(2).run_id]
    assert all(torch.equal(run.weights[name], alone.weights[name]) for name in alone.weights)
    plain = plain_run("llama", tmp_path, 2, packed, packed.train)
    assert len(plain) == len(run.weights) == 2 * 2 * 2
    for name, tensor in plain.items():
        torch.testing.assert_close(run.weights[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama"])
def test_peft_opens_an_adapter_and_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    packed = tuner(kind, tmp_path, [unit(1)])
    trainer = packed.trainer
    (result,) = classifiers.finished(packed).values()
    store = Store(str(tmp_path))
    trainer.save(store, "adapter", result.weights, {})
    rows = list(packed.validation.rows)
    (expected_NL,) = trainer.logits([result.weights], [trainer.prepare(rows)])
    again = trainer.load(store, "adapter")
    assert all(torch.equal(again[name], tensor) for name, tensor in result.weights.items())
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / kind, num_labels=3, pad_token_id=0
    )
    opened = peft.PeftModel.from_pretrained(base, store.uri_of("adapter")).eval()
    with torch.no_grad():
        logits_NL = plain_logits(opened, rows, [])
    torch.testing.assert_close(expected_NL, logits_NL, atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_dropout_depends_on_neither_pack_nor_budget(tmp_path: Path) -> None:
    method = METHOD.model_copy(update={"dropout": 0.3})
    both = classifiers.finished(tuner("opt", tmp_path, [unit(1), unit(2)], method, budget=100))
    alone = classifiers.finished(tuner("opt", tmp_path, [unit(2)], method))
    sure = classifiers.finished(tuner("opt", tmp_path, [unit(2)]))
    run_id = unit(2).run_id
    for name, tensor in alone[run_id].weights.items():
        torch.testing.assert_close(both[run_id].weights[name], tensor, atol=1e-5, rtol=0)
    assert alone[run_id].losses != sure[run_id].losses


@pytest.mark.parametrize(
    ("kind", "packs"), [("opt", True), ("llama", True), ("bert", False), ("bloom", False)]
)
def test_rows_share_sequences_where_the_model_takes_them_packed(
    kind: str, packs: bool, tmp_path: Path
) -> None:
    trainer = tuner(kind, tmp_path, [unit(1)]).trainer
    assert trainer.packs == packs
    ways = trainer.classifier.execution.ways
    assert {each.fastest for each in ways.values()} == (set() if kind == "bert" else {packs})


@pytest.mark.parametrize("counts", [(3, 3, 3), (3, 0, 3), (2, 4, 1)])
def test_runs_share_a_pass_as_they_do_on_a_gpu(counts: tuple[int, ...], tmp_path: Path) -> None:
    """Every row has the logits that it has alone and unpacked, with the same dropout."""
    method = METHOD.model_copy(update={"dropout": 0.3})
    trainer = tuner("opt", tmp_path, [unit(1)], method).trainer
    weights = [trainer.init_weights(seed) for seed in range(3)]
    for run in weights:
        for name, tensor in run.items():
            run[name] = torch.randn_like(tensor)
    rows = classifiers.token_set(trainer.classifier, 12, seed=7).rows
    training = [TrainingBatch(run, rows, (0,) * 12, s, 5, True) for s, run in enumerate(weights)]
    assert trainer.packs
    sequences = pack(rows, max_tokens=max(map(len, rows)) * 3, share=False)
    placed = [Placed(s, s, sequences[n]) for s, count in enumerate(counts) for n in range(count)]
    together, stacked = stack(placed[::-1]), stack_weights(weights)
    packed = [
        dict(zip(together.rows, trainer.forward(together, stacked, mode), strict=True))
        for mode in (None, training)
    ]
    trainer.packs = False
    for found, mode in zip(packed, (None, training), strict=True):
        for s, row in found:
            (alone,) = pack([rows[row]], max_tokens=0)
            single = stack([Placed(s, s, replace(alone, members=(row,)))])
            (expected,) = trainer.forward(single, stacked, mode)
            torch.testing.assert_close(found[s, row], expected, atol=1e-4, rtol=1e-4)


def test_targets_that_match_nothing_are_refused(tmp_path: Path) -> None:
    method = METHOD.model_copy(update={"target": ("query", "q_prj")})
    classifier = classifiers.load("bert", tmp_path, method)
    with pytest.raises(ModelError, match=r"'q_prj' matches no linear layer; choose among dense"):
        target_layers(classifier, options_for(LoraOptions, method))
    usual = METHOD.model_copy(update={"target": "peft_default"})
    names = {
        path.rpartition(".")[2]
        for path in target_layers(classifier, options_for(LoraOptions, usual))
    }
    assert names == {"query", "value"}
    tokens = METHOD.model_copy(update={"head": "label_tokens"})
    with pytest.raises(ModelError, match="is an encoder"):
        classifiers.load("bert", tmp_path, tokens)
