"""Resample families of templates instead of single templates.

Templates that were written from one opening are alike, so an interval that resamples them one by
one can be too narrow. With a family's templates summed up, a family is the unit that is resampled
(cluster-robust), and the point estimates stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from raybias.stats.counts import Counts


def of_families(counts: Counts) -> Counts:
    """Sum the counts of each family of templates up, as if the family were one template.

    A template without a family is a family of its own. Probes without families are left out.
    """
    known = counts.families.select("probe", "attribute").unique()
    cells, words = (
        _merged(frame.cast({pl.Categorical: pl.String}), counts.families, known)
        for frame in (counts.cells, counts.words)
    )
    return replace(counts, cells=cells, words=words)


def _merged(cells: pl.DataFrame, families: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Put each template's family in its place."""
    there = cells.join(known, on=known.columns, how="semi", maintain_order="left")
    on = ["probe", "attribute", "template_id"]
    named = there.join(families, on=on, how="left", maintain_order="left")
    merged = named.with_columns(template_id=pl.coalesce("family", "template_id")).drop("family")
    by = [name for name in merged.columns if name != "n"]
    return merged.group_by(by, maintain_order=True).agg(pl.col("n").sum())
