"""Scores of pairs: what the textbook says, whatever stands beside a pair."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from raybias.config import Backbone, parse_study
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.masked_scores import scored_loader
from raybias.engine.sentence_scores import (
    CAUSAL,
    MASKED,
    PairScore,
    PairScorer,
    check_scores,
    preference,
)
from raybias.errors import ConfigError, ModelError, WorkFailed
from raybias.methods.base import RowReader, Shard, shard_of
from raybias.methods.sentence_scores import pair_rows
from raybias.planning.prepared import fit_methods
from raybias.schema import PAIR_SCORES
from support import backbones, pair_models

CAUSAL_KINDS = ("gpt2", "llama", "opt", "opt_projected", "mistral", "bloom", "cohere")
MASKED_KINDS = ("bert", "roberta")
PAIRS = pair_models.pairs(16, seed=4)

Load = Callable[[str], LoadedBackbone]


def load_backbone(spec: Backbone, scores: Sequence[str]) -> LoadedBackbone:
    check_scores(spec, scores)
    return scored_loader(spec)(spec)


def scores_of(kind: str) -> tuple[str, ...]:
    return MASKED if kind in MASKED_KINDS else CAUSAL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def load(folder: Path) -> Load:
    return cache(lambda kind: load_backbone(pair_models.spec(kind, folder), scores_of(kind)))


def scorer(backbone: LoadedBackbone, kind: str) -> PairScorer:
    return PairScorer(backbone, scores_of(kind))


def check(
    book: pair_models.Textbook, score: str, pairs: Sequence[tuple[str, str]], found: list[PairScore]
) -> None:
    """Every pair's scores and decision are the textbook's."""
    for (more, less), own in zip(pairs, found, strict=True):
        sides = book.score(score, more, less) or (None, None)
        assert near(own, PairScore(*sides, preference(score, *sides)))


def near(one: PairScore, two: PairScore) -> bool:
    """Whether both sides' scores are within 1e-5 of each other, and decide alike where they can."""
    if one.more is None or two.more is None:
        return one == two
    close = (one.more, one.less) == pytest.approx((two.more, two.less), rel=1e-5)
    tied = two.more == pytest.approx(two.less, rel=3e-5)
    return close and (tied or one.preference == two.preference)


@pytest.mark.parametrize("kind", [*CAUSAL_KINDS, *MASKED_KINDS])
def test_scores_are_the_textbooks(kind: str, load: Load) -> None:
    backbone = load(kind)
    book = pair_models.Textbook(backbone.spec.id, masked=kind in MASKED_KINDS)
    own = scorer(backbone, kind)
    found = own.prepare(PAIRS)()
    assert tuple(found) == scores_of(kind)
    assert own.prepare([])() == {score: [] for score in found}
    for score, each in found.items():
        check(book, score, PAIRS, each)
        assert {0, 1} <= {pair.preference for pair in each}
    # In any company.
    small, turned = scorer(backbones.with_budget(backbone, 24), kind), PAIRS[::-1]
    for pairs, scored in ((turned, small.prepare(turned)()), (PAIRS[:1], own.prepare(PAIRS[:1])())):
        for score, each in scored.items():
            check(book, score, pairs, each)
    if kind in CAUSAL_KINDS:
        # ALiBi takes no tree.
        assert (own.scorer.logits.longest_packed > 0) is (kind != "bloom")
        assert own.scorer.logits.head is not None
    else:
        assert own.scorer.part


def test_equal_scores_tie_however_rows_are_cut(load: Load) -> None:
    own = PairScorer(backbones.with_budget(load("gpt2"), 200), ("shared",))
    sentences = [f"{a} w9" for a, _ in PAIRS]
    pairs = [(text, f"{text.removesuffix('w9')}w{n % 80}") for n, text in enumerate(sentences, 10)]
    assert all(pair.preference is None for pair in own.prepare(pairs)()["shared"])


def test_tolerance_and_ties() -> None:
    assert preference("sum", -10.0, -10.009, eps=0.01) is None
    assert preference("sum", -10.0, -10.02, eps=0.01) == 1
    assert preference("prepend", 0.0131, 0.0132, eps=0.01) == 0
    assert preference("masked", -10.00049, -10.0004) is None
    assert preference("masked", -10.0016, -10.0004) == 0
    assert preference("masked_differing", None, None) is None


