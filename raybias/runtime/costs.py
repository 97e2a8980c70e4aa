"""What a plan's stages cost: tokens, FLOPs, device-hours and gathered bytes, line by line.

Counted from shapes, row counts and the mean length of a sample of the texts, as if no two
texts shared a token: packing makes it less. Attention's own products, a few percent at these
lengths, are left out. It loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from raybias.config import (
    Backbone,
    ChainOfThought,
    Coreference,
    FewShot,
    Full,
    Method,
    PairMethod,
    PairScore,
    Prompted,
    Study,
    Tuned,
)
from raybias.engine.backbone import load_tokenizer
from raybias.engine.pair_scores import with_scores
from raybias.engine.schedule import last_step
from raybias.errors import DataError, ModelError
from raybias.probes import prompts, training_sentences
from raybias.probes.coreference import coreference_prompts
from raybias.runtime.checks import shots_of
from raybias.runtime.plan import Plan, read_items
from raybias.runtime.room import runs_read
from raybias.runtime.stages import ScorePlan, Stage, TunePlan
from raybias.runtime.train import prompt_length, read_texts

if TYPE_CHECKING:
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.shape import ModelShape

#: Part of a device's peak that work is reckoned to reach, unless a user says otherwise.
UTILISATION: Final = 0.3
#: Texts that a mean length is taken from.
_SAMPLE: Final = 200


@dataclass(frozen=True)
class Line:
    """One step of the arithmetic."""

    what: str
    arithmetic: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one stage costs.

    Attributes
    ----------
    tokens, flops: of all workers.
    hours: device-hours, None where the device's peak is not known.
    gathered: bytes of weights that all workers receive under ZeRO-3.
    lines: how these come about.
    """

    tokens: float
    flops: float
    hours: float | None
    gathered: float
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Machine:
    """How fast a device is reckoned to be.

    Attributes
    ----------
    peak: TFLOP/s, None to look it up by the device's kind.
    utilisation: the part of it that is reached.
    """

    peak: float | None = None
    utilisation: float = UTILISATION

    def hours(self, flops: float, stage: Stage) -> tuple[float | None, list[Line]]:
        """Device-hours of some FLOPs, where they can be told."""
        peak = self.peak or stage.speed
        if peak is None:
            return None, []
        hours = flops / (peak * 1e12 * self.utilisation) / 3600
        counted = f"{_short(flops, 'FLOP')} / ({peak:g} TFLOP/s x {self.utilisation:g}) / 3600 s"
        what = "GPU-hours" if stage.gpus else "device-hours"
        return hours, [Line(what, counted, f"{hours:,.2f} h")]


@dataclass(frozen=True)
class Costs:
    """What a plan costs.

    Attributes
    ----------
    stages: by backbone, method and training set, which is empty for scoring.
    unknown: why some stages are not among them.
    """

    stages: Mapping[tuple[str, str, str], Cost]
    unknown: tuple[str, ...]

    @property
    def hours(self) -> float | None:
        """Device-hours of all stages; None where one is not known."""
        known = [cost.hours for cost in self.stages.values() if cost.hours is not None]
        return sum(known) if len(known) == len(self.stages) else None


def costs_of(study: Study, plan: Plan, machine: Machine) -> Costs:
    """The costs of all stages of a plan whose texts and tokenizers can be read."""
    study = with_scores(study)
    sentences: dict[str, dict[str, pl.DataFrame]] = {}
    unknown: list[str] = []
    for training in study.training:
        try:
            sentences[training.name] = training_sentences(training)
        except DataError as error:
            unknown.append(f"no costs of {training.name}: {error}")
    reckoning = _Reckoning(study, plan, machine, read_items(study), sentences)
    stages: dict[tuple[str, str, str], Cost] = {}
    for backbone in study.backbones:
        try:
            stages |= reckoning.of(backbone, load_tokenizer(backbone))
        except ModelError as error:
            unknown.append(f"no costs of {backbone.name}: {error}")
    return Costs(stages, tuple(unknown))


