"""A kind of measurement: what its answers are, what is summed of them, and its scores.

A new kind is one module of `measures.entries`: its columns, units, sums and scores. It brings no
command, table, figure or page: those read the frame of estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from raybias.registry import Registry
from raybias.stats.components import Doubles
from raybias.stats.intervals import Adjust
from raybias.stats.predictions import Source

PACKAGE: Final = "raybias.measures.entries"


@dataclass(frozen=True)
class Rules:
    """How estimates are judged."""

    level: float = 0.95
    strict: bool = True
    """Paired tests; else the paper's tests of two proportions and of independent lists."""
    adjust: Adjust = "benjamini_hochberg"
    draws: int = 10_000
    """Of the bootstrap over pairs."""
    seed: int = 0
    """Of the bootstrap."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Numbers of parameters, by model, where the model's name does not tell."""
    letters: frozenset[str] = frozenset()
    """Methods that answer by the likelihoods of the options' letters."""


class Sums:
    """Sums over answers by name, as arrays of one shape: `sums.right` is the sum of `right`."""

    def __init__(self, arrays: Mapping[str, Doubles]) -> None:
        self._arrays = arrays

    def __getattr__(self, name: str) -> Doubles:
        try:
            found: Doubles = self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(name) from None
        return found

    @property
    def empty(self) -> bool:
        """Whether every sum is 0."""
        return not any(array.any() for array in self._arrays.values())


class Least(tuple[Doubles, ...]):
    """Smooth functions of sums, the least of which is the score."""

    __slots__ = ()


Values = Doubles | Least
#: Computes a score of the sums of each condition: a value, or one for each condition.
ScoreOf = Callable[..., "Values | tuple[Values, ...]"]
Function = TypeVar("Function", bound=ScoreOf)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number of a model's answers: `of` computes it, `formula` says how."""

    name: str
    of: ScoreOf
    formula: str
    source: str
    bounds: tuple[float, float] | None
    """The least and the greatest that it can be; None: a mean without bounds, tested against 0."""
    weight: str
    """The sum that says how much a unit weighs."""
    counts: str
    """The sum that says how many answers the score counts."""
    statistic: str = "score"
    most: float = math.inf
    """The greatest that the least of smooth functions can be, where that is less than `bounds`."""

    def values(self, sums: Sequence[Sums], place: int) -> Doubles:
        """Compute the score, or its smooth functions [M, ...], in one of the conditions."""
        found = self.of(*sums)
        if len(sums) > 1:
            found = found[place]
        return np.array(found if isinstance(found, Least) else [found])


#: A file of the items that published answers are to, or these items.
Items = str | pl.DataFrame | None
#: Reads a published file: None where it is of another kind.
ReadFile = Callable[[Source, bytes], pl.DataFrame | None]


def _nothing(_answers: pl.DataFrame, _rules: Rules) -> Mapping[tuple[str, ...], str]:
    return {}


def _sound(_answers: pl.DataFrame, _where: str) -> None:
    pass


@dataclass(frozen=True)
class Table:
    """One table of a kind's estimates: those that `where` selects."""

    title: str
    where: pl.Expr
    signed: bool = False
    neutral: float | None = None
    """The value that means no bias, beside which a forest is drawn; None for no forest."""
    logarithmic: bool = False
    """Whether a forest's scale is."""
    digits: int | None = None
    listed: bool = True
    """Whether it is shown as a table; else as a figure alone."""
    folded: bool = False
    """Whether a page hides it until it is opened."""
    beside: str = "score"
    """The column whose values stand beside one another."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What answers of one kind are, and what is estimated from them."""

    name: str
    answers: pa.Schema
    item: tuple[str, ...]
    """Columns that tell the answers of a model on a probe apart."""
    units: str
    """What a unit is, in the plural."""
    title: str
    folder: str = ""
    """The folder of OUT that holds its answers; by default its name."""
    by: tuple[str, ...] = ()
    """Columns such as model and attribute: each score is estimated for every combination."""
    sums: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """Makes of answers a row per `by`, `unit` and, where prompts differ, `style`, with sums."""
    estimate: Callable[[pl.DataFrame, Rules], Iterator[pl.DataFrame]] | None = None
    """Of paired kinds: estimates straight from answers, instead of sums and scores."""
    outcomes: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """Of paired kinds: makes of answers a number per pair and style, which `compare` subtracts."""
    tables: tuple[Table, ...] = (Table("", pl.lit(value=True)),)
    called: Mapping[str, str] = field(default_factory=dict)
    """Headers of its tables, where a column's own name is too general."""
    redrawn: Mapping[str, str] = field(default_factory=dict)
    """What its intervals redraw, by scope, where the scope's name does not say it."""
    defined: Callable[[list[str]], Iterator[str]] | None = None
    """Says what scores of these names count, where they are not `scores`."""
    about: str = ""
    """How to read its scores; stands below their tables."""
    scale: float = 1
    digits: int = 1
    conditions: tuple[str, ...] = ("",)
    """Sums are named `CONDITION NAME` where there are several."""
    refused: Callable[[pl.DataFrame, Rules], Mapping[tuple[str, ...], str]] = _nothing
    """Why nothing is concluded, by model, probe and method."""
    check: Callable[[pl.DataFrame, str], None] = _sound
    """Refuses wrong answers with a `DataError`, which names the files."""
    endings: tuple[str, ...] = ()
    """Of published files."""
    published: Callable[[Items], ReadFile] | None = None
    """Makes a reader of published files, given the file of their items."""
    scores: Registry[Score] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder or self.name)
        object.__setattr__(self, "scores", Registry(f"score of {self.name}", PACKAGE))

    def score(
        self,
        *,
        formula: str,
        source: str,
        bounds: tuple[float, float] | None,
        weight: str,
        counts: str | None = None,
        statistic: str = "score",
        most: float = math.inf,
    ) -> Callable[[Function], Function]:
        """Register a function as the score of its name; options are those of `Score`.

        The function takes the `Sums` of each condition and returns a value for each of them;
        `counts` is `weight` by default.
        """

        def decorate(of: Function) -> Function:
            name = str(getattr(of, "__name__", of))
            made = Score(
                name=name, of=of, formula=formula, source=source, bounds=bounds, weight=weight,
                counts=counts or weight, statistic=statistic, most=most,
            )  # fmt: skip
            self.scores.add(name, made, origin=(of.__module__, name))
            return of

        return decorate


kinds: Final[Registry[Kind]] = Registry("kind of answers", PACKAGE)


def kind(made: Kind) -> Kind:
    """Register a kind."""
    module = (made.sums or made.estimate).__module__
    kinds.add(made.name, made, origin=(module, made.name))
    return made


def ratio(part: Doubles, whole: Doubles) -> Doubles:
    """Divide; NaN where the whole is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)
