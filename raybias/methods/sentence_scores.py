"""Score sentences by their log-probabilities: of pairs (Zhao2025), alone, and in triples.

Sentences alone (Smith et al. 2022) and triples (Nadeem et al. 2021) have the mean log-probability
of tokens after the begin token, or of the filled-in word under a masked model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import polars as pl
from pydantic import Field

from raybias.config import Backbone
from raybias.config.parts import Reads
from raybias.config.section import Profile
from raybias.methods.base import ComputeRows, Inputs, Item, Method, Reader, RowReader, method, taken
from raybias.methods.work import Work, sample
from raybias.schema import (
    PAIR_SCORES,
    PAIRS,
    SENTENCE_ITEMS,
    SENTENCE_SCORES,
    TRIPLE_SCORES,
    TRIPLES,
    OutputSpec,
)
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.sentence_scores import PairScorer, Said, SentenceScorer

#: Columns of a pair that its scores bear too.
_CARRIED: Final = ("style", "pair_id", "bias_type", "direction", "cluster")
_SENTENCES: Final = ("stereotype", "anti_stereotype", "unrelated")


@method
class PairScore(Method):
    """Which sentence of a pair a model prefers (Zhao2025, section 3 of its appendix)."""

    kind: Literal["pair_score"] = "pair_score"
    scores: tuple[str, ...] = Field((), max_length=7)
    """Scoring rules: bias_bench, prepend, sum, perplexity, shared for causal models, masked and
    masked_differing for masked ones. By default bias_bench (paper) or prepend (strict) on causal
    backbones and masked on masked ones; a study that runs records them."""
    eps: float = Field(0.0, ge=0)
    """Log-likelihoods of `sum` at most this far apart are a tie."""

    reads: ClassVar[Reads] = "pairs"

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with a backbone's default scores, or refuse as `check_scores` does."""
        from raybias.engine.backbone import is_encoder
        from raybias.engine.sentence_scores import check_scores

        causal = "prepend" if profile == "strict" else "bias_bench"
        scores = self.scores or ("masked" if is_encoder(backbone) else causal,)
        check_scores(backbone, scores)
        return self.model_copy(update={"scores": scores})

    def output(self) -> OutputSpec:
        return OutputSpec("pair_scores", PAIR_SCORES, len(self.scores), PAIRS)

    def check(self, inputs: Inputs) -> None:
        for frame in inputs.items.values():
            texts = [*frame["sent_more"], *frame["sent_less"]]
            names = [*frame["pair_id"]] * 2
            inputs.tokens.check(texts, names, taken=1, by="token that begins them")

    def work(self, inputs: Inputs) -> Work:
        tokens = {}
        for name, items in inputs.items.items():
            columns = (items[side] for side in ("sent_more", "sent_less"))
            sides = [inputs.tokens.mean(sample([*each])) for each in columns]
            if any(score.startswith("masked") for score in self.scores):
                # One copy of the sentence per masked token.
                tokens[name] = len(self.scores) * sum(length * length for length in sides)
                continue
            kinds = {"begun" if s in ("prepend", "sum", "shared") else s for s in self.scores}
            # Behind both begin tokens, where there are two.
            twice = "begun" in kinds and len(inputs.encoder.begin_ids) > 1
            tokens[name] = (len(kinds) + twice) * sum(sides)
        return Work(runs=1, items=inputs.counted(), tokens=tokens, whole_head=True)

    def reader(self, context: ModelContext, store: Store) -> Reader:
        from raybias.engine.masked_scores import scored_loader
        from raybias.engine.sentence_scores import PairScorer

        scorer = PairScorer(context.kept(scored_loader(context.spec)), self.scores, eps=self.eps)
        return RowReader(partial(pair_rows, scorer), PAIR_SCORES)


