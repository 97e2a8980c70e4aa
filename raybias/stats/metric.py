"""Register metrics, and take those of counts by run and group.

A metric is an outcome of groups, a contrast of outcomes and a reduction: a function in one file,
registered with `metric` or `contrast`. raybias's own are the modules of `stats.metrics`, others
come from installed packages.

Shapes: K metrics, G groups, R runs, T templates.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import polars as pl

from raybias import schema
from raybias.errors import ConfigError, said_by
from raybias.registry import Code, Registry
from raybias.schema import RUN_KEYS, TABLE
from raybias.stats import sentiment
from raybias.stats.checks import warn
from raybias.stats.components import Doubles
from raybias.stats.intervals import MIRROR
from raybias.table_files import conformed

#: The false positive rates of Tian2023 and Kohankhaki2024.
DEFAULT: Final = ("negative_fpr", "positive_fpr")
#: What metrics of one class take for it; another changes places with it (`metric_files.as_class`).
THE_CLASS: Final = sentiment.POSITIVE
VALUES: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "score"), pl.String()),
        "n_items": pl.Int64(),
        "value": pl.Float64(),
    }
)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of predictions, as expressions over the columns of counts."""

    among: pl.Expr
    """Which predictions count."""
    holds: pl.Expr
    """Which of those are in the share."""


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
    """How outcomes of groups [B, G], or of versions [S, G] of source examples, become a number."""

    outcomes: tuple[str | Callable[..., Doubles], ...]
    """The name of a metric of counts or a class, or a function. Of counts, it takes true positives,
    false positives, false negatives and true negatives, and returns an array of their shape. Of
    scores, it takes the `stats.contrasts.Examples` of a group, and those of the background if there
    is no `distance`, and returns [B]. Within a source, it takes `stats.contrasts.Laid` and
    returns [S, G], or [S] if there is no `reduce`."""
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

    @property
    def paired(self) -> bool:
        """Whether outcomes are of a group's examples beside those of the background."""
        return self.needs != "counts" and self.distance is None


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A fairness metric: its words, formula and computation; see `metric` and `contrast`."""

    name: str
    title: str
    about: str
    words: str
    among: str = ""
    """Whom a rate is of, such as `whose label is the class`; by default all."""
    above: str = ""
    """What a gap above 0 means if being called the class or positive is favourable: `harm`,
    `benefit` or nothing; `below` likewise. Output says it only if that is declared."""
    below: str = ""
    is_outcome: bool = True
    """Whether it counts an outcome that can be favourable, as accuracy does not."""
    formula: str = ""
    source: str = ""
    of: Literal["counts", "class", "predictions", "contrast", "classes"]
    over_classes: bool = False
    """Whether it is of tables with more than two classes alone."""
    share: ShareOf | None = None
    values: ValuesOf | None = None
    contrast: Contrast | None = None


metrics: Final[Registry[Metric]] = Registry("metric", "raybias.stats.metrics")


def metric(
    *,
    of: Literal["counts", "class", "predictions"],
    title: str,
    about: str,
    words: str,
    **more: Any,
) -> Callable[[Code], Code]:
    """Register a function as the metric of its name, whose gaps are differences of groups.

    Of counts, the function takes the columns `label` and `pred` and returns a `Share`. Of a class,
    it takes whether the label and the prediction are that class (`positive` in a study). Of
    predictions, it takes whole runs (schema.PREDICTIONS) and returns a row per run, attribute and
    group; its gaps have intervals over runs alone.

    Parameters
    ----------
    title: of its tables and figures, such as `wrongly called negative`.
    about: a definition, such as `the share of the group's sentences that ...`.
    words: what happens to a group more or less often, such as `called negative`.
    more: other fields of `Metric`.

    Raises
    ------
    ConfigError: another metric has the name.
    """

    def make(function: Code) -> Metric:
        def of_class(label: pl.Expr, pred: pl.Expr) -> Share:
            # An answer without a label is not called the class.
            called = (pred == THE_CLASS).fill_null(False)
            found: Share = function(label == THE_CLASS, called)
            return found

        return Metric(
            name=function.__name__, of=of, title=title, about=about, words=words,
            share=function if of == "counts" else of_class if of == "class" else None,
            values=function if of == "predictions" else None, **more,
        )  # fmt: skip

    return lambda function: metrics.register(function.__name__, make)(function)


def contrast(
    name: str,
    parts: Contrast,
    *,
    formula: str,
    source: str,
    above: Literal["harm", "benefit"] = "harm",
) -> None:
    """Register a metric that contrasts outcomes of groups and reduces them to one number.

    `phi` is the outcome in the formula; a name that another metric has is a ConfigError.
    """
    below = "benefit" if above == "harm" else "harm"
    entry = Metric(
        name=name, of="contrast", title=name.replace("_", " "), about=formula, words=name,
        above=above, below=below, formula=formula, source=source, contrast=parts,
    )  # fmt: skip
    module = str(sys._getframe(1).f_globals["__name__"])
    metrics.add(name, entry, origin=(module, name))


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no metric has; `ConfigError` names those that are near."""
    for name in names:
        if name not in metrics:
            near = difflib.get_close_matches(name, metrics, n=3, cutoff=0.5)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"no metric {name!r}", cure=f"{meant}`raybias measure --list` has all"
            )


