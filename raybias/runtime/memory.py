"""How much memory a worker needs, with the arithmetic shown.

Every share is one line of a plan: what it is, how it is counted, how much. The
counts are upper estimates from a model's shape; no weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.config import (
    ChainOfThought,
    Coreference,
    Full,
    Lora,
    Method,
    PairScore,
    Prompted,
    Rewriting,
    SoftPrompt,
    Tuned,
)
from raybias.runtime.shards import CHUNK_ROWS

if TYPE_CHECKING:
    from raybias.engine.shape import ModelShape

# Values that autograd keeps per token, layer and unit of width beside those of the feed-forward
# part and of attention's weights, when the weights are frozen: 6.4 were measured. On a CPU what
# malloc cannot give back and attention's plain product come on top.
_KEPT_BESIDE: Final = {"cpu": 24, "gpu": 9}
# Values per input and output of each layer that LoRA adapts: the input and its mask, float32.
_KEPT_BY_FACTORS: Final = 1.1
# Tokens of the shortest text behind which the next one is asked for; copies of its logits.
_SHORTEST: Final = 16
_LOGITS: Final = 3
# Values alive per token in a forward pass without gradients: per unit of width, and per unit of
# feed-forward width.
_ALIVE, _ALIVE_FEED_FORWARD = 8, 3
# What is tuned, its gradient, two AdamW moments and the best weights, all float32.
_COPIES = 5
# Weights that DeepSpeed keeps gathered at most (stage3_max_live_parameters).
_LIVE = 10**9
#: Fully tuned models that a replica keeps beside the backbone.
MODELS_PER_REPLICA = 2
# Tokens of the longest sentence that full fine-tuning reckons with.
_LONGEST = 128
# Tokens of the shortest sentence, with its instruction, that rewriting reckons with.
_SHORTEST_REWRITTEN: Final = 8
# Copies of the logits that a draw holds.
_DRAWN_FROM: Final = 6
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
    method: Tuned,
    *,
    pack: int,
    tokens: int,
    device: str,
    partitions: int = 1,
) -> tuple[Share, ...]:
    """The memory of a worker that tunes `pack` runs of a method together.

    Parameters
    ----------
    tokens: of one forward and backward pass.
    device: "cpu" or "gpu".
    partitions: workers that the weights are sharded over; 1 holds all of them.
    """
    if isinstance(method, Full):
        return _full_shares(shape, method, tokens=tokens, device=device)
    item = shape.item
    return (
        *_weights(shape, partitions),
        *_activations(shape, tokens, item, device),
        *(
            _prompt_shares(shape, method, pack, item)
            if isinstance(method, SoftPrompt)
            else _factor_shares(shape, method, pack, tokens)
        ),
        _process(device),
    )


def host_shares(
    shape: ModelShape, *, device: str, item: int, partitions: int = 1
) -> tuple[Share, ...]:
    """The memory of its node that a worker on a GPU takes; one on CPUs has its all there."""
    if device == "cpu":
        return ()
    part = f" / {partitions}" if partitions > 1 else ""
    return (
        Share(
            "weights while they are loaded",
            f"{shape.parameters:,} parameters x {item} bytes{part}",
            shape.parameters * item // partitions,
        ),
        _process("cpu"),
    )


def _activations(
    shape: ModelShape, tokens: int, item: int, device: str, *, frozen: bool = True
) -> list[Share]:
    """What a pass with gradients keeps in every layer, and what it works on in one."""
    beside, own = _KEPT_BESIDE[device], shape.kept
    if not frozen:
        # Every linear layer keeps its input for the gradient of its weight.
        beside, own = 2 * beside, 2 * own
    seen = min(shape.context or _LONGEST, _LONGEST)
    values = beside * shape.hidden + own * shape.feed_forward + shape.heads * seen
    return [
        Share(
            "activations kept for the backward pass",
            f"{tokens:,} tokens x {shape.layers} layers x ({beside} x {shape.hidden} + {own} x"
            f" {shape.feed_forward} + {shape.heads} x {seen}) values x {item} bytes",
            tokens * shape.layers * values * item,
        ),
        _alive(shape, tokens, item, "activations that a layer works on"),
    ]


def _alive(shape: ModelShape, tokens: int, item: int, what: str) -> Share:
    values = _ALIVE * shape.hidden + _ALIVE_FEED_FORWARD * shape.feed_forward
    return Share(
        what,
        f"{tokens:,} tokens x ({_ALIVE} x {shape.hidden} + {_ALIVE_FEED_FORWARD} x"
        f" {shape.feed_forward}) values x {item} bytes",
        tokens * values * item,
    )


def _prompt_shares(
    shape: ModelShape, method: SoftPrompt, pack: int, item: int
) -> tuple[Share, ...]:
    length = method.prompt_length
    return (
        Share(
            "keys and values of the prompts",
            f"{pack} x {length} vectors x {shape.layers} layers x 2 x {shape.keys} x {item} bytes",
            pack * length * shape.layers * 2 * shape.keys * item,
        ),
        Share(
            "prompts, gradients, AdamW, best",
            f"{pack} x {length} x {shape.width} x 4 bytes x {_COPIES}",
            pack * length * shape.width * 4 * _COPIES,
        ),
    )


def _factor_shares(shape: ModelShape, method: Tuned, pack: int, tokens: int) -> tuple[Share, ...]:
    rank, widths = (method.rank if isinstance(method, Lora) else 0), shape.linear_widths
    return (
        Share(
            "inputs of the factors, kept too",
            f"{tokens:,} tokens x {widths:,} inputs and outputs x {_KEPT_BY_FACTORS:g} x 4 bytes",
            int(tokens * widths * _KEPT_BY_FACTORS * 4),
        ),
        Share(
            "factors, gradients, AdamW, best",
            f"{pack} x rank {rank} x {widths:,} inputs and outputs x 4 bytes x {_COPIES}",
            pack * rank * widths * 4 * _COPIES,
        ),
    )


def _full_shares(shape: ModelShape, method: Full, *, tokens: int, device: str) -> tuple[Share, ...]:
    # A step is one pass over its batch, which the token budget does not cut.
    step = max(tokens, method.batch_size * min(shape.context or _LONGEST, _LONGEST))
    return (
        Share(
            "pretrained weights, the run's, gradients, AdamW, best",
            f"{shape.parameters:,} parameters x 4 bytes x {_COPIES + 1}",
            shape.parameters * 4 * (_COPIES + 1),
        ),
        *_activations(shape, step, 4, device, frozen=False),
        _process(device),
    )


def scoring_shares(
    shape: ModelShape, method: Method, *, tokens: int, device: str, partitions: int = 1
) -> tuple[Share, ...]:
    """The memory of a replica that reads `tokens` tokens at a time with a method.

    `partitions` are the workers that the weights are sharded over; 1 holds all of them.
    """
    item = weight_item(shape, method)
    # Decoding keeps what it has read and copies it where rows are left out or go on; other
    # passes hold a layer's keys and values at a time, and are counted alike.
    again = 1 + 2 * isinstance(method, ChainOfThought | Coreference)
    read = "keys and values" + (
        ", decoded tokens too" if isinstance(method, Prompted | Coreference) else ""
    )
    return (
        *_held(shape, method, partitions),
        _alive(shape, tokens, item, "activations of the forward pass"),
        Share(
            read,
            f"{tokens:,} tokens x {shape.layers} layers x 2 x {shape.keys} x {item} bytes"
            + (f" x {again}" if again > 1 else ""),
            tokens * shape.layers * 2 * shape.keys * item * again,
        ),
        *_logits(shape, method, tokens),
        _process(device),
    )


def _logits(shape: ModelShape, method: Method, tokens: int) -> list[Share]:
    """Logits of the whole vocabulary, which few methods need, and at few tokens."""
    if not isinstance(method, Prompted | PairScore | Coreference):
        return []
    rows = tokens // _SHORTEST
    return [
        Share(
            "logits and what is made of them",
            f"{rows:,} tokens x {shape.vocabulary:,} x 4 bytes x {_LOGITS}",
            rows * shape.vocabulary * 4 * _LOGITS,
        )
    ]


def weight_item(shape: ModelShape, method: Method | Tuned) -> int:
    """Bytes of one weight under a method: full fine-tuning needs float32."""
    return 4 if isinstance(method, Full) else shape.item


def _held(shape: ModelShape, method: Method, partitions: int) -> tuple[Share, ...]:
    """The weights that a reader holds."""
    if isinstance(method, Full):
        return (
            Share(
                "weights of the backbone and of tuned models",
                f"{shape.parameters:,} parameters x 4 bytes x {1 + MODELS_PER_REPLICA}",
                shape.parameters * 4 * (1 + MODELS_PER_REPLICA),
            ),
        )
    if partitions == 1:
        return _weights(shape, 1)
    item, inside = shape.item, shape.block_parameters
    outside = shape.parameters - inside
    return (
        Share(
            "weights of the blocks, sharded",
            f"{inside:,} parameters x {item} bytes / {partitions}",
            inside * item // partitions,
        ),
        Share("embeddings and head", f"{outside:,} parameters x {item} bytes", outside * item),
        Share(
            "blocks gathered at a time",
            f"2 of {shape.layers} blocks",
            2 * inside * item // max(2, shape.layers),
        ),
    )


def rewriting_shares(
    shape: ModelShape, judge: ModelShape, options: Rewriting, *, tokens: int, device: str
) -> tuple[Share, ...]:
    """The memory of an actor that rewrites `tokens` tokens of sentences at a time.

    Parameters
    ----------
    shape, judge: of the checkpoint and of what decides on adequacy.
    """
    rows = min(tokens // _SHORTEST_REWRITTEN, 2 * CHUNK_ROWS) * options.candidates
    held = rows * options.max_length + tokens * options.candidates
    alive = [_alive(each, tokens, each.item, "activations") for each in (shape, judge)]
    return (
        Share(
            "weights of the checkpoint",
            f"{shape.parameters:,} parameters x {shape.item} bytes",
            shape.weight_bytes,
        ),
        Share(
            "weights of the judge",
            f"{judge.parameters:,} parameters x {judge.item} bytes",
            judge.weight_bytes,
        ),
        max(alive, key=lambda share: share.bytes),
        Share(
            "keys and values, written and read",
            f"({rows:,} candidates x {options.max_length} + {tokens:,} x {options.candidates})"
            f" tokens x {shape.layers} layers x 2 x {shape.keys} x {shape.item} bytes",
            held * shape.layers * 2 * shape.keys * shape.item,
        ),
        Share(
            "logits and what is drawn from",
            f"{rows:,} candidates x {shape.vocabulary:,} words x 4 bytes x {_DRAWN_FROM}",
            rows * shape.vocabulary * 4 * _DRAWN_FROM,
        ),
        _process(device),
    )


def _weights(shape: ModelShape, partitions: int) -> tuple[Share, ...]:
    item = shape.item
    counted = f"{shape.parameters:,} parameters x {item} bytes"
    if partitions == 1:
        return (Share("weights", counted, shape.weight_bytes),)
    live = min(shape.parameters, _LIVE)
    return (
        Share("weights, sharded", f"{counted} / {partitions}", shape.weight_bytes // partitions),
        Share("weights gathered at a time", f"up to {live:,} x {item} bytes", live * item),
    )


def _process(device: str) -> Share:
    what = "Python, torch, Ray" + (" and the CUDA context" if device == "gpu" else "")
    return Share(what, "measured", _PROCESS_BYTES[device])
