"""Declare a method, which makes a classifier or scorer of a backbone: checks, runs, work, reader.

Studies, planner and runtime call it or use its `Work`, and never ask which method it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc

from raybias.columns import part_of
from raybias.config import Backbone, MethodFields, Study
from raybias.engine.checkpoint import folder_of, model_hashes
from raybias.engine.encoder import TextEncoder
from raybias.errors import WorkFailed
from raybias.methods.work import TokenCounts, Work
from raybias.registry import Registry
from raybias.schema import ITEMS, PREDICTIONS, OutputSpec
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.study_record import Record

#: The style of an item that no transformation was applied to.
ORIGINAL: Final = "original"
#: Folder of OUT for shards of runs that are not whole yet.
PARTS: Final = "parts"
#: Columns of answers that say which run on which probe gave them.
OF_SHARDS: Final = ("model", "method", "dataset", "run_id", "probe")
#: Those that predictions repeat of their items.
_OF_ITEMS: Final = ("item_id", "label", "attribute", "group", "template_id", "term", "family")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a method on one backbone.

    tokens: counts of tokenised texts, shared by all methods of the backbone.
    labels: the study's labels, in order.
    words: the study's label words, in label order.
    items: rows by probe.
    sentences: splits by training set.
    """

    backbone: Backbone
    tokens: TokenCounts
    labels: tuple[str, ...]
    words: tuple[str, ...]
    items: Mapping[str, pl.DataFrame]
    sentences: Mapping[str, Mapping[str, pl.DataFrame]]

    @property
    def encoder(self) -> TextEncoder:
        """The backbone's tokenizer."""
        return self.tokens.encoder

    def counted(self) -> dict[str, int]:
        """Count the rows of each probe."""
        return {name: frame.height for name, frame in self.items.items()}

    def refuse_encoder(self, method: str) -> None:
        """Refuse an encoder, by a ModelError that names the method."""
        from raybias.engine.backbone import check_causal

        check_causal(self.backbone, f"method {method}")


@dataclass(frozen=True)
class Run:
    """A run that tunes nothing.

    `dataset` has its demonstrations, or is `none`; `seed` is None where nothing is drawn; `recipe`
    is the content of OUT/prompts/<run_id>.json: what is drawn for it.
    """

    run_id: str
    dataset: str = "none"
    seed: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Shard:
    """Rows `first_row` to `first_row + rows` of a probe's `total` (0: all of it), for one run."""

    probe: str
    run_id: str
    model: str
    method: str
    dataset: str
    first_row: int
    rows: int
    folder: str
    total: int = 0

    @property
    def run_file(self) -> str:
        """The file in OUT of all rows of the run on the probe."""
        return f"{self.folder}/{self.probe}/{self.run_id}.parquet"

    @property
    def file(self) -> str:
        """The file in OUT of its rows: the run's, or a part to be joined to it."""
        if self.total in (0, self.rows):
            return self.run_file
        return f"{PARTS}/{self.folder}/{self.probe}/{self.run_id}/{self.first_row:08d}.parquet"


class Answered(NamedTuple):
    """Answers to items, and how many tokens the model read and wrote for them."""

    table: pa.Table
    tokens: int


#: Computes the answers of a prepared shard on the device.
Compute = Callable[[], Answered]


class Reader(ABC):
    """Answer items with any run of one method on one backbone."""

    def load(self, run_id: str) -> Any:
        """Load a run's part beside the backbone; most methods have one run and need nothing."""
        return None

    def check(self, texts: Sequence[str]) -> None:  # noqa: B027
        """Refuse texts that do not fit the context, by a ModelError that counts them."""

    @abstractmethod
    def prepare(self, run: Any, items: pa.Table) -> Compute:
        """Do the host's part, such as tokenising; return the call that computes the answers.

        It runs in a thread while another shard is computed. The answers have the columns of the
        method's output without `OF_SHARDS`.
        """


def shard_of(reader: Reader, run: Any, shard: Shard, items: pa.Table, schema: pa.Schema) -> Compute:
    """Prepare a shard; return the call that computes its file's rows (WorkFailed: not finite)."""
    compute = reader.prepare(run, items)

    def answer() -> Answered:
        table, tokens = compute()
        columns = {}
        for each in schema:
            if each.name in table.column_names:
                columns[each.name] = pc.cast(table[each.name], each.type)
            else:
                told = pa.scalar(getattr(shard, each.name), each.type)
                columns[each.name] = pa.repeat(told, len(table))
        made = pa.table(columns, schema=schema)
        lists = cs.by_dtype(pl.List(pl.Float32), pl.List(pl.Float64))
        each_finite = lists.list.eval(pl.element().is_finite()).list.all()
        finite = pl.all_horizontal(cs.float().is_finite(), each_finite, pl.lit(True))
        wrong = pl.DataFrame(made).filter(~finite).rows(named=True)
        if wrong:
            raise WorkFailed(
                f"{len(wrong)} of {len(made)} items have numbers that are not finite, the first is"
                f" {wrong[0].get('item_id') or wrong[0].get('pair_id')}",
                where=f"run {shard.run_id} on probe {shard.probe}",
                cure="use dtype bfloat16 or float32 for this backbone",
            )
        return Answered(made, tokens)

    return answer


