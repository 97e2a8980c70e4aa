"""A kind of measurement: its answers, the sums of these, its scores, and their estimates.

Shapes: U units, P prompts, K sums, M smooth functions of one score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from raybias.registry import Registry
from raybias.schema import ALL, ESTIMATES
from raybias.stats.checks import warn
from raybias.stats.components import Doubles, places
from raybias.stats.intervals import NO_ROWS, Rules, estimates, unit_intervals, without_each
from raybias.stats.predictions import Source

PACKAGE: Final = "raybias.measures.entries"


class Sums(SimpleNamespace):
    """Sums over answers by name, as arrays of one shape: `sums.right` is the sum of `right`."""


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
    counts: str = ""
    """The sum that says how many answers the score counts; by default `weight`."""
    statistic: str = "score"
    most: float = math.inf
    """The greatest that the least of smooth functions can be, where that is less than `bounds`."""
    unbiased: float | None = None
    """The value of a model without bias, by the score's source; a change towards it is for the
    better. None: the score does not measure bias, and no change of it is called better or worse."""
    whole: float = 1.0
    """What counts as 1 in a comparison, such as 100 for a score in percent."""

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
    units: str = ""
    """What its units are, in the plural, if they are not those of the kind or of the scope."""
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
    answered: tuple[str, ...] = ()
    """Columns that a model's answers fill; the others say what was asked, and of whom."""
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
    """Estimates straight from answers, instead of by sums and scores. Predictions have neither,
    since they are counted while they are read."""
    outcomes: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """Of paired kinds: makes of answers a number per pair and style, which `compare` subtracts."""
    tables: tuple[Table, ...] = (Table("", pl.lit(value=True)),)
    called: Mapping[str, str] = field(default_factory=dict)
    """Headers of its tables, where a column's own name is too general."""
    units_by_scope: Mapping[str, str] = field(default_factory=dict)
    """What a unit is under each scope, in the plural, where it is not `units`."""
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
    refused: Callable[[pl.DataFrame, Rules], Mapping[tuple[str, ...], str]] = (
        lambda _answers, _rules: {}
    )
    """Why nothing is concluded, by model, probe and method."""
    unread: pl.Expr | None = None
    """Whether no answer could be read, of a row of answers; None if every row has one."""
    unread_by: tuple[str, ...] = ()
    """Columns of answers; in each part by these, `compare` looks for more unread answers."""
    check: Callable[[pl.DataFrame, str], None] = lambda _answers, _where: None
    """Refuses wrong answers with a `DataError`, which names the files."""
    endings: tuple[str, ...] = ()
    """Of published files."""
    published: Callable[[Items], ReadFile] | None = None
    """Makes a reader of published files, given the file of their items."""
    scores: Registry[Score] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder or self.name)
        object.__setattr__(self, "scores", Registry(f"score of {self.name}", PACKAGE))

    def score(self, **options: Any) -> Callable[[Function], Function]:
        """Register a function of each condition's `Sums` as a `Score` with these fields."""

        def decorate(of: Function) -> Function:
            name = str(getattr(of, "__name__", of))
            self.scores.add(name, Score(name=name, of=of, **options), origin=(of.__module__, name))
            return of

        return decorate


kinds: Final[Registry[Kind]] = Registry("kind of answers", PACKAGE)


def kind(made: Kind) -> Kind:
    """Register a kind."""
    module = (made.sums or made.estimate or made.defined).__module__
    kinds.add(made.name, made, origin=(module, made.name))
    return made


#: Columns that name what can be refused a verdict.
_JUDGED: Final = ("model", "probe", "method")


def measure(kind: Kind, answers: pl.DataFrame, rules: Rules | None = None) -> pl.DataFrame:
    """Estimate every registered score of every model and place: schema.ESTIMATES.

    An interval covers other units like these; of several prompts, the average `all` has another
    that covers other prompts too. There is none where the model cannot do the task
    (`kind.refused`).
    """
    rules = rules or Rules()
    found = pl.DataFrame()
    if kind.estimate is not None:
        found = pl.concat(kind.estimate(answers, rules), how="diagonal_relaxed")
    elif kind.sums is not None:
        found = _of_sums(kind, kind.sums(answers), kind.refused(answers, rules), rules)
    if found.is_empty():
        warn(f"{kind.title}: {NO_ROWS} that can be compared, so there is no score")
        found = pl.DataFrame(schema=pl.Schema(ESTIMATES))
    return estimates(found, kind.name)