def pair_rows(scorer: PairScorer, pairs: Sequence[Item]) -> ComputeRows:
    """Pack pairs; return the call that computes rows of `schema.PAIR_SCORES`, rule by rule."""
    sides = [(pair["sent_more"], pair["sent_less"]) for pair in pairs]
    score = scorer.prepare(sides, names=[f"{pair['pair_id']} ({pair['style']})" for pair in pairs])
    tokens = scorer.backbone.encoder.ids([text for both in sides for text in both])

    def rows() -> tuple[Sequence[Item], int]:
        made = [
            {
                "score": rule,
                **taken(pair, *_CARRIED),
                "score_more": one.more,
                "score_less": one.less,
                "preference": one.preference,
                "turned": one.turned,
            }
            for rule, scores in score().items()
            for pair, one in zip(pairs, scores, strict=True)
        ]
        return made, sum(map(len, tokens))

    return rows


class SentenceMethod(Method):
    """Score sentences of items."""

    reads: ClassVar[Reads] = "questions"

    @abstractmethod
    def sentences(self, item: Item) -> list[Said]:
        """Return the sentences of an item, each with the context that it follows."""

    @abstractmethod
    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        """Make a row of the scores of an item's sentences."""

    def said(self, frame: pl.DataFrame) -> list[tuple[str, str, str]]:
        """List the item, context and text of each sentence of a probe."""
        return [
            (item["item_id"], *each)
            for item in frame.iter_rows(named=True)
            for each in self.sentences(item)
        ]

    def check(self, inputs: Inputs) -> None:
        for frame in inputs.items.values():
            said = self.said(frame)
            texts = [_joined(*each) for _, *each in said]
            names = [name for name, *_ in said]
            inputs.tokens.check(texts, names, taken=1, by="token that begins them")

    def work(self, inputs: Inputs) -> Work:
        tokens = {}
        for name, frame in inputs.items.items():
            said = self.said(frame)
            mean = inputs.tokens.mean([_joined(*each) for _, *each in sample(said)])
            tokens[name] = len(said) / max(1, frame.height) * mean
        return Work(runs=1, items=inputs.counted(), tokens=tokens, whole_head=True)

    def reader(self, context: ModelContext, store: Store) -> Reader:
        from raybias.engine.masked_scores import scored_loader
        from raybias.engine.sentence_scores import SentenceScorer

        scorer = SentenceScorer(context.kept(scored_loader(context.spec)))
        return RowReader(partial(self.begin, scorer), self.output().schema)

    def begin(self, scorer: SentenceScorer, items: Sequence[Item]) -> ComputeRows:
        """Pack the sentences of items; return the call that makes a row of each item's scores."""
        said = [self.sentences(item) for item in items]
        score = scorer.prepare([each for sentences in said for each in sentences])

        def rows() -> tuple[Sequence[Item], int]:
            found, tokens = score()
            values, both = iter(found), zip(items, said, strict=True)
            return [self.row(item, [next(values) for _ in own]) for item, own in both], tokens

        return rows


def _joined(context: str, sentence: str) -> str:
    return f"{context} {sentence}".strip() if context else sentence


@method
class SentenceLikelihood(SentenceMethod):
    """The mean log-probability of a sentence's tokens behind the begin token: HolisticBias."""

    kind: Literal["sentence_likelihood"] = "sentence_likelihood"

    def output(self) -> OutputSpec:
        return OutputSpec("sentences", SENTENCE_SCORES, items=SENTENCE_ITEMS)

    def check(self, inputs: Inputs) -> None:
        inputs.refuse_encoder(self.name)
        super().check(inputs)

    def sentences(self, item: Item) -> list[Said]:
        return [("", item["text"])]

    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        return {**item, "log_prob": scores[0]}


@method
class TripleLikelihood(SentenceMethod):
    """Which of a stereotype, its opposite and an unrelated sentence a model prefers: StereoSet."""

    kind: Literal["triple_likelihood"] = "triple_likelihood"

    def output(self) -> OutputSpec:
        return OutputSpec("triples", TRIPLE_SCORES, items=TRIPLES)

    def check(self, inputs: Inputs) -> None:
        from raybias.engine.sentence_scores import check_sentences

        for frame in inputs.items.values():
            check_sentences(inputs.backbone, self.said(frame))
        super().check(inputs)

    def sentences(self, item: Item) -> list[Said]:
        return [(item["context"], item[name]) for name in _SENTENCES]

    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        said = taken(item, "domain", "task", "term", "item_id")
        return said | dict(zip(_SENTENCES, scores, strict=True))