#: An item or an answer, by column.
Item = dict[str, Any]
#: A call that computes rows of answers, and the tokens that the model read and wrote for them.
ComputeRows = Callable[[], tuple[Sequence[Item], int]]


@dataclass(frozen=True)
class RowReader(Reader):
    """Answer items in rows of `schema`; `begin` does the host's part for items."""

    begin: Callable[[Sequence[Item]], ComputeRows]
    schema: pa.Schema

    def prepare(self, run: None, items: pa.Table) -> Compute:
        rows = self.begin(items.to_pylist())
        own = part_of(self.schema, [n for n in self.schema.names if n not in OF_SHARDS])

        def answer() -> Answered:
            made, tokens = rows()
            return Answered(pa.Table.from_pylist([*made], own), tokens)

        return answer


def taken(item: Mapping[str, Any], *names: str) -> Item:
    """Return what an answer repeats of its item."""
    return {name: item[name] for name in names}


def text_items(ids: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Make items of texts that belong to no probe; samples are keyed by `ids`."""
    columns = {each.name: pa.nulls(len(texts), each.type) for each in ITEMS}
    columns |= {"item_id": pa.array(ids, pa.string()), "text": pa.array(texts, pa.string())}
    return pa.table(columns)


def predictions(
    items: pa.Table,
    *,
    scores: npt.NDArray[np.float32] | Sequence[None],
    labels: Sequence[int | None],
    parsed: Sequence[bool] | None = None,
    unread: Sequence[str | None] | None = None,
    answers: Sequence[str | None] | None = None,
) -> pa.Table:
    """Make the columns of schema.PREDICTIONS that are of items and their labels, a row an item.

    scores: label logits, or log-probabilities of the label words [items, labels]; None of each for
        a classifier that tells its labels alone.
    labels: None where no label could be read, for the reason `unread`.
    parsed: whether an answer names a label; all by default.
    answers: generated texts, if any.
    """
    count = len(items)
    columns: dict[str, Any] = {name: items[name] for name in _OF_ITEMS}
    made = {
        "style": [ORIGINAL] * count,
        "pred": labels,
        "scores": list(scores),
        "parsed": parsed or [True] * count,
        "unread": unread or [None] * count,
        "answer": answers or [None] * count,
    }
    columns |= {name: pa.array(each, PREDICTIONS.field(name).type) for name, each in made.items()}
    return pa.table(columns)


class Method(MethodFields):
    """A way to label or score items with a backbone."""

    shares_backbone: ClassVar[bool] = True
    """Whether its runs leave the backbone's weights alone, so that methods can share them."""
    runs_per_replica: ClassVar[int] = 16
    """Runs that a replica keeps loaded beside the backbone."""

    def output(self) -> OutputSpec:
        return OutputSpec("predictions", PREDICTIONS)

    @abstractmethod
    def check(self, inputs: Inputs) -> None:
        """Refuse inputs with which no run could work, and load no weights.

        Raises ModelError: architecture, label words, lengths; DataError: a training set.
        """

    def check_weights(self, inputs: Inputs) -> Sequence[str]:
        """Refuse a checkpoint on this machine that the method could not load, by its headers.

        Returns the parts of the checkpoint that its model has not, such as other heads.
        Raises ModelError: weights that are missing, of another shape or dtype, or not used.
        """
        from raybias.engine.backbone import check_loads

        return check_loads(inputs.backbone)

    def never(self, labels: Sequence[str]) -> tuple[str, ...]:
        """List the labels that it never gives on any backbone; `labels` are the study's."""
        return ()

    def notes(self, inputs: Inputs) -> Sequence[str]:
        """Say what a user should know of its inputs before it runs; nothing by default."""
        return ()

    def runs(self, inputs: Inputs) -> Sequence[Run]:
        """List the runs of a method that tunes nothing; by default one, which draws nothing."""
        return [Run(f"{inputs.backbone.name}.none.{self.name}")]

    @abstractmethod
    def work(self, inputs: Inputs) -> Work:
        """Return what its runs need, for the planner; ModelError for an unreadable judge."""

    @abstractmethod
    def reader(self, context: ModelContext, store: Store) -> Reader:
        """Load the reader of items for any run; `store` is OUT. ModelError: not loadable."""


def check_models(store: Store, record: Record, names: Sequence[str]) -> None:
    """Refuse local models whose files are not those that an OUT was made with, if it names any."""
    # Imported here: its classes import every method.
    from raybias.study_record import refuse_other

    for name in names:
        held = record.models.get(name)
        spec = record.study.checkpoints[name]
        if held is not None and folder_of(spec.id) is not None:
            found = model_hashes(spec)
            refuse_other(store, {"models": {name: held}}, {"models": {name: found}})


methods: Final[Registry[type[Method]]] = Registry("method", "raybias.methods")
_AnyMethod = TypeVar("_AnyMethod", bound=Method)


def method(registered: type[_AnyMethod]) -> type[_AnyMethod]:
    """Register a subclass of `Method` under its `kind`; ConfigError where the kind is taken."""
    kind = str(registered.model_fields["kind"].default)
    methods.add(kind, registered, origin=(registered.__module__, registered.__qualname__))
    return registered


def methods_of(study: Study, backbone: Backbone) -> list[Method]:
    """Return the methods that a study uses on a backbone, with their verbs."""
    return cast(list[Method], study.methods_of(backbone))
