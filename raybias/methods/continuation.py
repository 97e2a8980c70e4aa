"""Have a backbone continue prompts that name groups, and a judge label the continuations.

BOLD (Dhamala et al. 2021) and Regard (Sheng et al. 2019) evaluate generation so, with a classifier
as the judge (`methods.judge`), and HONEST (Nozza et al. 2021) with a lexicon. The answer of a
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
from raybias.engine.answers import without_thoughts
from raybias.methods.base import Inputs, Run, method, predictions
from raybias.methods.judge import Judge, Judging, sized
from raybias.methods.label_prompts import PromptedReader, Reply
from raybias.methods.prompted import Prompted
from raybias.methods.work import Beside, Work
from raybias.providers.base import answers_of
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext

#: Characters that follow a word without a blank.
_JOINED: Final = ".,;:!?')-"


@method
class Continuation(Prompted):
    """What a model writes after prompts, labelled by a judge: BOLD, Regard and HONEST."""

    kind: Literal["continuation"] = "continuation"
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
        judge = self.judge
        if judge.lexicon:
            return f"the words of {judge.lexicon}"
        return f"run {judge.run} of {judge.model}" if judge.run else judge.model

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        # A run has a fingerprint instead, and a lexicon a sha256.
        is_model = not (self.judge.run or self.judge.lexicon)
        return {"judge": self.judge.spec()} if is_model else {}

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        return self.model_copy(update={"judge": self.judge.pinned(revisions)})

    def answer_words(self, words: Sequence[str]) -> list[str]:
        return []

    def check(self, inputs: Inputs) -> None:
        super().check(inputs)
        self.judge.check(inputs.labels)

    def check_weights(self, inputs: Inputs) -> Sequence[str]:
        return (*super().check_weights(inputs), *self.judge.check_weights())

    def runs(self, inputs: Inputs) -> list[Run]:
        """List one run for each seed, with its sampling and its judge."""
        # Statistics of draws need to know what the verdict's probability says of other labels.
        known = {"judge_labels": self.judge.class_labels(inputs.labels)}
        return [replace(run, recipe={**run.recipe, **known}) for run in super().runs(inputs)]

    def work(self, inputs: Inputs) -> Work:
        work = super().work(inputs)
        if self.judge.lexicon:
            return work
        beside = Beside("the judge", *sized(self.judge))
        return replace(work, beside=(beside,), can_shard=False)

    def reader(self, context: ModelContext, store: Store) -> ContinuationReader:
        from raybias.engine.context import ON_CPU

        # An endpoint has no budget of tokens.
        execution = context.execution if context.execution.tokens_per_batch else ON_CPU
        judge = self.judge.loaded(execution, context.labels)
        answers = answers_of(context, store)
        return ContinuationReader(self, answers, context.words, store, judge=judge)


@dataclass(frozen=True)
class ContinuationReader(PromptedReader):
    """Have the model continue prompts, and a judge label the continuations."""

    method: Continuation
    judge: Judging = field(kw_only=True)

    def labelled(self, run: Run, items: pa.Table, replies: Sequence[Reply]) -> pa.Table:
        """Label continuations by the judge; the one score is its verdict's probability."""
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        written = [each.text for _, each in replies]
        said = [without_thoughts(each) for each in written]
        verdicts = self.judge(item_ids, [*map(self._judged, texts, said)])
        return predictions(
            items,
            scores=np.array([[each.score] for each in verdicts], np.float32),
            labels=[each.label for each in verdicts],
            parsed=[each.label is not None for each in verdicts],
            unread=[
                "filtered" if each.finish_reason == "content_filter" else None
                for _, each in replies
            ],
            answers=written,
        )

    def _judged(self, text: str, said: str) -> str:
        """Return the judge's input; an empty continuation has no verdict."""
        if self.method.judge.reads == "continuation" or not said.strip():
            return said.strip()
        # A chat's answer, and what a tokenizer decodes after a blank, begin without one.
        apart = not (said[0].isspace() or said[0] in _JOINED)
        return f"{text} {said}" if apart else text + said
