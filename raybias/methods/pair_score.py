"""Score which sentence of a pair a model prefers (Zhao2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa
from pydantic import Field

from raybias.config.method import StudyText
from raybias.config.profiles import Profile
from raybias.methods.backbone_method import PairMethod
from raybias.methods.lengths import sample
from raybias.methods.prediction import Prepared, PreparingPredictor, Shard, ShardResult
from raybias.registry import method
from raybias.schema import PAIR_SCORES, PAIRS, OutputSpec

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.context import ModelContext
    from raybias.engine.model_shape import ModelShape
    from raybias.engine.scoring.pair_rules import PairScore as Scored
    from raybias.engine.scoring.pair_scores import PairScorer
    from raybias.storage import Store


#: Columns of a pair that its scores bear too.
_CARRIED: Final = ("style", "pair_id", "bias_type", "direction", "cluster")


@method
class PairScore(PairMethod):
    """Which sentence of a pair a model prefers (Zhao2025, section 3 of its appendix)."""

    kind: Literal["pair_score"] = "pair_score"
    """Names the kind of method."""
    scores: tuple[str, ...] = Field((), max_length=7)
    """Scoring rules: bias_bench, prepend, sum, perplexity, shared for causal models, masked and
    masked_differing for masked ones. By default bias_bench (paper) or prepend (strict) on causal
    backbones and masked on masked ones; a study that runs records them."""
    eps: float = Field(0.0, ge=0)
    """Log-likelihoods of `sum` at most this far apart are a tie."""

    def fit(self, backbone: Backbone, profile: Profile) -> Self:
        """Return the method with the default scores of a backbone, or refuse those it cannot have.

        Raises
        ------
        ConfigError, ModelError: see `engine.pair_scores.check_scores`.
        """
        from raybias.engine.backbone import is_encoder
        from raybias.engine.scoring.pair_scores import check_scores

        causal = "prepend" if profile == "strict" else "bias_bench"
        scores = self.scores or ("masked" if is_encoder(backbone) else causal,)
        check_scores(backbone, scores)
        return self.model_copy(update={"scores": scores})

    def output(self) -> OutputSpec:
        """Say where scores are stored."""
        return OutputSpec("pair_scores", PAIR_SCORES, len(self.scores), PAIRS)

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse sentences that are too long."""
        from raybias.engine.backbone import check_lengths

        for frame in text.items.values():
            check_lengths(
                text.tokens.bounds([*frame["sent_more"], *frame["sent_less"]], taken=1),
                context=text.encoder.context,
                taken=1,
                by="token that begins them",
                names=[*frame["pair_id"]] * 2,
            )

    def predictor(self, context: ModelContext, store: Store) -> PairPredictor:
        """Load the model that the scores need."""
        from raybias.engine.scoring.pair_scores import PairScorer, pair_loader

        model = context.backbone(pair_loader(context.spec, self.scores))
        return PairPredictor(PairScorer(model, self.scores, eps=self.eps))

    def weights_per_token(self, shape: ModelShape) -> int:
        """Return all parameters: scores need the head at every token."""
        return shape.parameters

    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens that all scores read for a pair."""
        items = text.items[probe]
        sides = [text.tokens.mean(sample([*items[side]])) for side in ("sent_more", "sent_less")]
        if any(score.startswith("masked") for score in self.scores):
            # One copy of the sentence per masked token.
            return len(self.scores) * sum(length * length for length in sides)
        kinds = {"begun" if s in ("prepend", "sum", "shared") else s for s in self.scores}
        # Behind both begin tokens, where there are two.
        twice = "begun" in kinds and text.encoder.other_begin_id is not None
        return (len(kinds) + twice) * sum(sides)


@dataclass(frozen=True)
class PairPredictor(PreparingPredictor):
    """Scores both sides of pairs by each rule of a method."""

    scorer: PairScorer

    def prepare(self, run: None, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Pack pairs; return what computes rows of `schema.PAIR_SCORES`, rule after rule.

        Tokens are the sentences'.
        """
        pairs = items.to_pylist()
        score = self.scorer.prepare(
            [(pair["sent_more"], pair["sent_less"]) for pair in pairs],
            names=[f"{pair['pair_id']} ({pair['style']})" for pair in pairs],
        )
        sentences = [pair[side] for pair in pairs for side in ("sent_more", "sent_less")]
        tokens = self.scorer.backbone.tokenizer(sentences)["input_ids"] if pairs else []
        count = sum(map(len, tokens))
        return lambda: ShardResult(_rows(shard, pairs, score()), count)


def _rows(
    shard: Shard, pairs: Sequence[Mapping[str, Any]], by_rule: Mapping[str, Sequence[Scored]]
) -> pa.Table:
    rows = [
        {
            "model": shard.model,
            "score": rule,
            "probe": shard.probe,
            **{name: pair[name] for name in _CARRIED},
            "score_more": score.more,
            "score_less": score.less,
            "preference": score.preference,
            "turned": score.turned,
        }
        for rule, scores in by_rule.items()
        for pair, score in zip(pairs, scores, strict=True)
    ]
    return pa.Table.from_pylist(rows, PAIR_SCORES)
