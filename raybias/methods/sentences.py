"""Read how likely a model finds sentences (Smith et al. 2022), or triples (Nadeem et al. 2021).

By the mean log-probability of a sentence's tokens behind the begin token, or under a masked model
of the filled-in word's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa

from raybias.config import Backbone
from raybias.config.method import Reads
from raybias.methods.asking import Item, taken
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, method, rows_table
from raybias.methods.work import Work, sample
from raybias.schema import SENTENCE_ITEMS, SENTENCE_SCORES, TRIPLE_SCORES, TRIPLES, OutputSpec

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.scoring.continuations import SentenceScorer
    from raybias.storage import Store

_SENTENCES: Final = ("stereotype", "anti_stereotype", "unrelated")
#: A context, and a sentence that may follow it.
Said = tuple[str, str]


class SentenceMethod(Method):
    """What methods have in common that score sentences of items."""

    reads: ClassVar[Reads] = "questions"

    @abstractmethod
    def sentences(self, item: Item) -> list[Said]:
        """Return the sentences of an item, each with the context that it follows."""

    @abstractmethod
    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        """Make a row of the scores of an item's sentences."""

    @abstractmethod
    def check_kind(self, backbone: Backbone, said: Sequence[tuple[str, str, str]]) -> None:
        """Refuse a backbone that cannot score these items, contexts and sentences.

        Raises
        ------
        ModelError: says why.
        """

    def check(self, inputs: Inputs) -> None:
        """Refuse a backbone that cannot score sentences, and sentences that are too long."""
        from raybias.engine.encoder import check_lengths

        for frame in inputs.items.values():
            said = [(item["item_id"], *each) for item in frame.iter_rows(named=True)
                    for each in self.sentences(item)]  # fmt: skip
            self.check_kind(inputs.backbone, said)
            check_lengths(
                inputs.tokens.bounds([_joined(*each) for _, *each in said], taken=1),
                context=inputs.encoder.context,
                taken=1,
                by="token that begins them",
                names=[name for name, *_ in said],
            )

    def work(self, inputs: Inputs) -> Work:
        """Count the tokens of sentences; scores need the head at every token."""
        tokens = {}
        for name, frame in inputs.items.items():
            said = [each for item in frame.iter_rows(named=True) for each in self.sentences(item)]
            mean = inputs.tokens.mean([_joined(*each) for each in sample(said)])
            tokens[name] = len(said) / max(1, frame.height) * mean
        return Work(runs=1, items=inputs.counted(), tokens=tokens, whole_head=True)

    def reader(self, context: ModelContext, store: Store) -> SentenceReader:
        """Load the causal or masked model with what scores sentences."""
        from raybias.engine.scoring.continuations import SentenceScorer
        from raybias.engine.scoring.masked import scored_loader

        return SentenceReader(SentenceScorer(context.backbone(scored_loader(context.spec))), self)


def _joined(context: str, sentence: str) -> str:
    return f"{context} {sentence}".strip() if context else sentence


@dataclass(frozen=True)
class SentenceReader(Reader):
    """Scores the sentences of items."""

    scorer: SentenceScorer
    method: SentenceMethod

    def prepare(self, run: None, items: pa.Table) -> Compute:
        """Pack sentences; return what computes rows of the method's table."""
        rows = items.to_pylist()
        said = [self.method.sentences(item) for item in rows]
        score: Callable[[], tuple[Sequence[float], int]] = self.scorer.prepare(
            [each for sentences in said for each in sentences]
        )

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
        """Say where scores are stored."""
        return OutputSpec("sentences", SENTENCE_SCORES, items=SENTENCE_ITEMS)

    def check_kind(self, backbone: Backbone, said: Sequence[tuple[str, str, str]]) -> None:
        """Refuse an encoder."""
        from raybias.engine.backbone import check_causal

        check_causal(backbone, f"method {self.name}")

    def sentences(self, item: Item) -> list[Said]:
        """Return the sentence."""
        return [("", item["text"])]

    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        """Make a row of its score."""
        return {**item, "log_prob": scores[0]}


@method
class TripleLikelihood(SentenceMethod):
    """Which of a stereotype, its opposite and an unrelated sentence a model prefers: StereoSet."""

    kind: Literal["triple_likelihood"] = "triple_likelihood"
    """Names the kind of method."""

    def output(self) -> OutputSpec:
        """Say where scores are stored."""
        return OutputSpec("triples", TRIPLE_SCORES, items=TRIPLES)

    def check_kind(self, backbone: Backbone, said: Sequence[tuple[str, str, str]]) -> None:
        """Refuse, for a masked model, sentences that fill in no word."""
        from raybias.engine.scoring.continuations import check_sentences

        check_sentences(backbone, said)

    def sentences(self, item: Item) -> list[Said]:
        """Return the three sentences."""
        return [(item["context"], item[name]) for name in _SENTENCES]

    def row(self, item: Item, scores: Sequence[float]) -> dict[str, Any]:
        """Make a row of their scores."""
        said = taken(item, "domain", "task", "term", "item_id")
        return said | dict(zip(_SENTENCES, scores, strict=True))
