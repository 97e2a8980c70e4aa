"""Find the shards that OUT lacks, compute them with one model, and join those of a whole run.

A shard is written in one piece to OUT/parts. When OUT holds all shards of a run on a probe, they
become one file with the same rows. A process that is killed between the two leaves parts that
nobody reads, and the next one deletes.

Shards are computed in a replica, in this process, or on a rank: of a Train worker group that shares
a backbone too large for one device. Each rank computes shards of its own as a replica would.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raybias.config.parts import Rewriting, converted_from
from raybias.engine.backbone import ModelContext
from raybias.engine.checkpoint import converted_hashes, quantisation
from raybias.errors import RaybiasError
from raybias.methods.base import PARTS, Answered, Compute, Method, Reader, Shard, shard_of
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.workload import REWRITING, STYLED
from raybias.probes.styles.rewriting import Rewrite, rewritten_pairs
from raybias.runtime.progress import Done, Meter, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.worker_group import ShardedInference, within_memory
from raybias.schema import LABELS, OutputSpec
from raybias.stats.classes import labels_metadata
from raybias.storage import Store

#: Files that are read at a time.
_CALLS: Final = 16
#: Rows that are in memory while shards are joined, and that stand together in the joined file.
_GROUP_ROWS: Final = 1 << 17


class ShardFiles:
    """The shards of a task; `todo` are those that OUT lacks. Files with wrong rows are deleted."""

    def __init__(self, store: Store, shards: Sequence[Shard], output: OutputSpec) -> None:
        self.store, self.shards, self.output = store, shards, output
        folders = {f"{shard.folder}/{shard.probe}" for shard in shards}
        there = {
            name
            for folder in folders
            for name in (
                *store.files(folder, suffix=".parquet"),
                *store.files(f"{PARTS}/{folder}", suffix=".parquet", recursive=True),
            )
        }
        rows = {shard.run_file: shard.total or shard.rows for shard in shards}
        with ThreadPoolExecutor(_CALLS) as pool:

            def fitting(rows: dict[str, int]) -> set[str]:
                names = sorted(there.intersection(rows))
                fits = pool.map(lambda name: self._fits(name, rows[name]), names)
                return {name for name, fit in zip(names, fits, strict=True) if fit}

            whole = fitting(rows)
            self._open = [shard for shard in shards if shard.run_file not in whole]
            done = fitting({shard.file: shard.rows for shard in self._open})
        self.todo = [shard for shard in self._open if shard.file not in done]
        parts = {shard.file for shard in shards if shard.run_file in whole} - whole
        self._left_over = {name.rpartition("/")[0] for name in there & parts}

    def _fits(self, name: str, rows: int) -> bool:
        """Tell whether a file has the rows and columns of its shard; delete it if not."""
        try:
            footer = pq.read_metadata(self.store.path(name), filesystem=self.store.fs)
            schema = footer.schema.to_arrow_schema()
            wanted = rows * self.output.per_item
            if footer.num_rows == wanted and schema.equals(self.output.schema):
                return True
        except FileNotFoundError:
            # Joined to its run's file meanwhile, by the driver of this rank.
            return False
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError):
            # A broken file can still be read; a storage that fails says so here.
            self.store.read_bytes(name)
        self.store.delete(name)
        return False

    def complete(
        self,
        title: str,
        read: Callable[[Callable[[Done], None]], None],
        reporter: Reporter,
        *,
        starting: str,
    ) -> None:
        """Have `read` compute the shards that OUT lacks, and join those of each whole run.

        Runs are joined as soon as all their shards are there, in a thread of its own.

        title: of the stage that is shown, and what it is `starting` before the first shard.
        read: computes `todo`, if there is any, and calls its argument for each shard.
        """
        left = Counter(shard.run_file for shard in self.todo)
        parts: dict[str, list[Shard]] = defaultdict(list)
        for shard in self._open:
            if shard.file != shard.run_file:
                parts[shard.run_file].append(shard)
        joined: list[Future[None]] = []
        # The outer one is for ending the replicas, which fails where the cluster is gone.
        with translating_errors(title), ExitStack() as stack:
            pool = ThreadPoolExecutor(1)
            stack.callback(pool.shutdown, cancel_futures=True)
            for folder in self._left_over:
                self.store.delete_folder(folder)
            if self.todo:
                total = len(self.shards)
                advance = stack.enter_context(reporter.stage(title, total, starting=starting))
                advance(total - len(self.todo))

                def add(done: Done) -> None:
                    advance(done=done)
                    if done.shard is not None:
                        run_file = done.shard.run_file
                        left[run_file] -= 1
                        if not left[run_file] and run_file in parts:
                            joined.append(pool.submit(self._join, parts.pop(run_file)))

                read(add)
            for each in (*joined, *(pool.submit(self._join, each) for each in parts.values())):
                each.result()

    def _join(self, shards: Sequence[Shard]) -> None:
        """Write the file of a whole run from its shards, in their order, and delete theirs."""
        store, schema, sink = self.store, self.output.schema, pa.BufferOutputStream()
        together = max(1, _GROUP_ROWS // shards[0].rows)
        with (
            ThreadPoolExecutor(_CALLS) as pool,
            pq.ParquetWriter(sink, schema, compression="zstd") as writer,
        ):
            for at in range(0, len(shards), together):
                names = [shard.file for shard in shards[at : at + together]]
                tables = pool.map(lambda name: store.read_table(name).cast(schema), names)
                writer.write_table(pa.concat_tables(tables).combine_chunks())
        store.write_bytes(shards[0].run_file, sink.getvalue().to_pybytes())
        store.delete_folder(shards[0].file.rpartition("/")[0])


def delete_empty_parts(store: Store) -> None:
    """Delete OUT/parts where it holds no file."""
    if store.exists(PARTS) and not store.files(PARTS, recursive=True):
        store.delete_folder(PARTS)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Shards that one model must still compute.

    Readings of one `name` can share replicas. `items` are rows by probe, by default OUT/items.
    """

    name: str
    context: ModelContext
    methods: tuple[Served, ...]
    plan: ScorePlan
    store: Store
    todo: tuple[Shard, ...]
    meter: Meter
    items: Mapping[str, pa.Table] | None = None

    def rows(self) -> Mapping[str, pa.Table]:
        """Return the items of each probe, read from OUT where none were given."""
        if self.items is not None:
            return self.items
        probes = dict.fromkeys(shard.probe for shard in self.todo)
        return {probe: self.store.read_table(f"items/{probe}.parquet") for probe in probes}


