"""How one replica answers a shard of pairs: by scores, or by naming what a pronoun means (002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raybias.config import Coreference
from raybias.probes.coreference import coreference_prompts, names_referent
from raybias.runtime.answers import Answered
from raybias.runtime.shards import Shard
from raybias.schema import COREFERENCE_ANSWERS, PAIR_SCORES

if TYPE_CHECKING:
    from raybias.engine.generation import TextGenerator
    from raybias.engine.pair_scores import PairScorer


@dataclass(frozen=True)
class PairAnswers:
    """Scores both sides of pairs by each rule of a method."""

    scorer: PairScorer

    def load(self, run_id: str) -> None:
        """Nothing: a backbone's scores need no run of their own."""

    def table(self, run: None, shard: Shard, items: pa.Table) -> Answered:
        """Rows of `schema.PAIR_SCORES`, rule after rule; tokens are those of the sentences."""
        pairs = items.to_pylist()
        found = self.scorer.score(
            [(pair["sent_more"], pair["sent_less"]) for pair in pairs],
            names=[f"{pair['pair_id']} ({pair['style']})" for pair in pairs],
        )
        rows = [
            {
                "model": shard.model,
                "score": rule,
                "probe": shard.probe,
                **{name: pair[name] for name in ("style", "pair_id", "bias_type", "direction")},
                "score_more": score.more,
                "score_less": score.less,
                "preference": score.preference,
            }
            for rule, scores in found.items()
            for pair, score in zip(pairs, scores, strict=True)
        ]
        sentences = [pair[side] for pair in pairs for side in ("sent_more", "sent_less")]
        tokens = self.scorer.backbone.tokenizer(sentences)["input_ids"] if pairs else []
        return Answered(pa.Table.from_pylist(rows, PAIR_SCORES), sum(map(len, tokens)))


@dataclass(frozen=True)
class CoreferenceAnswers:
    """Asks whom a pronoun stands for, with every prompt, and reads the answers by both rules."""

    text_generator: TextGenerator
    method: Coreference

    def load(self, run_id: str) -> None:
        """Nothing: greedy answers need no seed."""

    def table(self, run: None, shard: Shard, items: pa.Table) -> Answered:
        """Rows of `schema.COREFERENCE_ANSWERS`, sentence after sentence."""
        from raybias.engine.sampling import Sampling

        asked: list[tuple[dict[str, Any], str, str]] = [
            (item, name, prompt)
            for item in items.to_pylist()
            for name, prompt in coreference_prompts(item["text"], item["pronoun"]).items()
        ]
        backbone = self.text_generator.backbone
        prompts = backbone.encode([prompt for _, _, prompt in asked])
        found = self.text_generator.generate(
            prompts,
            [(item["item_id"], item["style"], name) for item, name, _ in asked],
            sampling=Sampling.of(backbone.model, temperature=0),
            max_new_tokens=self.method.answer_tokens,
        )
        rows = []
        for (item, name, _), said in zip(asked, found, strict=True):
            answer = backbone.tokenizer.decode(list(said.tokens), skip_special_tokens=True)
            exact, contains = names_referent(answer, item["referent"])
            rows.append(
                {
                    "model": shard.model,
                    "probe": shard.probe,
                    "prompt": name,
                    **{key: item[key] for key in ("style", "item_id", "pair_id", "wino_type")},
                    "condition": item["condition"],
                    "answer": answer,
                    "exact": exact,
                    "contains": contains,
                }
            )
        tokens = sum(map(len, prompts)) + sum(len(said.tokens) for said in found)
        return Answered(pa.Table.from_pylist(rows, COREFERENCE_ANSWERS), tokens)
