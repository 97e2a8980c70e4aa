"""Define tuned classifiers: options of training, runs, and selection by Tian2023 (section 3)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

import polars as pl
import pyarrow as pa
from pydantic import Field, model_validator

from raybias.config import MethodFields
from raybias.config.parts import Way
from raybias.config.section import Amount, Count, Rate, Seed, by_profile
from raybias.engine.adapters.options import AdapterSize, EarlyStop, Recipe, SweepCut
from raybias.engine.encoder import TextEncoder
from raybias.engine.memory import MemoryTerm
from raybias.errors import DataError, WorkFailed
from raybias.methods.base import Answered, Compute, Inputs, Method, Reader, Run, predictions
from raybias.methods.work import Rows, TokenCounts, Tuning, Widths, Work, sample
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.adapters.base import AdapterTrainer, Weights
    from raybias.engine.backbone import ModelContext
    from raybias.engine.model_shape import ModelShape
    from raybias.engine.packing import PackedSequence

Row = Mapping[str, Any]
#: Why a run stopped that waits at a sweep's cut, or was given up there.
CUT: Final = "cut"
#: Shards whose packed texts are kept for other runs. A run's shards all come before the next run's,
#: so these are as many as a run has on most studies' probes; one takes a few megabytes.
_KEPT: Final = 8


class Tuned(Method):
    """A tuned classifier."""

    learning_rates: tuple[Rate, ...] = Field((1e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-2, ge=0)
    """AdamW decay of what is tuned; on a soft prompt it acts on the delta."""
    weight_decays: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Decays to sweep over, in every combination with the learning rates."""
    stop_windows: tuple[Annotated[Count, Field(ge=1)], ...] = ()
    """Early-stop windows to sweep over, in every combination with the others."""
    sweep_seeds: Count = Field(1, ge=1)
    """How many of the seeds, from the first, the sweep runs."""
    sweep_cut: SweepCut | None = None
    """Where the sweep gives up combinations that are behind; by default all go to their end. A run
    that goes on has the bits that it has without the cut, and seeds are never given up."""
    batch_size: Count = Field(8, ge=1)
    """Rows of one seed's step."""
    eval_every: Amount = Field(125, ge=1)
    """Steps between evaluations."""
    validation_rows: Amount = Field(0, ge=0)
    """Rows of one evaluation, drawn anew each time; 0 takes them all."""
    early_stop: EarlyStop = EarlyStop()
    """The stopping rule."""
    max_steps: Amount | None = Field(None, ge=1)
    """A guard; without it a slowly falling loss can run for ever."""
    restore_best: bool = by_profile(paper=False, strict=True)
    """Keep the weights of the lowest evaluation loss instead of the last."""
    select: Literal["validation", "test"] = "validation"
    """By which accuracy runs are kept; `test` (Kohankhaki2024) flatters its accuracies."""
    seeds: tuple[Seed, ...] = Field(tuple(range(1001, 1016)), min_length=1)
    """One run per seed; a seed rules the initial values, the data order and dropout."""
    keep: Count = Field(5, ge=1)
    """How many runs, best by `select`, are probed."""
    allow_failed: bool = False
    """Go on when fewer runs than seeds finish, as long as `keep` do."""

    trains: ClassVar[bool] = True
    needs_training_set: ClassVar[bool] = True
    way: ClassVar[Way] = "tuned"
    small_state: ClassVar[bool] = False
    """Whether a run's state is small enough to be checkpointed at every evaluation."""
    factor: ClassVar[int] = 4
    """FLOPs of a step for each parameter and token: 2 forwards, 2 for the gradients of activations,
    and 2 more where every weight has one."""
    vectors: ClassVar[str] = "prompt"
    """What its tuned vectors before a text are, if it has any."""
    launches: ClassVar[tuple[float, float]] = (1.0, 0.0)
    """Launches of a block in units of a plain one's: of a pack, and for each of its runs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field in ("seeds", "learning_rates", "weight_decays", "stop_windows"):
            values = getattr(self, field)
            if repeated := sorted({each for each in values if values.count(each) > 1}):
                raise ValueError(f"{field} repeat: {', '.join(map(str, repeated))}; list each once")
        if self.keep > len(self.seeds):
            raise ValueError(f"keep is {self.keep} but there are {len(self.seeds)} seeds")
        if self.sweep_seeds > len(self.seeds):
            raise ValueError(f"sweep_seeds is {self.sweep_seeds}, seeds are {len(self.seeds)}")
        if cut := self.sweep_cut:
            swept, last = len(hyper_parameter_grid(self)), self.max_steps or math.inf
            if cut.keep >= swept:
                raise ValueError(f"sweep_cut keeps {cut.keep} of {swept} combinations; keep fewer")
            if cut.step % self.eval_every or cut.step >= last:
                raise ValueError(
                    f"sweep_cut is at step {cut.step}; a multiple of eval_every"
                    f" ({self.eval_every}) below max_steps is needed"
                )
        return self

    @property
    def adapter_sizes(self) -> list[AdapterSize]:
        """The sizes that the adapters of its runs may have."""
        return [AdapterSize()]

    @property
    def n_runs(self) -> int:
        return self.keep

    @property
    def selection(self) -> str | None:
        return self.select

    @property
    def recipe(self) -> Recipe:
        """The engine's recipe for its runs."""
        names = [each.name for each in fields(Recipe) if hasattr(self, each.name)]
        return Recipe(**{name: getattr(self, name) for name in names})

    @property
    def context_vectors(self) -> int:
        """Positions of the context for tuned vectors before the text, of a prompt or a prefix."""
        return 0

    @property
    def computed_vectors(self) -> int:
        """Tuned vectors that the model computes as it does a text's tokens: a soft prompt's."""
        return self.context_vectors

    @property
    def ends_with_eos(self) -> bool:
        """Whether EOS stands after a text, for the label to be read there."""
        return False

    def written(self, texts: Sequence[str]) -> Sequence[str]:
        """Return texts in the method's template."""
        return texts

    def encode(self, encoder: TextEncoder, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts in the method's template, with EOS after them where it has one."""
        return encoder.encode(self.written(texts), append_eos=self.ends_with_eos)

    def runs(self, inputs: Inputs) -> Sequence[Run]:
        return ()

    def check(self, inputs: Inputs) -> None:
        for name, splits in inputs.sentences.items():
            where = f"training set {name}"
            if "validation" not in splits:
                raise DataError(
                    f"has no validation split, which {self.name} stops and selects by",
                    where=where,
                    cure="give a folder of train and validation files",
                )
            if self.select == "test" and "test" not in splits:
                raise DataError(
                    f"has no test split, by which {self.name} selects its runs",
                    where=where,
                    cure="set the method's select to validation",
                )
        for frame in inputs.items.values():
            names = frame["item_id"].to_list()
            self.check_fit(inputs.tokens, frame["text"].to_list(), names)
        for name, splits in inputs.sentences.items():
            for split, frame in splits.items():
                names = [f"{name} {split} row {row}" for row in range(1, len(frame) + 1)]
                self.check_fit(inputs.tokens, frame["text"].to_list(), names)

    def check_fit(self, tokens: TokenCounts, texts: Sequence[str], names: Sequence[str]) -> None:
        """Refuse texts that do not fit the context, by a ModelError that counts them."""
        tokens.check(
            self.written(texts),
            names,
            taken=self.context_vectors,
            by=f"{self.vectors} vectors" if self.context_vectors else "",
            append_eos=self.ends_with_eos,
        )

    @abstractmethod
    def trainer(self, context: ModelContext) -> AdapterTrainer:
        """Load the backbone with the trainer of its runs; ModelError: it cannot be loaded so."""

    def reader(self, context: ModelContext, store: Store) -> AdapterReader:
        trainer = self.trainer(context)

        # A cache on the reader would refer to it, and so keep the backbone in memory.
        @lru_cache(maxsize=_KEPT)
        def pack(texts: tuple[str, ...]) -> tuple[Sequence[PackedSequence], int]:
            rows = self.encode(trainer.encoder, texts)
            return trainer.prepare(rows), sum(map(len, rows))

        return AdapterReader(self, trainer, store, pack)

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        """Count a worker's memory beside weights and activations, for `pack` runs at a time."""
        return ()

    def packs(self, inputs: Inputs) -> bool:
        """Check whether rows share sequences, nearly all of them as long as sequences can be."""
        return True

    def work(self, inputs: Inputs) -> Work:
        lengths = {name: self._mean_length(inputs, each["text"])
                   for name, each in inputs.items.items()}  # fmt: skip
        return Work(
            runs=self.keep * len(inputs.sentences),
            items=inputs.counted(),
            tokens=lengths,
            vocabulary=False,
            held=self.held,
            tuning={
                name: self._tuning(inputs, splits) for name, splits in inputs.sentences.items()
            },
        )

    def _tuning(self, inputs: Inputs, splits: Mapping[str, pl.DataFrame]) -> Tuning:
        train, validation = (splits[name]["text"] for name in ("train", "validation"))
        tested = splits["test"]["text"] if "test" in splits else validation.clear()
        sweep, final = runs_of(self)
        recipe, cut = self.recipe, self.sweep_cut
        last, first = recipe.last_step(len(train)), recipe.first_stop
        return Tuning(
            sweep=sweep,
            cut=(cut.step, cut.keep * self.sweep_seeds) if cut else None,
            final=final,
            step=self._rows(inputs, train, self.batch_size),
            every=self.eval_every,
            first=first if last is None else min(first, last),
            last=last,
            checked=self._rows(inputs, validation, self.validation_rows or len(validation)),
            tested=self._rows(inputs, tested, len(tested)),
            factor=self.factor,
            launches=self.launches,
        )

    def _mean_length(self, inputs: Inputs, texts: pl.Series) -> float:
        written = self.written(sample(texts.to_list()))
        return inputs.tokens.mean(written, append_eos=self.ends_with_eos) + self.computed_vectors

    def _rows(self, inputs: Inputs, texts: pl.Series, count: int) -> Rows:
        if not count:
            return Rows(0, 0.0, Widths(1.0, ()))
        length = self._mean_length(inputs, texts)
        if self.packs(inputs):
            return Rows(count, length, Widths.packed(length))
        written = self.written(sample(texts.to_list()))
        lengths = inputs.tokens.lengths(written, append_eos=self.ends_with_eos)
        return Rows(count, length, Widths.of(lengths + self.computed_vectors))


@dataclass(frozen=True)
class AdapterReader(Reader):
    """Label texts with tuned adapters, by the highest logit.

    `pack`: packs a shard's texts, once for all of its runs, and counts their tokens.
    """

    method: Tuned
    trainer: AdapterTrainer
    store: Store
    pack: Callable[[tuple[str, ...]], tuple[Sequence[PackedSequence], int]]

    def load(self, run_id: str) -> Weights:
        return self.trainer.load(self.store, f"adapters/{run_id}")

    def check(self, texts: Sequence[str]) -> None:
        names = [f"text {place}" for place in range(len(texts))]
        self.method.check_fit(TokenCounts(self.trainer.encoder), texts, names)

    def prepare(self, run: Weights, items: pa.Table) -> Compute:
        sequences, tokens = self.pack(tuple(items["text"].to_pylist()))

        def label() -> Answered:
            (logits_NL,) = self.trainer.logits([run], [sequences])
            scores_NL = logits_NL.numpy()
            labels = scores_NL.argmax(axis=1).tolist()
            return Answered(predictions(items, scores=scores_NL, labels=labels), tokens)

        return label


def tuned_methods(methods: Iterable[MethodFields]) -> list[Tuned]:
    """Pick the methods that tune something, in their order."""
    return [method for method in methods if isinstance(method, Tuned)]


@dataclass(frozen=True)
class HyperParameters:
    """One combination of a sweep."""

    learning_rate: float
    weight_decay: float
    stop_window: int
    adapter_rank: int | None = None
    target: str | None = None
    prompt_length: int | None = None

    def __str__(self) -> str:
        size = f", rank {self.adapter_rank}, target {self.target}" if self.target else ""
        size += f", prompt length {self.prompt_length}" if self.prompt_length else ""
        return (
            f"learning rate {self.learning_rate:g}, weight decay {self.weight_decay:g},"
            f" stop window {self.stop_window}{size}"
        )


def hyper_parameter_grid(method: Tuned) -> list[HyperParameters]:
    """List every combination of a method's sweep, or its only one."""
    return [
        HyperParameters(rate, decay, window, *size)
        for rate, decay, window, size in product(
            method.learning_rates,
            method.weight_decays or (method.weight_decay,),
            method.stop_windows or (method.early_stop.window,),
            method.adapter_sizes,
        )
    ]


def hyper_parameters_of(row: Row) -> HyperParameters:
    """Return the combination of a run."""
    return HyperParameters(**{each.name: row[each.name] for each in fields(HyperParameters)})


def finished(row: Row) -> bool:
    """Check whether a run has a usable adapter, or had one at the sweep's cut."""
    return bool(row["stop_reason"] != "diverged")


def at_cut(row: Row, method: Tuned, cut: SweepCut) -> Row:
    """Return a run's row as it was at the sweep's cut, whatever became of the run behind it."""
    if row["steps"] <= cut.step:
        return row
    passed = slice(1, 1 + cut.step // method.eval_every)
    losses, accuracies = row["eval_losses"][passed], row["eval_accuracies"][passed]
    kept = losses.index(min(losses)) if method.restore_best else -1
    return {**row, "stop_reason": CUT, "validation_accuracy": accuracies[kept]}


def ranked_hyper_parameters(
    rows: Sequence[Row], choices: Sequence[HyperParameters]
) -> list[HyperParameters]:
    """Sort combinations by mean validation accuracy, of equal ones the first given is first.

    Those whose runs all diverged are left out; WorkFailed: every one's did.
    """
    means = {}
    for choice in choices:
        accuracies = [
            row["validation_accuracy"]
            for row in rows
            if hyper_parameters_of(row) == choice and finished(row)
        ]
        if accuracies:
            means[choice] = fmean(accuracies)
    if not means:
        raise WorkFailed(
            f"every run of the sweep over {len(choices)} combinations diverged",
            cure="try smaller learning_rates",
        )
    return sorted(means, key=lambda choice: -means[choice])


def select(rows: Sequence[Row], method: Tuned) -> list[dict[str, Any]]:
    """Fill in `rank`, `tied` and `selected` of the final runs, in the order given.

    Runs are ranked by accuracy on the split of the method's `select`, equal ones (`tied`) by seed;
    diverged runs have no rank.

    Raises WorkFailed: fewer runs than seeds finished, unless the method allows it and at least
    `keep` did.
    """
    good = [row for row in rows if finished(row)]
    failed = sorted(row["seed"] for row in rows if not finished(row))
    if failed and (not method.allow_failed or len(good) < method.keep):
        raise WorkFailed(
            f"{len(good)} of {len(rows)} runs finished, {method.keep} are kept; diverged:"
            f" seeds {', '.join(map(str, failed))}",
            where=f"{rows[0]['model']} on {rows[0]['dataset']}",
            cure="lower the learning rate, or set the method's allow_failed to go on without them"
            if len(good) >= method.keep
            else "lower the learning rate",
        )
    by = f"{method.select}_accuracy"
    order = sorted(good, key=lambda row: (-row[by], row["seed"]))
    ranks = {row["seed"]: place for place, row in enumerate(order, start=1)}
    accuracies = [row[by] for row in good]
    return [
        {
            **row,
            "rank": ranks.get(row["seed"]),
            "tied": finished(row) and accuracies.count(row[by]) > 1,
            "selected": ranks.get(row["seed"], method.keep + 1) <= method.keep,
        }
        for row in rows
    ]


def runs_of(method: Tuned) -> tuple[int, int]:
    """Count a method's runs on one training set: of the sweep, and those after it."""
    choices = len(hyper_parameter_grid(method))
    sweep = choices * method.sweep_seeds if choices > 1 else 0
    return sweep, len(method.seeds) - (method.sweep_seeds if sweep else 0)
