"""Tell which seeds, templates or words to add to a study next, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.methods import tuned_methods
from raybias.report import wording
from raybias.report.outs import read_items
from raybias.report.rendering import TextTable, count, same, table, worded
from raybias.stats.design import TUNING, Costs
from raybias.stats.redrawn import Seeds
from raybias.stats.redrawn import redrawn_by as words_of_redrawn
from raybias.storage import Store
from raybias.study_record import read_runs

_ASSUMED: Final = (
    "Predicted from the variance components, averaged over groups and classifiers, as if what is "
    "added were more of the same: {} and words drawn as those at hand. Components from few runs or "
    "words are rough, and so is the prediction: it has a range."
)
_OF_TUNING: Final = (
    " A new run is one that counts: what tuning those that were not kept took is part of its price."
)
_OF_OTHERS: Final = (
    " Only who made these files can add runs: the cheapest design leaves them as they are if that "
    f"reaches the target, and takes making a run to cost as much as reading {TUNING:,.0f} items."
)
_PLACE: Final = ("probe", "attribute", "score")
_PLANS: Final = ("runs", "templates", "words")
#: Narrowing by less than this share tells no limit.
_HELP: Final = 0.1
_TOKENS: Final = 4 / 3
#: The unit of prices if it is known what tuning took.
TIMED: Final = "device-hours"


def study_costs(store: Store, study: Study, items: int) -> Costs:
    """Price runs and items in device-hours by what tuning took, relatively where it is unknown."""
    runs = read_runs(store).filter(stage="final")
    work = {method.name: method.factor for method in tuned_methods(study.methods)}
    by = ["model", "method", "dataset"]
    kept = pl.col("selected").sum().clip(1)
    timed = runs.group_by(by).agg(pl.col("seconds", "tokens").sum(), kept=kept)
    texts = read_items(store, [probe.name for probe in study.probes], "text")["text"]
    if texts.is_empty() or timed.is_empty() or not {*timed["method"]} <= {*work}:
        tuned = [method in work for method in timed["method"]] or [True]
        return relative_costs(items, tuned=sum(tuned) / len(tuned))
    factor = pl.col("method").replace_strict(work, return_dtype=pl.Float64)
    seconds = pl.col("seconds") / 3600
    run, token = timed.select(
        run=seconds / pl.col("kept"), token=seconds / pl.col("tokens") * 2 / factor
    ).sum().row(0)  # fmt: skip
    length = texts.str.split(" ").list.len().to_numpy().mean() * _TOKENS
    return Costs(run, token * length, items, TIMED)


def relative_costs(items: int, *, tuned: float = 1.0) -> Costs:
    """Price runs and items in items read; `tuned` is the share of classifiers that are tuned."""
    return Costs(TUNING * tuned, 1.0, items)


def costs_of_others(items: int) -> Costs:
    """Price runs and items of files without a study, to which only who made them can add runs."""
    return replace(relative_costs(items), adds_runs=False)


@dataclass(frozen=True)
class Addition:
    """What can be added to predictions, and by whom."""

    made_here: bool = True
    """Whether a study at hand made the predictions, so that its owner can add seeds."""
    unit: str = "template"
    """What a level of `template_id` is."""
    size: float = 1.0
    """How many of these a level has, on average."""

    @property
    def nouns(self) -> dict[str, str]:
        """The singular of each facet."""
        return {
            "runs": "seed" if self.made_here else "run",
            "templates": self.unit,
            "words": "word",
        }

    def levels(self, row: Mapping[str, Any], facet: str) -> int:
        """Return how many of a facet a design has, in its noun."""
        return math.ceil(row[facet] * self.size) if facet == "templates" else int(row[facet] or 0)

    def assumed(self, unit: str) -> str:
        """Say what the predictions of designs rest on, which are priced in `unit`."""
        added = f"seeds, {self.unit}s" if self.made_here else f"{self.unit}s"
        more = _OF_TUNING if unit == TIMED else "" if self.made_here else _OF_OTHERS
        return _ASSUMED.format(added) + more


def design_sentences(
    designs: pl.DataFrame, target: float, addition: Addition = Addition()
) -> list[str]:
    """Tell for each attribute and rate of schema.DESIGN what more of everything would do."""
    said = []
    for _, part in designs.group_by(_PLACE, maintain_order=True):
        plans = {row["plan"]: row for row in part.iter_rows(named=True)}
        now = plans["now"]
        name = ", ".join(now[key] for key in _PLACE if now[key])
        begun = f"{name}: the half width is {_against(now['half_width'], target)}"
        if now["reached"]:
            said.append(f"{begun}: nothing need be added.")
            continue
        alone = [plans[plan] for plan in _PLANS if plan in plans]
        parts = [_tried(row, [row["plan"]], now, target, addition) for row in alone]
        parts += [_limit(alone, now, addition), _cheapest(plans, now, target, addition)]
        said.append(" ".join([f"{begun}.", *filter(None, parts)]))
    return said


def designs_table(
    designs: pl.DataFrame,
    target: float,
    redrawn_by: Mapping[str, str],
    addition: Addition = Addition(),
) -> TextTable:
    """Show schema.DESIGN with the predicted half widths."""
    unit = designs["unit"][0] if designs.height else ""
    scopes = wording.listed([redrawn_by[s] for s in designs["scope"].unique(maintain_order=True)])
    nouns = {plan: f"{noun}s" for plan, noun in addition.nouns.items()}
    names = {"now": "as it is", "cheapest": "cheapest"}
    names |= {plan: f"more {noun}" for plan, noun in nouns.items()}
    return table(
        f"What to add next, for a half width of {target:g} where {scopes}",
        designs,
        {
            **same(*_PLACE),
            "design": lambda row: names[row["plan"]],
            nouns["runs"]: count("runs"),
            nouns["templates"]: lambda row: (
                "" if row["templates"] is None else f"{addition.levels(row, 'templates'):,}"
            ),
            "words of a group, at least": count("words"),
            "half width": lambda row: wording.number(row["half_width"]) or "not reached",
            "four times of five": lambda row: " to ".join(
                wording.number(row[end]) for end in ("half_low", "half_high") if row[end]
            ),
            f"cost of what is added ({unit})": worded(_price, "cost"),
        },
    )


def _against(width: float, target: float) -> str:
    """Write a half width with the digits that tell it from the target, and on which side it is."""
    text = wording.number(width)
    for digits in range(4, 7):
        if width > target and float(text) <= target:
            text = f"{width:.{digits}f}"
    return f"{text}, {'within' if width <= target else 'above'} the target {target:g}"


def _tried(
    row: Mapping[str, Any],
    facets: Sequence[str],
    now: Mapping[str, Any],
    target: float,
    addition: Addition,
) -> str:
    """Say what more of some facets reaches, and what that costs if it is enough."""
    more = wording.listed([_more(row, now, facet, addition) for facet in facets])
    if not row["reached"]:
        return f"{more}: {_against(row['half_width'], target)}."
    likely = " to ".join(wording.number(row[end]) for end in ("half_low", "half_high"))
    price = f"{_price(row['cost'])} {row['unit']}"
    return (
        f"{more}: {_against(row['half_width'], target)} (four times of five {likely}), at {price}."
    )


def _limit(alone: Sequence[Mapping[str, Any]], now: Mapping[str, Any], addition: Addition) -> str:
    """Name the facet that narrows intervals most, if none reaches the target by itself."""
    if any(row["reached"] for row in alone):
        return ""
    best = min(alone, key=lambda row: float(row["half_width"]))
    if 1 - best["half_width"] / now["half_width"] < _HELP:
        return "None of these alone narrows it by a tenth."
    return f"None of these alone reaches it; {addition.nouns[best['plan']]}s limit it most."


def _cheapest(
    plans: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Any],
    target: float,
    addition: Addition,
) -> str:
    row = plans["cheapest"]
    if row["half_width"] is None:
        return "No design that was looked at reaches it."
    added = [plan for plan in _PLANS if (row[plan] or 0) > (now[plan] or 0)]
    if len(added) == 1 and plans[added[0]]["reached"]:
        return f"Cheapest: {_more(row, now, added[0], addition)}."
    return f"Cheapest: {_tried(row, added, now, target, addition)}"


def _more(row: Mapping[str, Any], now: Mapping[str, Any], plan: str, addition: Addition) -> str:
    if plan == "words":
        return f"{wording.counted(row['words'], 'word')} or more for every group"
    added = addition.levels(row, plan) - addition.levels(now, plan)
    said = wording.counted(added, f"more {addition.nouns[plan]}")
    return f"{said} by who made the files" if plan == "runs" and not addition.made_here else said


def _price(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.2g}"


def designed(designs: pl.DataFrame, target: float, redrawn_by: Mapping[str, str]) -> dict[str, Any]:
    """Arrange a study's schema.DESIGN for a page; nothing where no design could be predicted.

    redrawn_by: what intervals of each scope resample, in words.
    """
    if designs.is_empty():
        return {}
    shown = designs_table(designs, target, redrawn_by)
    said = design_sentences(designs, target)
    return {"sentences": said, "table": shown, "assumed": Addition().assumed(designs["unit"][0])}


def design_text(designs: pl.DataFrame, target: float, addition: Addition) -> str:
    """Write schema.DESIGN for a terminal."""
    said = design_sentences(designs, target, addition)
    several = designs.filter(plan="now")["runs"] > 1
    seeds: Seeds = "drawn" if several.all() else "some" if several.any() else "one"
    shown = designs_table(designs, target, words_of_redrawn(seeds), addition)
    assumed = addition.assumed(designs["unit"][0]) if designs.height else ""
    return "\n".join([*said, "", str(shown), "", assumed])
