"""Packing keeps every row, and a run the bits in any pack that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raybias.engine.adapters.base import AdapterTrainer, TrainingBatch, stack_weights
from raybias.engine.adapters.packed_layers import LoraTrainer
from raybias.engine.adapters.target_layers import target_layers
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.classifier import Classifier, load_classifier
from raybias.engine.context import Batcher, Execution
from raybias.engine.packing import Placed, fitting, pack, shared_width, single_rows, stack
from raybias.errors import ModelError
from raybias.methods import (
    EarlyStop,
    Finetuned,
    Full,
    LayerAdapter,
    Lora,
    Prefix,
    SoftPrompt,
    Tuned,
)
from raybias.schema import LABELS
from raybias.storage import Store
from support import backbones
from support.ia3 import Ia3

RUNS = ("a", "b", "c", "d")
SHORT: dict[str, Any] = {
    "batch_size": 6, "eval_every": 2, "max_steps": 4, "validation_rows": 9, "seeds": (1,),
    "keep": 1, "early_stop": EarlyStop(after_step=10**6), "restore_best": False,
}  # fmt: skip
METHODS: dict[str, Tuned] = {
    "soft_prompt": SoftPrompt(prompt_length=5, **SHORT),
    "lengths": SoftPrompt(prompt_lengths=(5, 2, 7), **SHORT),
    "prefix": Prefix(prompt_length=5, **SHORT),
    "prefixes": Prefix(prompt_lengths=(5, 2, 7), **SHORT),
    "lora": Lora(rank=4, **SHORT),
    "sizes": Lora(ranks=(1, 4, 3), targets=("all_linear", "peft_default"), **SHORT),
    "label_tokens": Lora(rank=4, head="label_tokens", **SHORT),
    "ia3": Ia3(**SHORT),
}
FULL = Full(**SHORT, dropout_after_first_eval=True)
FEW = [("soft_prompt", "opt"), ("lora", "llama"), ("lora", "bert_pooled"), ("label_tokens", "gpt2")]
SIZES = [("sizes", kind) for kind in ("llama", "bert", "opt", "gpt2")]
LENGTHS = [("lengths", kind) for kind in ("opt", "mixtral", "bloom")]
PREFIXES = [("prefixes", "opt"), ("prefix", "gpt2"), ("prefix", "llama")]
#: Experts that see other rows, rows that share no sequence, and a package's method.
MORE = [("soft_prompt", "mixtral"), ("soft_prompt", "bloom"), ("ia3", "llama")]


@cache
def trainer_of(name: str, kind: str) -> AdapterTrainer:
    spec = backbones.spec_of(kind, Path(mkdtemp()) / kind)
    method = METHODS[name]
    return method.trainer(ModelContext(spec, LABELS, Execution(400)))


def tuner(name: str, kind: str, runs: Sequence[str]) -> PackedTuner:
    sizes = METHODS[name].adapter_sizes
    trials = [
        Trial(run, ord(run), 3e-3, "final", 1e-2, 2, *sizes[ord(run) % len(sizes)]) for run in runs
    ]
    return backbones.tuner(trainer_of(name, kind), METHODS[name], trials)


@cache
def alone(name: str, kind: str, run: str) -> dict[str, torch.Tensor]:
    packed = tuner(name, kind, [run])
    backbones.finished(packed)
    return packed.state(run)


def split(places: Sequence[int]) -> list[list[str]]:
    packs = [[run for run, at in zip(RUNS, places, strict=True) if at == n] for n in range(3)]
    return [pack for pack in packs if pack]


PLACES = st.lists(st.integers(0, 2), min_size=len(RUNS), max_size=len(RUNS))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *FEW,
        SIZES[0],
        LENGTHS[0],
        *PREFIXES,
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (*SIZES[1:], *LENGTHS[1:], *MORE)
        ),
    ],
)
@settings(max_examples=3)
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
            assert packed.runs[run].stop_reason
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
    batcher = Batcher(Execution(3 * 20), "x", context=20)
    trainer = trainer_of("lora", "opt")
    (one,) = trainer.prepare([list(range(2, 19))])
    placed = [Placed(s, one) for s in (0, 1, 1, 2, 2, 2, 2)]
    batches = [batch for batch, _ in batcher.each_adapter(lambda batch: 0, placed)]
    assert [batch.adapters for batch in batches] == [(0, 1, 1), (2, 2, 2), (2,)]
    assert {batch.tokens_RT.shape[1] for batch in batches} == {20}


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_on_a_gpu_like_widths_share_a_pass_with_the_same_gradients(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(name, kind)
    rows = [tuple(row) for row in backbones.token_rows(30, seed=2)]
    batches = [
        TrainingBatch(trainer.init_weights(s), rows[10 * s :][:10], [0] * 10, s, 0, True)
        for s in range(3)
    ]
    passes: list[tuple[int, ...]] = []
    forward = trainer.forward

    def counted(batch: Any, *given: Any) -> Any:
        passes.append(tuple(batch.tokens_RT.shape))
        return forward(batch, *given)

    monkeypatch.setattr(trainer, "forward", counted)
    (expected, loss_S), apart = trainer.gradients(batches), len(passes)
    monkeypatch.setattr(trainer.batcher, "device", torch.device("cuda"))
    found, found_S = trainer.gradients(batches)
    assert len(passes) - apart < apart
    assert all(count * width <= 400 for count, width in passes)
    torch.testing.assert_close(found_S, loss_S, atol=1e-6, rtol=1e-5)
    for one, other in zip(found, expected, strict=True):
        for part, gradient in other.items():
            torch.testing.assert_close(one[part], gradient, atol=1e-6, rtol=1e-4)


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


METHOD = Lora(rank=4, dropout=0)


def made(kind: str, folder: Path, method: Tuned = METHOD) -> AdapterTrainer:
    spec = backbones.spec_of(kind, folder / kind)
    return method.trainer(ModelContext(spec, LABELS, Execution()))


def load(kind: str, folder: Path, method: Finetuned) -> Classifier:
    return load_classifier(backbones.spec_of(kind, folder / kind), method, LABELS)


def test_lora_of_a_model_that_reads_the_last_position_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="padded at the right"):
        LoraTrainer(load("xlnet", tmp_path, FULL), Lora())


def test_a_state_of_a_whole_model_goes_on_bit_for_bit(tmp_path: Path) -> None:
    trainer = made("bert", tmp_path, FULL)
    first, second, third = (
        backbones.tuner(trainer, FULL, [Trial("s3", 3, 1e-3, "final", 1e-3, 2)]) for _ in range(3)
    )
    whole = backbones.finished(third)["s3"]
    first.advance()
    second.load_state("s3", first.state("s3"))
    resumed = backbones.finished(second)["s3"]
    assert whole.losses == resumed.losses
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())


@pytest.mark.parametrize(
    ("kind", "packs"), [("opt", True), ("llama", True), ("bert", False), ("bloom", False)]
)
def test_rows_share_sequences_where_the_model_takes_them_packed(
    kind: str, packs: bool, tmp_path: Path
) -> None:
    trainer = made(kind, tmp_path)
    assert (trainer.longest_packed > 0) == packs
    ways = trainer.classifier.execution.ways
    assert {each.fastest for each in ways.values()} == (set() if kind == "bert" else {packs})


@pytest.mark.parametrize("counts", [(3, 3, 3), (3, 0, 3), (2, 4, 1)])
def test_runs_share_a_pass_as_they_do_on_a_gpu(counts: tuple[int, ...], tmp_path: Path) -> None:
    """Every row has the logits that it has alone and unpacked, with the same dropout."""
    method = METHOD.model_copy(update={"dropout": 0.3})
    trainer = made("opt", tmp_path, method)
    weights = [trainer.init_weights(seed) for seed in range(3)]
    for run in weights:
        for name, tensor in run.items():
            run[name] = torch.randn_like(tensor)
    rows = backbones.token_set(12, seed=7).rows
    training = [TrainingBatch(run, rows, (0,) * 12, s, 5, True) for s, run in enumerate(weights)]
    assert trainer.longest_packed
    sequences = pack(rows, max_tokens=max(map(len, rows)) * 3, share=False)
    placed = [Placed(s, sequences[n]) for s, count in enumerate(counts) for n in range(count)]
    together, stacked = stack(placed[::-1]), stack_weights(weights)
    packed = [
        dict(zip(together.rows, trainer.forward(together, stacked, mode), strict=True))
        for mode in (None, training)
    ]
    trainer.longest_packed = 0
    for found, mode in zip(packed, (None, training), strict=True):
        for s, row in found:
            (alone,) = single_rows([rows[row]])
            single = stack([Placed(s, replace(alone, members=(row,)))])
            (expected,) = trainer.forward(single, stacked, mode)
            torch.testing.assert_close(found[s, row], expected, atol=1e-4, rtol=1e-4)


def test_targets_are_matched_and_checked(tmp_path: Path) -> None:
    def names(method: LayerAdapter) -> set[str]:
        layers = target_layers(classifier.model, method, classifier.encoder.spec)
        return {path.rpartition(".")[2] for path in layers}

    classifier = load("bert", tmp_path, METHOD)
    assert names(METHOD.model_copy(update={"target": "peft_default"})) == {"query", "value"}
    with pytest.raises(ModelError, match=r"'q_prj' matches no linear layer; choose among dense"):
        names(METHOD.model_copy(update={"target": ("query", "q_prj")}))
    with pytest.raises(ModelError, match="is an encoder"):
        load("bert", tmp_path, METHOD.model_copy(update={"head": "label_tokens"}))
    named = Ia3(target=("k_proj", "fc2"), feed_forward=("fc2",))
    classifier = load("opt", tmp_path, named)
    assert names(named) == {"k_proj", "fc2"}
    with pytest.raises(ModelError, match="ia3 target 'k_prj' matches no linear layer"):
        names(named.model_copy(update={"target": ("k_prj",)}))
    with pytest.raises(ValidationError, match="feed_forward names fc1, which is not in target"):
        Ia3(target=("k_proj",), feed_forward=("fc1",))


def test_an_adapter_of_another_backbone_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    trainer = made("llama", tmp_path, Ia3())
    trainer.save(store, "adapter", trainer.init_weights(1), {})
    with pytest.raises(ModelError, match=r"lacks base_model\.model\.model\.decoder.*ia3_l"):
        made("opt", tmp_path, Ia3()).load(store, "adapter")
    with pytest.raises(ModelError, match="no such adapter"):
        trainer.load(store, "elsewhere")
    short, long = (made("opt", tmp_path, SoftPrompt(prompt_length=n)) for n in (4, 7))
    short.save(store, "prompt", short.init_weights(1), {})
    with pytest.raises(ModelError, match=r"holds prompt_embeddings as \[4, \d+\], but \[7, \d+\]"):
        long.load(store, "prompt")
