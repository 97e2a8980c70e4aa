"""Which rate a sweep chooses and which seeds are kept, on hand-made rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raybias.engine.adapters.options import SweepCut
from raybias.errors import WorkFailed
from raybias.methods import Lora, SoftPrompt
from raybias.methods.tuned import (
    HyperParameters,
    at_cut,
    hyper_parameter_grid,
    ranked_hyper_parameters,
    select,
)


def row(
    seed: int, accuracy: float, *, rate: float = 1e-3, stop: str = "early_stop"
) -> dict[str, Any]:
    fixed = {"model": "m", "dataset": "d", "weight_decay": 0.01, "stop_window": 5,
             "adapter_rank": None, "target": None, "prompt_length": 8}  # fmt: skip
    varied = {"learning_rate": rate, "stop_reason": stop, "validation_accuracy": accuracy}
    return {**fixed, **varied, "seed": seed}


def method(seeds: tuple[int, ...], **options: Any) -> SoftPrompt:
    return SoftPrompt(seeds=seeds, **options)


def test_best_first_and_the_lower_seed_first_among_equals() -> None:
    rows = [row(3, 0.8), row(1, 0.7), row(2, 0.8), row(4, 0.9)]
    chosen = select(rows, method((3, 1, 2, 4), keep=2))
    assert [(r["seed"], r["rank"], r["tied"], r["selected"]) for r in chosen] == [
        (3, 3, True, False),
        (1, 4, False, False),
        (2, 2, True, True),
        (4, 1, False, True),
    ]


def test_a_diverged_run_fails_the_stage_and_is_named_or_allowed() -> None:
    rows = [row(1, 0.8), row(2, 0.9), row(7, 0.0, stop="diverged")]
    with pytest.raises(WorkFailed, match=r"2 of 3 runs finished.*seeds 7.*allow_failed"):
        select(rows, method((1, 2, 7), keep=2))
    chosen = select(rows, method((1, 2, 7), keep=2, allow_failed=True))
    assert [r["rank"] for r in chosen] == [2, 1, None]
    assert [r["selected"] for r in chosen] == [True, True, False]
    with pytest.raises(WorkFailed, match="3 are kept"):
        select(rows, method((1, 2, 7), keep=3, allow_failed=True))


def test_sweep_takes_the_best_mean_and_the_first_listed_of_equals() -> None:
    finished = ((1, 0.5, 1e-2), (2, 0.7, 1e-2), (1, 0.6, 1e-3), (2, 0.6, 1e-3), (1, 0.9, 1e-4))
    rows = [row(seed, accuracy, rate=rate) for seed, accuracy, rate in finished]
    rows.append(row(2, 0.0, rate=1e-4, stop="diverged"))
    slow, middle, fast = (
        HyperParameters(rate, 0.01, 5, prompt_length=8) for rate in (1e-4, 1e-3, 1e-2)
    )
    assert ranked_hyper_parameters(rows[:4], (middle, fast)) == [middle, fast]
    assert ranked_hyper_parameters(rows[:4], (fast, middle)) == [fast, middle]
    assert ranked_hyper_parameters(rows, (fast, middle, slow)) == [slow, fast, middle]
    with pytest.raises(WorkFailed, match="every run of the sweep over 1 combinations diverged"):
        ranked_hyper_parameters(rows[5:], (slow,))


def test_a_sweep_is_cut_by_what_its_runs_had_then_also_when_some_have_ended() -> None:
    cut = SweepCut(step=20, keep=1)
    rates = {"learning_rates": (1e-2, 1e-3), "sweep_cut": cut, "eval_every": 10}
    curve = {"eval_losses": [2.0, 1.0, 0.5, 0.9, 0.4], "eval_accuracies": [0.3, 0.5, 0.8, 0.2, 0.1]}
    ended = row(1, 0.1, rate=1e-2) | curve | {"steps": 40}
    waits = row(1, 0.7, rate=1e-3, stop="cut") | {"steps": 20}
    for stop in ("max_steps", "diverged"):
        rows = [ended | {"stop_reason": stop}, waits]
        for best in (True, False):
            tuned = method((1,), keep=1, restore_best=best, **rates)
            then = [at_cut(each, tuned, cut) for each in rows]
            assert [each["validation_accuracy"] for each in then] == [0.8, 0.7]
            choices = hyper_parameter_grid(tuned)
            assert ranked_hyper_parameters(then, choices) == choices


def test_a_sweep_takes_every_combination() -> None:
    swept = method((1,), keep=1, learning_rates=(1e-3, 1e-4), stop_windows=(5, 7))
    assert hyper_parameter_grid(swept) == [
        HyperParameters(rate, 0.01, window, prompt_length=8)
        for rate in (1e-3, 1e-4)
        for window in (5, 7)
    ]
    long = method((1,), keep=1, prompt_lengths=(8, 16))
    assert hyper_parameter_grid(long) == [
        HyperParameters(3e-3, 0.01, 5, prompt_length=length) for length in (8, 16)
    ]
    with pytest.raises(ValidationError, match="prompt_lengths repeat; list each once"):
        SoftPrompt(prompt_lengths=(8, 8))
    sized = Lora(seeds=(1,), keep=1, ranks=(2, 8), targets=("all_linear", ("q_proj", "v_proj")))
    assert [(each.adapter_rank, each.target) for each in hyper_parameter_grid(sized)] == [
        (rank, target) for rank in (2, 8) for target in ("all_linear", "q_proj-v_proj")
    ]
    with pytest.raises(ValidationError, match="ranks repeat; list each once"):
        Lora(ranks=(2, 2))


def test_the_test_split_decides_where_the_method_says_so() -> None:
    rows = [
        {**row(seed, accuracy), "test_accuracy": 1 - accuracy}
        for seed, accuracy in enumerate((0.8, 0.6, 0.7))
    ]
    for split, seed in (("validation", 0), ("test", 1)):
        chosen = select(rows, method((0, 1, 2), keep=1, select=split))
        assert [r["seed"] for r in chosen if r["selected"]] == [seed]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=15), st.data())
def test_selection_does_not_depend_on_the_order_of_rows(
    accuracies: list[int], data: st.DataObject
) -> None:
    rows = [row(seed, accuracy / 5) for seed, accuracy in enumerate(accuracies)]
    keep = data.draw(st.integers(1, len(rows)))
    rule = method(tuple(range(len(rows))), keep=keep)
    shuffled = data.draw(st.permutations(rows))
    by_seed = {r["seed"]: r for r in select(rows, rule)}
    assert by_seed == {r["seed"]: r for r in select(shuffled, rule)}
    kept = [r for r in by_seed.values() if r["selected"]]
    worst = min(r["validation_accuracy"] for r in kept)
    assert len(kept) == keep
    assert all(r["validation_accuracy"] <= worst for r in by_seed.values() if not r["selected"])
