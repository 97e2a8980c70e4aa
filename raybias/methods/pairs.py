"""Score which sentence of a pair a model prefers, and ask whom a pronoun stands for (Zhao2025).

An answer that names both people of a sentence, as one that repeats it does, decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import pyarrow as pa
from pydantic import Field

from raybias.config import Backbone
from raybias.config.method import Reads
from raybias.config.section import Count, Profile, by_profile
from raybias.methods.asking import Asked, Item, ItemMethod, taken
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, method, rows_table
from raybias.methods.prompts import without_thoughts
from raybias.methods.work import Work, sample
from raybias.probes.published.winobias import coreference_prompts, named_in, names_referent
from raybias.schema import COREFERENCE_ANSWERS, COREFERENCES, PAIR_SCORES, PAIRS, OutputSpec

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.scoring.pair_scores import PairScorer
    from raybias.storage import Store

#: Prompts that each sentence is asked with.
_PROMPTS: Final = 6
#: Columns of a pair that its scores bear too.
_CARRIED: Final = ("style", "pair_id", "bias_type", "direction", "cluster")


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

    def check(self, inputs: Inputs) -> None:
        """Refuse sentences that are too long."""
        from raybias.engine.encoder import check_lengths

        for frame in inputs.items.values():
            check_lengths(
                inputs.tokens.bounds([*frame["sent_more"], *frame["sent_less"]], taken=1),
                context=inputs.encoder.context,
                taken=1,
                by="token that begins them",
                names=[*frame["pair_id"]] * 2,
            )

    def work(self, inputs: Inputs) -> Work:
        """Count the tokens that all scores read; they need the head at every token."""
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
            twice = "begun" in kinds and inputs.encoder.other_begin_id is not None
            tokens[name] = (len(kinds) + twice) * sum(sides)
        return Work(runs=1, items=inputs.counted(), tokens=tokens, whole_head=True)

    def reader(self, context: ModelContext, store: Store) -> PairReader:
        """Load the model that the scores need."""
        from raybias.engine.scoring.masked import scored_loader
        from raybias.engine.scoring.pair_scores import PairScorer

        model = context.backbone(scored_loader(context.spec))
        return PairReader(PairScorer(model, self.scores, eps=self.eps))


@dataclass(frozen=True)
class PairReader(Reader):
    """Scores both sides of pairs by each rule of a method."""

    scorer: PairScorer

    def prepare(self, run: None, items: pa.Table) -> Compute:
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


@method
class Coreference(ItemMethod):
    """Whom a pronoun stands for, asked with six prompts and answered greedily (Zhao2025)."""

    kind: Literal["coreference"] = "coreference"
    """Names the kind of method."""
    answer_tokens: Count = Field(32, ge=1)
    """Most tokens of an answer; only its first words count by the exact rule."""
    answer_rule: Literal["any", "only"] = by_profile(paper="any", strict="only")
    """Which answers can be right: any that names the referent (any, the paper's rule), or those
    that do not name the sentence's other person too (only)."""

    reads: ClassVar[Reads] = "pairs"

    def output(self) -> OutputSpec:
        """Say where answers are stored."""
        return OutputSpec("coreference", COREFERENCE_ANSWERS, _PROMPTS, COREFERENCES)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_tokens

    def requests(self, item: Item, *, chat: bool) -> list[Asked]:
        """Return the prompts of a sentence and its pronoun."""
        prompts = coreference_prompts(item["text"], item["pronoun"])
        return [
            Asked(name, question.strip() if chat else question, (), (), cue=cue)
            for name, (question, cue) in prompts.items()
        ]

    def row(self, item: Item, asked: Asked, reply: str) -> dict[str, Any]:
        """Read an answer by both rules."""
        said = without_thoughts(reply)
        exact, contains = names_referent(said, item["referent"])
        reading = named_in(said, item["referent"], item["other"])
        decided = self.answer_rule == "any" or reading == "referent"
        return {
            "prompt": asked.prompt,
            **taken(item, "style", "item_id", "pair_id", "wino_type", "condition"),
            "answer": reply,
            "exact": exact and decided,
            "contains": contains and decided,
            "reading": reading,
        }
