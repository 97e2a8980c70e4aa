"""Count the work of a study's stages, and the seconds that it takes in a layout.

What is counted (tokens, steps, runs) depends on the study and its texts alone; how long it takes on
the layout of a stage and the speed of its devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raybias.methods.base import methods_of
from raybias.methods.work import Tuning, Work
from raybias.planning.machine import Speed
from raybias.planning.prepared import PreparedStudy
from raybias.planning.shards import ROWS, SECONDS, rows_in

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

#: Steps that are planned for where nothing bounds them, in units of the first possible stop.
_UNBOUNDED: Final = 20
#: Passes of a step with gradients in units of a forward one, for launches: both directions.
_BOTH_WAYS: Final = 2.2
#: Shards for each replica, where there is little to read.
_PARTS: Final = 4
#: Batches in a shard of answers, where there is much to read.
_BATCHES: Final = 4


@dataclass(frozen=True)
class Layout:
    """How a worker holds a backbone.

    Attributes
    ----------
    tokens: budget of one pass.
    devices: of one worker, which its layers are split over.
    passes: under way at one time, on different devices.
    ranks: workers that share every weight with ZeRO-3; 1 where each holds all of them.
    across: whether these are on several nodes.
    sharers: workers on each device, where there are several.
    """

    tokens: int
    devices: int = 1
    passes: int = 1
    ranks: int = 1
    across: bool = False
    sharers: int = 1

    @property
    def sharded(self) -> bool:
        """Whether workers share every weight."""
        return self.ranks > 1


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What passes over a backbone's blocks take, whichever stage makes them."""

    parameters: int
    """Of the blocks."""
    weight_bytes: float
    """Of the blocks, in memory."""
    all_bytes: float
    """Of the whole backbone."""
    layers: int
    heads: int
    """Of one block's attention."""
    token_bytes: float
    """Of one token's hidden state."""

    @classmethod
    def of(cls, shape: ModelShape, item: int) -> Passes:
        """Read what counts from a backbone's shape; `item` is the bytes of one weight."""
        return cls(
            parameters=shape.block_parameters,
            weight_bytes=float(shape.block_parameters * item),
            all_bytes=float(shape.parameters * item),
            layers=shape.layers,
            heads=shape.heads,
            token_bytes=float(shape.hidden * item),
        )

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
        """Return the seconds of some tokens' passes, by what takes them; the longest one counts.

        Parameters
        ----------
        tokens: in all passes.
        length: of the text that each of them is in, on average.
        factor: FLOPs for each parameter and token; 2 forward, 4 with gradients of activations.
        launches: in units of a plain forward pass.
        passes: None for as few as the token budget allows, and `least` at least.
        rounds: of these passes, each begun when the one before it has ended.
        """
        own = tokens / layout.ranks
        if passes is None:
            # Ranks that share weights pad what they read to one width.
            fewest = 1.0 if layout.ranks > 1 else least
            passes = max(fewest, math.ceil(own / layout.tokens))
        ways = factor / 2.0
        each = speed.token + self.heads * length * speed.score
        found = {
            "computing": speed.work(
                factor * self.parameters * own, passes * ways * self.weight_bytes
            ),
            "launches": self.layers * (passes * launches * speed.launch + ways * own * each),
        }
        if layout.devices > 1:
            # Each device waits for the hidden states of the one before it, and as a round begins
            # and ends some have nothing to do.
            moved = (layout.devices - 1) * ways * own * self.token_bytes
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

    whole: Work
    passes: Passes
    moving: float
    """Bytes that the optimizer reads and writes in a step of one run."""

    @classmethod
    def of(cls, tuning: Tuning, work: Work, shape: ModelShape) -> TuningWork:
        """Join what a method says of its tuning with the sizes of its backbone."""
        passes = Passes.of(shape, work.weight_bytes(shape))
        moving = float(tuning.moved * shape.parameters)
        return cls(**vars(tuning), whole=work, passes=passes, moving=moving)

    def stops(self, runs: int, *, early: bool = True) -> tuple[int, ...]:
        """Return the steps at which so many runs are planned to stop.

        Parameters
        ----------
        early: spread evenly, on a logarithmic scale, from the first step at which the rule can stop
            a run to the last; else all at the last.
        """
        last = self.last or _UNBOUNDED * self.first
        if not early:
            return (last,) * runs
        ratio = last / self.first
        steps = (self.first * ratio ** ((n + 0.5) / runs) for n in range(runs))
        return tuple(min(last, math.ceil(each / self.every) * self.every) for each in steps)

    def step_seconds(self, speed: Speed, layout: Layout, runs: int) -> float:
        """Return the seconds of one step of a pack of so many runs."""
        moving = runs * self.moving / speed.bandwidth
        return max(self.step_parts(speed, layout, runs).values()) + moving + self.host(speed, runs)

    def step_parts(self, speed: Speed, layout: Layout, runs: int) -> dict[str, float]:
        """Return what a step's passes take; see `Passes.seconds`."""
        shared, own = self.launches
        return self.passes.seconds(
            speed,
            layout,
            runs * self.rows * self.length,
            length=self.length,
            factor=float(self.factor),
            launches=_BOTH_WAYS * (shared + own * runs),
            least=self.widths.batches(runs * self.rows),
        )

    def host(self, speed: Speed, runs: int) -> float:
        """Return the seconds of the host in a step, beside launches."""
        return speed.step + runs * speed.run

    def evaluation_seconds(self, speed: Speed, layout: Layout, runs: int) -> float:
        """Return the seconds of one evaluation of so many runs, with its report."""
        shared, own = self.launches
        computing = self.passes.seconds(
            speed,
            layout,
            runs * self.checked * self.checked_length,
            length=self.checked_length,
            launches=shared + own * runs,
            least=self.checked_widths.batches(runs * self.checked),
        )
        return max(computing.values()) + speed.evaluation

    def test_seconds(self, speed: Speed, layout: Layout) -> float:
        """Return the seconds of one run's test."""
        tokens, length = self.tested * self.tested_length, self.tested_length
        return max(self.passes.seconds(speed, layout, tokens, length=length).values())

    def pack_seconds(self, speed: Speed, layout: Layout, stops: Sequence[int]) -> float:
        """Return the seconds of a pack whose runs stop at these steps and leave it then."""
        if self.most == 1 and len(stops) > 1:
            return sum(self.pack_seconds(speed, layout, (each,)) for each in stops)
        reached, left = 0, len(stops)
        # Before the first step.
        seconds = self.evaluation_seconds(speed, layout, left)
        for stop in sorted(stops):
            steps = stop - reached
            if steps:
                seconds += steps * self.step_seconds(speed, layout, left)
                checks = steps / self.every
                seconds += checks * self.evaluation_seconds(speed, layout, left)
            reached, left = stop, left - 1
        return seconds + len(stops) * self.test_seconds(speed, layout)


