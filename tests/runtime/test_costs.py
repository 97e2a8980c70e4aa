"""The arithmetic of costs against the same sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from raybias.config import Backbone, Study
from raybias.engine.encoder import TextEncoder
from raybias.engine.packing import shared_width
from raybias.errors import ModelError
from raybias.methods.work import TokenCounts, Widths
from raybias.planning.costs import Cost, costs_of
from raybias.planning.inventory import assumed
from raybias.planning.machine import Machine
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from support import imagined

GPUS = "cpus=8,gpus=2,gpu_memory=80GB,gpu=A100"
STEPS, EVERY = 50, 10


@pytest.fixture
def study(shapes: Path) -> Callable[..., Study]:
    method = {"max_steps": STEPS, "eval_every": EVERY, "batch_size": 4, "prompt_length": 2}
    methods = [{**method, "seeds": [1, 2, 3], "keep": 2}]
    return partial(imagined.study, shapes, "opt-small", probe="few", methods=methods)


def costs(wanted: Study, machine: str = GPUS, **options: Any) -> dict[str, Cost]:
    prepared = PreparedStudy.of(wanted)
    made = costs_of(plan(prepared, assumed(machine), machine=Machine(**options)))
    return {training: cost for (_, _, training), cost in made.items()}


def test_tuning_and_scoring_are_counted_token_by_token(study: Callable[..., Study]) -> None:
    found = costs(study(), utilisation=0.5)
    block = 12 * 64 * 64 + 13 * 64  # four square matrices, two of 4 x, biases and norms
    # Step 0 is evaluated too.
    tuned, checked = 3 * STEPS * 4 * (3 + 2), 3 * (1 + STEPS // EVERY) * 6 * (3 + 2)
    assert found["set"].tokens == tuned + checked
    assert found["set"].flops == 3 * block * (4 * tuned + 2 * checked)
    assert found[""].tokens == 2 * 8 * (5 + 2)
    assert found[""].flops == 3 * block * 2 * found[""].tokens
    assert found["set"].gathered == found[""].gathered == 0


def test_a_sharded_step_gathers_the_weights_forward_and_backward(
    study: Callable[..., Study],
) -> None:
    wanted = study(resources={"shard": "zero3"})
    found = costs(wanted)
    weights = plan(PreparedStudy.of(wanted), assumed(GPUS)).tuning[0].memory[0]
    whole = int(weights.arithmetic.split()[0].replace(",", "")) * 2
    # Two ranks, each of which receives the other's half, in one pass a step.
    assert found["set"].gathered == whole * (2 * STEPS + 1 + STEPS // EVERY)
    assert any(line[0] == "gathered by all workers" for line in found["set"].lines)
    assert found[""].gathered > 0


def test_hours_are_those_of_the_peak_where_passes_are_long(study: Callable[..., Study]) -> None:
    slow = {"peak": 1e-6, "utilisation": 0.5}
    cost = costs(study(), "cpus=8", **slow)["set"]
    assert cost.hours == pytest.approx(cost.flops / (1e6 * 0.5) / 3600, rel=0.01)


def test_a_plan_tokenises_some_texts_once_for_all_methods(
    study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    encode = TextEncoder.encode

    def counted(self: TextEncoder, texts: Sequence[str], **options: Any) -> list[list[int]]:
        asked.extend(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(TextEncoder, "encode", counted)
    both = [{"name": name, "max_steps": 5, "seeds": [1], "keep": 1} for name in ("one", "two")]
    prepared = PreparedStudy.of(study(methods=both))
    monkeypatch.setattr("raybias.methods.work._SAMPLE", 3)
    prepared.check()
    costs_of(plan(prepared, assumed(GPUS)))
    # For means: every third of ten texts, every second of six and of eight.
    assert sorted(asked) == ["a b c"] * 7 + ["a b c d e"] * 4


@given(
    st.lists(st.text(max_size=12), max_size=8), st.integers(0, 90), st.integers(0, 5),
    st.sampled_from([str, "Is {0} good? {0}:".format]),
)  # fmt: skip
def test_what_may_not_fit_is_counted_exactly(
    texts: list[str], context: int, taken: int, write: Callable[[str], str]
) -> None:
    core = Tokenizer(BPE({sign: n for n, sign in enumerate(ByteLevel.alphabet())}, []))
    core.pre_tokenizer = ByteLevel(add_prefix_space=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    counts = TokenCounts(TextEncoder(Backbone(id="bytes", bos="none"), tokenizer, context))
    texts = [f"{text}!" for text in texts]
    exact = counts.lengths([write(text) for text in texts])
    check = partial(counts.check, texts, [*range(len(texts))], taken=taken, write=write)
    if over := int((exact > context - taken).sum()):
        with pytest.raises(ModelError, match=f"{over} of {len(texts)} texts"):
            check()
    else:
        check()


@given(st.lists(st.integers(1, 150), min_size=1, max_size=30), st.integers(1, 6))
def test_batches_of_a_step_are_the_widths_that_its_rows_are_expected_to_have(
    lengths: list[int], rows: int
) -> None:
    widths = Widths.of(lengths)
    random = np.random.default_rng(0)
    drawn = random.choice([shared_width(length) for length in lengths], (4000, rows))
    distinct = np.mean([len(set(each)) for each in drawn.tolist()])
    assert widths.batches(rows) == pytest.approx(distinct, abs=0.15)
    assert widths.batches(10**9) == pytest.approx(len(widths.shares))
