"""Have a backbone continue prompts that name groups, and a judge label the continuations.

BOLD (Dhamala et al. 2021) and Regard (Sheng et al. 2019) evaluate generation so. The answer of a
prediction is the continuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from raybias.config import Backbone
from raybias.config.section import Count
from raybias.engine.answers import Written
from raybias.methods.base import Inputs, method, predictions
from raybias.methods.judges import Judge, Judging, sized
from raybias.methods.prompted import Prompted
from raybias.methods.prompted_reader import PromptedReader, PromptedRun
from raybias.methods.prompts import without_thoughts
from raybias.methods.work import Beside, Work
from raybias.providers.base import answers_of

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.storage import Store

#: Characters that follow a word without a blank.
_JOINED: Final = ".,;:!?')-"


@method
class Continuation(Prompted):
    """What a model writes after prompts, labelled by a judge: BOLD and Regard."""

    kind: Literal["continuation"] = "continuation"
    """Names the kind of method."""
    template: str = "{text}"
    """The prompt for one item, without a blank at its end; a chat needs words that ask for it."""
    read: Literal["answer"] = "answer"
    """What is judged: a sampled answer."""
    answer_tokens: Count | None = Field(20, ge=1)
    """Most tokens of a continuation."""
    unparsed: Literal["invalid"] = "invalid"
    """What the judge cannot read, since it is empty or too long, has no label."""
    judge: Judge
    """What labels the continuations."""

    @property
    def judged_by(self) -> str:
        """What labels the texts that are written."""
        return self.judge.words

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        """The judge, where it is a classifier."""
        return self.judge.checkpoints

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the method with its judge pinned."""
        return self.model_copy(update={"judge": self.judge.pinned(revisions)})

    def answer_words(self, words: Sequence[str]) -> list[str]:
        """Return none: no label word follows a prompt."""
        return []

    def check_words(self, inputs: Inputs) -> None:
        """Accept any words: they are unused."""

    def check(self, inputs: Inputs) -> None:
        """Refuse an encoder, prompts without room to go on, and what cannot judge."""
        super().check(inputs)
        self.judge.check()

    def work(self, inputs: Inputs) -> Work:
        """Count prompts, with the judge of the texts."""
        beside = Beside("the judge", *sized(self.judge))
        return replace(super().work(inputs), beside=(beside,), can_shard=False)

    def reader(self, context: ModelContext, store: Store) -> ContinuationReader:
        """Load the backbone's answers, and the judge."""
        from raybias.engine.context import ON_CPU

        # An endpoint has no budget of tokens.
        execution = context.execution if context.execution.tokens_per_batch else ON_CPU
        judge = self.judge.loaded(execution)
        answers = answers_of(context, store)
        return ContinuationReader(self, answers, context.words, store, judge=judge)


@dataclass(frozen=True)
class ContinuationReader(PromptedReader):
    """Have the model continue prompts, and a judge label the continuations."""

    method: Continuation
    judge: Judging = field(kw_only=True)

    def labelled(
        self,
        run: PromptedRun,
        items: pa.Table,
        reasoned: Sequence[Written],
        written: Sequence[Written],
    ) -> pa.Table:
        """Label continuations by the judge; the one score is its verdict's probability."""
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        said = [without_thoughts(each.text) for each in written]
        verdicts = self.judge.verdicts(item_ids, [*map(self._judged, texts, said)])
        return predictions(
            items,
            scores=np.array([[each.score] for each in verdicts], np.float32),
            labels=[each.label for each in verdicts],
            parsed=[each.label is not None for each in verdicts],
            answers=[each.text for each in written],
        )

    def _judged(self, text: str, said: str) -> str:
        """Return the judge's input; an empty continuation has no verdict."""
        if self.method.judge.reads == "continuation" or not said.strip():
            return said.strip()
        # A chat's answer, and what a tokenizer decodes after a blank, begin without one.
        apart = not (said[0].isspace() or said[0] in _JOINED)
        return f"{text} {said}" if apart else text + said