def check_metrics(names: Sequence[str]) -> None:
    """Refuse unknown metrics, those of scores, which no study holds, and none that has gaps."""
    check_names(names)
    for name in names:
        if metrics[name].over_classes:
            cure = "measure such a table with `raybias measure`, without --positive"
            raise ConfigError(f"{name!r} is of tables with more than two classes", cure=cure)
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


def masks(names: Iterable[str]) -> Iterator[pl.Expr]:
    """Yield whether rows count in each share (`among NAME`), and are in it (`holds NAME`)."""
    for name, share in shares(names).items():
        among = share.among.fill_null(False)
        yield among.alias(f"among {name}")
        yield (among & share.holds.fill_null(False)).alias(f"holds {name}")


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


def counted_by(cells: pl.DataFrame, by: Sequence[str], names: Iterable[str]) -> pl.DataFrame:
    """Count `n_items` and `hits` of every share that is of counts, by columns and `score`."""
    none = cells.clear().select(*by, n_items="n", hits="n", score=pl.lit(""))
    return pl.concat([none, *(
        cells.group_by(by).agg(*counted(share), score=pl.lit(name))
        for name, share in shares(names).items()
    )])  # fmt: skip


def run_values(
    pieces: Sequence[pl.DataFrame], names: Iterable[str], left_out: pl.DataFrame
) -> pl.DataFrame:
    """Compute the metrics that are of predictions: the columns of `VALUES`.

    `pieces` are schema.PREDICTIONS, in any order; `left_out` are RUN_KEYS of runs to leave out. A
    metric that does not give such rows is a ConfigError.
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
                f"the metric {name!r} does not give a value per run, attribute and group"
                f" ({said_by(error)})",
                cure="return the run keys, attribute, group, value and n_items",
            ) from error
    return pl.concat(tables)


#: Of two metrics that mirror each other, the largest share of sentences that neither counts.
_NEITHER: Final = 0.01


def metric_rates(
    cells: pl.DataFrame,
    names: Sequence[str] = DEFAULT,
    values: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compute metrics per group and run: the columns of `VALUES`, value null where n_items is 0.

    `n_items` are the items that count, FP + TN for a false positive rate; `values` are those of
    `run_values`, for the metrics that are of predictions.
    """
    by = [*RUN_KEYS, "attribute", "group"]
    cells = cells.cast({pl.String: pl.Categorical})
    value = pl.when(pl.col("n_items") > 0).then(pl.col("hits") / pl.col("n_items"))
    tables = [conformed(counted_by(cells, by, names).with_columns(value=value), VALUES)]
    if values is not None:
        tables.append(values.filter(pl.col("score").is_in(list(names))).cast(VALUES))
    return pl.concat(tables).sort(*by, "score")


def mirrored_rates(
    cells: pl.DataFrame, rates: pl.DataFrame, names: Sequence[str], *, by_papers: bool
) -> pl.DataFrame:
    """Find the classifiers of which one metric is what another leaves: TABLE, score and `reason`.

    If every sentence of an attribute is neutral and a classifier calls none of them neutral, the
    gaps of the two false positive rates differ in their sign alone. Two metrics mirror each other
    if they count the same sentences of an attribute and their values add to 1; the second by name
    has a reason, unless `by_papers` both count. A StatisticsWarning names those that do not always.
    """
    place = ["probe", "attribute"]
    kinds = cells.select(*place, "label", "pred").unique().cast({pl.Categorical: pl.String})
    tables = [pl.DataFrame(schema=dict.fromkeys((*TABLE, "score", "reason"), pl.String))]
    for (first, one), (second, other) in combinations(sorted(shares(names).items()), 2):
        same = kinds.group_by(place).agg((one.among == other.among).all().alias("same"))
        concerned = rates.filter(pl.col("score").is_in([first, second])).join(
            same.filter("same"), on=place, how="semi", nulls_equal=True
        )
        together = concerned.group_by(*RUN_KEYS, "attribute", "group").agg(pl.col("value").sum())
        off = (pl.col("value") - 1).abs().max()
        alike = together.group_by(TABLE).agg(off.alias("off")).filter(pl.col("off") <= _NEITHER)
        said = {"score": pl.lit(second), "reason": pl.lit(MIRROR + first)}
        tables.append(alike.select(*TABLE, **said))
    # Of several that a rate mirrors, the first.
    found = pl.concat(tables).sort(TABLE, maintain_order=True)
    found = found.unique([*TABLE, "score"], keep="first", maintain_order=True)
    always = {name for name, entry in metrics.items() if entry.of == "class"}
    counted = "counted twice by the papers' rule" if by_papers else "and is counted once"
    for model, method, _, probe, _, attribute, score, reason in found.iter_rows():
        if not {score, mirrors := reason.removeprefix(MIRROR)} <= always:
            name, of = (
                " ".join(filter(None, each)) for each in ((model, method), (probe, attribute))
            )
            warn(
                f"{name} on {of}: {score} is (almost) what {mirrors} leaves, one result with two "
                f"signs, {counted}"
            )
    return found