@dataclass(frozen=True)
class ReadingWork:
    """Reading the probes with one backbone by one method, on passes over the backbone."""

    whole: Work
    passes: Passes

    @classmethod
    def of(cls, work: Work, shape: ModelShape) -> ReadingWork:
        """Join what a method says of its reading with the sizes of its backbone."""
        passes = Passes.of(shape, work.weight_bytes(shape))
        return cls(work, replace(passes, parameters=work.parameters(shape)))

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
        """Choose the items of a shard, a power of two, by the time that one takes.

        A few seconds, so that a driver feeds hundreds of replicas and a lost one repeats little;
        less where few are left for each replica. Answers are written after as many prompts at a
        time as a pass holds, so never fewer; and where there are enough of them for each replica,
        a few times as many, whose opening is read once and whose batches are of like lengths.
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


@dataclass(frozen=True)
class Works:
    """The work of all stages of a study.

    Attributes
    ----------
    whole: by backbone and method, as the method says it.
    tuning: by backbone, training set and method.
    reading: by backbone and method.
    """

    whole: Mapping[tuple[str, str], Work]
    tuning: Mapping[tuple[str, str, str], TuningWork]
    reading: Mapping[tuple[str, str], ReadingWork]


def works_of(prepared: PreparedStudy, shapes: Mapping[str, ModelShape]) -> Works:
    """Ask each method of a study for its work, by the shapes of its backbones with weights.

    Raises
    ------
    DataError, ModelError: a text or a tokenizer cannot be read.
    """
    whole: dict[tuple[str, str], Work] = {}
    tuning: dict[tuple[str, str, str], TuningWork] = {}
    reading: dict[tuple[str, str], ReadingWork] = {}
    for backbone in prepared.study.backbones:
        for method in methods_of(prepared.study, backbone):
            name = backbone.name, method.name
            work = whole[name] = method.work(prepared.inputs(method, backbone))
            if (shape := shapes.get(backbone.name)) is None:
                continue
            reading[name] = ReadingWork.of(work, shape)
            for training, each in work.tuning.items():
                tuning[backbone.name, training, method.name] = TuningWork.of(each, work, shape)
    return Works(whole, tuning, reading)
