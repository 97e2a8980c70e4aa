"""Packing keeps every row, and a run the bits in any pack that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.engine.adapters.base import AdapterTrainer
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.batching import Batcher
from raybias.engine.context import Execution
from raybias.engine.packing import Placed, fitting, pack, shared_width, stack
from raybias.methods import EarlyStop, Lora, SoftPrompt, Tuned
from raybias.schema import LABELS
from support import backbones, classifiers
from support.ia3 import Ia3

RUNS = ("a", "b", "c", "d", "e")
SHORT: dict[str, Any] = {
    "batch_size": 6, "eval_every": 2, "max_steps": 4, "validation_rows": 9, "seeds": (1,),
    "keep": 1, "early_stop": EarlyStop(after_step=10**6), "restore_best": False,
}  # fmt: skip
METHODS: dict[str, Tuned] = {
    "soft_prompt": SoftPrompt(prompt_length=5, **SHORT),
    "lora": Lora(rank=4, **SHORT),
    "label_tokens": Lora(rank=4, head="label_tokens", **SHORT),
    "ia3": Ia3(**SHORT),
}
FEW = [("soft_prompt", "opt"), ("lora", "llama"), ("lora", "bert"), ("label_tokens", "gpt2")]
MORE = [
    *(("soft_prompt", kind) for kind in ("llama", "gpt2", "mixtral", "bloom", "cohere")),
    *(("lora", kind) for kind in ("opt_projected", "roberta", "gpt2")),
    *(("ia3", kind) for kind in ("opt", "roberta", "gpt2", "llama")),
    ("label_tokens", "llama"),
]


@cache
def trainer_of(name: str, kind: str) -> AdapterTrainer:
    spec = classifiers.spec_of(kind, Path(mkdtemp()) / kind)
    method = METHODS[name]
    return method.trainer(ModelContext(spec, LABELS, Execution(400)))


def tuner(name: str, kind: str, runs: Sequence[str]) -> PackedTuner:
    trials = [Trial(run, ord(run), 3e-3, "final", 1e-2, 2) for run in runs]
    return PackedTuner(
        trainer_of(name, kind),
        METHODS[name].recipe,
        trials,
        train=backbones.token_set(40, seed=5),
        validation=backbones.token_set(21, seed=6),
    )


@cache
def alone(name: str, kind: str, run: str) -> dict[str, torch.Tensor]:
    packed = tuner(name, kind, [run])
    while not packed.done:
        packed.advance()
    return packed.state(run)


def split(places: Sequence[int]) -> list[list[str]]:
    packs = [[run for run, at in zip(RUNS, places, strict=True) if at == n] for n in range(3)]
    return [pack for pack in packs if pack]


PLACES = st.lists(st.integers(0, 2), min_size=len(RUNS), max_size=len(RUNS))


@pytest.mark.parametrize(
    ("name", "kind"), [*FEW, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)]
)
@settings(max_examples=4)
@given(begun=PLACES, ended=PLACES)
def test_runs_have_the_bits_in_any_pack_that_they_have_alone(
    name: str, kind: str, begun: list[int], ended: list[int]
) -> None:
    states = {}
    for runs in split(begun):
        packed = tuner(name, kind, runs)
        packed.advance()
        states |= {run: packed.state(run) for run in runs}
    for runs in split(ended):
        packed = tuner(name, kind, runs)
        for run in runs:
            packed.load_state(run, states[run])
        packed.advance()
        for run in runs:
            state, expected = packed.state(run), alone(name, kind, run)
            assert packed.done
            assert state.keys() == expected.keys()
            for key in state.keys() - {"seconds"}:
                assert torch.equal(state[key], expected[key]), key


@given(st.integers(1, 5000))
def test_widths_are_blocks_and_few(length: int) -> None:
    width = shared_width(length)
    assert width % 8 == 0
    assert max(16, length) <= width < max(17, 1.25 * length + 8)
    assert len({shared_width(n) for n in range(1, 513)}) < 30


def test_a_width_stays_within_the_context_and_runs_are_cut_where_they_end() -> None:
    batcher = Batcher(where="x", device=torch.device("cpu"), tokens_per_batch=3 * 20, context=20)
    trainer = trainer_of("lora", "opt")
    (one,) = trainer.prepare([list(range(2, 19))])
    placed = [Placed(s, one) for s in (0, 1, 1, 2, 2, 2, 2)]
    batches = [batch for batch, _ in batcher.each_adapter(lambda batch: 0, placed)]
    assert [batch.adapters for batch in batches] == [(0, 1, 1), (2, 2, 2), (2,)]
    assert {batch.tokens_RT.shape[1] for batch in batches} == {20}


SHORT_ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=20)


@given(SHORT_ROWS, st.integers(0, 40))
def test_every_row_is_the_path_of_ancestors_of_its_last_token(
    rows: list[list[int]], max_tokens: int
) -> None:
    sequences = pack(rows, max_tokens=max_tokens)
    found = {}
    for sequence in sequences:
        assert len(sequence.tokens) <= max(max_tokens, *map(len, rows))
        for member, last in zip(sequence.members, sequence.lasts, strict=True):
            path = [j for j in range(last + 1) if last < sequence.ends[j]]
            assert [int(sequence.depths[j]) for j in path] == list(range(len(path)))
            found[member] = [int(sequence.tokens[j]) for j in path]
    assert found == dict(enumerate(rows))


@given(SHORT_ROWS)
def test_shared_openings_are_written_once(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    (sequence,) = pack(rows, max_tokens=10**6)
    assert len(sequence.tokens) == len(prefixes)


@given(SHORT_ROWS, st.integers(1, 60))
def test_batches_keep_the_budget_and_every_row(rows: list[list[int]], budget: int) -> None:
    sequences = sorted(pack(rows, max_tokens=12), key=lambda each: -len(each.tokens))
    waiting = [Placed(7, each) for each in sequences]
    read = []
    while waiting:
        count = fitting(waiting, budget=budget, prompt_length=2)
        batch = stack(waiting[:count])
        height, width = batch.tokens_RT.shape
        assert height == 1 or height * (width + 2) <= budget
        for (key, row), r, t in zip(batch.rows, batch.at_R, batch.at_T, strict=True):
            assert key == 7
            assert batch.tokens_RT[r, t] == rows[row][-1]
            read.append(row)
        waiting = waiting[count:]
    assert sorted(read) == list(range(len(rows)))