def _of_sums(
    kind: Kind, sums: pl.DataFrame, refused: Mapping[tuple[str, ...], str], rules: Rules
) -> pl.DataFrame:
    """Estimate the scores of a kind that has sums; an empty frame if there are none."""
    rows: list[dict[str, Any]] = []
    for keys, part in sums.partition_by(kind.by, as_dict=True).items():
        place = dict(zip(kind.by, map(str, keys), strict=True))
        reason = refused.get(tuple(place.get(name, "") for name in _JUDGED))
        none = {"low": None, "high": None, "p": None, "reason": reason} if reason else {}
        for of in sampled(kind, part):
            where = {**place, "style": of.style, "scope": of.scope}
            rows += ({**where, **row, **none} for row in _measured(kind, of, rules.level))
    # NaN would be less than no level, and so no missing verdict.
    table = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
    if table.is_empty():
        return table
    order = [expression for name in kind.by for expression in (pl.col(name) == ALL, name)]
    judged = table.with_columns(significant=pl.col("p") < 1 - rules.level)
    return judged.sort(order, maintain_order=True)


def measure_all(answers: Mapping[str, pl.DataFrame], rules: Rules | None = None) -> pl.DataFrame:
    """Estimate every score of answers by kind."""
    return pl.concat(measure(kinds[name], frame, rules) for name, frame in answers.items())


@dataclass(frozen=True)
class Sampled:
    """Sums of one place by the units that an interval resamples."""

    style: str
    """The prompt; `all` over several."""
    scope: str
    crossed: bool
    """Whether prompts are resampled too."""
    names: list[str]
    """Of the K sums."""
    facets: list[Doubles]
    """Sums by unit [U, K]; with prompts also by prompt [P, K] and by both [U P, K]."""

    def conditions(self, kind: Kind, sums: Doubles) -> list[Sums]:
        """Name sums [..., K] in each condition of a kind."""
        arrays = dict(zip(self.names, np.moveaxis(sums, -1, 0), strict=True))
        starts = [f"{condition} " if condition else "" for condition in kind.conditions]
        found = []
        for start in starts:
            own = (name for name in self.names if name.startswith(start))
            found.append(Sums(**{name.removeprefix(start): arrays[name] for name in own}))
        return found


def sampled(kind: Kind, sums: pl.DataFrame) -> Iterator[Sampled]:
    """Lay out the sums of one place: under each prompt, over all, and with prompts resampled too.

    `sums` are rows of `kind.sums` that agree in `kind.by`.
    """
    if "style" not in sums.columns:
        sums = sums.with_columns(style=pl.lit(""))
    names = [name for name in sums.columns if name not in (*kind.by, "unit", "style")]
    units, prompts = (sums[name].unique().sort().to_list() for name in ("unit", "style"))
    counts_UPK = np.zeros((len(units), len(prompts), len(names)), order="F")
    at = places(sums["unit"], units), places(sums["style"], prompts)
    counts_UPK[at] = sums.select(names).to_numpy()
    tables = [(prompt, counts_UPK[:, [p]], False) for p, prompt in enumerate(prompts)]
    if len(prompts) > 1:
        tables += [(ALL, counts_UPK, crossed) for crossed in (False, True)]
    for prompt, table_UPK, crossed in tables:
        counts_UK = table_UPK.sum(axis=1)
        facets = [counts_UK]
        if crossed:
            facets += [table_UPK.sum(axis=0), table_UPK.reshape(-1, counts_UK.shape[-1])]
        scope = f"{kind.units}, prompts" if crossed else kind.units
        yield Sampled(prompt, scope, crossed, names, facets)


def _measured(kind: Kind, of: Sampled, level: float) -> Iterator[dict[str, Any]]:
    """Yield every score in every condition, its interval over units, or over units and prompts."""
    found = of.conditions(kind, of.facets[0].sum(axis=0))
    parts = [
        (of.conditions(kind, without_each(facet)), of.conditions(kind, facet))
        for facet in of.facets
    ]
    for c, condition in enumerate(kind.conditions):
        if not any(array.any() for array in vars(found[c]).values()):
            continue
        for score in kind.scores.values():
            value_M = score.values(found, c)
            resampled = [(score.values(without, c), getattr(whole[c], score.weight))
                         for without, whole in parts]  # fmt: skip
            low_M, high_M, p, reason = unit_intervals(value_M, resampled, score.bounds, level)
            yield {
                **({"condition": condition} if condition else {}),
                "score": score.name, "statistic": score.statistic, "value": float(value_M.min()),
                "low": float(low_M.min()), "high": float(np.minimum(high_M.min(), score.most)),
                "p": p, "reason": reason,
                "n": int(getattr(found[c], score.counts or score.weight)),
                "units": int(np.count_nonzero(resampled[0][1])),
            }  # fmt: skip
