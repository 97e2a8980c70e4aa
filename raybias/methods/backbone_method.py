"""What methods have in common whose replicas hold one backbone: the memory that reading takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from raybias.config.method import Method, Reads, StudyText
from raybias.methods.prediction import UntrainedRun

if TYPE_CHECKING:
    from raybias.config import Backbone
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
