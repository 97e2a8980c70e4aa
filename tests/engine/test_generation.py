"""What is written after a prompt depends on its key, its tokens and the model alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers

from raybias.engine import answering
from raybias.engine.answering import EngineAnswers, Generated
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.keyed_draws import Sampling
from raybias.errors import ModelError
from support import backbones, prompting

LABEL_IDS = (2, 3, 4)
EOS = 1
NEW = 6


def prompts(*, seed: int, count: int = 12, opening: int = 9) -> list[list[int]]:
    """Random rows of many lengths behind a common opening; some begin alike, two are equal."""
    random = np.random.default_rng(seed)
    shared = [EOS, *random.integers(5, 90, opening).tolist()] if opening else []
    starts = [random.integers(5, 90, n).tolist() for n in (1, 2, 4)]
    rows = [
        [*shared, *starts[n % 3], *random.integers(5, 90, random.integers(0, 12)).tolist()]
        for n in range(count - 1)
    ]
    return [*rows, rows[0]]


def keys(rows: Sequence[object]) -> list[tuple[str | int, ...]]:
    return [(2024, "run", n, "answer") for n in range(len(rows))]


def sampling(model: LoadedBackbone, temperature: float = 0.8, **values: float) -> Sampling:
    return replace(Sampling.of(model.model, temperature=temperature), **values)


def filtered(row: list[int], scores_1V: torch.Tensor, values: Sampling) -> torch.Tensor:
    """Probabilities after transformers' filters, over the whole vocabulary."""
    processors = transformers.LogitsProcessorList()
    if values.repetition_penalty != 1:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(values.repetition_penalty))
    processors.append(transformers.TemperatureLogitsWarper(values.temperature))
    if values.top_k:
        processors.append(transformers.TopKLogitsWarper(values.top_k))
    if values.top_p < 1:
        processors.append(transformers.TopPLogitsWarper(values.top_p))
    if values.min_p:
        processors.append(transformers.MinPLogitsWarper(values.min_p))
    return processors(torch.tensor([row]), scores_1V)[0].double().softmax(-1)


def alone(
    model: LoadedBackbone, row: list[int], key: tuple[str | int, ...], values: Sampling
) -> tuple[tuple[int, ...], torch.Tensor]:
    """The plain way: the model's own forward pass over one whole row for every token."""
    row, start, labels_L = list(row), len(row), torch.empty(0)
    uniforms_T = prompting.uniforms(key, NEW)[0].tolist()
    for t in range(NEW):
        with torch.no_grad():
            scores_1V = model.model(torch.tensor([row]), use_cache=False).logits[:, -1].float()
        if t == 0:
            labels_L = scores_1V.log_softmax(-1)[0, list(LABEL_IDS)]
        total_V = filtered(row, scores_1V, values).cumsum(-1)
        token = int((total_V > uniforms_T[t] * total_V[-1]).int().argmax())
        if token in values.eos_ids:
            break
        row.append(token)
    return tuple(row[start:]), labels_L


