"""What tuned classifiers have in common: options of training, runs, and when one stops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from raybias.config.method import Method, StudyText
from raybias.config.profiles import by_profile
from raybias.config.section import Amount, Count, Rate, Section
from raybias.errors import DataError
from raybias.methods.backbone_method import BackboneMethod
from raybias.methods.lengths import TokenCounts, Widths, sample
from raybias.methods.prediction import (
    Labelling,
    Prepared,
    PreparingPredictor,
    Shard,
    ShardResult,
    labelled_shard,
)
from raybias.schema import PREDICTIONS, OutputSpec

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from raybias.engine.adapters.base import AdapterTrainer, Weights
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.context import ModelContext
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape
    from raybias.engine.packing import PackedSequence
    from raybias.storage import Store

#: Shards whose packed texts are kept for other runs. A run's shards all come before the next run's,
#: so these are as many as a run has on most studies' probes; one takes a few megabytes.
_KEPT: Final = 8


class AdamW(NamedTuple):
    """Options of AdamW; `clip` is the largest norm of a run's gradient, None for any."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None


def _window(fields: Mapping[str, Any]) -> int:
    return int(fields["window"])


class EarlyStop(Section):
    """When tuning stops before its last step."""

    rule: Literal["exceeds_max_of_last", "patience"] = "exceeds_max_of_last"
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: Amount = Field(2500, ge=0)
    """Nothing stops at or before this step (soft prompts 2500, others 0)."""
    window: Count = Field(5, ge=1)
    """How many evaluation losses the rule looks back on (full 7, others 5)."""
    count_early: bool = True
    """Whether losses seen before `after_step` belong to the window."""
    stored: Count = Field(default_factory=_window, ge=1)
    """How many losses must have been seen before the newest; `window`, and one more in the
    paper profile of full and lora, as the paper's code has it."""


