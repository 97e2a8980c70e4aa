"""Say in sentences what estimates show, and no more than that.

Everything follows from the frame of estimates; nothing is tested anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.measures import Kind, Table
from raybias.report import wording

#: Verdicts by which a conclusion depends on style.
_TURNS: Final = ("changes sign", "loses its sign", "gains a sign")
#: Gaps of two groups add up to less.
_ROUNDING: Final = 1e-9
_KEYS: Final = ("model", "probe", "method", "style", "condition", "attribute", "score", "group")


def of(kind: Kind, estimates: pl.DataFrame) -> Iterator[str]:
    """Yield what is significant of each quantity that is drawn, and whether style matters."""
    for shown in kind.tables:
        if shown.neutral is not None:
            yield from _counted(kind, estimates.filter(shown.where), shown)
    verdicts = estimates.filter(pl.col("score") == "styles_that_move_it")
    if verdicts.height:
        turned = verdicts.filter(pl.col("reason").is_in(_TURNS)).height
        moved = verdicts.filter(pl.col("value") > 0).height
        total = wording.counted(verdicts.height, "score")
        yield (
            f"Styles move {moved or 'none'} of {total}, and in {turned or 'none'} the conclusion "
            "depends on the style."
        )


def _counted(kind: Kind, part: pl.DataFrame, shown: Table) -> Iterator[str]:
    """Count what is significant by what is redrawn, and name the clearest."""
    if part["survives"].count() == 0 and part["significant"].count() == 0:
        return
    part = once(part)
    name = shown.title.partition(":")[0] or kind.title
    for (scope,), tested in part.drop_nulls("significant").group_by("scope", maintain_order=True):
        significant, survives = (int(tested[c].sum()) for c in ("significant", "survives"))
        corrected = (
            f", {survives or 'none'} after correction for many tests"
            if tested["survives"].count() and survives != significant
            else ""
        )
        redrawn = f" if {kind.redrawn.get(str(scope), f'{scope} are redrawn')}" if scope else ""
        yield (
            f"{name[0].upper()}{name[1:]}: {significant or 'none'} of {tested.height} are "
            f"significant{redrawn}{corrected}."
        )
    found = part.filter(pl.col("survives").fill_null(pl.col("significant")).fill_null(value=False))
    if found.is_empty() or part.height == 1:
        return
    far = (pl.col("value") - shown.neutral).abs()
    clearest = found.sort("p", far, descending=[False, True]).row(0, named=True)
    keys = [key for key in _KEYS if part[key].n_unique() > 1]
    value = wording.estimate(
        kind.scale * clearest["value"], ends(clearest, kind), kind.digits, plus=shown.signed
    )
    yield f"The clearest: {_named(clearest, keys)} {value}."


def once(part: pl.DataFrame) -> pl.DataFrame:
    """Leave out the second of two groups, whose gap is that of the first with its sign turned."""
    by = [name for name in (*_KEYS[:-1], "dataset", "scope") if name in part.columns]
    twins = (pl.len() == 2) & (pl.col("value").sum().abs() < _ROUNDING)
    second = pl.col("group") != pl.col("group").min()
    signed = pl.col("statistic").is_in(["gap", "difference"])
    return part.filter(~(signed & (twins & second).over(by)).fill_null(value=False))


def _named(row: Mapping[str, Any], keys: list[str]) -> str:
    said = (wording.bias_type(str(row[key])) for key in keys or ["model"] if row[key])
    return wording.spaced(", ".join(said))


def ends(row: Mapping[str, Any], kind: Kind) -> list[float | None]:
    """Return low and high in the unit of a kind's tables."""
    return [None if row[name] is None else kind.scale * row[name] for name in ("low", "high")]