class ShardWorker:
    """One model that computes the shards of methods which share its weights.

    It holds the reader of the method that was used last. A change of method frees what the last one
    kept between shards (prefix caches); the weights stay loaded.
    """

    def __init__(self, context: ModelContext, methods: Sequence[Served], store: Store) -> None:
        self.context, self.store = context, store
        self.methods = {method.name: method for method in methods}
        self._held: tuple[str, Any] = ("", None)
        self._changing = Lock()
        self._told: set[str] = set()
        most = min(method.runs_per_replica for method in methods)
        self._run = lru_cache(maxsize=most)(lambda name, run: self.reader(name).load(run))
        self.reader(methods[0].name)

    def reader(self, method: str) -> Any:
        """Load the method's reader, or return it if it is loaded."""
        with self._changing:
            if self._held[0] != method:
                self._held = ("", None)
                self._held = method, self.methods[method].reader(self.context, self.store)
            return self._held[1]

    def prepare(self, run: Any, shard: Shard, items: pa.Table) -> Compute:
        """Do the host's part of a shard; return the call that computes its rows."""
        schema = stored_output(self.methods[shard.method], self.context.labels).schema
        return shard_of(self.reader(shard.method), run, shard, items, schema)

    def commit(self, shard: Shard, table: pa.Table) -> None:
        """Write a shard's file, and how its method reads the backbone where OUT lacks that."""
        self.store.write_table(shard.file, table)
        if shard.method not in self._told:
            self._told.add(shard.method)
            keep_ways(self.store, self.context)

    def compute(self, shard: Shard, items: pa.Table) -> Done:
        """Compute a shard of a probe's items, and commit its file."""
        run = self._run(shard.method, shard.run_id)
        result = self.prepare(run, shard, items.slice(shard.first_row, shard.rows))()
        self.commit(shard, result.table)
        return Done(rows=shard.rows, tokens=result.tokens, shard=shard)


