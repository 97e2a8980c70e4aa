"""Count the work of a study's stages, cut it into shards, and estimate its seconds in a layout.

A shard is a fixed row range of a probe for one run. Its name has probe, run and first row, so a
rerun of a study computes missing shards only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raybias.engine.model_shape import ModelShape
from raybias.methods.base import Shard
from raybias.methods.work import Rows, Tuning, Work
from raybias.planning.machine import Layout, Speed
from raybias.schema import PAIRS, REWRITTEN_PAIRS, OutputSpec

#: Most items of a shard, and the least and most seconds that one takes on a replica.
ROWS: Final = 8_192
SECONDS: Final = (0.5, 5.0)
#: Pairs of one chunk. It names files, so it is no resource that a study may change.
CHUNK_ROWS: Final = 64

#: Where pairs that a model rewrote are stored.
STYLED: Final = OutputSpec("styled", REWRITTEN_PAIRS, items=PAIRS)
#: The method's name in shards of pairs to rewrite.
REWRITING: Final = "rewriting"
#: Steps that are planned for where nothing bounds them, in units of the first possible stop.
_UNBOUNDED: Final = 20
#: Passes of a step with gradients in units of a forward one, for launches: both directions.
_BOTH_WAYS: Final = 2.2
#: Shards for each replica where inputs are small.
_PARTS: Final = 4
#: Batches in a shard of answers, where there is much to read.
_BATCHES: Final = 4


@dataclass(frozen=True)
class Passes:
    """Passes over a backbone: bytes of one weight (`item`), and parameters per token."""

    shape: ModelShape
    item: int
    parameters: int

    @property
    def all_bytes(self) -> float:
        """Bytes of the whole backbone."""
        return float(self.shape.parameters * self.item)

    def seconds(
        self,
        speed: Speed,
        layout: Layout,
        tokens: float,
        *,
        length: float,
        factor: float = 2.0,
        launches: float = 1.0,
        passes: float | None = None,
        least: float = 1.0,
        rounds: float = 1.0,
    ) -> dict[str, float]:
        """Return the seconds of some tokens' passes by resource; the largest one counts.

        tokens: in all passes.
        length: mean length of their texts.
        factor: FLOPs for each parameter and token; 2 forward, 4 with gradients of activations.
        launches: in units of a plain forward pass.
        passes: None for as few as the token budget allows, and `least` at least.
        rounds: of these passes, one after the other.
        """
        own = tokens / layout.ranks
        if passes is None:
            # Ranks that share weights pad what they read to one width.
            fewest = 1.0 if layout.ranks > 1 else least
            passes = max(fewest, math.ceil(own / layout.tokens))
        ways = factor / 2.0
        each = speed.token + self.shape.heads * length * speed.score
        found = {
            "computing": speed.work(
                factor * self.parameters * own,
                passes * ways * float(self.shape.block_parameters * self.item),
            ),
            "launches": self.shape.layers * (passes * launches * speed.launch + ways * own * each),
        }
        if layout.devices > 1:
            # Each device waits for the hidden states of the one before it, and as a round begins
            # and ends some have nothing to do.
            moved = (layout.devices - 1) * ways * own * float(self.shape.hidden * self.item)
            waited = rounds * (layout.passes - 1)
            found["computing"] += moved / speed.link
            found["computing"] *= (passes + waited) / (passes * layout.passes)
        if layout.ranks > 1:
            received = self.all_bytes * (layout.ranks - 1) / layout.ranks
            rate = speed.network if layout.across else speed.link
            found["gathering"] = passes * min(ways, 2.0) * received / rate
        return found


@dataclass(frozen=True, kw_only=True)
class TuningWork(Tuning):
    """Tuning one backbone on one training set by one method, on passes over the backbone."""

    passes: Passes

    @property
    def stages(self) -> dict[str, tuple[int, int]]:
        """The stages in order: how many runs each has, and from which step on.

        "cut": the sweep until it gives runs up, "sweep", and "final": the runs after it.
        """
        step, left = self.cut or (0, self.sweep)
        stages = {"cut": (self.sweep, 0)} if self.cut else {}
        return stages | {"sweep": (left, step), "final": (self.final, 0)}

    def stops(self, runs: int, *, early: bool = True, stage: str = "final") -> tuple[int, ...]:
        """Return the planned last steps of runs, log-spaced; not `early` the last one."""
        if stage == "cut" and self.cut:
            return (self.cut[0],) * runs
        last = self.last or _UNBOUNDED * self.first
        if not early:
            return (last,) * runs
        ratio = last / self.first
        steps = (self.first * ratio ** ((n + 0.5) / runs) for n in range(runs))
        least = self.stages[stage][1]
        return tuple(
            max(least, min(last, math.ceil(each / self.every) * self.every)) for each in steps
        )

    def step_seconds(self, speed: Speed, layout: Layout, runs: int) -> float:
        """Return the seconds of one step of so many runs."""
        # What the optimizer reads and writes.
        moving = runs * float(self.moved * self.passes.shape.parameters) / speed.bandwidth
        return max(self.step_parts(speed, layout, runs).values()) + moving + self.host(speed, runs)

    def step_parts(self, speed: Speed, layout: Layout, runs: int) -> dict[str, float]:
        """Return what a step's passes take; see `Passes.seconds`."""
        factor = float(self.factor)
        return self._parts(self.step, speed, layout, runs, factor=factor, ways=_BOTH_WAYS)

    def _parts(
        self,
        rows: Rows,
        speed: Speed,
        layout: Layout,
        runs: int,
        *,
        factor: float = 2.0,
        ways: float = 1.0,
    ) -> dict[str, float]:
        (shared, own), number = self.launches, runs * rows.number
        return self.passes.seconds(
            speed,
            layout,
            number * rows.length,
            length=rows.length,
            factor=factor,
            launches=ways * (shared + own * runs),
            least=1.0 if speed.merges else rows.widths.batches(number),
        )

    def host(self, speed: Speed, runs: int) -> float:
        """Return the seconds of the host in a step, beside launches."""
        return speed.step + runs * speed.run

    def evaluation_seconds(self, speed: Speed, layout: Layout, runs: int) -> float:
        """Return the seconds of one evaluation of so many runs, with its report."""
        computing = self._parts(self.checked, speed, layout, runs)
        return max(computing.values()) + speed.evaluation

    def test_seconds(self, speed: Speed, layout: Layout) -> float:
        """Return the seconds of one run's test."""
        count, length, _ = self.tested
        return max(self.passes.seconds(speed, layout, count * length, length=length).values())

    def pack_seconds(
        self, speed: Speed, layout: Layout, stops: Sequence[int], stage: str = "final"
    ) -> float:
        """Return the seconds of a stage's pack whose runs stop at these steps and leave it then."""
        if self.most == 1 and len(stops) > 1:
            return sum(self.pack_seconds(speed, layout, (each,), stage) for each in stops)
        (_, reached), left = self.stages[stage], len(stops)
        # Before the first step.
        seconds = self.evaluation_seconds(speed, layout, left)
        for stop in sorted(stops):
            steps = stop - reached
            if steps:
                seconds += steps * self.step_seconds(speed, layout, left)
                checks = steps / self.every
                seconds += checks * self.evaluation_seconds(speed, layout, left)
            reached, left = stop, left - 1
        tested = 0 if stage == "cut" else len(stops)
        return seconds + tested * self.test_seconds(speed, layout)


