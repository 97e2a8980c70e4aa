"""What methods have in common whose replicas hold one backbone: memory, and prompts or chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from raybias.config.method import Method, Reads, StudyText
from raybias.config.profiles import Profile, by_profile
from raybias.methods.asking import PromptFormat
from raybias.methods.prediction import UntrainedRun

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.config.data import Ability
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape


class BackboneMethod(Method):
    """What methods have in common whose replicas hold one backbone."""

    reads_vocabulary: ClassVar[bool] = True
    """Whether logits of the whole vocabulary are needed."""
    key_copies: ClassVar[int] = 1
    """Copies of a batch's keys and values; decoding makes them where rows are left out."""

    def inference_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a replica; see `Method.inference_memory`."""
        from raybias.engine.memory import inference_memory

        return inference_memory(
            shape,
            tokens=tokens,
            device=device,
            partitions=partitions,
            key_copies=self.key_copies,
            key_note=", decoded tokens too" if self.new_tokens else "",
            logits=self.reads_vocabulary,
        )


class _OneRun(BackboneMethod):
    """What methods have in common that draw nothing."""

    def untrained_runs(
        self, backbone: Backbone, text: StudyText, training: Sequence[str]
    ) -> list[UntrainedRun]:
        """List its one run."""
        return [UntrainedRun(f"{backbone.name}.none.{self.name}")]


class PairMethod(_OneRun):
    """What methods have in common that read pairs and draw nothing."""

    reads: ClassVar[Reads] = "pairs"


class QuestionMethod(_OneRun):
    """What methods have in common that read questions, triples or decisions and draw nothing."""

    reads: ClassVar[Reads] = "questions"


class AskedMethod(_OneRun):
    """What methods have in common that ask in plain text or in chats and draw nothing."""

    prompt_format: Literal["raw", "chat", "auto"] = by_profile(paper="raw", strict="auto")
    """Prompts as plain text (raw), or as messages in the tokenizer's own chat template, where a
    prompt's cue begins the model's turn (chat); auto is chat where the tokenizer has one."""

    @model_validator(mode="after")
    def _says_it_in_a_chat(self) -> Self:
        if self.system and self.prompt_format == "raw":
            raise ValueError("a system message is for prompt_format: chat or auto")
        return self

    @property
    def system(self) -> str:
        """A system message, if there is any."""
        return ""

    def form(self, encoder: TextEncoder) -> PromptFormat:
        """Return what writes prompts as the backbone of a tokenizer reads them."""
        return PromptFormat(self, encoder)

    def fit(self, backbone: Backbone, profile: Profile) -> Self:
        """Return the method with the form of its prompts on a backbone.

        Raises
        ------
        ConfigError: it asks for chats, and there are none.
        ModelError: the tokenizer cannot be read.
        """
        from raybias.engine.backbone import load_tokenizer

        chat = self.form(load_tokenizer(backbone)).chat
        return self.model_copy(update={"prompt_format": "chat" if chat else "raw"})

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        """Ask for chats or plain text."""
        return PromptFormat.needed(self, offered)
