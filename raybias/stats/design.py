"""Plan what to add next: the cheapest seeds, templates and words that make intervals narrow enough.

The variance components of a study tell the widths of a larger one, if seeds, templates and words
are drawn alike (the D study of Brennan 2001, *Generalizability Theory*, chapters 1 and 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl
from scipy.special import chdtri, stdtrit

from raybias import config, schema
from raybias.stats.components import name_of
from raybias.stats.scopes import SCOPES, GapTable, Scope, by_group, chosen_scope
from raybias.stats.word_variance import WordVariance

Facet = Literal["runs", "templates", "words"]

#: Half width of an interval that is wanted where nothing else is said.
TARGET: Final = 0.02
#: What tuning a run is taken to cost in items read, where its time is not known: an epoch of SST-5,
#: forwards and backwards (three times 8,544 sentences).
TUNING: Final = 25_000.0
#: As many of each are looked at.
_MOST: Final[Mapping[Facet, int]] = {"runs": 200, "templates": 10_000, "words": 30}
_PLACE: Final = ("probe", "attribute", "score")
#: Under each of SCOPES one more.
_DRAWN: Final[tuple[Facet, ...]] = get_args(Facet)


@dataclass(frozen=True)
class Costs:
    """What more work costs, in one unit, for all classifiers of a study together."""

    run: float
    """Tuning one more run of every classifier."""
    item: float
    """Reading an item by one run of every classifier."""
    items: int
    """Items that a run reads."""
    unit: str = "items read"
    adds_runs: bool = True
    """Whether who asks can add runs; otherwise the cheapest design has more only if it must."""


@dataclass(frozen=True)
class Design:
    """How many there are of what a gap is a mean over."""

    runs: int
    templates: int
    words: int
    """Of the group that has the fewest."""


@dataclass(frozen=True)
class Sources:
    """Where the variance of an average gap comes from, and what was used to find out."""

    now: Design
    parts: Mapping[str, float]
    """Components by facets; none of words where no group has two."""
    words: Mapping[str, int]
    """Words of each group in the mean."""
    items: float
    """Items of a run that can be wrong in this way."""
    upper: Sources | None = None
    """The same with components that came out below 0, which are not known to be 0, turned over."""
    widened: float = 1.0
    """How many times as wide as the components say the intervals came out that were reached."""

    def half_width(self, design: Design, scope: Scope, level: float) -> float:
        """Predict half the width of an interval, with Satterthwaite's degrees of freedom."""
        variance, freedom = self._variance(design, design, scope)
        if variance <= 0:
            return 0.0
        return self.widened * float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)

    def reaching(self, half_width: float | None, scope: Scope, level: float) -> Sources:
        """Begin from the half width that the design as it is has reached, if it is known.

        It also holds what the components leave out: the least variance of few events, and the
        bounds below which the variance of a gap is not let fall.
        """
        said = self.half_width(self.now, scope, level)
        if not half_width or said <= 0:
            return self
        widened = half_width / said
        upper = self.upper and replace(self.upper, widened=widened)
        return replace(self, widened=widened, upper=upper)

    def within(self, design: Design, scope: Scope, level: float) -> tuple[float, float]:
        """Predict a range that the half width lies in four times of five."""
        ends = []
        for sources, share in ((self, 0.9), (self.upper or self, 0.1)):
            _, freedom = sources._variance(design, self.now, scope)
            width = sources.half_width(design, scope, level)
            ends.append(width * math.sqrt(freedom / float(chdtri(freedom, 1 - share))))
        return ends[0], ends[1]

    def _variance(self, design: Design, known: Design, scope: Scope) -> tuple[float, float]:
        """Return the variance of a design's gap, and its freedom as estimated by another."""
        runs, templates = design.runs, design.templates
        n, scale = runs * templates, self._narrowed(design)
        cell, template = (scale * self.parts.get(f, 0.0) for f in ("run x template", "template"))
        of_runs, of_templates = known.runs - 1, known.templates - 1
        terms = [((cell + templates * self.parts.get("run", 0.0)) / n, of_runs)]
        if scope != "runs":
            terms.append(((cell + runs * template) / n, of_templates))
            terms.append((-cell / n, of_runs * of_templates))
        if scope == "wording" and "word" in self.parts:
            freedom = sum(size - 1 for size in self._sizes(known))
            terms.append((self.parts["word"] * self._share(design), freedom))
        variance = sum(value for value, _ in terms)
        spread = sum(value**2 / freedom for value, freedom in terms if value)
        return variance, variance**2 / spread if spread else 1.0

    def _share(self, design: Design) -> float:
        """Return the part of a word's variance in a gap: its group's rate less the groups' mean."""
        groups, sizes = len(self.words), self._sizes(design)
        return (1 - 1 / groups) * sum(1 / size for size in sizes) / groups if groups else 1.0

    def _narrowed(self, design: Design) -> float:
        """Return what more words leave of the variances of templates and cells."""
        part = self.parts.get
        whole = part("template", 0.0) + part("run x template", 0.0) / self.now.runs
        if not whole:
            return 1.0
        # What words on a template vary is a part of what templates and cells vary.
        of_words = min(1.0, part("word x template", 0.0) * self._share(self.now) / whole)
        return 1 - of_words * (1 - self._share(design) / self._share(self.now))

    def cost(self, design: Design, costs: Costs) -> float:
        """Price what a design adds: tuning and reading of new runs, reading of new items by all."""
        growth = design.templates / self.now.templates
        growth *= sum(self._sizes(design)) / sum(self._sizes(self.now))
        more_runs = (design.runs - self.now.runs) * (costs.run + costs.item * costs.items)
        return more_runs + costs.item * design.runs * self.items * (growth - 1)

    def _sizes(self, design: Design) -> list[int]:
        return [max(size, design.words) for size in self.words.values()] or [1]