@dataclass(frozen=True)
class ReadingWork:
    """Reading the probes with one backbone by one method, on passes over the backbone."""

    whole: Work
    passes: Passes

    @property
    def items(self) -> int:
        """Items of all probes that one run reads."""
        return sum(self.whole.items.values())

    @property
    def tokens(self) -> float:
        """Tokens that one run reads and writes."""
        return sum(count * self.whole.tokens[name] for name, count in self.whole.items.items())

    def shards(self, rows: int) -> int:
        """Count the files of one run, if each has so many items or fewer."""
        return sum(math.ceil(count / rows) for count in self.whole.items.values())

    def together(self, layout: Layout) -> float:
        """Return the items of one pass."""
        return max(1.0, layout.tokens // (self.tokens / max(1, self.items)))

    def seconds(self, speed: Speed, layout: Layout, rows: int) -> float:
        """Return the seconds of one replica that reads everything in shards of so many items."""
        items, tokens, shards = self.items, self.tokens, self.shards(rows)
        if not items:
            return 0.0
        passes = float(math.ceil(tokens / shards / layout.tokens))
        if self.whole.new_tokens:
            # Of several passes under way each has a part of the items.
            parts = math.ceil(items / shards / self.together(layout))
            passes += max(parts, min(layout.passes, items / shards)) * self.whole.new_tokens
        all_shards = self.whole.runs * shards
        computing = self.passes.seconds(
            speed,
            layout,
            self.whole.runs * tokens,
            length=tokens / items,
            passes=all_shards * passes,
            rounds=all_shards,
        )
        return max(computing.values()) + all_shards * speed.shard

    def rows_per_shard(self, speed: Speed, layout: Layout, replicas: int) -> int:
        """Choose the items of a shard, a power of two that takes a few seconds.

        Written answers need at least the prompts of one pass, and a few times as many where each
        replica has enough, so that their prefix is computed once and batches have like lengths.
        """
        alone = self.seconds(speed, layout, ROWS) * layout.ranks
        if not alone:
            return ROWS
        each = alone / (self.whole.runs * self.items)
        least, most = SECONDS
        share = alone / (replicas * _PARTS)
        wanted = min(most, max(least, share))
        if self.whole.new_tokens:
            full = each * self.together(layout)
            wanted = max(wanted, full, min(share, _BATCHES * full))
        return rows_in(wanted, each)


def chunks_of(style: str, pairs: Mapping[str, int]) -> list[Shard]:
    """List every shard of probes with `pairs` originals, for a model to put into a style."""
    run = {"run_id": style, "model": "", "method": REWRITING, "dataset": ""}
    return shards_of([run], pairs, CHUNK_ROWS, STYLED)


def shards_of(
    runs: Iterable[Mapping[str, Any]],
    items: Mapping[str, int],
    rows_per_shard: int,
    output: OutputSpec,
) -> list[Shard]:
    """List every shard of `runs` (rows of `schema.RUNS`) on probes of so many `items`."""
    return [
        Shard(
            probe=probe,
            run_id=run["run_id"],
            model=run["model"],
            method=run["method"],
            dataset=run["dataset"],
            first_row=first,
            rows=min(rows_per_shard, count - first),
            folder=output.folder,
            total=count,
        )
        for run in runs
        for probe, count in items.items()
        for first in range(0, count, rows_per_shard)
    ]


def rows_in(seconds: float, each: float) -> int:
    """Return the largest power of two of items, up to `ROWS`, within the seconds of a shard."""
    if each * ROWS <= seconds:
        return ROWS
    return int(2 ** max(0, math.floor(math.log2(seconds / each))))