@dataclass(frozen=True)
class _Reckoning:
    """Everything that costs are counted from."""

    study: Study
    plan: Plan
    machine: Machine
    items: Mapping[str, pl.DataFrame]
    sentences: dict[str, dict[str, pl.DataFrame]]

    def of(self, backbone: Backbone, encoder: TextEncoder) -> dict[tuple[str, str, str], Cost]:
        """The costs of one backbone, as `Costs.stages` holds them."""
        shape, found = self.plan.shapes[backbone.name], dict[tuple[str, str, str], Cost]()
        for method in self.study.methods_of(backbone):
            key = backbone.name, method.name
            for training in self.sentences if isinstance(method, Tuned) else ():
                tuned = self.plan.tune(backbone.name, training, method.name)
                if isinstance(method, Tuned) and (
                    cost := self.tuning(tuned, method, shape, encoder)
                ):
                    found[*key, training] = cost
            shown = isinstance(method, FewShot)
            if not shown or len(self.sentences) == len(self.study.training):
                scored = self.plan.score(backbone.name, method.name)
                found[*key, ""] = self.scoring(scored, method, shape, encoder)
        return found

    def tuning(
        self, stage: TunePlan, method: Tuned, shape: ModelShape, encoder: TextEncoder
    ) -> Cost | None:
        """The cost where all runs go to their last step; None where none is set."""
        texts = [self.sentences[stage.training][name]["text"] for name in ("train", "validation")]
        steps = last_step(method, len(texts[0]))
        if steps is None:
            return None
        read, read_again = (_tuned_length(encoder, each, method) for each in texts)
        runs, checks = stage.sweep_units + stage.final_units, steps // (method.eval_every or steps)
        rows = method.validation_rows or len(texts[1])
        tuned = runs * steps * method.batch_size * read
        checked = runs * checks * rows * read_again
        factor = 6 if isinstance(method, Full) else 4
        flops = shape.block_parameters * (factor * tuned + 2 * checked)
        hours, timed = self.machine.hours(flops, stage)
        # The sweep and the final runs come one after the other, each in packs of its own.
        gathered = sum(
            _gathered(stage, shape, units * method.batch_size * read) * 2 * steps
            + _gathered(stage, shape, units * rows * read_again) * checks
            for units in (stage.sweep_units, stage.final_units)
        )
        least = min(steps, _earliest(method))
        lines = [
            Line(
                "tokens tuned on",
                f"{runs} runs x {steps:,} steps x {method.batch_size} rows x {read:.1f}",
                _short(tuned),
            ),
            Line(
                "tokens of evaluations",
                f"{runs} runs x {checks:,} x {rows:,} rows x {read_again:.1f}",
                _short(checked),
            ),
            Line(
                "work",
                f"{_short(shape.block_parameters)} parameters x ({factor} x {_short(tuned)}"
                f" + 2 x {_short(checked)})",
                _short(flops, "FLOP"),
            ),
            *timed,
            *_sent(stage, gathered),
            Line(
                "at least",
                f"runs may stop at step {least:,} of {steps:,}",
                f"{least / steps:.0%} of it",
            ),
        ]
        return Cost(
            tokens=tuned + checked, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines)
        )

    def scoring(
        self, stage: ScorePlan, method: Method, shape: ModelShape, encoder: TextEncoder
    ) -> Cost:
        """The cost of reading all items with all runs."""
        runs = runs_read(self.study, method)
        each = {name: self._length(encoder, method, name) for name in stage.items}
        tokens = sum(runs * rows * each[name] for name, rows in stage.items.items())
        # Scores of pairs need the head at every token; other readers need it once per row.
        weights = shape.parameters if isinstance(method, PairScore) else shape.block_parameters
        flops = 2.0 * weights * tokens
        hours, timed = self.machine.hours(flops, stage)
        # Each rank reads shards of its own, and every new token is a pass.
        passes = tokens / (stage.replicas_max * stage.tokens_per_batch)
        passes += stage.shards * (1 + _new_tokens(method)) / stage.replicas_max
        gathered = _gathered(stage, shape, 1.0) * math.ceil(passes)
        lines = [
            *(
                Line(
                    f"tokens of {name}",
                    f"{runs} runs x {rows:,} items x {each[name]:.1f}",
                    _short(runs * rows * each[name]),
                )
                for name, rows in stage.items.items()
            ),
            Line(
                "work",
                f"{_short(weights)} parameters x 2 x {_short(tokens)} tokens",
                _short(flops, "FLOP"),
            ),
            *timed,
            *_sent(stage, gathered),
        ]
        return Cost(tokens=tokens, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines))

    def _length(self, encoder: TextEncoder, method: Method, probe: str) -> float:
        """Mean tokens that one run of a method reads and writes for one item of a probe."""
        items = self.items[probe]
        if isinstance(method, Tuned):
            return _tuned_length(encoder, items["text"], method)
        if isinstance(method, PairMethod):
            return _pair_length(encoder, method, items)
        texts, words = _sample(items["text"]), self.study.verbalizer.words()

        def asked(shots: Sequence[tuple[str, int]]) -> float:
            asking = [prompts.answered_prompt(method, text, words, shots) for text in texts]
            return _mean(encoder.encode(asking))

        length = asked(())
        if isinstance(method, FewShot):
            # The opening is read once for all rows of a shard.
            shots = shots_of(method, self.study.training[0], self.sentences, method.seeds[0])
            length += (asked(shots) - length) / self.study.resources.rows_per_shard
        return length + _new_tokens(method)


