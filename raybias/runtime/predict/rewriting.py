"""Rewrite pairs in a style with a checkpoint, in shards on Serve replicas as predictions are made.

A pair's draws are keyed by the pair, so a shard that is computed twice is the same file, and a
study that is run again rewrites only what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl
import pyarrow as pa

from raybias.config import Rewriting, Study
from raybias.methods.base import Answered, Compute, Reader, Shard
from raybias.planning.prepared import in_style
from raybias.planning.stage_plans import RewritePlan
from raybias.planning.workload import REWRITING, STYLED, chunks_of
from raybias.probes.styles.rewriting import rewritten_pairs
from raybias.runtime.graph import Grant
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.files import ShardFiles
from raybias.runtime.progress import Advance, Reporter
from raybias.runtime.workers import Reading, Workers
from raybias.schema import PAIRS, OutputSpec
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.rewriter import Rewriter


@dataclass(frozen=True, kw_only=True)
class StyleRewriting:
    """One style of a study, in a method's place on a replica; `seed` keys the draws."""

    style: str
    options: Rewriting
    paired: Literal["separate", "mirror"]
    seed: int

    name: ClassVar[str] = REWRITING
    runs_per_replica: ClassVar[int] = 1

    def output(self) -> OutputSpec:
        """Say that rewritten pairs go to OUT/styled."""
        return STYLED

    def reader(self, context: ModelContext, store: Store) -> PairRewriter:
        """Load the checkpoint and its judge."""
        from raybias.engine.rewriter import Rewriter

        return PairRewriter(self, Rewriter(self.options, context.execution, style=self.style))


@dataclass(frozen=True)
class PairRewriter(Reader):
    """Rewrites pairs, in a method's reader's place."""

    work: StyleRewriting
    rewriter: Rewriter

    def prepare(self, run: None, items: pa.Table) -> Compute:
        """Return what rewrites pairs (`schema.PAIRS`); tokens are not counted."""
        pairs, work = pl.DataFrame(items), self.work

        def rewrite() -> Answered:
            made = rewritten_pairs(
                pairs, work.style, self.rewriter, paired=work.paired, seed=work.seed
            )
            return Answered(made.to_arrow(), tokens=0)

        return rewrite


@dataclass(frozen=True)
class StyleRewriter:
    """Puts the pairs of one style that a checkpoint makes into OUT/styled."""

    study: Study
    style: str
    plan: RewritePlan
    store: Store
    workers: Workers
    reporter: Reporter

    def run(self, items: Mapping[str, pl.DataFrame], grant: Grant) -> dict[str, pl.DataFrame]:
        """Rewrite the missing pairs; returns the rewritten ones by probe.

        Parameters
        ----------
        items: by probe, with the originals where rewritten pairs will stand.
        """
        plan, files = self.plan, self._files()
        originals = in_style(self.study, self.style, items)
        title = f"rewrite as {self.style} with {plan.backbone}"

        def read(todo: Sequence[Shard], advance: Advance) -> None:
            self.workers.read(self._reading(todo, originals), grant, advance)

        files.complete(title, read, self.reporter, starting=self.workers.starting)
        made = {}
        for probe in originals:
            name = f"{STYLED.folder}/{probe}/{self.style}.parquet"
            made[probe] = pl.DataFrame(self.store.read_table(name, schema=PAIRS))
        kept = sum(int(frame["kept"].sum()) for frame in made.values())
        self.reporter.say(
            f"{title}: {kept:,} of {sum(plan.pairs.values()):,} pairs keep their original, for"
            " which nothing adequate was drawn"
        )
        return made

    def left(self) -> float:
        """Return the share of the shards that OUT lacks, 0 to 1."""
        return self._files().lacking

    def _files(self) -> ShardFiles:
        return ShardFiles(self.store, chunks_of(self.style, self.plan.pairs), STYLED)

    def _reading(self, todo: Sequence[Shard], originals: Mapping[str, pl.DataFrame]) -> Reading:
        study, plan = self.study, self.plan
        options = study.styles.rewriting[self.style]
        work = StyleRewriting(
            style=self.style, options=options, paired=plan.paired, seed=study.styles.seed
        )
        return Reading(
            name=self.style,
            context=plan.context(options.spec()),
            methods=(work,),
            plan=plan,
            store=self.store,
            todo=tuple(todo),
            meter=Meter(study=study.name, stage="rewrite", model=plan.backbone),
            items={name: each.select(PAIRS.names).to_arrow() for name, each in originals.items()},
        )


def with_styles(
    items: Mapping[str, pl.DataFrame], made: Mapping[str, Mapping[str, pl.DataFrame]]
) -> dict[str, pl.DataFrame]:
    """Put rewritten pairs, by style and probe, into the places of their originals."""
    whole = dict(items)
    for frames in made.values():
        for name, frame in frames.items():
            style = frame["style"][0]
            # Styles stand one after another.
            parts = whole[name].partition_by("style", maintain_order=True)
            whole[name] = pl.concat(frame if p["style"][0] == style else p for p in parts)
    return whole
