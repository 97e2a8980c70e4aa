"""Register metrics: outcomes of groups, and how those of groups are contrasted and reduced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from raybias.registry import Code, Registry
from raybias.schema import Label

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Doubles = npt.NDArray[np.float64]


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
ShareOf = Callable[["pl.Expr", "pl.Expr"], Share]
#: Makes one row per run, attribute and group of schema.PREDICTIONS: the run keys, attribute,
#: group, value, and n_items, how many items the value rests on.
ValuesOf = Callable[["pl.DataFrame"], "pl.DataFrame"]
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
