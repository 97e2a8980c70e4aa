"""A second reading of prompted classifiers: the likeliest label instead of the sampled answer.

Both readings stand side by side under their own method names. Where all runs of a
prompted classifier give the same predictions, seeds changed nothing: they are one
run, and an interval over them would have no width (Kohankhaki2024 says neither).
"""

from __future__ import annotations

import polars as pl

from raybias import schema
from raybias.stats.cells import LIKELIHOOD, RUN_KEYS


def with_likelihood(predictions: pl.DataFrame) -> pl.DataFrame:
    """Add the likelihood reading of prompted predictions below them.

    Parameters
    ----------
    predictions: schema.PREDICTIONS, the method as text or category. Rows with an `answer` and a
        score of each label are read twice: as they are, and as method `METHOD+likelihood` with the
        label of the highest score. A judge's verdict has one score.
    """
    answered = predictions.filter(
        pl.col("answer").is_not_null()
        & pl.col("scores").list.len().fill_null(0).ge(len(schema.LABELS))
    )
    second = answered.with_columns(
        method=(pl.col("method").cast(pl.String) + LIKELIHOOD).cast(predictions["method"].dtype),
        pred=pl.col("scores").list.arg_max().cast(pl.Int8),
        parsed=pl.lit(True),
        unread=pl.lit(None, pl.String),
        answer=pl.lit(None, pl.String),
    )
    return pl.concat([predictions, second]) if second.height else predictions


def answers(counted: pl.DataFrame) -> pl.DataFrame:
    """Count the answers of prompted classifiers that hold no label (Kohankhaki2024 does not say).

    Parameters
    ----------
    counted: the run keys, predictions, unparsed, several, negated; a row per run.

    Returns
    -------
    schema.ANSWERS, a row per run and one with the run id `all` per classifier and probe.
    """
    sums = pl.col("predictions", "unparsed", "several", "negated").sum()
    runs = counted.group_by(RUN_KEYS).agg(sums)
    overall = runs.group_by(schema.KEYS).agg(pl.lit("all").alias("run_id"), sums)
    both = pl.concat([runs, overall.select(runs.columns)])
    last = pl.col("run_id") == "all"
    return (
        both.with_columns(share=pl.col("unparsed") / pl.col("predictions"))
        .sort(*schema.KEYS, last, "run_id")
        .select(pl.col(name).cast(dtype) for name, dtype in pl.Schema(schema.ANSWERS).items())
    )