def _gathered(stage: Stage, shape: ModelShape, tokens: float) -> float:
    """Bytes that all ranks receive when they share one forward reading of so many tokens."""
    if not stage.sharded:
        return 0.0
    ranks = stage.workers if isinstance(stage, TunePlan) else getattr(stage, "replicas_max", 1)
    passes = math.ceil(tokens / (ranks * stage.tokens_per_batch))
    return passes * (ranks - 1) * float(shape.weight_bytes)


def _sent(stage: Stage, gathered: float) -> list[Line]:
    if not stage.sharded:
        return []
    counted = "passes x (workers - 1) x bytes of the weights"
    return [Line("gathered by all workers", counted, _short(gathered, "B"))]


def _earliest(method: Tuned) -> int:
    """The first step at which the early-stop rule can end a run."""
    rule, every = method.early_stop, method.eval_every or 1
    stored = max(rule.window or 1, rule.stored or 0)
    return every * max((rule.after_step or 0) // every + 1, stored + 1)


def _tuned_length(encoder: TextEncoder, texts: pl.Series, method: Tuned) -> float:
    rows = read_texts(encoder, _sample(texts), method)
    return _mean(rows) + prompt_length(method)


def _pair_length(encoder: TextEncoder, method: PairMethod, items: pl.DataFrame) -> float:
    if isinstance(method, Coreference):
        asked = items.select("text", "pronoun").gather_every(max(1, len(items) // _SAMPLE)).rows()
        rows = [p for said in asked for p in coreference_prompts(*said).values()]
        prompts_each = len(rows) / max(1, len(asked))
        return prompts_each * (_mean(encoder.encode(rows)) + _new_tokens(method))
    sides = [_mean(encoder.encode(_sample(items[name]))) for name in ("sent_more", "sent_less")]
    scores = method.scores if isinstance(method, PairScore) else ()
    if any(score.startswith("masked") for score in scores):
        # One copy of the sentence per masked token.
        return len(scores) * sum(length * length for length in sides)
    kinds = {"begun" if score in ("prepend", "sum", "shared") else score for score in scores}
    return len(kinds) * sum(sides)


def _new_tokens(method: Method) -> int:
    """Most tokens that are written after one prompt."""
    if isinstance(method, ChainOfThought):
        return method.answer_tokens + method.reasoning_tokens
    return method.answer_tokens if isinstance(method, Prompted | Coreference) else 0


def _sample(texts: pl.Series) -> list[str]:
    return texts.gather_every(max(1, len(texts) // _SAMPLE)).to_list()


def _mean(rows: Sequence[Sequence[int]]) -> float:
    return sum(map(len, rows)) / max(1, len(rows))


def _short(number: float, unit: str = "") -> str:
    """A number with a prefix and its unit: 12.3 TFLOP."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}".rstrip()
    return f"{number:,.0f} {unit}".rstrip()
