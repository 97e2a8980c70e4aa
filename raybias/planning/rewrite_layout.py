"""Count the replicas that rewrite pairs in a style, and what each holds in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from raybias.config import Rewriting
from raybias.engine.memory import MemoryTerm, activations, host_memory, process, total
from raybias.errors import PlanError
from raybias.planning.inventory import size
from raybias.planning.layout import LayoutPlanner
from raybias.planning.placement import ResourceRequest, places, requests
from raybias.planning.shards import CHUNK_ROWS
from raybias.planning.stage_plans import RewritePlan

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

# Tokens of the shortest sentence, with its instruction, that rewriting reckons with.
_SHORTEST_REWRITTEN: Final = 8
# Copies of the logits that a draw holds.
_DRAWN_FROM: Final = 6
# The fewest tokens of sentences that are worth rewriting at once.
_FEWEST_TOKENS: Final = 64
# All candidates of a batch are decoded until the last has ended; on a CPU, which small batches
# fill, more is lost time.
_MOST_ON_CPU: Final = 512


def rewriting_plan(
    room: LayoutPlanner, style: str, options: Rewriting, judge: ModelShape, pairs: Mapping[str, int]
) -> RewritePlan:
    """Choose replicas and chunks for all probes in one style.

    Parameters
    ----------
    room: of the checkpoint.
    options: resolved.
    pairs: of each probe.

    Raises
    ------
    PlanError: no node holds one replica at the smallest token budget.
    """
    host = host_memory(room.shape, device=room.on, item=room.shape.item)

    def shares(tokens: int) -> tuple[MemoryTerm, ...]:
        return _rewriting_memory(room.shape, judge, options, tokens=tokens, device=room.on)

    def need(tokens: int) -> ResourceRequest:
        held = total(shares(tokens))
        memory = {"device": held, "host": total(host)} if room.gpus else {"host": held}
        return ResourceRequest(cpus=room.cpus, gpus=room.gpus, **memory)

    asked = room.study.resources.tokens_per_batch
    tokens = asked if room.gpus else min(asked, _MOST_ON_CPU)
    fewest = min(tokens, _FEWEST_TOKENS)
    while not (found := places(room.nodes, need(tokens))).count or (
        total(shares(tokens)) > room.device_memory
    ):
        tokens //= 2
        if tokens < fewest:
            raise PlanError(
                f"{room.backbone}, which makes the style {style!r}, needs"
                f" {size(total(shares(fewest)))} with its judge at the smallest token budget, and"
                f" one device has {size(room.device_memory)}",
                where=str(room.inventory),
                cure="draw fewer candidates, use bfloat16 or a smaller checkpoint, or larger"
                " devices",
            )
    chunks = sum(math.ceil(rows / CHUNK_ROWS) for rows in pairs.values())
    replicas = min(found.count, chunks)
    return RewritePlan(
        backbone=room.backbone,
        style=style,
        judge=options.adequacy.spec().name,
        paired=options.paired,
        replicas_max=replicas,
        threads=room.cpus,
        gpus=room.gpus,
        tokens_per_batch=tokens,
        pairs=pairs,
        chunks=chunks,
        memory=shares(tokens),
        host=host,
        device_memory=found.device_memory,
        requests=requests(found),
        pending=found.pending(replicas),
    )


def _rewriting_memory(
    shape: ModelShape, judge: ModelShape, options: Rewriting, *, tokens: int, device: str
) -> tuple[MemoryTerm, ...]:
    """Count the memory of a replica that rewrites `tokens` tokens of sentences at a time.

    Parameters
    ----------
    shape, judge: of the checkpoint and of what decides on adequacy.
    """
    rows = min(tokens // _SHORTEST_REWRITTEN, 2 * CHUNK_ROWS) * options.candidates
    held = rows * options.max_length + tokens * options.candidates
    alive = [activations(each, tokens, each.item, "activations") for each in (shape, judge)]
    return (
        MemoryTerm(
            "weights of the checkpoint",
            f"{shape.parameters:,} parameters x {shape.item} bytes",
            shape.weight_bytes,
        ),
        MemoryTerm(
            "weights of the judge",
            f"{judge.parameters:,} parameters x {judge.item} bytes",
            judge.weight_bytes,
        ),
        max(alive, key=lambda term: term.bytes),
        MemoryTerm(
            "keys and values, written and read",
            f"({rows:,} candidates x {options.max_length} + {tokens:,} x {options.candidates})"
            f" tokens x {shape.layers} layers x 2 x {shape.keys} x {shape.item} bytes",
            held * shape.layers * 2 * shape.keys * shape.item,
        ),
        MemoryTerm(
            "logits and what is drawn from",
            f"{rows:,} candidates x {shape.vocabulary:,} words x 4 bytes x {_DRAWN_FROM}",
            rows * shape.vocabulary * 4 * _DRAWN_FROM,
        ),
        process(device),
    )
