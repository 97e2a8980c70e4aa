"""Read how likely a causal model finds sentences, as HolisticBias does (Smith et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from raybias.config.method import StudyText
from raybias.methods.backbone_method import QuestionMethod
from raybias.methods.lengths import sample
from raybias.methods.likelihood import check_finite
from raybias.methods.prediction import Prepared, PreparingPredictor, Shard, ShardResult
from raybias.registry import method
from raybias.schema import SENTENCE_ITEMS, SENTENCE_SCORES, OutputSpec

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.context import ModelContext
    from raybias.engine.model_shape import ModelShape
    from raybias.engine.scoring.sentences import SentenceScorer
    from raybias.storage import Store


@method
class SentenceLikelihood(QuestionMethod):
    """The mean log-probability of a sentence's tokens behind the begin token: HolisticBias."""

    kind: Literal["sentence_likelihood"] = "sentence_likelihood"
    """Names the kind of method."""

    def output(self) -> OutputSpec:
        """Say where scores are stored."""
        return OutputSpec("sentences", SENTENCE_SCORES, items=SENTENCE_ITEMS)

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, and sentences that are too long."""
        from raybias.engine.backbone import check_causal, check_lengths

        check_causal(backbone, f"method {self.name}")
        for frame in text.items.values():
            check_lengths(
                text.tokens.bounds(frame["text"].to_list(), taken=1),
                context=text.encoder.context,
                taken=1,
                by="token that begins them",
                names=frame["item_id"].to_list(),
            )

    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens of a sentence."""
        return text.tokens.mean(sample(text.items[probe]["text"].to_list()))

    def weights_per_token(self, shape: ModelShape) -> int:
        """Return all parameters: scores need the head at every token."""
        return shape.parameters

    def predictor(self, context: ModelContext, store: Store) -> SentencePredictor:
        """Load the causal model with what scores sentences."""
        from raybias.engine.scoring.sentences import SentenceScorer

        return SentencePredictor(SentenceScorer(context.backbone()))


@dataclass(frozen=True)
class SentencePredictor(PreparingPredictor):
    """Scores a shard's sentences."""

    scorer: SentenceScorer

    def prepare(self, run: None, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Pack sentences; return what computes rows of `schema.SENTENCE_SCORES`.

        This raises WorkFailed where a score is no number.
        """
        rows = items.to_pylist()
        score = self.scorer.prepare([("", row.pop("text")) for row in rows])

        def read() -> ShardResult:
            values, tokens = score()
            for row, value in zip(rows, values, strict=True):
                check_finite([value], row["item_id"], shard)
                row.update(model=shard.model, probe=shard.probe, log_prob=value)
            return ShardResult(pa.Table.from_pylist(rows, SENTENCE_SCORES), tokens)

        return read
