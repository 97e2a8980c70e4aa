"""Estimate the memory of a model's passes from its shape, with the arithmetic shown.

Every term is one line of a plan: what it is, how it is counted, how many bytes. The counts are
upper estimates; no weight is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

# Values that autograd keeps per token, layer and unit of width beside those of the feed-forward
# part and of attention's weights, when the weights are frozen: 6.4 were measured. On a CPU what
# malloc cannot give back and attention's plain product come on top.
_KEPT_BESIDE: Final = {"cpu": 24, "gpu": 9}
# Tokens of the shortest text after which the next one is predicted; copies of its logits.
_SHORTEST: Final = 16
_LOGITS: Final = 3
# Values alive per token in a forward pass without gradients: per unit of width, and per unit of
# feed-forward width.
_ALIVE, _ALIVE_FEED_FORWARD = 8, 3
#: Copies of what is tuned: itself, its gradient, two AdamW moments and the best weights, float32.
TRAINING_COPIES: Final = 5
# Weights that DeepSpeed keeps gathered at most (stage3_max_live_parameters).
_LIVE = 10**9
#: Tokens of the longest sentence that tuning reckons with.
LONGEST: Final = 128
# Python with torch, transformers and Ray; on a GPU also the CUDA context.
_PROCESS_BYTES = {"cpu": 700 * 2**20, "gpu": 1200 * 2**20}


@dataclass(frozen=True)
class MemoryTerm:
    """One line of the arithmetic."""

    what: str
    arithmetic: str
    bytes: int


def total(terms: Iterable[MemoryTerm]) -> int:
    """Add up the bytes of all terms."""
    return sum(term.bytes for term in terms)


def process(device: str) -> MemoryTerm:
    """Count a Python process with torch and Ray on a device, "cpu" or "gpu"."""
    what = "Python, torch, Ray" + (" and the CUDA context" if device == "gpu" else "")
    return MemoryTerm(what, "measured", _PROCESS_BYTES[device])


def host_memory(
    shape: ModelShape, *, device: str, item: int, partitions: int = 1
) -> tuple[MemoryTerm, ...]:
    """Count what a worker on a GPU takes of its node's memory; one on CPUs has its all there.

    Parameters
    ----------
    item: bytes of one weight.
    partitions: workers that share the weights; 1 holds all of them.
    """
    if device == "cpu":
        return ()
    part = f" / {partitions}" if partitions > 1 else ""
    return (
        MemoryTerm(
            "weights while they are loaded",
            f"{shape.parameters:,} parameters x {item} bytes{part}",
            shape.parameters * item // partitions,
        ),
        process("cpu"),
    )


def training_weights(shape: ModelShape, partitions: int) -> tuple[MemoryTerm, ...]:
    """Count the frozen weights of a worker that tunes, sharded with ZeRO-3 over `partitions`."""
    item = shape.item
    counted = f"{shape.parameters:,} parameters x {item} bytes"
    if partitions == 1:
        return (MemoryTerm("weights", counted, shape.weight_bytes),)
    live = min(shape.parameters, _LIVE)
    return (
        MemoryTerm(
            "weights, sharded", f"{counted} / {partitions}", shape.weight_bytes // partitions
        ),
        MemoryTerm("weights gathered at a time", f"up to {live:,} x {item} bytes", live * item),
    )


def inference_weights(shape: ModelShape, partitions: int) -> tuple[MemoryTerm, ...]:
    """Count the weights of a worker that reads: only its blocks are sharded over `partitions`."""
    if partitions == 1:
        return training_weights(shape, 1)
    item, inside = shape.item, shape.block_parameters
    outside = shape.parameters - inside
    return (
        MemoryTerm(
            "weights of the blocks, sharded",
            f"{inside:,} parameters x {item} bytes / {partitions}",
            inside * item // partitions,
        ),
        MemoryTerm("embeddings and head", f"{outside:,} parameters x {item} bytes", outside * item),
        MemoryTerm(
            "blocks gathered at a time",
            f"2 of {shape.layers} blocks",
            2 * inside * item // max(2, shape.layers),
        ),
    )


def training_activations(
    shape: ModelShape, tokens: int, item: int, device: str, *, frozen: bool = True
) -> tuple[MemoryTerm, MemoryTerm]:
    """Count what a pass with gradients keeps in every layer, and what it works on in one.

    Parameters
    ----------
    tokens: of the pass.
    item: bytes of one value.
    frozen: whether the weights take no gradient.
    """
    beside, inside = _KEPT_BESIDE[device], shape.kept
    if not frozen:
        # Every linear layer keeps its input for the gradient of its weight.
        beside, inside = 2 * beside, 2 * inside
    seen = min(shape.context or LONGEST, LONGEST)
    values = beside * shape.hidden + inside * shape.feed_forward + shape.heads * seen
    return (
        MemoryTerm(
            "activations kept for the backward pass",
            f"{tokens:,} tokens x {shape.layers} layers x ({beside} x {shape.hidden} + {inside} x"
            f" {shape.feed_forward} + {shape.heads} x {seen}) values x {item} bytes",
            tokens * shape.layers * values * item,
        ),
        activations(shape, tokens, item, "activations that a layer works on"),
    )


def activations(shape: ModelShape, tokens: int, item: int, what: str) -> MemoryTerm:
    """Count the values alive in a forward pass over `tokens`, as the line `what`."""
    values = _ALIVE * shape.hidden + _ALIVE_FEED_FORWARD * shape.feed_forward
    return MemoryTerm(
        what,
        f"{tokens:,} tokens x ({_ALIVE} x {shape.hidden} + {_ALIVE_FEED_FORWARD} x"
        f" {shape.feed_forward}) values x {item} bytes",
        tokens * values * item,
    )


def keys_and_values(
    shape: ModelShape, tokens: int, item: int, *, copies: int = 1, note: str = ""
) -> MemoryTerm:
    """Count the keys and values of `tokens` in all layers, stored `copies` times."""
    return MemoryTerm(
        f"keys and values{note}",
        f"{tokens:,} tokens x {shape.layers} layers x 2 x {shape.keys} x {item} bytes"
        + (f" x {copies}" if copies > 1 else ""),
        tokens * shape.layers * 2 * shape.keys * item * copies,
    )


def vocabulary_logits(shape: ModelShape, tokens: int) -> MemoryTerm:
    """Count logits of the whole vocabulary at the last token of each text in `tokens`."""
    rows = tokens // _SHORTEST
    return MemoryTerm(
        "logits and what is made of them",
        f"{rows:,} tokens x {shape.vocabulary:,} x 4 bytes x {_LOGITS}",
        rows * shape.vocabulary * 4 * _LOGITS,
    )


def inference_memory(
    shape: ModelShape,
    *,
    tokens: int,
    device: str,
    partitions: int = 1,
    key_copies: int = 1,
    key_note: str = "",
    logits: bool = False,
) -> tuple[MemoryTerm, ...]:
    """Count a replica that reads `tokens` tokens at a time with the frozen backbone.

    Parameters
    ----------
    partitions: workers that share the weights; 1 holds all of them.
    key_copies, key_note: copies of keys and values, and a note on them; decoding keeps what it
        has read and copies it where rows are left out or go on.
    logits: whether logits of the whole vocabulary are needed.
    """
    item = shape.item
    return (
        *inference_weights(shape, partitions),
        activations(shape, tokens, item, "activations of the forward pass"),
        keys_and_values(shape, tokens, item, copies=key_copies, note=key_note),
        *([vocabulary_logits(shape, tokens)] if logits else []),
        process(device),
    )
