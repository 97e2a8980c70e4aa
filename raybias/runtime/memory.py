"""How much memory a worker needs, with the arithmetic shown.

Every share is one line of a plan: what it is, how it is counted, how much. The
counts are upper estimates from a model's shape; no weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raybias.runtime.inventory import size

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelShape

# Values that autograd keeps per token, layer and unit of width when the weights
# are frozen; 10.4 for OPT and 14.4 for LLaMA were measured, and a layer works on more.
_KEPT_FOR_BACKWARD = 17
# Values alive per token and unit of width in a forward pass without gradients.
_ALIVE_IN_FORWARD = 16
# delta, its gradient, two AdamW moments and the best weights, all float32.
_PROMPT_COPIES = 5
# Python with torch, transformers and Ray; on a GPU also the CUDA context.
_PROCESS_BYTES = {"cpu": 700 * 2**20, "gpu": 1200 * 2**20}


@dataclass(frozen=True)
class Share:
    """One line of the arithmetic."""

    what: str
    arithmetic: str
    bytes: int


def total(shares: tuple[Share, ...]) -> int:
    """Bytes of all shares."""
    return sum(share.bytes for share in shares)


def tuning_shares(
    shape: ModelShape,
    *,
    pack: int,
    prompt_length: int,
    tokens: int,
    device: str,
    partitions: int = 1,
) -> tuple[Share, ...]:
    """The memory of a worker that tunes `pack` prompts.

    Parameters
    ----------
    tokens: of one forward and backward pass.
    device: "cpu" or "gpu".
    partitions: workers that the weights are sharded over; 1 holds all of them.
    """
    item = shape.weight_bytes // shape.parameters
    kept = tokens * shape.layers * shape.hidden * _KEPT_FOR_BACKWARD * item
    state = pack * prompt_length * shape.width * 4 * _PROMPT_COPIES
    cached = pack * prompt_length * shape.layers * 2 * shape.hidden * item
    return (
        *_weights(shape, partitions),
        Share(
            "activations kept for the backward pass",
            f"{tokens:,} tokens x {shape.layers} layers x {shape.hidden} wide"
            f" x {_KEPT_FOR_BACKWARD} values x {item} bytes",
            kept,
        ),
        Share(
            "keys and values of the prompts",
            f"{pack} x {prompt_length} vectors x {shape.layers} layers x 2 x {shape.hidden}"
            f" x {item} bytes",
            cached,
        ),
        Share(
            "prompts, gradients, AdamW, best",
            f"{pack} x {prompt_length} x {shape.width} x 4 bytes x {_PROMPT_COPIES}",
            state,
        ),
        _process(device),
    )


def scoring_shares(shape: ModelShape, *, tokens: int, device: str) -> tuple[Share, ...]:
    """The memory of a replica that scores `tokens` tokens at a time."""
    item = shape.weight_bytes // shape.parameters
    return (
        *_weights(shape, 1),
        Share(
            "activations of the forward pass",
            f"{tokens:,} tokens x {shape.hidden} wide x {_ALIVE_IN_FORWARD} values x {item} bytes",
            tokens * shape.hidden * _ALIVE_IN_FORWARD * item,
        ),
        Share(
            "keys and values",
            f"{tokens:,} tokens x {shape.layers} layers x 2 x {shape.hidden} x {item} bytes",
            tokens * shape.layers * 2 * shape.hidden * item,
        ),
        _process(device),
    )


def _weights(shape: ModelShape, partitions: int) -> tuple[Share, ...]:
    item = shape.weight_bytes // shape.parameters
    counted = f"{shape.parameters:,} parameters x {item} bytes"
    if partitions == 1:
        return (Share("weights", counted, shape.weight_bytes),)
    return (
        Share("weights, sharded", f"{counted} / {partitions}", shape.weight_bytes // partitions),
        Share(
            "layers gathered at a time",
            f"3 of {shape.layers} layers of {size(shape.weight_bytes)}",
            3 * shape.weight_bytes // max(3, shape.layers),
        ),
    )


def _process(device: str) -> Share:
    what = "Python, torch, Ray" + (" and the CUDA context" if device == "gpu" else "")
    return Share(what, "measured", _PROCESS_BYTES[device])
