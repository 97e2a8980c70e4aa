"""What the runs of a method need, as data: the planner reads it, and asks the method nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raybias.config import Backbone
from raybias.methods.lengths import Widths

if TYPE_CHECKING:
    from raybias.engine.memory import Factor, MemoryTerm
    from raybias.engine.model_shape import ModelShape


class Asks(NamedTuple):
    """Prompts, their tokens, and the tokens that are written at most."""

    requests: float
    read: float
    written: float


@dataclass(frozen=True)
class Beside:
    """A model that workers load beside the backbone, and what it is to the method."""

    what: str
    spec: Backbone
    shape: ModelShape


class Held:
    """A line of a worker's memory, whatever the backbone and the pass.

    Parameters
    ----------
    what: it is.
    factors: of its bytes. A name stands for a size of the backbone (`ModelShape`), for `tokens` of
        a pass, or for the runs of a `pack`; with a text, for that number written so.
    """

    def __init__(self, what: str, *factors: Factor | str | tuple[str, str]) -> None:
        self.what, self.factors = what, factors

    def line(self, shape: ModelShape, *, tokens: int, pack: int) -> MemoryTerm:
        """Return the line for a backbone, a pass and a pack."""
        from raybias.engine.memory import term

        own = {
            **vars(shape),
            "item": shape.item,
            "mask": shape.item + 1,
            "tokens": tokens,
            "pack": pack,
        }
        return term(self.what, *(_factor(each, own) for each in self.factors))


def _factor(factor: Factor | str | tuple[str, str], sizes: Mapping[str, int]) -> Factor:
    """Look up what a name stands for."""
    if isinstance(factor, str):
        return sizes[factor]
    if isinstance(factor, tuple):
        number, text = factor
        return (sizes[number] if isinstance(number, str) else number), text
    return factor


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Tuning one backbone on one training set by one method."""

    factor: int = 4
    """FLOPs of a step for each parameter and token: 2 forwards, 2 for the gradients of activations,
    and 2 more where every weight has one."""
    sweep: int
    """Runs of the sweep; 0 where nothing is swept over."""
    final: int
    """Runs after it."""
    rows: int
    """Of one run's step."""
    length: float
    """Mean tokens of one."""
    widths: Widths
    """Of a step's rows in their batches."""
    every: int
    """Steps between evaluations."""
    first: int
    """The first step at which a run can stop."""
    last: int | None
    """The step after which it ends; None where nothing says."""
    checked: int
    """Rows of one evaluation."""
    checked_length: float
    """Mean tokens of one."""
    checked_widths: Widths
    """Of an evaluation's rows in their batches."""
    tested: int
    """Rows of the test split, which each run reads once at its end."""
    tested_length: float
    """Mean tokens of one."""
    launches: tuple[float, float] = (1.0, 0.0)
    """Launches of a block in units of a plain one's: of a pack, and for each of its runs."""
    moved: int = 0
    """Bytes that the optimizer reads and writes for each of the backbone's parameters."""
    most: int | None = None
    """Runs that can share a step; None for any number."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the runs of a method on one backbone need."""

    runs: int
    """That read the probes, of all training sets."""
    items: Mapping[str, int]
    """Of each probe that is read."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Mean tokens that one run reads and writes for an item of each probe."""
    asks: Mapping[str, Asks] = field(default_factory=dict)
    """What one run asks of a provider for an item of each probe, in the mean."""
    new_tokens: int = 0
    """Most tokens that are written after one prompt."""
    whole_head: bool = False
    """Whether each token is multiplied by embeddings and head too, not by the blocks alone."""
    holds_backbone: bool = True
    """Whether a replica loads the backbone."""
    vocabulary: bool = True
    """Whether logits of the whole vocabulary are needed."""
    key_copies: int = 1
    """Copies of a batch's keys and values; decoding makes them where rows are left out."""
    beside: tuple[Beside, ...] = ()
    """Models that workers load beside the backbone."""
    can_shard: bool = True
    """Whether workers can share the backbone with ZeRO-3."""
    item: int | None = None
    """Bytes of one weight; the backbone's by default."""
    copies: int = 1
    """Of all weights that a replica holds, tuned models counted."""
    tuning: Mapping[str, Tuning] = field(default_factory=dict)
    """By training set, where it tunes."""
    frozen: bool = True
    """Whether the backbone's weights stay as they are."""
    step: int = 0
    """Rows of a step that no token budget cuts."""
    held: tuple[Held, ...] = ()
    """What a worker that tunes holds beside weights and activations."""

    def parameters(self, shape: ModelShape) -> int:
        """Return the parameters that one token is multiplied by."""
        own = shape.parameters if self.whole_head else shape.block_parameters
        return own + sum(each.shape.block_parameters for each in self.beside)

    def weight_bytes(self, shape: ModelShape) -> int:
        """Return the bytes of one weight of the backbone."""
        return self.item or shape.item

    def reading_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a replica that reads `tokens` tokens at a time.

        Parameters
        ----------
        device: "cpu" or "gpu".
        partitions: workers that share the weights; 1 holds all of them.
        """
        from raybias.engine import memory

        if not self.holds_backbone:
            return (memory.process(device),)
        item, held = self.weight_bytes(shape), memory.inference_weights(shape, partitions)
        if self.copies > 1:
            what = "weights of the backbone and of tuned models"
            held = (memory.weights(what, shape.parameters, item, copies=self.copies),)
        note = ", decoded tokens too" if self.new_tokens else ""
        return (
            *held,
            memory.activations(shape, tokens, item, "activations of the forward pass"),
            memory.keys_and_values(shape, tokens, item, copies=self.key_copies, note=note),
            *([memory.vocabulary_logits(shape, tokens)] if self.vocabulary else []),
            memory.process(device),
            *(
                memory.weights(
                    f"weights of {each.what}", each.shape.parameters, each.shape.item, beside=True
                )
                for each in self.beside
            ),
        )

    def tuning_memory(
        self, shape: ModelShape, *, pack: int, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a worker that tunes `pack` runs together.

        Parameters
        ----------
        tokens: of one forward and backward pass.
        device, partitions: as for `reading_memory`.
        """
        from raybias.engine import memory

        item, held = self.weight_bytes(shape), memory.training_weights(shape, partitions)
        if not self.frozen:
            what = "pretrained weights, the run's, gradients, AdamW, best"
            copies = memory.TRAINING_COPIES + 1
            held = (memory.weights(what, shape.parameters, item, copies=copies),)
        longest = min(shape.context or memory.LONGEST, memory.LONGEST)
        kept = max(tokens, self.step * longest)
        return (
            *held,
            *memory.training_activations(shape, kept, item, device, frozen=self.frozen),
            *(each.line(shape, tokens=tokens, pack=pack) for each in self.held),
            memory.process(device),
        )
