"""Rewrite pairs in a style with a checkpoint, in shards on Serve replicas as predictions are made.

A pair's draws are keyed by the pair, so a shard that is computed twice is the same file, and a
study that is run again rewrites only what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl
import pyarrow as pa

from raybias.config import Rewriting, Study
from raybias.methods.prediction import Shard, ShardResult
from raybias.planning.plan import Plan
from raybias.planning.prepared import in_style
from raybias.planning.shards import REWRITING, STYLED, Chunk, chunks_of, missing
from raybias.planning.stage_plans import RewritePlan
from raybias.probes.styles.rewriting import rewritten_pairs
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import scorers
from raybias.runtime.predict.stream import score_shards
from raybias.runtime.progress import Done, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.schema import PAIRS, REWRITTEN_PAIRS
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.context import ModelContext
    from raybias.engine.rewriting.rewriter import Rewriter


@dataclass(frozen=True, kw_only=True)
class StyleRewriting:
    """One style of a study, in a method's place on a replica.

    Attributes
    ----------
    paired: as the plan decides.
    seed: keys the draws.
    """

    style: str
    options: Rewriting
    paired: Literal["separate", "mirror"]
    seed: int

    name: ClassVar[str] = REWRITING
    runs_per_replica: ClassVar[int] = 1

    def predictor(self, context: ModelContext, store: Store) -> PairRewriter:
        """Load the checkpoint and its judge.

        Raises
        ------
        ModelError: a model without weights, or one that lacks some.
        """
        from raybias.engine.rewriting.rewriter import Rewriter

        return PairRewriter(self, Rewriter(self.options, context.execution, style=self.style))


@dataclass(frozen=True)
class PairRewriter:
    """A `methods.prediction.Predictor` that rewrites pairs."""

    work: StyleRewriting
    rewriter: Rewriter

    def load(self, run_id: str) -> None:
        """Load nothing: a style has no runs."""

    def table(self, run: None, shard: Shard, items: pa.Table) -> ShardResult:
        """Rewrite pairs (`schema.PAIRS`) into `schema.REWRITTEN_PAIRS`; tokens are not counted."""
        made = rewritten_pairs(
            pl.DataFrame(items),
            self.work.style,
            self.rewriter,
            paired=self.work.paired,
            seed=self.work.seed,
        )
        return ShardResult(made.to_arrow().cast(REWRITTEN_PAIRS), tokens=0)


def rewrite_items(
    study: Study,
    items: Mapping[str, pl.DataFrame],
    planned: Plan,
    store: Store,
    *,
    app: str,
    reporter: Reporter,
) -> dict[str, pl.DataFrame]:
    """Put the pairs of every style that a checkpoint makes into `items`; OUT/styled keeps them.

    Parameters
    ----------
    items: per probe, with the originals where rewritten pairs will stand.
    app: prefix of the Serve applications' names.

    Raises
    ------
    WorkFailed: a checkpoint or judge cannot be loaded, or a shard fails.
    """
    whole = dict(items)
    for style, options in study.styles.rewriting.items():
        plan = planned.rewrite(style)
        originals = in_style(study, style, items)
        chunks = chunks_of(style, plan.pairs)
        title = f"rewrite as {style} with {plan.backbone}"
        if todo := missing(store, chunks, STYLED):
            with translating_errors(title), reporter.stage(title, len(chunks)) as advance:
                advance(len(chunks) - len(todo))
                for done in _rewrite(study, options, plan, todo, originals, store=store, app=app):
                    advance(done=done)
        made = {name: _read(store, chunks, name) for name in originals}
        kept = sum(int(frame["kept"].sum()) for frame in made.values())
        reporter.say(
            f"{title}: {kept:,} of {sum(plan.pairs.values()):,} pairs keep their original, for"
            " which nothing adequate was drawn"
        )
        whole |= {name: _with_style(whole[name], frame) for name, frame in made.items()}
    return whole


def _rewrite(
    study: Study,
    options: Rewriting,
    plan: RewritePlan,
    todo: Sequence[Chunk],
    originals: Mapping[str, pl.DataFrame],
    *,
    store: Store,
    app: str,
) -> Iterator[Done]:
    """Rewrite chunks of one style and commit their files; yields each that is done."""
    meter = Meter(study=study.name, stage="rewrite", model=plan.backbone)
    replicas = scorers(
        f"{app}-{plan.style}",
        plan,
        plan.context(options.spec()),
        [
            StyleRewriting(
                style=plan.style, options=options, paired=plan.paired, seed=study.styles.seed
            )
        ],
        out=store.uri,
        meter=meter,
    )
    pairs = {name: frame.select(PAIRS.names).to_arrow() for name, frame in originals.items()}
    failures = study.resources.max_failures
    with replicas as name:
        for row in score_shards(
            name, todo, plan, store, max_failures=failures, meter=meter, items=pairs
        ):
            yield Done(rows=row["rows"], retries=row["retries"])


def _read(store: Store, chunks: Sequence[Chunk], probe: str) -> pl.DataFrame:
    """Read the rewritten pairs of one probe."""
    files = [chunk.file for chunk in chunks if chunk.probe == probe]
    return pl.concat([pl.DataFrame(store.read_table(f, columns=PAIRS.names)) for f in files])


def _with_style(items: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Replace the rows of one style; styles stand one after another."""
    parts = items.partition_by("style", maintain_order=True)
    style = made["style"][0]
    return pl.concat([made if part["style"][0] == style else part for part in parts])
