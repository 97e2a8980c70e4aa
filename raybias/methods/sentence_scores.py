"""Score sentences by their log-probabilities: of pairs (Zhao2025), alone, and in triples.

Sentences alone (Smith et al. 2022) and triples (Nadeem et al. 2021) have the mean log-probability
of tokens after the begin token, or of the filled-in word under a masked model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import pyarrow as pa
from pydantic import Field

from raybias.config import Backbone
from raybias.config.parts import Reads
from raybias.config.section import Profile
from raybias.methods.asking import Item, taken
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, method, rows_table
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
    from raybias.engine.scoring.continuations import SentenceScorer
    from raybias.engine.scoring.pair_scores import PairScorer

#: Columns of a pair that its scores bear too.
_CARRIED: Final = ("style", "pair_id", "bias_type", "direction", "cluster")
_SENTENCES: Final = ("stereotype", "anti_stereotype", "unrelated")
#: A context, and a sentence that may follow it.
Said = tuple[str, str]


@method
class PairScore(Method):
    """Which sentence of a pair a model prefers (Zhao2025, section 3 of its appendix)."""

    kind: Literal["pair_score"] = "pair_score"
    """Names the kind of method."""
    scores: tuple[str, ...] = Field((), max_length=7)
    """Scoring rules: bias_bench, prepend, sum, perplexity, shared for causal models, masked and
    masked_differing for masked ones. By default bias_bench (paper) or prepend (strict) on causal
    backbones and masked on masked ones; a study that runs records them."""
    eps: float = Field(0.0, ge=0)
    """Log-likelihoods of `sum` at most this far apart are a tie."""

    reads: ClassVar[Reads] = "pairs"

    def fit(self, backbone: Backbone, profile: Profile) -> Self:
        """Return the method with a backbone's default scores, or refuse as `check_scores` does."""
        from raybias.engine.backbone import is_encoder
        from raybias.engine.scoring.pair_scores import check_scores

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
        """Count the tokens of all scores, which need the head at every token."""
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

    def reader(self, context: ModelContext, store: Store) -> PairReader:
        from raybias.engine.scoring.masked import scored_loader
        from raybias.engine.scoring.pair_scores import PairScorer

        model = context.kept(scored_loader(context.spec))
        return PairReader(PairScorer(model, self.scores, eps=self.eps))


@dataclass(frozen=True)
class PairReader(Reader):
    """Score both sides of pairs by each rule of a method."""

    scorer: PairScorer

    def prepare(self, run: None, items: pa.Table) -> Compute:
        """Pack pairs; return the call that computes rows of `schema.PAIR_SCORES`, rule by rule."""
        pairs = items.to_pylist()
        score = self.scorer.prepare(
            [(pair["sent_more"], pair["sent_less"]) for pair in pairs],
            names=[f"{pair['pair_id']} ({pair['style']})" for pair in pairs],
        )
        sentences = [pair[side] for pair in pairs for side in ("sent_more", "sent_less")]
        tokens = self.scorer.backbone.encoder.ids(sentences)

        def read() -> Answered:
            rows = [
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
            return Answered(rows_table(rows, PAIR_SCORES), sum(map(len, tokens)))

        return read


class SentenceMethod(Method):
    """Score sentences of items."""

    reads: ClassVar[Reads] = "questions"

    @abstractmethod
    def sentences(self, item: Item) -> list[Said]:
        """Return the sentences of an item, each with the context that it follows."""

    @abstractmethod
    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        """Make a row of the scores of an item's sentences."""

    def check(self, inputs: Inputs) -> None:
        for frame in inputs.items.values():
            said = [(item["item_id"], _joined(*each)) for item in frame.iter_rows(named=True)
                    for each in self.sentences(item)]  # fmt: skip
            texts, names = [text for _, text in said], [name for name, _ in said]
            inputs.tokens.check(texts, names, taken=1, by="token that begins them")

    def work(self, inputs: Inputs) -> Work:
        """Count the tokens of sentences; scores need the head at every token."""
        tokens = {}
        for name, frame in inputs.items.items():
            said = [each for item in frame.iter_rows(named=True) for each in self.sentences(item)]
            mean = inputs.tokens.mean([_joined(*each) for each in sample(said)])
            tokens[name] = len(said) / max(1, frame.height) * mean
        return Work(runs=1, items=inputs.counted(), tokens=tokens, whole_head=True)

    def reader(self, context: ModelContext, store: Store) -> SentenceReader:
        from raybias.engine.scoring.continuations import SentenceScorer
        from raybias.engine.scoring.masked import scored_loader

        return SentenceReader(SentenceScorer(context.kept(scored_loader(context.spec))), self)


def _joined(context: str, sentence: str) -> str:
    return f"{context} {sentence}".strip() if context else sentence


@dataclass(frozen=True)
class SentenceReader(Reader):
    """Score the sentences of items."""

    scorer: SentenceScorer
    method: SentenceMethod

    def prepare(self, run: None, items: pa.Table) -> Compute:
        rows = items.to_pylist()
        said = [self.method.sentences(item) for item in rows]
        score = self.scorer.prepare([each for sentences in said for each in sentences])

        def read() -> Answered:
            found, tokens = score()
            values = iter(found)
            made = [self.method.row(item, [next(values) for _ in sentences])
                    for item, sentences in zip(rows, said, strict=True)]  # fmt: skip
            return Answered(rows_table(made, self.method.output().schema), tokens)

        return read


@method
class SentenceLikelihood(SentenceMethod):
    """The mean log-probability of a sentence's tokens behind the begin token: HolisticBias."""

    kind: Literal["sentence_likelihood"] = "sentence_likelihood"
    """Names the kind of method."""

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
    """Names the kind of method."""

    def output(self) -> OutputSpec:
        return OutputSpec("triples", TRIPLE_SCORES, items=TRIPLES)

    def check(self, inputs: Inputs) -> None:
        """Refuse, for a masked model, sentences that fill in no word, and too long ones."""
        from raybias.engine.scoring.continuations import check_sentences

        for frame in inputs.items.values():
            check_sentences(inputs.backbone, [
                (item["item_id"], *each) for item in frame.iter_rows(named=True)
                for each in self.sentences(item)
            ])  # fmt: skip
        super().check(inputs)

    def sentences(self, item: Item) -> list[Said]:
        return [(item["context"], item[name]) for name in _SENTENCES]

    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        said = taken(item, "domain", "task", "term", "item_id")
        return said | dict(zip(_SENTENCES, scores, strict=True))
