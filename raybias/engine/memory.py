"""Estimate the memory of a model's passes from its shape, with the arithmetic shown.

A term is one line of a plan: name, arithmetic, bytes. Upper estimates; no weight is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

# Values that autograd keeps per token, layer and unit of width with frozen weights, without
# feed-forward and attention weights: 6.4 measured. CPUs add fragmentation and the plain product.
_KEPT_BESIDE: Final = {"cpu": 24, "gpu": 9}
# Tokens of the shortest text after which the next one is predicted; copies of its logits.
_SHORTEST: Final = 16
_LOGITS: Final = 3
# Values alive per token without gradients: per unit of width and of feed-forward width.
_ALIVE, _ALIVE_FEED_FORWARD = 8, 3
#: Copies of tuned weights: they, gradient, two AdamW moments and the best ones, float32.
TRAINING_COPIES: Final = 5
# Weights that DeepSpeed keeps gathered at most (stage3_max_live_parameters).
_LIVE = 10**9
#: Tokens of the longest sentence assumed in tuning.
LONGEST: Final = 128
# Python with torch, transformers and Ray, measured; on a GPU the CUDA context, not measured.
_PROCESS: Final = {"cpu": (700 * 2**20, "measured"), "gpu": (1200 * 2**20, "assumed")}
# Divisor of a GPU worker's memory: head-room for cuBLAS's buffers and fragmentation.
_HEADROOM: Final = 16


#: A number of the arithmetic, alone or with its format, such as "{:,} tokens".
Factor = float | tuple[float, str]


@dataclass(frozen=True)
class MemoryTerm:
    """One line of the arithmetic; `beside` marks memory beside the backbone's engine."""

    what: str
    arithmetic: str
    bytes: int
    beside: bool = False


def product(*factors: Factor) -> tuple[float, str]:
    """Multiply factors, and write them down."""
    pairs = [each if isinstance(each, tuple) else (each, "{}") for each in factors]
    written = " x ".join(text.format(number) for number, text in pairs)
    return math.prod(number for number, _ in pairs), written