def variance_rows(
    tables: Iterable[GapTable], words: Mapping[tuple[str, ...], WordVariance]
) -> pl.DataFrame:
    """Take the variance of every gap apart: schema.COMPONENTS, a row per gap and source."""
    rows: list[dict[str, object]] = []
    for table in tables:
        names = {n: text for n, text in table.names.items() if n != "condition"}
        _, runs, templates = table.values_GRT.shape
        levels = {"run": runs, "template": templates}
        for facets, variance_G in table.squares.components.items() if templates > 1 else ():
            many = " x ".join(str(levels[facet]) for facet in facets)
            sources = {"facets": name_of(facets), "levels": many}
            rows += by_group({**names, **sources}, table.groups, {"variance": variance_G})
        if between := words.get(table.place):
            rows += [
                {**names, "group": group, "facets": source, "variance": variance,
                 "levels": f"{between.words.get(group, 1)}{many}"}
                for source, many, variance in (
                    ("word", "", between.variance),
                    ("word x template", f" x {templates}", templates * between.noise),
                )
                for group in table.groups
            ]  # fmt: skip
    return pl.DataFrame(rows, schema=pl.Schema(schema.COMPONENTS))


def design(
    components: pl.DataFrame,
    gaps: pl.DataFrame,
    costs: Costs,
    *,
    target: float = TARGET,
    scope: config.Scope = "widest",
    level: float = 0.95,
) -> pl.DataFrame:
    """Predict for each attribute and score how narrow more of everything makes the intervals.

    The `components` (schema.COMPONENTS) are averaged over the groups of the mean and classifiers; a
    negative mean counts as 0, and with its sign turned in the upper end of the range (`half_low` to
    `half_high`, four times of five). `gaps` are those of the same `GapAnalysis`; those without a
    verdict are left out. `target` is the wanted half width. The design as it is has the mean half
    width of these very gaps, and others are predicted to be as much narrower as their components
    say.

    Gives schema.DESIGN: the design as it is (`now`); unless that is enough, with more `runs`,
    `templates` or `words` alone (ten runs more, twice the templates or ten words a group where none
    reaches the target), and the `cheapest` that reaches it.
    """
    rows: list[dict[str, Any]] = []
    for place, sources in _sources(components, gaps):
        now, words = sources.now.runs > 1, "word" in sources.parts
        known = {"runs": now, "sentences": True, "wording": words}
        covered = chosen_scope([name for name in SCOPES if known[name]], scope)
        if covered is None:
            continue
        begun = sources.reaching(_reached(gaps, place, covered), covered, level)
        width = partial(begun.half_width, scope=covered, level=level)
        # One run does not tell how runs vary.
        drawn = [each for each in _DRAWN[: 1 + SCOPES.index(covered)] if now or each != "runs"]
        for plan, tried in _plans(begun, drawn, width, target, costs).items():
            row = {**dict(zip(_PLACE, place, strict=True)), "scope": covered, "plan": plan,
                   "reached": False, "unit": costs.unit}  # fmt: skip
            if tried is not None:
                found, (low, high) = width(tried), begun.within(tried, covered, level)
                row |= {**vars(tried), "words": tried.words if sources.words else None,
                        "half_width": found, "half_low": low, "half_high": high,
                        "reached": found <= target, "cost": begun.cost(tried, costs)}  # fmt: skip
            rows.append(row)
    return pl.DataFrame(rows, schema=pl.Schema(schema.DESIGN))


