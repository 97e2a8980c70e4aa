"""Register scores of answers to questions with options, and of triples of sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import numpy as np

from raybias.registry.mechanism import Registry

if TYPE_CHECKING:
    import numpy.typing as npt

    Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tally:
    """Counts of the answers in one context, arrays of one shape.

    An option *follows* the stereotype that names its target in a negative question, or another
    group in a question that is not; the other way round it *counters* it. The unknown option does
    neither.
    """

    items: Doubles
    answered: Doubles
    """Answers that name an option."""
    right: Doubles
    following: Doubles
    countering: Doubles
    gold_following: Doubles
    """Answers (that name an option) to questions whose right one follows the stereotype."""
    gold_countering: Doubles
    right_following: Doubles
    """Those of `gold_following` that are right."""
    right_countering: Doubles


@dataclass(frozen=True)
class TermShares:
    """Mean shares of triples in which one sentence scores higher, arrays of one shape.

    A share is that of a target term first, then the mean over terms is taken. A tie counts for
    the second sentence.
    """

    stereotype_over_anti: Doubles
    stereotype_over_unrelated: Doubles
    anti_over_unrelated: Doubles


#: Makes the score in ambiguous and in disambiguated contexts of the tallies of both.
OptionScoreOf = Callable[[Tally, Tally], "tuple[Doubles, Doubles]"]
#: Makes smooth functions of shares, the least of which is the score.
TripleScoreOf = Callable[[TermShares], "tuple[Doubles, ...]"]
#: What becomes of an answer that names no option.
Unparsed = Literal["dropped", "wrong"]

ScoreOf = TypeVar("ScoreOf", OptionScoreOf, TripleScoreOf)


@dataclass(frozen=True, kw_only=True)
class Score(Generic[ScoreOf]):
    """A number of a model's answers: `of` computes it, `formula` says how."""

    name: str
    formula: str
    source: str
    of: ScoreOf
    bounds: tuple[float, float]
    unparsed: Unparsed = "wrong"
    most: float = math.inf
    """The greatest that the least of its functions can be, where that is less than `bounds`."""


option_scores: Final[Registry[Score[OptionScoreOf]]] = Registry(
    "option score", "raybias.stats.options.scores"
)
triple_scores: Final[Registry[Score[TripleScoreOf]]] = Registry(
    "triple score", "raybias.stats.triples.scores"
)


def ratio(part: Doubles, whole: Doubles) -> Doubles:
    """Divide; NaN where the whole is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def option_score(
    *, formula: str, source: str, unparsed: Unparsed, bounds: tuple[float, float]
) -> Callable[[OptionScoreOf], OptionScoreOf]:
    """Register a function as the score of its name, of answers to questions with options.

    Parameters
    ----------
    formula: for a reader; n_b answers follow the stereotype, n_c counter it, n name an option.
    source: who defines it so.
    unparsed: what becomes of an answer that names no option.
    bounds: the least and the greatest that it can be.
    """

    def make(of: OptionScoreOf) -> Score[OptionScoreOf]:
        return Score(
            name=_name(of), formula=formula, source=source, of=of, unparsed=unparsed, bounds=bounds
        )

    return lambda function: option_scores.register(_name(function), make)(function)


def triple_score(
    *, formula: str, source: str, bounds: tuple[float, float], most: float = math.inf
) -> Callable[[TripleScoreOf], TripleScoreOf]:
    """Register a function as the score of its name, of triples of sentences.

    Parameters
    ----------
    formula: for a reader; shares are of a target term first, then averaged over terms.
    source: who defines it so.
    bounds: the least and the greatest that one of its smooth functions can be.
    most: the greatest that the least of them can be.
    """

    def make(of: TripleScoreOf) -> Score[TripleScoreOf]:
        return Score(
            name=_name(of), formula=formula, source=source, of=of, bounds=bounds, most=most
        )

    return lambda function: triple_scores.register(_name(function), make)(function)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", function))
