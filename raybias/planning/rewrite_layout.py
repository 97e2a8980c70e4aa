"""Choose how many replicas put pairs into a style, and their token budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raybias.config import Rewriting
from raybias.engine.memory import (
    MemoryTerm,
    activations,
    added,
    keys_and_values,
    of_bytes,
    process,
    term,
    total,
    weights,
)
from raybias.errors import PlanError
from raybias.planning.inventory import size
from raybias.planning.layout import LayoutPlanner
from raybias.planning.shards import CHUNK_ROWS
from raybias.planning.splits import Load, halved
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
    planner: LayoutPlanner,
    style: str,
    options: Rewriting,
    judge: ModelShape,
    pairs: Mapping[str, int],
) -> RewritePlan:
    """Choose replicas and chunks for all probes in one style.

    Parameters
    ----------
    planner: of the checkpoint.
    pairs: of each probe.

    Raises
    ------
    PlanError: no node holds one replica at the smallest token budget.
    """

    def terms(shape: ModelShape, tokens: int, partitions: int) -> tuple[MemoryTerm, ...]:
        return _rewriting_memory(shape, judge, options, tokens=tokens, device=planner.on)

    load = Load(terms, planner.shape, planner.shape.item, planner.on)
    asked = planner.resources.tokens_per_batch
    budgets = halved(asked if planner.gpus else min(asked, _MOST_ON_CPU), _FEWEST_TOKENS)
    fit = next(filter(None, (planner.settle(load, tokens) for tokens in budgets)), None)
    if fit is None:
        raise PlanError(
            f"{planner.backbone}, which makes the style {style!r}, needs"
            f" {size(total(load.device(budgets[-1])))} with its judge at the smallest token"
            f" budget, and one device has {size(planner.device_memory)}",
            where=str(planner.inventory),
            cure="draw fewer candidates, use bfloat16 or a smaller checkpoint, or larger devices",
        )
    chunks = sum(math.ceil(rows / CHUNK_ROWS) for rows in pairs.values())
    replicas = min(fit.places.count, chunks)
    return RewritePlan(
        style=style,
        judge=options.adequacy.spec().name,
        paired=options.paired,
        replicas_max=replicas,
        pairs=pairs,
        chunks=chunks,
        **planner.stage(replace(fit, workers=replicas), load),
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
    held = added((rows, options.max_length), (tokens, options.candidates), unit="tokens")
    alive = [activations(each, tokens, each.item, "activations") for each in (shape, judge)]
    return (
        weights("weights of the checkpoint", shape.parameters, shape.item),
        weights("weights of the judge", judge.parameters, judge.item),
        max(alive, key=lambda each: each.bytes),
        keys_and_values(shape, held, shape.item, note=", written and read"),
        term(
            "logits and what is drawn from",
            (rows, "{:,} candidates"),
            (shape.vocabulary, "{:,} words"),
            of_bytes(4),
            _DRAWN_FROM,
        ),
        process(device),
    )
