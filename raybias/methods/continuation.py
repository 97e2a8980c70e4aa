"""Have a backbone go on with prompts that name groups, and a judge label what it wrote.

So BOLD (Dhamala et al. 2021) and Regard (Sheng et al. 2019) are used on models that write. Rows are
predictions whose answer is the continuation and whose label is the judge's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field

from raybias.config.method import StudyText
from raybias.config.provider import Writing, preparing
from raybias.config.section import Count
from raybias.methods.asking import Asking
from raybias.methods.judges import Judge, Judging
from raybias.methods.prediction import Labelling, Prepared, PreparingLabelPredictor
from raybias.methods.prompted import Prompted
from raybias.methods.prompted_predictor import PromptedRun
from raybias.probes.prompts import without_thoughts
from raybias.providers.answering import answers_of
from raybias.registry import method

if TYPE_CHECKING:
    from collections.abc import Callable

    from raybias.config import Backbone
    from raybias.config.provider import Answers, Written
    from raybias.engine.context import ModelContext
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape
    from raybias.storage import Store


#: What stands behind a word without a blank.
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

    can_shard: ClassVar[bool] = False

    @property
    def judged_by(self) -> str:
        """What labels the texts that are written."""
        return self.judge.words

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        """The judge, where it is a classifier."""
        return self.judge.checkpoints

    @property
    def loaded_beside(self) -> Sequence[tuple[Backbone, int]]:
        """The judge's model."""
        return ((self.judge.model_read, self.judge.shape.weight_bytes),)

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the method with its judge pinned."""
        return self.model_copy(update={"judge": self.judge.pinned(revisions)})

    def located(self, local: Callable[[str], str]) -> Self:
        """Return the method with the judge's path made absolute."""
        return self.model_copy(update={"judge": self.judge.located(local)})

    def asking(self, encoder: Any) -> Asking:
        """Return what writes the prompts; no label word follows them."""
        return _Unlabelled(self, encoder)

    def check_label_words(self, words: Sequence[str]) -> None:
        """Take any words: none is looked for."""

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, prompts without room to go on, and what cannot judge."""
        super().check(backbone, text)
        self.judge.check()

    def inference_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a replica, which holds the judge too."""
        from raybias.engine.memory import weights

        own = super().inference_memory(shape, tokens=tokens, device=device, partitions=partitions)
        judge = self.judge.shape
        held = weights("weights of the judge", judge.parameters, judge.item)
        return (*own, replace(held, beside=True))

    def weights_per_token(self, shape: ModelShape) -> int:
        """Return the parameters that a token is multiplied by, those of the judge too."""
        return super().weights_per_token(shape) + self.judge.shape.block_parameters

    def predictor(self, context: ModelContext, store: Store) -> ContinuationJudge:  # type: ignore[override]
        """Load what answers for the backbone, and the judge beside it."""
        from raybias.engine.context import ON_CPU

        answers = answers_of(context, store)
        # An endpoint is asked by a process without a device, and without a budget of tokens.
        execution = context.execution if context.execution.tokens_per_batch else ON_CPU
        asking = self.asking(answers.encoder)
        judge = self.judge.loaded(execution)
        return ContinuationJudge(answers, self, asking, context.words, judge, store)


class _Unlabelled(Asking):
    """Prompts after which no label is looked up."""

    def label_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return no token."""
        return ()


@dataclass(frozen=True)
class ContinuationJudge(PreparingLabelPredictor):
    """Has prompts gone on with, and labels what was written."""

    answers: Answers
    method: Continuation
    asking: Asking
    words: Sequence[str]
    judge: Judging
    store: Store

    def load(self, run_id: str) -> PromptedRun:
        """Read the seed of a run."""
        return PromptedRun.read(self.store, run_id)

    def prepare_label(
        self, run: PromptedRun, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Prepared[Labelling]:
        """Write prompts; return what goes on with them, and labels each by the judge's verdict.

        Its one score is the verdict's probability.
        """
        write = preparing(self.answers).prepare_write(
            [self.asking.first(text, self.words) for text in texts],
            run.keys(item_ids, "answer"),
            Writing(self.method.answer_room, self.method.temperature, self.asking.chat),
        )
        return lambda: self._labelled(item_ids, texts, write())

    def _labelled(
        self, item_ids: Sequence[str], texts: Sequence[str], written: Sequence[Written]
    ) -> Labelling:
        said = [without_thoughts(each.text) for each in written]
        verdicts = self.judge.verdicts(item_ids, [*map(self._judged, texts, said)])
        return Labelling(
            logits=np.array([[each.score] for each in verdicts], np.float32),
            labels=[each.label for each in verdicts],
            parsed=[each.label is not None for each in verdicts],
            texts=[each.text for each in written],
            tokens=sum(each.tokens for each in written),
        )

    def _judged(self, text: str, said: str) -> str:
        """Return what the judge reads; an empty continuation has no verdict."""
        if self.method.judge.reads == "continuation" or not said.strip():
            return said.strip()
        # A chat's answer, and what a tokenizer decodes after a blank, begin without one.
        apart = not (said[0].isspace() or said[0] in _JOINED)
        return f"{text} {said}" if apart else text + said
