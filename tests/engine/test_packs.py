"""A run has the same bits in any pack, alone, and in one that takes it over half-way."""

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
from raybias.engine.packing import Placed, shared_width
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
    for pack in split(begun):
        packed = tuner(name, kind, pack)
        packed.advance()
        states |= {run: packed.state(run) for run in pack}
    for pack in split(ended):
        packed = tuner(name, kind, pack)
        for run in pack:
            packed.load_state(run, states[run])
        packed.advance()
        for run in pack:
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
    placed = [Placed(s, s, one) for s in (0, 1, 1, 2, 2, 2, 2)]
    batches = [batch for batch, _ in batcher.each_adapter(lambda batch: 0, placed)]
    assert [batch.adapters for batch in batches] == [(0, 1, 1), (2, 2, 2), (2,)]
    assert {batch.tokens_RT.shape[1] for batch in batches} == {20}