def test_unfit_models_are_refused(folder: Path, tmp_path: Path) -> None:
    gpt2, bert = (pair_models.spec(kind, folder) for kind in ("gpt2", "bert"))
    with pytest.raises(ModelError, match="is a causal language model and has no masked score"):
        check_scores(gpt2, ("sum", "masked"))
    with pytest.raises(ModelError, match="is a masked language model and has no causal score"):
        check_scores(bert, ("bias_bench",))
    with pytest.raises(ConfigError, match="unknown pair score 'pll'; use bias_bench, prepend"):
        check_scores(gpt2, ("pll",))
    for kind, mask, match in (
        ("bert", None, "no mask token"),
        ("gpt2", "<mask>", "puts 0 special tokens around"),
    ):
        path = shutil.copytree(bert.id, tmp_path / kind)
        changed = pair_models.tokenizer(kind)
        changed.mask_token = mask
        changed.save_pretrained(path)
        with pytest.raises(ModelError, match=match):
            load_backbone(Backbone(id=str(path)), ("masked",))


def test_unfit_sentences_are_counted_and_named(load: Load) -> None:
    long = " ".join(itertools.repeat("w1", 64))
    pairs = [("w1 w2", "w1 w3"), (f"{long} w2", f"{long} w3 w4")]
    for kind in ("gpt2", "bert", "roberta"):
        with pytest.raises(ModelError, match=r"2 of 4 .*longest: pair 1 sent_less, 6\d tokens"):
            scorer(load(kind), kind).prepare(pairs)()
    with pytest.raises(ModelError, match=r"1 of 2 .*too few tokens .*first: 7 sent_less"):
        PairScorer(load("gpt2"), ("sum",)).prepare([("w1", "")], names=["7"])()
    with pytest.raises(ModelError, match=r"2 of 2 .*too few tokens"):
        PairScorer(load("gpt2"), ("perplexity",)).prepare([("w1", "w2")])()


def test_scores_that_are_no_numbers_stop(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    own = PairScorer(load("gpt2"), ("sum",))
    carried = dict.fromkeys(("style", "bias_type", "direction", "cluster"), "")
    pairs = [
        {"pair_id": f"p{n}", "sent_more": more, "sent_less": less, **carried}
        for n, (more, less) in enumerate(PAIRS[:3])
    ]
    shard = Shard("p", "r", "m", "pair_score", "none", 0, 3, "pair_scores")
    reader = RowReader(partial(pair_rows, own), PAIR_SCORES)
    broken = own.backbone.model.get_output_embeddings().weight.detach() * math.nan
    head = own.backbone.model.get_output_embeddings()
    monkeypatch.setattr(head, "weight", torch.nn.Parameter(broken))
    with pytest.raises(WorkFailed, match=r"3 of 3 items have numbers that are not finite.* p0"):
        shard_of(reader, None, shard, pa.Table.from_pylist(pairs), PAIR_SCORES)()


@pytest.mark.parametrize(("profile", "causal"), [("strict", "prepend"), ("paper", "bias_bench")])
def test_default_scores_are_those_that_the_backbones_can_have(
    tmp_path: Path, profile: str, causal: str
) -> None:
    def decided(*kinds: str, **method: object) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        content = {
            "name": "scores",
            "profile": profile,
            "backbones": [{"id": str(pair_models.save(kind, tmp_path))} for kind in kinds],
            "methods": [{"kind": "pair_score", **method}],
            "pairs": [{"source": "pairs", "data": "pairs.csv"}],
        }
        study = fit_methods(parse_study(content))
        # What is written down is read as the same study, and nothing is left to decide.
        assert parse_study(study.model_dump(mode="json")) == study == fit_methods(study)
        assert all(len(study.methods_of(backbone)) == 1 for backbone in study.backbones)
        return [(method.scores, method.backbones) for method in study.methods]  # type: ignore[union-attr]

    assert decided("roberta") == [(("masked",), ())]
    assert decided("gpt2") == [((causal,), ())]
    assert decided("gpt2", "roberta") == [((causal,), ("gpt2",)), (("masked",), ("roberta",))]
    assert decided("gpt2", scores=["sum", "shared"]) == [(("sum", "shared"), ())]
    with pytest.raises(ModelError, match="causal language model and has no masked score"):
        decided("roberta", "gpt2", scores=["masked"])


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_bfloat16_scores_are_near_those_of_float32(kind: str, load: Load, folder: Path) -> None:
    exact = scorer(load(kind), kind).prepare(PAIRS)()
    spec = pair_models.spec(kind, folder, dtype="bfloat16")
    rough = scorer(load_backbone(spec, scores_of(kind)), kind).prepare(PAIRS)()
    for score, each in exact.items():
        both = [pair for pair in zip(each, rough[score], strict=True) if pair[0].more]
        gaps = [abs(two.more / one.more - 1) for one, two in both]
        assert 1e-5 < max(gaps) < 0.2
        # A score far from the other side's is so in both.
        sure = [(one, two) for one, two in both if abs(one.more / one.less - 1) > 0.5]
        assert all(one.preference == two.preference for one, two in sure)
