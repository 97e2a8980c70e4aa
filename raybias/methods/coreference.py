"""Ask whom a pronoun stands for, with six prompts and greedy answers (Zhao2025).

An answer that names both people of a sentence, as one that repeats it does, decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa
from pydantic import Field

from raybias.config.method import Asks, StudyText
from raybias.config.profiles import by_profile
from raybias.config.provider import Writing, preparing
from raybias.config.section import Count
from raybias.methods.backbone_method import AskedMethod, PairMethod
from raybias.methods.lengths import sample
from raybias.methods.prediction import Prepared, PreparingPredictor, Shard, ShardResult
from raybias.probes.pairs.coreference import coreference_prompts, named_in, names_referent
from raybias.probes.prompts import without_thoughts
from raybias.providers.answering import answers_of
from raybias.registry import method
from raybias.schema import COREFERENCE_ANSWERS, COREFERENCES, OutputSpec

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.config.provider import Answers
    from raybias.engine.context import ModelContext
    from raybias.methods.asking import PromptFormat
    from raybias.storage import Store

#: Prompts that each sentence is asked with.
_PROMPTS: Final = 6
#: What a prompt is made of.
_SAID: Final = ("text", "pronoun")


@method
class Coreference(AskedMethod, PairMethod):
    """Whom a pronoun stands for, asked with six prompts and answered greedily (Zhao2025)."""

    kind: Literal["coreference"] = "coreference"
    """Names the kind of method."""
    answer_tokens: Count = Field(32, ge=1)
    """Most tokens of an answer; only its first words count by the exact rule."""
    answer_rule: Literal["any", "only"] = by_profile(paper="any", strict="only")
    """Which answers can be right: any that names the referent (any, the paper's rule), or those
    that do not name the sentence's other person too (only)."""

    key_copies: ClassVar[int] = 3

    def output(self) -> OutputSpec:
        """Say where answers are stored."""
        return OutputSpec("coreference", COREFERENCE_ANSWERS, _PROMPTS, COREFERENCES)

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, and prompts that leave no room for an answer."""
        from raybias.engine.backbone import check_causal, check_lengths

        check_causal(backbone, f"method {self.name}")
        form = self.form(text.encoder)
        for frame in text.items.values():
            asked = _asked(frame.select(_SAID).rows(), form)
            check_lengths(
                form.counts(text.tokens).bounds(asked, taken=self.answer_tokens),
                context=text.encoder.context,
                taken=self.answer_tokens,
                by="tokens of an answer",
                names=[item_id for item_id in frame["item_id"] for _ in range(_PROMPTS)],
            )

    def predictor(self, context: ModelContext, store: Store) -> CoreferencePredictor:
        """Load what answers for the backbone."""
        return CoreferencePredictor(answers_of(context, store), self)

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
        form = self.form(text.encoder)
        asked = _asked(sample(text.items[probe].select(_SAID).rows()), form)
        return float(_PROMPTS) * (form.counts(text.tokens).mean(asked) + self.new_tokens)


def _asked(rows: Sequence[tuple[str, str]], form: PromptFormat) -> list[str]:
    """Write the prompts of sentences and their pronouns, sentence after sentence."""
    return [
        form.written(question.strip() if form.chat else question, cue, instead=cue)
        for said in rows
        for question, cue in coreference_prompts(*said).values()
    ]


@dataclass(frozen=True)
class CoreferencePredictor(PreparingPredictor):
    """Asks whom a pronoun stands for, with every prompt, and reads the answers by both rules."""

    answers: Answers
    method: Coreference

    def prepare(self, run: None, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Write prompts; return what computes rows of `schema.COREFERENCE_ANSWERS`."""
        form = self.method.form(self.answers.encoder)
        questions: list[tuple[dict[str, Any], str]] = [
            (item, name)
            for item in items.to_pylist()
            for name in coreference_prompts(item["text"], item["pronoun"])
        ]
        write = preparing(self.answers).prepare_write(
            _asked([(item["text"], item["pronoun"]) for item in items.to_pylist()], form),
            [(item["item_id"], item["style"], name) for item, name in questions],
            Writing(self.method.answer_tokens, chat=form.chat),
        )

        def read() -> ShardResult:
            written = write()
            rows = []
            for (item, name), (answer, _, _) in zip(questions, written, strict=True):
                said = without_thoughts(answer)
                exact, contains = names_referent(said, item["referent"])
                reading = named_in(said, item["referent"], item["other"])
                decided = self.method.answer_rule == "any" or reading == "referent"
                rows.append(
                    {
                        "model": shard.model,
                        "probe": shard.probe,
                        "prompt": name,
                        **{key: item[key] for key in ("style", "item_id", "pair_id", "wino_type")},
                        "condition": item["condition"],
                        "answer": answer,
                        "exact": exact and decided,
                        "contains": contains and decided,
                        "reading": reading,
                    }
                )
            tokens = sum(each.tokens for each in written)
            return ShardResult(pa.Table.from_pylist(rows, COREFERENCE_ANSWERS), tokens)

        return read
