"""Tell which seeds, templates or words to add to a study next, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
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
    "added were more of the same: seeds, templates and words drawn as those at hand. Components "
    "from few runs or words are rough, and so is the prediction: it has a range. A new run is one "
    "that counts: what tuning those that were not kept took is part of its price."
)
_PLACE: Final = ("probe", "attribute", "score")
_PLANS: Final = {
    "now": "as it is",
    "runs": "more seeds",
    "templates": "more templates",
    "words": "more words",
    "cheapest": "cheapest",
}
_NOUNS: Final = {"runs": "seed", "templates": "template", "words": "word"}
#: Narrowing by less than this share is no help.
_HELP: Final = 0.1
_TOKENS: Final = 4 / 3


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
    return Costs(run, token * length, items, "device-hours")


def relative_costs(items: int, *, tuned: float = 1.0) -> Costs:
    """Price runs and items in items read; `tuned` is the share of classifiers that are tuned."""
    return Costs(TUNING * tuned, 1.0, items)


def design_sentences(designs: pl.DataFrame, target: float) -> list[str]:
    """Tell for each attribute and rate of schema.DESIGN what more of everything would do."""
    said = []
    for _, part in designs.group_by(_PLACE, maintain_order=True):
        plans = {row["plan"]: row for row in part.iter_rows(named=True)}
        now = plans["now"]
        width = wording.number(now["half_width"])
        name = ", ".join(now[key] for key in _PLACE if now[key])
        if now["reached"]:
            said.append(f"{name}: the half width is {width}; {wording.number(target)} is wanted.")
            continue
        parts = [_alone(plans[plan], now) for plan in _NOUNS if plan in plans]
        parts = [f"and {wording.number(target)} is wanted.", *parts]
        parts.append(_cheapest(plans["cheapest"], now))
        said.append(f"{name}: the half width is {width}, {' '.join(parts)}")
    return said


def designs_table(designs: pl.DataFrame, target: float, redrawn_by: Mapping[str, str]) -> TextTable:
    """Show schema.DESIGN with the predicted half widths."""
    unit = designs["unit"][0] if designs.height else ""
    scopes = wording.listed([redrawn_by[s] for s in designs["scope"].unique(maintain_order=True)])
    return table(
        f"What to add next, for a half width of {target:g} where {scopes}",
        designs,
        {
            **same(*_PLACE),
            "design": lambda row: _PLANS[row["plan"]],
            "seeds": count("runs"),
            "templates": count("templates"),
            "words of a group, at least": count("words"),
            "half width": lambda row: wording.number(row["half_width"]) or "not reached",
            "four times of five": lambda row: " to ".join(
                wording.number(row[end]) for end in ("half_low", "half_high") if row[end]
            ),
            f"cost of what is added ({unit})": worded(_price, "cost"),
        },
    )


def _alone(row: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    plan, width = row["plan"], wording.number(row["half_width"])
    more = _more(row, now, plan)
    if row["reached"]:
        likely = " to ".join(wording.number(row[end]) for end in ("half_low", "half_high"))
        return f"{more} might do: {likely}, at {_price(row['cost'])} {row['unit']}."
    narrower = 1 - row["half_width"] / now["half_width"]
    verdict = "would not help" if narrower < _HELP else "would not be enough"
    return f"{more} {verdict}: {width}."


def _cheapest(row: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if row["half_width"] is None:
        return "No design that was looked at reaches it."
    added = [_more(row, now, plan) for plan in _NOUNS if (row[plan] or 0) > (now[plan] or 0)]
    return (
        f"Cheapest: {wording.listed(added)}: {wording.number(row['half_width'])}, four times of "
        f"five {wording.number(row['half_low'])} to {wording.number(row['half_high'])}, "
        f"at {_price(row['cost'])} {row['unit']}."
    )


def _more(row: Mapping[str, Any], now: Mapping[str, Any], plan: str) -> str:
    if plan == "words":
        return f"{wording.counted(row['words'], 'word')} or more for every group"
    return wording.counted(row[plan] - now[plan], f"more {_NOUNS[plan]}")


def _price(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.2g}"


def designed(designs: pl.DataFrame, target: float, redrawn_by: Mapping[str, str]) -> dict[str, Any]:
    """Arrange schema.DESIGN for a page; nothing where no design could be predicted.

    redrawn_by: what intervals of each scope resample, in words.
    """
    if designs.is_empty():
        return {}
    shown = designs_table(designs, target, redrawn_by)
    return {"sentences": design_sentences(designs, target), "table": shown, "assumed": _ASSUMED}


def design_text(designs: pl.DataFrame, target: float) -> str:
    """Write schema.DESIGN for a terminal."""
    said = design_sentences(designs, target)
    several = designs.filter(plan="now")["runs"] > 1
    seeds: Seeds = "drawn" if several.all() else "some" if several.any() else "one"
    shown = designs_table(designs, target, words_of_redrawn(seeds))
    return "\n".join([*said, "", str(shown), "", _ASSUMED])
