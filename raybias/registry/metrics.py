"""Register metrics: numbers per run and group, whose differences between groups are gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from raybias.registry.mechanism import Code, Registry

if TYPE_CHECKING:
    import polars as pl


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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number per run and group, whose differences between groups are gaps; see `metric`."""

    name: str
    title: str
    about: str
    words: str
    above: str
    below: str
    share: ShareOf | None
    values: ValuesOf | None

    def effect(self, gap: float) -> str:
        """Return what a gap of this sign means for a group, such as `harm`."""
        return self.above if gap > 0 else self.below


metrics: Final[Registry[Metric]] = Registry("metric", "raybias.stats.metrics")


def metric(
    *,
    of: Literal["counts", "predictions"],
    title: str,
    about: str,
    words: str,
    above: str = "",
    below: str = "",
) -> Callable[[Code], Code]:
    """Register a function as the metric of its name.

    Of counts, the function is given the columns `label` and `pred` and returns a `Share`; it has
    gaps by template and term, marking effects and bootstrap intervals too. Of predictions, it is
    given whole runs (schema.PREDICTIONS) and returns a row per run, attribute and group; its gaps
    have intervals over runs.

    Parameters
    ----------
    of: what the function reads.
    title: of its tables and figures, such as `wrongly called negative`.
    about: what it counts, such as `the share of the group's sentences that ...`.
    words: what happens to a group more or less often, such as `called negative`.
    above, below: what a gap above and below 0 means for a group: `harm`, `benefit` or nothing.

    Raises
    ------
    ConfigError: another metric has the name.
    """

    def make(function: Code) -> Metric:
        counts = of == "counts"
        return Metric(
            name=function.__name__,
            title=title,
            about=about,
            words=words,
            above=above,
            below=below,
            share=function if counts else None,
            values=None if counts else function,
        )

    def register(function: Code) -> Code:
        return metrics.register(function.__name__, make)(function)

    return register
