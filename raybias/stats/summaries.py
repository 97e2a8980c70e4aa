"""Summarise gaps: net significance (Tian2023, Table 1), spans, extremes, sizes (Kohankhaki2024).

They rest on gaps and cells and estimate nothing anew.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema
from raybias.schema import LABELS
from raybias.stats.cells import RUN_KEYS, without_extras

_ACROSS_MODELS: Final = tuple(name for name in schema.KEYS if name != "model")


def net_significance(gaps: pl.DataFrame) -> pl.DataFrame:
    """Count models with a significant gap, up minus down (Tian2023, Table 1).

    Parameters
    ----------
    gaps: schema.GAPS; what counts is what `survives` the table's own correction.

    Returns
    -------
    method, dataset, probe, style, attribute, group, rate, net (+1 for each model whose gap is
    significantly above 0, -1 below) and n_models (those that could be judged).
    """
    by = [*_ACROSS_MODELS, "attribute", "group", "rate"]
    sign = pl.col("gap").sign() * pl.col("survives")
    return (
        gaps.group_by(by)
        .agg(
            net=sign.sum().cast(pl.Int64),
            n_models=pl.col("survives").is_not_null().sum().cast(pl.Int64),
        )
        .sort(by)
    )


def spans(gaps: pl.DataFrame) -> pl.DataFrame:
    """Subtract a model's smallest mean gap from its largest (Kohankhaki2024, Table 4).

    A span is a maximum of noisy values and so is too large on average; `bootstrap.resampled` has
    its interval, and what it is without that.

    Returns
    -------
    The keys, attribute, rate, span, and the groups at its ends: lowest, highest (all of those
    that are equal, with commas; null where all groups are).
    """
    by = [*schema.KEYS, "attribute", "rate"]
    inside = gaps.filter(pl.col("in_mean") & pl.col("gap").is_not_null())
    gap = pl.col("gap")
    ends = {
        name: pl.when(gap.min() < gap.max()).then(pl.col("group").filter(gap == end).str.join(", "))
        for name, end in (("lowest", gap.min()), ("highest", gap.max()))
    }
    return inside.sort("group").group_by(by).agg(span=gap.max() - gap.min(), **ends).sort(by)


def spans_mean(spans: pl.DataFrame) -> pl.DataFrame:
    """Average a classifier's spans over probes, and rank it (Kohankhaki2024, Table 4).

    Returns
    -------
    model, method, dataset, style, attribute, rate, n_probes, mean_span, and `rank` among all
    classifiers with the attribute and rate: 1 is the widest, equals share the better rank.
    Classifiers with other probes are not to be compared: look at n_probes.
    """
    by = [*(key for key in schema.KEYS if key != "probe"), "attribute", "rate"]
    rank = pl.col("mean_span").rank("min", descending=True).over("style", "attribute", "rate")
    return (
        spans.sort("probe")
        .group_by(by, maintain_order=True)
        .agg(n_probes=pl.len().cast(pl.Int64), mean_span=pl.col("span").mean())
        .with_columns(rank=rank.cast(pl.Int64))
        .sort("attribute", "rate", "style", "rank", *by[:3])
    )


def extremes(gaps: pl.DataFrame) -> pl.DataFrame:
    """Count how often each group is an extreme (Kohankhaki2024, section on the White group).

    A group is an extreme of a (model, method, dataset, probe) pair when its mean gap is the
    highest or the lowest of the reference groups; equals share it. Where all gaps are equal no
    group is.

    Returns
    -------
    attribute, group, rate, n_extreme, of which n_lowest and n_highest, n_pairs (those whose
    mean has the group) and share.
    """
    by = ["attribute", "group", "rate"]
    pair = [*schema.KEYS, "attribute", "rate"]
    inside = gaps.filter(pl.col("in_mean") & pl.col("gap").is_not_null())
    low, high = pl.col("gap").min().over(pair), pl.col("gap").max().over(pair)
    at_low, at_high = ((pl.col("gap") == end) & (low < high) for end in (low, high))
    return (
        inside.with_columns(
            n_lowest=at_low / at_low.sum().over(pair), n_highest=at_high / at_high.sum().over(pair)
        )
        .group_by(by)
        .agg(pl.col("n_lowest", "n_highest").fill_nan(0).sum(), n_pairs=pl.len().cast(pl.Int64))
        .with_columns(n_extreme=pl.col("n_lowest") + pl.col("n_highest"))
        .with_columns(share=pl.col("n_extreme") / pl.col("n_pairs"))
        .select(*by, "n_extreme", "n_lowest", "n_highest", "n_pairs", "share")
        .sort(by)
    )


def composition(cells: pl.DataFrame) -> pl.DataFrame:
    """Count the sentences of each group, by right label (Kohankhaki2024, Table 5).

    The paper's table counts predictions, five runs of each sentence.

    Returns
    -------
    probe, attribute, group; `items` of one run by label and together (the most, where runs
    differ); `predictions` of one classifier's runs likewise; and `fraction`, the group's
    share of the attribute's items (null for the extra groups, which are no part of it).
    """
    place = ["probe", "attribute", "group", "label"]
    per_run = cells.group_by(*RUN_KEYS, *place[1:]).agg(pl.col("n").sum())
    per_classifier = per_run.group_by(*schema.KEYS, *place[1:]).agg(
        items=pl.col("n").max(), predictions=pl.col("n").sum()
    )
    counts = per_classifier.group_by(place).agg(pl.col("items", "predictions").max())
    names = {int(label): name for label, name in enumerate(LABELS)}
    wide = counts.group_by(place[:3]).agg(
        *(
            pl.col(kind).filter(pl.col("label") == label).sum().alias(f"{kind}_{name}")
            for kind in ("items", "predictions")
            for label, name in names.items()
        ),
        pl.col("items", "predictions").sum(),
    )
    wide = wide.cast({pl.Categorical: pl.String})
    totals = without_extras(wide).group_by("probe", "attribute").agg(total=pl.col("items").sum())
    whole = pl.when(~pl.col("group").is_in(schema.EXTRA_GROUPS)).then(pl.col("total"))
    columns = [f"{kind}{end}" for kind in ("items", "predictions")
               for end in (*(f"_{name}" for name in LABELS), "")]  # fmt: skip
    return (
        wide.join(totals, on=["probe", "attribute"], how="left")
        .with_columns(fraction=pl.col("items") / whole)
        .select(*place[:3], *columns, "fraction")
        .sort(place[:3])
    )