def _reached(gaps: pl.DataFrame, place: Sequence[str], scope: Scope) -> float | None:
    """Average half the widths of the judged gaps of an attribute and score under a scope."""
    named = dict(zip(_PLACE, place, strict=True))
    own = gaps.filter("in_mean", pl.col("reason").is_null(), scope=scope, **named)
    half = own.select((pl.col("high") - pl.col("low")) / 2).to_series().mean()
    return None if half is None else float(half)  # type: ignore[arg-type]


def _plans(
    sources: Sources,
    drawn: Sequence[Facet],
    width: Callable[[Design], float],
    target: float,
    costs: Costs,
) -> dict[str, Design | None]:
    now = sources.now
    plans: dict[str, Design | None] = {"now": now}
    if width(now) <= target:
        return plans
    steps = {"runs": now.runs + 10, "templates": 2 * now.templates, "words": max(10, now.words)}
    for facet in drawn:
        plans[facet] = _enough(now, facet, width, target) or replace(now, **{facet: steps[facet]})
    own = drawn if costs.adds_runs else [facet for facet in drawn if facet != "runs"]
    found = cheapest(sources, own, width, target, costs) if own else None
    plans["cheapest"] = found or cheapest(sources, drawn, width, target, costs)
    return plans


def cheapest(
    sources: Sources,
    drawn: Sequence[Facet],
    width: Callable[[Design], float],
    target: float,
    costs: Costs,
) -> Design | None:
    """Find the cheapest design that reaches the target; None where none looked at does."""
    now = sources.now
    # Beyond twenty more, numbers of runs are tried in steps of five.
    near = min(now.runs + 20, _MOST["runs"])
    runs = [*range(now.runs, near), *range(near, _MOST["runs"] + 1, 5)]
    tried_runs = runs if "runs" in drawn and runs else [now.runs]
    most_words = max(_MOST["words"], now.words) if "words" in drawn else now.words
    best, lowest = None, math.inf
    for words in range(now.words, most_words + 1):
        if width(Design(tried_runs[-1], _MOST["templates"], words)) > target:
            continue
        for number in tried_runs:
            least = replace(now, runs=number, words=words)
            if sources.cost(least, costs) >= lowest:
                break
            found = _enough(least, "templates" if "templates" in drawn else "runs", width, target)
            if found and sources.cost(found, costs) < lowest:
                best, lowest = found, sources.cost(found, costs)
    return best


def _enough(
    start: Design, facet: Facet, width: Callable[[Design], float], target: float
) -> Design | None:
    """Find the fewest of one facet that reach the target; None where no number looked at does."""
    first = getattr(start, facet)
    numbers = range(first, max(first, _MOST[facet]) + 1)

    def reached(number: int) -> bool:
        return width(replace(start, **{facet: number})) <= target

    if not reached(numbers[-1]):
        return None
    return replace(start, **{facet: numbers[bisect_left(numbers, True, key=reached)]})


def _sources(
    components: pl.DataFrame, gaps: pl.DataFrame
) -> Iterator[tuple[tuple[str, ...], Sources]]:
    """Average the components of each attribute and score over groups and classifiers."""
    keys = [*schema.KEYS, "attribute", "score", "group"]
    judged = gaps.filter("in_mean", pl.col("reason").is_null()).select(*keys, "n")
    table = components.join(judged, on=keys, nulls_equal=True).with_columns(
        pl.when(~pl.col("facets").str.contains(" x ")).then(pl.col("levels")).cast(pl.Int64)
    )
    for place, part in table.group_by(_PLACE, maintain_order=True):
        of = {str(facets): rows for (facets,), rows in part.group_by("facets")}
        mean = {facets: float(np.mean(rows["variance"].to_numpy())) for facets, rows in of.items()}
        levels = {facets: min(rows["levels"].drop_nulls(), default=1)
                  for facets, rows in of.items()}  # fmt: skip
        words = of.get("word", part.clear())
        counts = dict(words.group_by("group").agg(pl.col("levels").min()).sort("group").iter_rows())
        items = of["template"].group_by(schema.KEYS).agg(pl.col("n").sum())["n"]
        now = Design(levels.get("run", 1), levels["template"], levels.get("word", 1))
        upper = Sources(
            now, {facets: abs(value) for facets, value in mean.items()}, counts,
            float(np.mean(items.to_numpy())),
        )  # fmt: skip
        parts = {facets: max(0.0, value) for facets, value in mean.items()}
        yield tuple(map(str, place)), replace(upper, parts=parts, upper=upper)
