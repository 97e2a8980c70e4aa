"""Ray Data puts pairs into the styles that a model makes, in chunks of fixed rows.

A chunk's file is committed whole, and what a pair becomes is decided by its key alone, so
whoever rewrites a chunk twice writes the same, and a study that is run again rewrites only
what is missing. How a pair is rewritten is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext

from raybias.config import Rewriting, Study
from raybias.planning.plan import Plan
from raybias.planning.prepared import in_style
from raybias.planning.shards import CHUNK_ROWS, STYLED, Chunk, chunks_of, missing
from raybias.planning.stage_plans import RewritePlan
from raybias.probes.styles.rewriting import rewritten_pairs
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.schema import PAIRS, REWRITTEN_PAIRS
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.rewriting.rewriter import Rewriter


def rewrite_items(
    study: Study,
    items: Mapping[str, pl.DataFrame],
    planned: Plan,
    store: Store,
    *,
    reporter: Reporter,
) -> dict[str, pl.DataFrame]:
    """The items with every style in place that a model makes; OUT/styled holds those then.

    Parameters
    ----------
    items: per probe, with the originals where a model is to put a style.

    Raises
    ------
    ModelError: a checkpoint or judge without weights, or one that lacks some.
    """
    whole = dict(items)
    for style, options in study.styles.rewriting.items():
        plan = planned.rewrite(style)
        originals = in_style(study, style, items)
        chunks = chunks_of(style, plan.pairs)
        todo = missing(store, chunks, STYLED)
        title = f"rewrite as {style} with {plan.backbone}"
        if todo:
            with translating_errors(title), reporter.stage(title, len(chunks)) as advance:
                advance(len(chunks) - len(todo))
                # One block is one chunk: what a lost actor repeats is a single file.
                blocks = [_block(chunk, originals[chunk.probe]) for chunk in todo]
                for _ in _stream(blocks, options, plan, store, study):
                    advance()
        made = {
            name: pl.concat([_read(store, chunk) for chunk in chunks if chunk.probe == name])
            for name in originals
        }
        kept = sum(int(frame["kept"].sum()) for frame in made.values())
        reporter.say(
            f"{title}: {kept:,} of {sum(plan.pairs.values()):,} pairs keep their original, for"
            " which nothing adequate was drawn"
        )
        whole |= {name: _with_style(whole[name], frame) for name, frame in made.items()}
    return whole


def _stream(
    blocks: Sequence[pa.Table],
    options: Rewriting,
    plan: RewritePlan,
    store: Store,
    study: Study,
) -> Iterator[str]:
    """Rewrite chunks of one style and commit their files; yields each that is done."""
    # Ray Data's own wrapper loses what it wraps on the way to the driver.
    DataContext.get_current().raise_original_map_exception = True
    made = ray.data.from_arrow(blocks).map_batches(
        PairRewriter,
        fn_constructor_args=(options, plan, store, study.styles.seed),
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=min(plan.actors, len(blocks))),
        num_cpus=plan.cpus,
        num_gpus=plan.gpus,
        **plan.requests,
    )
    for row in made.iter_rows():
        yield row["file"]


class PairRewriter:
    """Rewrites chunks and commits them, with a checkpoint that it loads at the first one.

    Parameters
    ----------
    plan: of the style.
    store: OUT.
    seed: keys the draws.
    """

    def __init__(self, options: Rewriting, plan: RewritePlan, store: Store, seed: int) -> None:
        self.options = options
        self.plan = plan
        self.store = store
        self.seed = seed

    # Not loaded where it is made: of what an actor's creation raises, only text arrives.
    @cached_property
    def rewriter(self) -> Rewriter:
        """The checkpoint with its judge."""
        import torch

        from raybias.engine.rewriting.rewriter import Rewriter

        torch.set_num_threads(self.plan.cpus)
        return Rewriter(
            self.options,
            style=self.plan.style,
            device="cuda" if self.plan.gpus else "cpu",
            tokens_per_batch=self.plan.tokens_per_batch,
        )

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Rewrite the pairs of a block (schema.PAIRS and `file`), and say which file has them."""
        file = batch["file"][0].as_py()
        pairs = pl.DataFrame(batch.select(PAIRS.names))
        made = rewritten_pairs(
            pairs, self.plan.style, self.rewriter, paired=self.plan.paired, seed=self.seed
        )
        self.store.write_table(file, made.to_arrow().cast(REWRITTEN_PAIRS))
        return pa.table({"file": [file]})


def _block(chunk: Chunk, originals: pl.DataFrame) -> pa.Table:
    rows = originals.slice(chunk.number * CHUNK_ROWS, chunk.rows)
    return rows.with_columns(pl.lit(chunk.file).alias("file")).to_arrow()


def _read(store: Store, chunk: Chunk) -> pl.DataFrame:
    return pl.DataFrame(store.read_table(chunk.file, columns=PAIRS.names))


def _with_style(items: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """The items with the rows of one style replaced; styles stand one after another."""
    parts = items.partition_by("style", maintain_order=True)
    style = made["style"][0]
    return pl.concat([made if part["style"][0] == style else part for part in parts])
