"""Ask whom a pronoun stands for, with six prompts and greedy answers (Zhao2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
from pydantic import Field

from raybias.config.method import Asks, StudyText
from raybias.config.provider import Writing, preparing
from raybias.config.section import Count
from raybias.methods.backbone_method import PairMethod
from raybias.methods.lengths import sample
from raybias.methods.prediction import Prepared, PreparingPredictor, Shard, ShardResult
from raybias.probes.pairs.coreference import coreference_prompts, names_referent
from raybias.providers.answering import answers_of
from raybias.registry import method
from raybias.schema import COREFERENCE_ANSWERS, COREFERENCES, OutputSpec

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.config.data import Ability
    from raybias.config.provider import Answers
    from raybias.engine.context import ModelContext
    from raybias.storage import Store

#: Prompts that each sentence is asked with.
_PROMPTS: Final = 6
#: What a prompt is made of.
_SAID: Final = ("text", "pronoun")


@method
class Coreference(PairMethod):
    """Whom a pronoun stands for, asked with six prompts and answered greedily (Zhao2025)."""

    kind: Literal["coreference"] = "coreference"
    """Names the kind of method."""
    answer_tokens: Count = Field(32, ge=1)
    """Most tokens of an answer; only its first words count by the exact rule."""

    key_copies: ClassVar[int] = 3

    def output(self) -> OutputSpec:
        """Say where answers are stored."""
        return OutputSpec("coreference", COREFERENCE_ANSWERS, _PROMPTS, COREFERENCES)

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, and prompts that leave no room for an answer."""
        from raybias.engine.backbone import check_causal, check_lengths

        check_causal(backbone, f"method {self.name}")
        for frame in text.items.values():
            check_lengths(
                text.tokens.bounds(_asked(frame.select(_SAID).rows()), taken=self.answer_tokens),
                context=text.encoder.context,
                taken=self.answer_tokens,
                by="tokens of an answer",
                names=[item_id for item_id in frame["item_id"] for _ in range(_PROMPTS)],
            )

    def predictor(self, context: ModelContext, store: Store) -> CoreferencePredictor:
        """Load what answers for the backbone."""
        return CoreferencePredictor(answers_of(context, store), self)

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        """Ask for text after a prompt, or after the only message of a chat."""
        return {"chat" if "text" not in offered else "text": ""}

    def asks(self, text: StudyText, probe: str) -> Asks:
        """Return what is asked of a provider for a sentence."""
        written = float(_PROMPTS * self.new_tokens)
        return Asks(_PROMPTS, self.tokens_per_item(text, probe) - written, written)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_tokens

    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens that all prompts of a sentence take."""
        asked = _asked(sample(text.items[probe].select(_SAID).rows()))
        return float(_PROMPTS) * (text.tokens.mean(asked) + self.new_tokens)


def _asked(rows: Sequence[tuple[str, str]]) -> list[str]:
    """List the prompts of sentences and their pronouns, sentence after sentence."""
    return [prompt for said in rows for prompt in coreference_prompts(*said).values()]


@dataclass(frozen=True)
class CoreferencePredictor(PreparingPredictor):
    """Asks whom a pronoun stands for, with every prompt, and reads the answers by both rules."""

    answers: Answers
    method: Coreference

    def prepare(self, run: None, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Write prompts; return what computes rows of `schema.COREFERENCE_ANSWERS`."""
        questions: list[tuple[dict[str, Any], str, str]] = [
            (item, name, prompt)
            for item in items.to_pylist()
            for name, prompt in coreference_prompts(item["text"], item["pronoun"]).items()
        ]
        write = preparing(self.answers).prepare_write(
            [prompt for _, _, prompt in questions],
            [(item["item_id"], item["style"], name) for item, name, _ in questions],
            Writing(self.method.answer_tokens),
        )

        def read() -> ShardResult:
            written = write()
            rows = []
            for (item, name, _), (answer, _, _) in zip(questions, written, strict=True):
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
            tokens = sum(each.tokens for each in written)
            return ShardResult(pa.Table.from_pylist(rows, COREFERENCE_ANSWERS), tokens)

        return read
