"""Have a backbone reason about a text before it is asked for the label (004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raybias.config.method import StudyText
from raybias.methods.prompted import Prompted, PromptedPredictor, PromptedRun, Shot
from raybias.probes import prompts
from raybias.registry import method

if TYPE_CHECKING:
    from raybias.engine.generation import Generated


@method
class ChainOfThought(Prompted):
    """Reasoning first, then an answer to it (004)."""

    kind: Literal["cot"] = "cot"
    """Names the kind of method."""
    reasoning_tokens: int = Field(64, ge=1)
    """Most tokens of the reasoning."""

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return f"its own reasoning, at most {self.reasoning_tokens} tokens"

    def prompt(self, text: str, shots: Sequence[Shot], words: Sequence[str]) -> str:
        """Write the prompt for the reasoning."""
        return prompts.reasoning_prompt(text)

    def ask(
        self,
        predictor: PromptedPredictor,
        run: PromptedRun,
        item_ids: Sequence[str],
        texts: Sequence[str],
        asked: list[list[int]],
    ) -> tuple[list[Generated], list[Generated]]:
        """Sample reasonings, and answers to the question that follows each."""
        from raybias.engine.generation import Followup

        writer = predictor.writer

        def conclusions(numbers: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[list[int]]:
            reasonings = zip(numbers, map(predictor.decode, tokens), strict=True)
            return writer.backbone.encode(
                [prompts.conclusion_prompt(texts[n], reasoning) for n, reasoning in reasonings]
            )

        return writer.generate_twice(
            asked,
            run.keys(item_ids, "reasoning"),
            then=Followup(conclusions, run.keys(item_ids, "answer"), self.answer_tokens),
            sampling=predictor.sampling,
            max_new_tokens=self.reasoning_tokens,
            label_ids=predictor.label_ids,
        )

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_tokens + self.reasoning_tokens

    @property
    def _key_copies(self) -> int:
        return 3

    def _later_tokens(self, text: StudyText) -> int:
        ending = prompts.conclusion_prompt("", "").removeprefix(prompts.reasoning_prompt(""))
        return len(text.encoder.encode([ending])[0])