@dataclass(frozen=True, kw_only=True)
class StyleRewriting:
    """One style of a study, in a method's place; `seed` keys the draws of each pair."""

    style: str
    options: Rewriting
    seed: int

    name: ClassVar[str] = REWRITING
    runs_per_replica: ClassVar[int] = 1

    def output(self) -> OutputSpec:
        """Return where rewritten pairs go."""
        return STYLED

    def reader(self, context: ModelContext, store: Store) -> _PairRewriter:
        """Load the checkpoint and its judge."""
        from raybias.engine.rewriter import Rewriter

        return _PairRewriter(self, Rewriter(self.options, context.execution, style=self.style))


@dataclass(frozen=True)
class _PairRewriter(Reader):
    """Rewrites pairs (`schema.PAIRS`); tokens are not counted."""

    work: StyleRewriting
    rewrite: Rewrite

    def prepare(self, run: None, items: pa.Table) -> Compute:
        pairs, work = pl.DataFrame(items), self.work

        def compute() -> Answered:
            made = rewritten_pairs(
                pairs, work.style, self.rewrite, paired=work.options.paired, seed=work.seed
            )
            return Answered(made.to_arrow(), tokens=0)

        return compute


#: A method, or the rewriting of a style: its reader computes shards.
Served = Method | StyleRewriting


def stored_output(method: Served, labels: Sequence[str]) -> OutputSpec:
    """Return where a method's rows are stored, with what their labels are in the metadata.

    Files without names have the labels of sentiment; also there are the labels never given.
    """
    output = method.output()
    names = () if tuple(labels) == LABELS else labels
    never = method.never(labels) if isinstance(method, Method) else ()
    if output.items is not None or not (names or never):
        return output
    return replace(output, schema=output.schema.with_metadata(labels_metadata(names, never)))


def read_on_rank(config: Mapping[str, Any]) -> None:
    """Compute this rank's share of the missing shards; all ranks of a Train group call it.

    What is done is put into `progress`, and at the end the error that stopped this rank.
    """
    import ray
    from ray.train.torch import get_device

    reading: Reading = ray.get(config["work"])
    (method,), device = reading.methods, get_device()
    sharing = ShardedInference(reading.context.spec.dtype, device)
    with within_memory(reading.context, reading.store, config["folder"]) as context:
        # Loading waits for all ranks, so they all look before any of them writes.
        output = stored_output(method, reading.context.labels)
        waiting = ShardFiles(reading.store, reading.todo, output).todo
        worker = ShardWorker(context.here(device, sharing), [method], reading.store)
        items, error = reading.rows(), None
        sharing.begin_alone()
        try:
            for shard in waiting[sharing.ranks.rank :: sharing.ranks.world]:
                done = worker.compute(shard, items[shard.probe])
                reading.meter.add("raybias_rows_total", done.rows)
                reading.meter.add("raybias_tokens_total", done.tokens)
                config["progress"].put(done)
        except RaybiasError as raised:
            error = raised
        sharing.end_alone()
        if error is not None:
            config["progress"].put(error)


#: One file for each backbone and purpose.
_READERS: Final = "readers"


def device_name(device: torch.device) -> str:
    """Return the kind of a GPU, as its maker names it, or what else a device is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def keep_ways(store: Store, context: ModelContext) -> None:
    """Write how a model that is in use is read, where OUT does not have it yet."""
    for purpose, way in context.execution.ways.items():
        name = f"{_READERS}/{context.spec.name}.{purpose.replace(' ', '_')}.json"
        if not store.exists(name):
            how = quantisation(context.spec)
            record = {
                "backbone": context.spec.name,
                "purpose": purpose,
                "way": way.how,
                "fastest": way.fastest,
                "dtype": context.spec.dtype,
                "quantised": how.method if how is not None else converted_from(context.spec.id),
                "converted": converted_hashes(context.spec),
                "device": device_name(torch.device(context.execution.device)),
                "torch": torch.__version__,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }
            store.write_text(name, json.dumps(record, indent=1))


def slow_ways(store: Store) -> Iterator[str]:
    """Yield a line for each backbone of OUT that is read in a slower way than others."""
    for name in store.files(_READERS, suffix=".json"):
        record = json.loads(store.read_text(name))
        if not record["fastest"]:
            yield (
                f"warning: {record['backbone']} is read slowly for {record['purpose']}"
                f" ({record['way']}): a short cut gave other values than the model"
                f" in {record['dtype']} on {record['device']}"
            )
