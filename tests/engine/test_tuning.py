"""Packed tuning equals plain torch and Hugging Face, run by run."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.schedule import batch_of_step, should_stop
from raybias.engine.adapters.soft_prompt import (
    SoftPromptTrainer,
    initial_delta,
    load_soft_prompt,
    save_soft_prompt,
)
from raybias.engine.adapters.tuning import PackedTuner, Run, Trial
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.errors import ModelError
from raybias.methods import EarlyStop, SoftPrompt
from raybias.seeding import generator
from raybias.storage import Store
from support import backbones
from support.quantised import marked

LABEL_IDS = (2, 3, 4)
TUNED = [pytest.param(kind, marks=pytest.mark.long) for kind in backbones.TUNED if kind != "opt"]
TUNED += [pytest.param("opt"), *marked("llama_int8", "opt_int4")]
METHOD = SoftPrompt(
    prompt_length=4,
    init_std=0.3,
    batch_size=6,
    eval_every=10,
    max_steps=60,
    early_stop=EarlyStop(after_step=20, window=2),
    seeds=(1, 2, 3, 4),
    keep=2,
    restore_best=False,
)


def unit_of(run_id: str, seed: int, rate: float) -> Trial:
    return Trial(run_id, seed, rate, "final", weight_decay=METHOD.weight_decay, stop_window=2)


def trials(seeds: tuple[int, ...], rates: tuple[float, ...] = (3e-3,)) -> list[Trial]:
    return [unit_of(f"lr{rate}.s{seed}", seed, rate) for rate in rates for seed in seeds]


def tuner(
    model: LoadedBackbone, which: list[Trial], method: SoftPrompt = METHOD, *, budget: int = 4096
) -> PackedTuner:
    return PackedTuner(
        SoftPromptTrainer(LabelScorer(backbones.with_budget(model, budget), LABEL_IDS), method),
        method.recipe,
        which,
        train=backbones.token_set(40, seed=5),
        validation=backbones.token_set(21, seed=6),
    )


def finished(packed: PackedTuner) -> dict[str, Run]:
    stopped: list[str] = []
    while not packed.done:
        stopped += [each.run_id for each in packed.advance() if each.stop_reason]
    return {run_id: packed.runs[run_id] for run_id in stopped}


def delta(result: Run) -> torch.Tensor:
    return result.weights["delta"]


def plain_run(model: LoadedBackbone, trial: Trial, method: SoftPrompt, steps: int) -> torch.Tensor:
    """Soft-prompt tuning as a textbook has it: one run, padded batches, whole logits."""
    train = backbones.token_set(40, seed=5)
    embed = model.model.get_input_embeddings()
    start_D = embed(torch.tensor(model.prompt_token_id)).detach()
    delta_PD = torch.nn.Parameter(initial_delta(trial.seed, method, model.width))
    optimizer = torch.optim.AdamW(
        [delta_PD], lr=trial.learning_rate, weight_decay=method.weight_decay
    )
    for step in range(steps):
        numbers = batch_of_step(
            trial.seed, step, rows=len(train.rows), batch_size=method.batch_size
        )
        rows = [torch.tensor(train.rows[n]) for n in numbers]
        tokens_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths_B = torch.tensor([len(row) + method.prompt_length for row in rows])
        inputs_BTD = torch.cat(
            [(start_D + delta_PD).expand(len(rows), -1, -1), embed(tokens_BT)], 1
        )
        mask_BT = torch.arange(inputs_BTD.shape[1]) < lengths_B[:, None]
        logits_BTV = model.model(inputs_embeds=inputs_BTD, attention_mask=mask_BT.long()).logits
        last_BL = logits_BTV[torch.arange(len(rows)), lengths_B - 1][:, list(LABEL_IDS)]
        loss = cross_entropy(last_BL, torch.tensor([train.labels[n] for n in numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return delta_PD.detach()


@pytest.mark.parametrize("kind", TUNED)
def test_a_pack_equals_its_runs_alone_and_plain_torch(
    kind: str, backbone: Callable[[str], LoadedBackbone]
) -> None:
    model = backbone(kind)
    # Four times over the sentences, and some.
    never = METHOD.model_copy(update={"early_stop": EarlyStop(after_step=10**6), "max_steps": 30})
    which = trials((1, 2), (3e-3, 1e-3))
    packed = finished(tuner(model, which, never, budget=300))
    assert len(packed) == len(which)
    for trial in which:
        run = packed[trial.run_id]
        alone = finished(tuner(model, [trial], never, budget=300))[trial.run_id]
        assert run.steps == alone.steps == 30
        # On a CPU to the bit, so that it does not matter which worker takes which run.
        assert run.losses == alone.losses
        assert run.accuracies == alone.accuracies
        assert torch.equal(delta(run), delta(alone))
        plain_PD = plain_run(model, trial, never, run.steps)
        torch.testing.assert_close(delta(run), plain_PD, atol=1e-5, rtol=0)


@pytest.mark.long
def test_runs_stop_at_the_same_steps_in_a_pack_and_alone(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    model = backbone("opt")
    which = trials((1, 2, 3, 4), (3e-2,))
    packed = finished(tuner(model, which))
    alone = {trial.run_id: finished(tuner(model, [trial]))[trial.run_id] for trial in which}
    assert {k: (r.steps, r.stop_reason) for k, r in packed.items()} == {
        k: (r.steps, r.stop_reason) for k, r in alone.items()
    }
    for run_id, run in packed.items():
        assert run.losses == pytest.approx(alone[run_id].losses, abs=1e-4)
        assert run.accuracies == alone[run_id].accuracies
    assert "early_stop" in {run.stop_reason for run in packed.values()}
    for result in packed.values():
        steps = list(range(10, result.steps + 1, 10))
        for n in range(1, len(steps)):
            assert not should_stop(result.losses[1 : n + 1], steps[:n], METHOD.early_stop)


def test_step_0_is_evaluated_and_changes_nothing_after_it(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    model = backbone("opt")
    method = METHOD.model_copy(update={"validation_rows": 9, "restore_best": True})
    (trial,) = trials((1,))
    packed = tuner(model, [trial], method)
    first, second = packed.advance()
    assert (first.step, first.stop_reason, second.step) == (0, None, 10)
    state = packed.state(trial.run_id)
    rows = packed.validation.rows

    def loss_of(delta_PD: torch.Tensor, drawn: int) -> float:
        numbers = generator(1, "validation", drawn).permutation(len(rows))[:9].tolist()
        sequences = packed.trainer.prepare([rows[n] for n in numbers])
        (logits_NL,) = packed.trainer.logits([{"delta": delta_PD}], [sequences])
        labels = torch.tensor([packed.validation.labels[n] for n in numbers])
        return float(cross_entropy(logits_NL.double(), labels))

    assert first.loss == loss_of(initial_delta(1, method, model.width), 0)
    assert second.loss == loss_of(state["weights/delta"], 0)
    (third,) = packed.advance()
    assert third.loss == loss_of(packed.state(trial.run_id)["weights/delta"], 1)
    result = finished(packed)[trial.run_id]
    assert tuple(result.losses[:3]) == (first.loss, second.loss, third.loss)
    assert result.losses[result.kept] == min(result.losses[1:])
    # None of these is below the untuned prompt's, which is not restored.
    still = METHOD.model_copy(update={"restore_best": True})
    (trial,) = trials((1,), (1e-30,))
    result = finished(tuner(model, [trial], still))[trial.run_id]
    assert set(result.losses) == {result.losses[0]}
    assert result.weights_step == 10


def test_restore_best_keeps_the_weights_of_the_lowest_loss(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    model = backbone("opt")
    best = METHOD.model_copy(update={"restore_best": True})
    last = finished(tuner(model, trials((1,), (0.3,))))["lr0.3.s1"]
    kept = finished(tuner(model, trials((1,), (0.3,)), best))["lr0.3.s1"]
    place = last.losses.index(min(last.losses[1:]))
    assert kept.losses == last.losses
    assert kept.weights_step == 10 * place < last.steps == last.weights_step
    short = METHOD.model_copy(update={"max_steps": kept.weights_step})
    there = finished(tuner(model, trials((1,), (0.3,)), short))["lr0.3.s1"]
    assert torch.equal(delta(kept), delta(there))


def test_a_state_goes_on_bit_for_bit_in_another_pack(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    model = backbone("llama")
    (trial,) = trials((3,))
    whole = finished(tuner(model, [trial]))[trial.run_id]
    first = tuner(model, [trial])
    first.advance()
    second = tuner(model, [trial])
    second.load_state(trial.run_id, first.state(trial.run_id))
    resumed = finished(second)[trial.run_id]
    assert torch.equal(delta(whole), delta(resumed))
    assert (whole.losses, whole.tokens) == (resumed.losses, resumed.tokens)


def test_a_diverged_run_leaves_the_others_alone(backbone: Callable[[str], LoadedBackbone]) -> None:
    model = backbone("opt")
    good = trials((1, 2))
    wild = unit_of("wild", 3, 1e36)
    alone = finished(tuner(model, good))
    packed = finished(tuner(model, [good[0], wild, good[1]]))
    assert packed["wild"].stop_reason == "diverged"
    assert math.isnan(packed["wild"].losses[-1])
    for trial in good:
        torch.testing.assert_close(
            delta(packed[trial.run_id]), delta(alone[trial.run_id]), atol=1e-5, rtol=0
        )


def test_peft_opens_an_adapter_and_gives_the_same_logits(
    backbone: Callable[[str], LoadedBackbone], tmp_path: object
) -> None:
    for kind in ("opt_projected", "llama"):
        model = backbone(kind)
        packed = tuner(model, trials((1,)))
        (result,) = finished(packed).values()
        prompt_PD = packed.trainer.prompt(result.weights)
        store = Store(str(tmp_path))
        save_soft_prompt(store, kind, prompt_PD, spec=model.spec, record={})
        assert torch.equal(load_soft_prompt(store, kind, width=model.width), prompt_PD)
        with pytest.raises(ModelError, match="of width 7"):
            load_soft_prompt(store, kind, width=7)
        row = model.encode(["w1 w2 w3"])[0]
        found_L = LabelScorer(model, LABEL_IDS).score([row], prompts_SPD=prompt_PD[None])[0]
        opened = PeftModel.from_pretrained(
            backbones.load(kind, tmp_path / f"{kind}_base").model, store.uri_of(kind)
        )
        with torch.no_grad():
            logits_TV = opened.eval()(input_ids=torch.tensor([row])).logits[0]
        torch.testing.assert_close(found_L, logits_TV[-1, list(LABEL_IDS)], atol=1e-5, rtol=1e-5)


RULE = EarlyStop(after_step=100, window=3)
PATIENCE = EarlyStop(rule="patience", after_step=100, window=3)
STEPS = [25, 50, 75, 100, 125, 150, 175]


@pytest.mark.parametrize(
    ("losses", "rule", "stops"),
    [
        ([1, 1, 1, 2], RULE, False),  # step 100 is not after step 100
        ([1, 1, 1, 1, 1.001], RULE, True),
        ([1, 1, 1, 1, 1], RULE, False),  # equal does not exceed
        ([1, 3, 1, 1, 2], RULE, False),  # the 3 is among the last three
        ([3, 1, 1, 1, 2], RULE, True),  # and here it is not
        ([1, 1, 1, 1, 2], RULE.model_copy(update={"count_early": False}), False),
        ([9, 9, 9, 9, 1, 1, 1.5], RULE.model_copy(update={"count_early": False}), False),
        ([1, 1, 1, 1, 2], RULE.model_copy(update={"window": 5}), False),  # only four before
        # Kohankhaki2024's code wants one more loss in store than it looks at.
        ([1, 1, 1, 2, 2], RULE.model_copy(update={"stored": 4}), False),
        ([1, 1, 2, 1, 3], RULE.model_copy(update={"stored": 4}), True),
        ([1, 1, 1, 1, 3], RULE.model_copy(update={"stored": 5}), False),
        # Patience: three losses in a row that are no new lowest, ups and downs aside.
        ([5, 2, 3, 2.5, 2.2], PATIENCE, True),
        ([5, 2, 3, 2.5, 1.9], PATIENCE, False),
        ([5, 3, 2, 2.5, 2.4], PATIENCE, False),  # only two since the lowest
        ([2, 2, 2, 2, 2], PATIENCE, True),  # equal is no better
        ([9, 9, 9, 3, 2], PATIENCE, False),
    ],
)
def test_the_stopping_rule_at_its_edges(losses: list[float], rule: EarlyStop, stops: bool) -> None:
    assert should_stop(losses, STEPS[: len(losses)], rule) == stops


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 9))
def test_every_epoch_reads_every_row_once(seed: int, rows: int, size: int) -> None:
    per_epoch = -(-rows // size)
    for epoch in range(2):
        read = [
            n
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch)
            for n in batch_of_step(seed, step, rows=rows, batch_size=size)
        ]
        assert sorted(read) == list(range(rows))


def test_zeros_start_and_normal_start_are_keyed_by_the_seed() -> None:
    zeros = METHOD.model_copy(update={"init": "zeros"})
    assert not initial_delta(1, zeros, 8).any()
    assert torch.equal(initial_delta(1, METHOD, 8), initial_delta(1, METHOD, 8))
    assert not torch.equal(initial_delta(1, METHOD, 8), initial_delta(2, METHOD, 8))
    wide = initial_delta(1, METHOD.model_copy(update={"init_std": 0.02}), 4096)
    assert float(wide.std()) == pytest.approx(0.02, rel=0.02)
