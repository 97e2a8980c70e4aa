"""What reads items: the interface of predictors, and the rows that label predictors write."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    NotRequired,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybias.errors import WorkFailed
from raybias.schema import PREDICTIONS

if TYPE_CHECKING:
    import numpy.typing as npt

#: The style of an item that no transformation was applied to.
ORIGINAL: Final = "original"


@dataclass(frozen=True)
class UntrainedRun:
    """A run that tunes nothing.

    Attributes
    ----------
    dataset: the training set that its demonstrations come from, or `none`.
    seed: None where nothing is drawn.
    recipe: what OUT/prompts/<run_id>.json holds of it; None where it has no such file.
    """

    run_id: str
    dataset: str = "none"
    seed: int | None = None
    recipe: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Shard:
    """Rows `first_row` to `first_row + rows` of a probe, read by one run."""

    probe: str
    run_id: str
    model: str
    method: str
    dataset: str
    first_row: int
    rows: int
    folder: str

    @property
    def file(self) -> str:
        """Where its rows go in OUT."""
        return f"{self.folder}/{self.probe}/{self.run_id}/{self.first_row:08d}.parquet"


class Labelling(TypedDict):
    """The labels of some texts; one entry per text.

    `logits` are the label logits, or log-probabilities of the label words, float32 [texts, labels];
    `labels` is None where no label could be read, and `unread` says why an answer names none;
    `texts` is what was generated, or None where nothing is; `tokens` is how many the model read and
    wrote for all of them.
    """

    logits: npt.NDArray[np.float32]
    labels: list[int | None]
    parsed: list[bool]
    unread: NotRequired[list[str | None]]
    texts: list[str | None]
    tokens: int


class ShardResult(NamedTuple):
    """The rows of a shard's file, and how many tokens the model read and wrote for them."""

    table: pa.Table
    tokens: int


#: What computes, when it is called, that for which the host has prepared all.
Result = TypeVar("Result")
Prepared = Callable[[], Result]


class Predictor(Protocol):
    """Reads items with any run of one method on one backbone."""

    def load(self, run_id: str) -> Any:
        """Load what a run needs beside the backbone; most methods have one run and need nothing."""
        return None

    def table(self, run: Any, shard: Shard, items: pa.Table) -> ShardResult:
        """Compute the rows of a shard's file."""


@runtime_checkable
class PreparingPredictor(Predictor, Protocol):
    """A predictor that can do the host's part of a shard while the device computes another."""

    @abstractmethod
    def prepare(self, run: Any, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Do what needs no device, such as tokenising; return what does the rest of `table`.

        Called in another thread than what it returns, while that of another shard computes.
        """

    def table(self, run: Any, shard: Shard, items: pa.Table) -> ShardResult:
        """Compute the rows of a shard's file."""
        return self.prepare(run, shard, items)()


def prepared(
    predictor: Predictor, run: Any, shard: Shard, items: pa.Table
) -> Prepared[ShardResult]:
    """Do what a predictor can do for a shard without a device; return what does the rest."""
    if isinstance(predictor, PreparingPredictor):
        return predictor.prepare(run, shard, items)
    return partial(predictor.table, run, shard, items)


class LabelPredictor(Predictor, Protocol):
    """A predictor of labels, which also reads texts that are no items of a probe."""

    def label(self, run: Any, item_ids: Sequence[str], texts: Sequence[str]) -> Labelling:
        """Label texts; what is sampled is keyed by `item_ids`."""


class PreparingLabelPredictor(PreparingPredictor, Protocol):
    """A predictor of labels that can do the host's part of any texts beforehand."""

    @abstractmethod
    def prepare_label(
        self, run: Any, item_ids: Sequence[str], texts: Sequence[str]
    ) -> Prepared[Labelling]:
        """Do what needs no device; return what does the rest of `label`."""

    def label(self, run: Any, item_ids: Sequence[str], texts: Sequence[str]) -> Labelling:
        """Label texts; what is sampled is keyed by `item_ids`."""
        return self.prepare_label(run, item_ids, texts)()

    def prepare(self, run: Any, shard: Shard, items: pa.Table) -> Prepared[ShardResult]:
        """Do what needs no device; return what computes rows of `schema.PREDICTIONS`."""
        item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
        label = self.prepare_label(run, item_ids, texts)
        return lambda: labelled_shard(shard, items, label())


def label_shard(predictor: LabelPredictor, run: Any, shard: Shard, items: pa.Table) -> ShardResult:
    """Label a shard's items and put the rows into `schema.PREDICTIONS`.

    Raises
    ------
    WorkFailed: a logit is not finite.
    """
    item_ids, texts = (items[name].to_pylist() for name in ("item_id", "text"))
    return labelled_shard(shard, items, predictor.label(run, item_ids, texts))


def labelled_shard(shard: Shard, items: pa.Table, labelled: Labelling) -> ShardResult:
    """Put the labels of a shard's items into `schema.PREDICTIONS`.

    Raises
    ------
    WorkFailed: a logit is not finite.
    """
    return ShardResult(prediction_rows(shard, items, labelled), labelled["tokens"])


def prediction_rows(shard: Shard, items: pa.Table, labelled: Labelling) -> pa.Table:
    """Build one row of `schema.PREDICTIONS` per item.

    Raises
    ------
    WorkFailed: a logit is not finite, which a half-precision overflow makes.
    """
    logits_NL = labelled["logits"]
    bad = np.flatnonzero(~np.isfinite(logits_NL).all(axis=1))
    if bad.size:
        raise WorkFailed(
            f"{bad.size} of {len(logits_NL)} items have logits that are not finite,"
            f" the first is {items['item_id'][int(bad[0])]}",
            where=f"run {shard.run_id} on probe {shard.probe}",
            cure="use dtype bfloat16 or float32 for this backbone",
        )
    count = len(logits_NL)
    columns: dict[str, Any] = {
        name: pa.repeat(pa.scalar(value, pa.string()), count)
        for name, value in {
            "model": shard.model,
            "method": shard.method,
            "dataset": shard.dataset,
            "run_id": shard.run_id,
            "probe": shard.probe,
            "style": ORIGINAL,
        }.items()
    }
    for name in ("item_id", "label", "attribute", "group", "template_id", "term", "family"):
        columns[name] = pc.cast(items[name], PREDICTIONS.field(name).type)
    columns["pred"] = pa.array(labelled["labels"], pa.int8())
    columns["scores"] = pa.array(list(logits_NL), pa.list_(pa.float32()))
    columns["parsed"] = pa.array(labelled["parsed"], pa.bool_())
    unread = labelled.get("unread", [None] * count)
    columns["unread"] = pa.array(unread, pa.string())
    columns["answer"] = pa.array(labelled["texts"], pa.string())
    return pa.table(columns, schema=PREDICTIONS)