class Tuned(BackboneMethod):
    """What every tuned classifier has in common."""

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
    seeds: tuple[int, ...] = Field(tuple(range(1001, 1016)), min_length=1)
    """One run per seed; a seed rules the initial values, the data order and dropout."""
    keep: Count = Field(5, ge=1)
    """How many runs, best by `select`, are probed."""
    allow_failed: bool = False
    """Go on when fewer runs than seeds finish, as long as `keep` do."""

    trains: ClassVar[bool] = True
    needs_training_set: ClassVar[bool] = True
    reads_vocabulary: ClassVar[bool] = False
    max_pack: ClassVar[int | None] = None
    """Runs that can share a step; None for any number."""
    small_state: ClassVar[bool] = False
    """Whether a run's state is small enough to be checkpointed at every evaluation."""
    work_per_parameter: ClassVar[int] = 4
    """FLOPs of a training step for each parameter and token: 2 forwards, 2 for the gradients of
    activations, and 2 more where every weight has one."""
    launches: ClassVar[tuple[float, float]] = (1.0, 0.0)
    """Kernels launched in a block, in units of a plain one's: for a pack, and for each run."""
    moved_per_parameter: ClassVar[int] = 0
    """Bytes that the optimizer reads and writes for each of the backbone's parameters."""

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
        return self

    @property
    def n_runs(self) -> int:
        """Runs of each training set that are kept and read the probes."""
        return self.keep

    @property
    def selection(self) -> str | None:
        """The split by whose accuracy runs are kept."""
        return self.select

    @property
    def steps_between_evaluations(self) -> int:
        """Optimizer steps from one evaluation of a run to the next."""
        return self.eval_every

    @property
    def adamw(self) -> AdamW:
        """Options of AdamW beside the learning rate and the decay; torch's own by default."""
        return AdamW()

    def last_step(self, rows: int) -> int | None:
        """Return the step after which tuning on so many rows ends; None where nothing says."""
        return self.max_steps

    def rate_share(self, step: int, end: int | None) -> float:
        """Return the share of the learning rate that `step` (from 0) takes of `end` steps."""
        return 1.0

    def drops_out(self, *, evaluated: bool) -> bool:
        """Say whether a step has dropout, after a first evaluation or before."""
        return True

    @property
    def first_stop(self) -> int:
        """The first step at which the early-stop rule can end a run."""
        rule, every = self.early_stop, self.steps_between_evaluations
        stored, after = max(rule.window, rule.stored), rule.after_step
        # Losses seen before `after_step` may not count, and the newest is compared with `stored`.
        counted = 0 if rule.count_early else after // every
        return every * max(after // every + 1, counted + stored + 1)

    @property
    def context_vectors(self) -> int:
        """Positions of the context that tuned vectors take beside the text."""
        return 0

    @property
    def ends_with_eos(self) -> bool:
        """Whether EOS stands behind a text, so that the label is read there."""
        return False

    def written(self, texts: Sequence[str]) -> Sequence[str]:
        """Return texts as the backbone reads them."""
        return texts

    def token_rows(self, text: StudyText, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of training sentences as the backbone reads them."""
        return text.tokens.rows(self.written(texts), append_eos=self.ends_with_eos)

    def output(self) -> OutputSpec:
        """Say where predictions are stored."""
        return OutputSpec("predictions", PREDICTIONS)

    def check_training(self, training: str, splits: Mapping[str, pl.DataFrame]) -> None:
        """Refuse a training set without the splits that stopping and selection need.

        Raises
        ------
        DataError: no validation split, or no test split to select by.
        """
        where = f"training set {training}"
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

    def check_lengths(self, text: StudyText) -> None:
        """Refuse items and training sentences that do not fit the context.

        Raises
        ------
        ModelError: counts them and names the longest.
        """
        for frame in text.items.values():
            self._check_fit(text.tokens, frame["text"].to_list(), frame["item_id"].to_list())
        for name, splits in text.sentences.items():
            for split, frame in splits.items():
                names = [f"{name} {split} row {row}" for row in range(1, len(frame) + 1)]
                texts = frame["text"].to_list()
                self._check_fit(text.tokens, texts, names)

    def check_texts(self, encoder: TextEncoder, texts: Sequence[str]) -> None:
        """Refuse texts that do not fit the context.

        Raises
        ------
        ModelError: counts them and names the longest.
        """
        names = [f"text {place}" for place in range(len(texts))]
        self._check_fit(TokenCounts(encoder), texts, names)

    def _check_fit(self, tokens: TokenCounts, texts: Sequence[str], names: Sequence[str]) -> None:
        from raybias.engine.backbone import check_lengths

        taken = self.context_vectors
        check_lengths(
            tokens.bounds(self.written(texts), taken=taken, append_eos=self.ends_with_eos),
            context=tokens.encoder.context,
            taken=taken,
            by="prompt vectors" if self.context_vectors else "",
            names=names,
        )

    @abstractmethod
    def trainer(self, context: ModelContext) -> AdapterTrainer:
        """Load the backbone with what tunes and reads runs of this method on it.

        Raises
        ------
        ModelError: the backbone cannot be loaded, or not for this method.
        """

    def predictor(self, context: ModelContext, store: Store) -> AdapterPredictor:
        """Load what reads items with the tuned adapters in `store`."""
        return AdapterPredictor(self.trainer(context), store)

    @abstractmethod
    def training_memory(
        self, shape: ModelShape, *, pack: int, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a worker that tunes `pack` runs together.

        Parameters
        ----------
        tokens: of one forward and backward pass.
        device: "cpu" or "gpu".
        partitions: workers that share the weights; 1 holds all of them.
        """

    def mean_length(self, text: StudyText, texts: pl.Series) -> float:
        """Return the mean number of positions of a text, from a sample."""
        written = self.written(sample(texts.to_list()))
        return text.tokens.mean(written, append_eos=self.ends_with_eos) + self.context_vectors

    def widths(self, text: StudyText, texts: pl.Series) -> Widths:
        """Return how the rows of texts spread over the widths of batches, from a sample."""
        written = self.written(sample(texts.to_list()))
        lengths = text.tokens.lengths(written, append_eos=self.ends_with_eos)
        return Widths.of(lengths + self.context_vectors)

    def step_widths(self, text: StudyText, texts: pl.Series) -> Widths:
        """Return how the rows of a step spread over the widths of batches, from a sample."""
        return self.widths(text, texts)

    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens that one run reads for an item."""
        return self.mean_length(text, text.items[probe]["text"])


class PackedTexts(NamedTuple):
    """Texts as an adapter's backbone reads them, and how many tokens they have unpacked."""

    sequences: Sequence[PackedSequence]
    tokens: int

    @classmethod
    def of(cls, trainer: AdapterTrainer, texts: Sequence[str]) -> PackedTexts:
        """Tokenise and pack texts."""
        rows = trainer.encode(texts)
        return cls(trainer.prepare(rows), sum(map(len, rows)))


@dataclass(frozen=True)
class AdapterPredictor(PreparingPredictor):
    """Labels texts with tuned adapters: the label with the highest logit."""

    trainer: AdapterTrainer
    store: Store

    def load(self, run_id: str) -> Weights:
        """Load the weights of a run's adapter."""
        return self.trainer.load(self.store, f"adapters/{run_id}")

    @cached_property
    def packed(self) -> Callable[[tuple[str, ...]], PackedTexts]:
        """Packs a shard's texts, once for all runs that read it."""
        # Not of the predictor, which would keep itself, and with it the backbone, from being freed.
        return lru_cache(maxsize=_KEPT)(partial(PackedTexts.of, self.trainer))

    def prepare(self, run: Weights, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Tokenise and pack texts; return what computes rows of `schema.PREDICTIONS`."""
        packed = self.packed(tuple(items["text"].to_pylist()))
        return lambda: labelled_shard(shard, items, self._labelled(run, packed, len(items)))

    def label(self, run: Weights, item_ids: Sequence[str], texts: Sequence[str]) -> Labelling:
        """Label texts by the highest logit."""
        return self._labelled(run, PackedTexts.of(self.trainer, texts), len(texts))

    def _labelled(self, run: Weights, packed: PackedTexts, count: int) -> Labelling:
        (logits_NL,) = self.trainer.logits([run], [packed.sequences])
        logits = logits_NL.numpy()
        return Labelling(
            logits=logits,
            labels=logits.argmax(axis=1).tolist(),
            parsed=[True] * count,
            texts=[None] * count,
            tokens=packed.tokens,
        )


def tuned_methods(methods: Iterable[Method]) -> list[Tuned]:
    """Pick the methods that tune something, in their order."""
    return [method for method in methods if isinstance(method, Tuned)]
