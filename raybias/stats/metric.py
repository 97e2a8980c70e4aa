"""Look up the metrics that gaps are taken of, and apply those of predictions.

A metric is a function in one file, registered with `registry.metric`: raybias's own are the
modules of `stats.metrics`, others come from installed packages.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import ConfigError
from raybias.stats.cells import RUN_KEYS
from raybias.stats.metric_types import Share, metrics

#: The false positive rates of Tian2023 and Kohankhaki2024.
DEFAULT: Final = ("negative_fpr", "positive_fpr")

VALUES: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "rate"), pl.String()),
        "n_items": pl.Int64(),
        "value": pl.Float64(),
    }
)


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no metric has.

    Raises
    ------
    ConfigError: names the metrics that are near.
    """
    for name in names:
        if name not in metrics:
            near = difflib.get_close_matches(name, metrics, n=3, cutoff=0.5)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"no metric {name!r}", cure=f"{meant}`raybias measure --list` has all"
            )


def check_metrics(names: Sequence[str]) -> None:
    """Refuse metrics that a study cannot have, whose tables hold counts and no scores.

    Raises
    ------
    ConfigError: no such metric, one of scores, or none that has gaps.
    """
    check_names(names)
    for name in names:
        parts = metrics[name].contrast
        if parts is not None and parts.needs != "counts":
            raise ConfigError(
                f"the metric {name!r} is of scores, which the tables of a study do not hold",
                cure=f"run `raybias measure OUT --metric {name}` on its predictions",
            )
    if names and all(metrics[name].contrast for name in names):
        raise ConfigError(
            f"metrics {', '.join(names)}: none has a gap for each group",
            cure=f"add one that has, such as {DEFAULT[0]}",
        )


def contrasts(names: Iterable[str]) -> list[str]:
    """Select the metrics that are numbers for all groups of an attribute."""
    return [name for name in names if metrics[name].contrast is not None]


def shares(names: Iterable[str]) -> dict[str, Share]:
    """Return the shares of those metrics that are of counts, by name."""
    functions = {name: metrics[name].share for name in names}
    label, pred = pl.col("label"), pl.col("pred")
    return {name: of(label, pred) for name, of in functions.items() if of is not None}


def counted(share: Share) -> tuple[pl.Expr, pl.Expr]:
    """Return aggregates of cells: `n_items` that count, and `hits`, those in the share."""
    n = pl.col("n")
    return (
        n.filter(share.among).sum().alias("n_items"),
        n.filter(share.among & share.holds).sum().alias("hits"),
    )


def reads_predictions(names: Iterable[str]) -> bool:
    """Whether one of the metrics is of predictions."""
    return any(metrics[name].values is not None for name in names)


def run_values(
    pieces: Sequence[pl.DataFrame], names: Iterable[str], left_out: pl.DataFrame
) -> pl.DataFrame:
    """Compute the metrics that are of predictions.

    Parameters
    ----------
    pieces: schema.PREDICTIONS, in any order; without `scores`.
    names: of metrics.
    left_out: RUN_KEYS of runs to leave out.

    Returns
    -------
    The run keys, attribute, group, rate (the metric's name), n_items and value.

    Raises
    ------
    ConfigError: a metric that does not give such rows.
    """
    tables = [pl.DataFrame(schema=VALUES)]
    for name in names:
        function = metrics[name].values
        if function is None or not pieces:
            continue
        texts = pl.concat(pieces).cast({pl.Categorical: pl.String})
        whole = texts.join(left_out, on=RUN_KEYS, how="anti", nulls_equal=True)
        columns = [pl.col(column) for column in schema.PREDICTIONS.names if column in whole.columns]
        try:
            values = function(whole.select(columns)).with_columns(rate=pl.lit(name))
            tables.append(values.select(pl.col(n).cast(t) for n, t in VALUES.items()))
        except pl.exceptions.PolarsError as error:
            raise ConfigError(
                f"the metric {name!r} does not give a value per run, attribute and group ({error})",
                cure="return the run keys, attribute, group, value and n_items",
            ) from error
    return pl.concat(tables)