def assert_alike(found: list[Generated], expected: list[Generated]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    torch.testing.assert_close(
        torch.tensor([each.label_log_probs for each in found]),
        torch.tensor([each.label_log_probs for each in expected]),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("kind", "opening"),
    [
        *((kind, 9) for kind in (*backbones.CONFIGS, *backbones.WRITERS)),
        *((kind, 0) for kind in ("opt", "mpt")),
    ],
)
def test_tokens_are_those_of_each_row_alone(
    kind: str, opening: int, backbone: Callable[[str], LoadedBackbone]
) -> None:
    model, rows = backbone(kind), prompts(seed=1, opening=opening)
    # A few tokens that end rows, so that rows end at different times.
    values = sampling(model, eos_ids=(EOS, *range(50, 70)), repetition_penalty=1.3)
    plain = [alone(model, row, key, values) for row, key in zip(rows, keys(rows), strict=True)]
    expected = [Generated(tokens, tuple(labels_L.tolist())) for tokens, labels_L in plain]
    assert len({len(each.tokens) for each in expected}) > 2
    generator = EngineAnswers(model)
    assert generator.shares == (kind != "mpt")

    def generate(numbers: Sequence[int]) -> list[Generated]:
        found = generator.generate(
            [rows[n] for n in numbers],
            [keys(rows)[n] for n in numbers],
            sampling=values,
            max_new_tokens=NEW,
            label_ids=LABEL_IDS,
        )
        return [found[numbers.index(n)] for n in sorted(numbers)]

    everything = list(range(len(rows)))
    shuffled = np.random.default_rng(2).permutation(everything).tolist()
    # Budgets whose batches hold about one row, a few, and all of them.
    for budget, order in ((1, everything), (60, shuffled), (4096, everything)):
        generator.batcher.tokens_per_batch = budget
        assert_alike(generate(order), expected)
    cut = [generate(everything[n : n + 5]) for n in everything[::5]]
    assert_alike([each for part in cut for each in part], expected)


@pytest.mark.parametrize("kind", ["llama", "mpt"])
def test_greedy_tokens_are_those_of_transformers(
    kind: str, backbone: Callable[[str], LoadedBackbone]
) -> None:
    model, rows = backbone(kind), prompts(seed=3)
    values = sampling(model, 0.0, repetition_penalty=1.3)
    found = EngineAnswers(model).generate(rows, keys(rows), sampling=values, max_new_tokens=NEW)
    for row, each in zip(rows, found, strict=True):
        tokens = torch.tensor([row])
        written = model.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=NEW,
            repetition_penalty=1.3, pad_token_id=0,
        )[0, len(row) :].tolist()  # fmt: skip
        ended = written.index(EOS) if EOS in written else len(written)
        assert list(each.tokens) == written[:ended]


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_answers_are_to_the_bit_what_they_are_without_earlier_requests(
    kind: str, backbone: Callable[[str], LoadedBackbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "BLOCK", 8)
    model, opening = backbone(kind), np.random.default_rng(4).integers(5, 90, 30).tolist()
    values = sampling(model)
    # Openings that go on, stop within a block or between two, part from each other, or are none.
    requests = [
        [[*opening[:length], *other, *row] for row in prompts(seed=length, count=7, opening=0)]
        for length, other in ((30, []), (8, []), (19, []), (19, [60, 61]), (0, []), (27, []))
    ]

    def answer(generator: EngineAnswers, rows: list[list[int]]) -> list[Generated]:
        return generator.generate(
            rows, keys(rows), sampling=values, max_new_tokens=2, label_ids=LABEL_IDS
        )

    separate = [answer(EngineAnswers(model), rows) for rows in requests]
    together = EngineAnswers(model)
    for order in ([0, 1, 2, 3, 4, 5], [5, 0, 4, 2, 3, 1, 1, 0]):
        for n in order:
            assert answer(together, requests[n]) == separate[n]


def test_an_opening_is_computed_once(
    backbone: Callable[[str], LoadedBackbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "BLOCK", 16)
    model = backbone("opt")
    generator, read = EngineAnswers(model), list[int]()
    assert generator.shares
    real = model.model.base_model.forward

    def counted(*args: object, **options: torch.Tensor) -> object:
        read.append(options["input_ids"].numel())
        return real(*args, **options)

    monkeypatch.setattr(model.model.base_model, "forward", counted)
    shared = list(range(5, 45))
    # Tokens of the opening's blocks that are new in each call; `generate` calls what is inside.
    for rest, expected in (
        ([[50], [51, 52]], [16, 16, 8]),
        ([[53], [54, 55], [56]], []),
        ([[50, 57], [50, 58, 59]], [9]),
        ([[60], [61, 62, 63]], [8]),
    ):
        rows = [[*shared, *tail] for tail in rest]
        read.clear()
        generator.generate(rows, keys(rows), sampling=sampling(model), max_new_tokens=1)
        assert read == expected
    assert generator.opening.tokens == tuple(shared)


def test_a_generation_config_is_followed_and_recorded(
    backbone: Callable[[str], LoadedBackbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = backbone("qwen2"), prompts(seed=4)
    own = transformers.GenerationConfig(
        repetition_penalty=1.7, top_p=0.7, top_k=20, min_p=0.02, eos_token_id=[EOS, 80]
    )
    monkeypatch.setattr(model.model, "generation_config", own)
    values = Sampling.of(model.model, temperature=0.8)
    assert asdict(values) == {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.7,
        "min_p": 0.02,
        "repetition_penalty": 1.7,
        "eos_ids": (EOS, 80),
    }
    found = EngineAnswers(model).generate(rows, keys(rows), sampling=values, max_new_tokens=NEW)
    for row, key, each in zip(rows, keys(rows), found, strict=True):
        assert each.tokens == alone(model, row, key, values)[0]
    own.typical_p = 0.9
    with pytest.raises(ModelError, match=r"generation_config sets typical_p: 0\.9"):
        Sampling.of(model.model, temperature=0.8)


@pytest.mark.parametrize("top_k", [0, 1, 7, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draw_is_that_over_the_whole_vocabulary(top_k: int, dtype: torch.dtype) -> None:
    """Large vocabularies are searched in blocks; bfloat16 brings ties at the k-th place."""
    torch.manual_seed(0)
    logits_NV = (3 * torch.randn(40, 5003)).to(dtype).float()
    values = Sampling(0.8, top_k, 0.95, 0.0, 1.0, ())
    uniforms = [0.0, 1 - 2**-53, *np.random.default_rng(0).random(38)]
    found = values.choose(
        logits_NV, history_NT=None, uniforms_N=torch.tensor(uniforms, dtype=torch.float64)
    )
    for logits_V, u, token in zip(logits_NV, uniforms, found, strict=True):
        shares_V = filtered([], logits_V[None], values)
        total_V = shares_V.cumsum(-1)
        assert shares_V[token] > 0
        before, after = total_V[token] - shares_V[token], total_V[token]
        assert before - 1e-12 <= u * total_V[-1] <= after + 1e-12


def test_windows_are_respected(tmp_path: object) -> None:
    model = backbones.load("mistral", tmp_path)
    model.model.config.sliding_window = 12
    rows, values = prompts(seed=5), sampling(model)
    found = EngineAnswers(model).generate(rows, keys(rows), sampling=values, max_new_tokens=NEW)
    for row, key, each in zip(rows, keys(rows), found, strict=True):
        assert each.tokens == alone(model, row, key, values)[0]


def test_label_scores_alone_and_rows_of_one_token(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    model, rows = backbone("llama"), [[1], [7], [1]]
    values = sampling(model)
    found = EngineAnswers(model).generate(
        rows, keys(rows), sampling=values, max_new_tokens=0, label_ids=LABEL_IDS
    )
    expected = [alone(model, row, (0,), values)[1] for row in rows]
    assert_alike(found, [Generated((), tuple(each.tolist())) for each in expected])
    assert EngineAnswers(model).generate([], [], sampling=values, max_new_tokens=3) == []


def test_prompts_without_room_are_counted(backbone: Callable[[str], LoadedBackbone]) -> None:
    model = backbone("opt")
    with pytest.raises(
        ModelError,
        match=r"1 of 2 texts .* of 64 leaves beside 5 new tokens \(longest: prompt 2",
    ):
        EngineAnswers(model).generate(
            [[1] * 59, [1] * 60], [(0,), (1,)], sampling=sampling(model), max_new_tokens=5
        )