def term(what: str, *factors: Factor, over: int = 1) -> MemoryTerm:
    """Multiply factors, and divide by `over`, the workers that share them."""
    count, arithmetic = product(*factors)
    return MemoryTerm(what, arithmetic + (f" / {over}" if over > 1 else ""), int(count) // over)


def added(*products: tuple[int, int], unit: str = "values") -> Factor:
    """Add up products of two numbers, as a factor in parentheses."""
    written = " + ".join(f"{one} x {other}" for one, other in products)
    return sum(one * other for one, other in products), f"({written}) {unit}"


def of_bytes(item: int) -> Factor:
    """Return the size of one value as a factor."""
    return item, "{} bytes"


def total(terms: Iterable[MemoryTerm]) -> int:
    """Add up the bytes of all terms."""
    return sum(each.bytes for each in terms)


def process(device: str) -> MemoryTerm:
    """Count a Python process with torch and Ray on a device, "cpu" or "gpu"."""
    what = "Python, torch, Ray" + (" and the CUDA context" if device == "gpu" else "")
    count, known = _PROCESS[device]
    return MemoryTerm(what, known, count)


def with_headroom(terms: tuple[MemoryTerm, ...], device: str) -> tuple[MemoryTerm, ...]:
    """Add what a GPU should have free; on CPUs Ray leaves it to the node."""
    if device == "cpu":
        return terms
    held = total(terms)
    return (*terms, MemoryTerm("head-room", f"{held:,} bytes / {_HEADROOM}", held // _HEADROOM))


def within_share(terms: tuple[MemoryTerm, ...], share: float) -> tuple[MemoryTerm, ...]:
    """Add the memory that lets the engine fit its fixed share of the GPU, and all else the rest."""
    beside = total(each for each in terms if each.beside)
    inside = total(terms) - beside
    engine, rest = math.ceil(inside / share), math.ceil(beside / (1 - share))
    what, has = (
        ("the engine", share) if engine >= rest else ("what is beside the engine", 1 - share)
    )
    more = max(engine, rest) - inside - beside
    return (*terms, MemoryTerm(f"so that {what} fits", f"in {has:.0%} of the GPU", more))


def weights(
    what: str, parameters: int, item: int, *, copies: int = 1, over: int = 1, beside: bool = False
) -> MemoryTerm:
    """Count weights of `item` bytes each, stored `copies` times, as the line `what`."""
    times = (copies,) if copies > 1 else ()
    made = term(what, (parameters, "{:,} parameters"), of_bytes(item), *times, over=over)
    return replace(made, beside=beside)


def host_memory(
    shape: ModelShape, *, device: str, item: int, partitions: int = 1
) -> tuple[MemoryTerm, ...]:
    """Count what a worker on a GPU takes of its node, weights shared by `partitions`; 0 on CPUs."""
    if device == "cpu":
        return ()
    loaded = weights("weights while they are loaded", shape.parameters, item, over=partitions)
    return loaded, process("cpu")


def training_weights(shape: ModelShape, partitions: int) -> tuple[MemoryTerm, ...]:
    """Count the frozen weights of a worker that tunes, sharded with ZeRO-3 over `partitions`."""
    item, every = shape.item, shape.parameters
    if partitions == 1:
        return (weights("weights", every, item),)
    live = min(every, _LIVE), "up to {:,}"
    return (
        weights("weights, sharded", every, item, over=partitions),
        term("weights gathered at a time", live, of_bytes(item)),
    )


def inference_weights(shape: ModelShape, partitions: int) -> tuple[MemoryTerm, ...]:
    """Count the weights of a worker that infers: only its blocks are sharded over `partitions`."""
    if partitions == 1:
        return training_weights(shape, 1)
    item, inside = shape.item, shape.block_parameters
    return (
        weights("weights of the blocks, sharded", inside, item, over=partitions),
        weights("embeddings and head", shape.parameters - inside, item),
        weights("blocks gathered at a time", inside, item, copies=2, over=max(2, shape.layers)),
    )


def training_activations(
    shape: ModelShape, tokens: int, item: int, device: str, *, frozen: bool = True
) -> tuple[MemoryTerm, MemoryTerm]:
    """Count the values that a pass with gradients over `tokens` keeps in all layers, and in one."""
    beside, inside = _KEPT_BESIDE[device], shape.kept
    if not frozen:
        # Every linear layer keeps its input for the gradient of its weight.
        beside, inside = 2 * beside, 2 * inside
    seen = min(shape.context or LONGEST, LONGEST)
    return (
        term(
            "activations kept for the backward pass",
            _tokens(tokens),
            (shape.layers, "{} layers"),
            added((beside, shape.hidden), (inside, shape.feed_forward), (shape.heads, seen)),
            of_bytes(item),
        ),
        activations(shape, tokens, item, "activations that a layer works on"),
    )


def activations(shape: ModelShape, tokens: int, item: int, what: str) -> MemoryTerm:
    """Count the values alive in a forward pass over `tokens`, as the line `what`."""
    alive = added((_ALIVE, shape.hidden), (_ALIVE_FEED_FORWARD, shape.feed_forward))
    return term(what, _tokens(tokens), alive, of_bytes(item))


def keys_and_values(shape: ModelShape, tokens: Factor, item: int, *, note: str = "") -> MemoryTerm:
    """Count the keys and values of `tokens` in all layers."""
    each = (shape.layers, "{} layers"), 2, shape.keys, of_bytes(item)
    return term(f"keys and values{note}", _tokens(tokens), *each)


def _tokens(count: Factor) -> Factor:
    return count if isinstance(count, tuple) else (count, "{:,} tokens")


def vocabulary_logits(shape: ModelShape, tokens: int) -> MemoryTerm:
    """Count logits of the whole vocabulary at the last token of each text in `tokens`."""
    rows, words = _tokens(tokens // _SHORTEST), (shape.vocabulary, "{:,}")
    return term("logits and what is made of them", rows, words, of_bytes(4), _LOGITS)
