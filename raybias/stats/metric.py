"""Register metrics: outcomes of groups, how those are contrasted and reduced, and what they read.

A metric is a function in one file, registered with `metric` or `contrast`: raybias's own are the
modules of `stats.metrics`, others come from installed packages.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from raybias import schema
from raybias.errors import ConfigError
from raybias.registry import Code, Registry
from raybias.schema import Label
from raybias.stats.cells import RUN_KEYS
from raybias.stats.components import Doubles

#: The false positive rates of Tian2023 and Kohankhaki2024.
DEFAULT: Final = ("negative_fpr", "positive_fpr")
#: Columns of the values of metrics by run and group.
VALUES: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "score"), pl.String()),
        "n_items": pl.Int64(),
        "value": pl.Float64(),
    }
)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of predictions, as expressions over the columns of counts.

    Attributes
    ----------
    among: which predictions count.
    holds: which of those are in the share.
    """

    among: pl.Expr
    holds: pl.Expr


#: Makes a share of the columns `label` and `pred` (null where no label could be read).
ShareOf = Callable[[pl.Expr, pl.Expr], Share]
#: Makes one row per run, attribute and group of schema.PREDICTIONS: the run keys, attribute,
#: group, value, and n_items, how many items the value rests on.
ValuesOf = Callable[[pl.DataFrame], pl.DataFrame]
#: Backgrounds: the unweighted mean of groups (of the reference groups), all examples, those of all
#: other groups, or `reference:GROUP`.
BACKGROUNDS: Final = ("mean_of_groups", "pooled", "pooled_others", "reference:GROUP")
#: What a contrast reads: counts of true and false positives and negatives, scores that
#: order examples, or scores that are probabilities.
Needs = Literal["counts", "scores", "probabilities"]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """How outcomes of groups, or of the versions of one source example, become one number.

    Shapes: B draws, S source examples, G groups.
    """

    outcomes: tuple[str | Callable[..., Doubles], ...]
    """The name of a metric of counts or a class, or a function. Of counts, it is given true
    positives, false positives, false negatives and true negatives, arrays of one shape, and returns
    such an array. Of scores, it is given the `stats.examples.Examples` of a group, and those of the
    background if there is no `distance`, and returns [B]. Within a source, it is given
    `stats.examples.Versions` and returns [S, G], or [S] if there is no `reduce`."""
    needs: Needs = "counts"
    within: Literal["group", "source"] = "group"
    """Group: of all examples of a group. Source: of the versions of one source example; then the
    mean over these."""
    against: str = ""
    """The background, one of BACKGROUNDS; each group has a value of its own then."""
    distance: Callable[[Doubles, Doubles], Doubles] | None = None
    """Between the outcomes of groups and of the background, both [..., G]."""
    reduce: Callable[[Doubles], Doubles] | None = None
    """Reduces values [..., G] to those for all groups [...]."""
    worst: Callable[..., Any] | None = None
    """Of the values of several outcomes: np.max or np.min."""
    bound: float | None = None
    """The extreme that noise alone moves the metric away from, such as 0 of a distance or 1 of the
    lowest by the highest; intervals end there, and values are also given less that noise."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What groups are compared by; see `metric` and `contrast`."""

    name: str
    title: str
    about: str
    words: str
    above: str = ""
    below: str = ""
    formula: str = ""
    source: str = ""
    share: ShareOf | None = None
    one_class: ShareOf | None = None
    """Of a metric of one class: the share of the columns `gold` and `called`."""
    values: ValuesOf | None = None
    contrast: Contrast | None = None

    def effect(self, gap: float) -> str:
        """Return what a gap of this sign means for a group, such as `harm`."""
        return self.above if gap > 0 else self.below


metrics: Final[Registry[Metric]] = Registry("metric", "raybias.stats.metrics")


def metric(
    *,
    of: Literal["counts", "class", "predictions"],
    title: str,
    about: str,
    words: str,
    above: str = "",
    below: str = "",
    formula: str = "",
    source: str = "",
) -> Callable[[Code], Code]:
    """Register a function as the metric of its name, whose gaps are differences of groups.

    Of counts, the function is given the columns `label` and `pred` and returns a `Share`; it has
    gaps by template and term, marking effects and bootstrap intervals too. Of a class, it is
    given whether the label and the prediction are that class (`positive` in a study). Of
    predictions, it is given whole runs (schema.PREDICTIONS) and returns a row per run, attribute
    and group; its gaps have intervals over runs.

    Parameters
    ----------
    of: what the function reads.
    title: of its tables and figures, such as `wrongly called negative`.
    about: what it counts, such as `the share of the group's sentences that ...`.
    words: what happens to a group more or less often, such as `called negative`.
    above, below: what a gap above and below 0 means for a group: `harm`, `benefit` or nothing.
    formula, source: for lists of metrics.

    Raises
    ------
    ConfigError: another metric has the name.
    """

    def make(function: Code) -> Metric:
        of_class = _of_class(function) if of == "class" else None
        return Metric(
            name=function.__name__,
            title=title,
            about=about,
            words=words,
            above=above,
            below=below,
            formula=formula,
            source=source,
            share=function if of == "counts" else of_class,
            one_class=function if of == "class" else None,
            values=function if of == "predictions" else None,
        )

    def register(function: Code) -> Code:
        return metrics.register(function.__name__, make)(function)

    return register


def _of_class(function: ShareOf) -> ShareOf:
    """Read labels of schema.Label; an answer without a label is not called the class."""

    def share(label: pl.Expr, pred: pl.Expr) -> Share:
        return function(label == Label.POSITIVE, (pred == Label.POSITIVE).fill_null(False))

    return share


def contrast(
    name: str,
    parts: Contrast,
    *,
    formula: str,
    source: str,
    above: Literal["harm", "benefit"] = "harm",
) -> None:
    """Register a metric that contrasts outcomes of groups and reduces them to one number.

    Parameters
    ----------
    formula, source: for lists of metrics; `phi` is the outcome.
    above: what a higher value means.

    Raises
    ------
    ConfigError: another metric has the name.
    """
    below = "benefit" if above == "harm" else "harm"
    entry = Metric(
        name=name, title=name.replace("_", " "), about=formula, words=name, above=above,
        below=below, formula=formula, source=source, contrast=parts,
    )  # fmt: skip
    module = str(sys._getframe(1).f_globals["__name__"])
    metrics.add(name, entry, origin=(module, name))


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
    The run keys, attribute, group, score (the metric's name), n_items and value.

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
            values = function(whole.select(columns)).with_columns(score=pl.lit(name))
            tables.append(values.select(pl.col(n).cast(t) for n, t in VALUES.items()))
        except pl.exceptions.PolarsError as error:
            raise ConfigError(
                f"the metric {name!r} does not give a value per run, attribute and group ({error})",
                cure="return the run keys, attribute, group, value and n_items",
            ) from error
    return pl.concat(tables)
