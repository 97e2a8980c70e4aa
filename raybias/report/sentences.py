"""Say in sentences what estimates show, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.measures.class_rows import CLASS, class_of
from raybias.measures.kind import Kind, Table
from raybias.measures.prediction_rows import gap_rows, under
from raybias.report import wording
from raybias.schema import ALL, LIKELIHOOD
from raybias.stats.conclusive import refusal, refused

#: Verdicts by which a conclusion depends on style.
_TURNS: Final = ("changes sign", "loses its sign", "gains a sign")
#: Gaps of two groups add up to less.
_ROUNDING: Final = 1e-9
_KEYS: Final = ("model", "probe", "method", "style", "condition", "attribute", "score", "group")
#: Most classifiers that are named one by one.
_NAMED: Final = 3


def of(
    kind: Kind, estimates: pl.DataFrame, redrawn: Mapping[str, str], scope: str, families: str = ""
) -> Iterator[str]:
    """Count the significant estimates of each quantity that is drawn; say whether style matters.

    Parameters
    ----------
    redrawn: what intervals of each scope resample, in words.
    scope: that decides, of kinds with several; the clearest estimate is of it.
    families: which tests are corrected together, in words; empty if they are of one table.
    """
    for shown in kind.tables:
        if shown.neutral is not None:
            part = estimates.filter(shown.where)
            yield from _counted(kind, part, shown, redrawn, families or "for many tests")
            yield from _clearest(kind, part, shown, redrawn, scope)
    verdicts = estimates.filter(pl.col("score") == "styles_that_move_it")
    if verdicts.height:
        turned = verdicts.filter(pl.col("reason").is_in(_TURNS)).height
        moved = verdicts.filter(pl.col("value") > 0).height
        total = wording.counted(verdicts.height, "score")
        yield (
            f"Styles are shown to move {moved or 'none'} of {total}, and in {turned or 'none'} the "
            "conclusion is shown to depend on the style."
        )


def _counted(
    kind: Kind, part: pl.DataFrame, shown: Table, redrawn: Mapping[str, str], families: str
) -> Iterator[str]:
    """Count the significant estimates of one quantity by scope, before and after correction."""
    every, part = part.height, once(part)
    mirrored = " (of two groups one counts)" if part.height < every else ""
    name = shown.title.partition(":")[0] or kind.title
    for (scope,), tested in part.drop_nulls("significant").group_by("scope", maintain_order=True):
        significant, survives = (int(tested[c].sum()) for c in ("significant", "survives"))
        corrected = (
            f", {survives or 'none'} after correction {families}"
            if tested["survives"].count() and survives != significant
            else ""
        )
        drawn = f" if {redrawn.get(str(scope), f'{scope} are redrawn')}" if scope else ""
        yield (
            f"{name[0].upper()}{name[1:]}: {significant or 'none'} of {tested.height}{mirrored} "
            f"are significant{drawn}{corrected}."
        )


def _clearest(
    kind: Kind, part: pl.DataFrame, shown: Table, redrawn: Mapping[str, str], scope: str
) -> Iterator[str]:
    """Name the estimate that is farthest from no bias, of those found under the judged scope.

    Gaps of groups have a headline instead.
    """
    if part["survives"].count() == 0 and part["significant"].count() == 0:
        return
    if redrawn:
        part = under(part, [*redrawn], scope)
    part = once(part)
    found = part.filter(pl.col("survives").fill_null(pl.col("significant")).fill_null(value=False))
    if found.is_empty() or part.height == 1:
        return
    far = (pl.col("value") - shown.neutral).abs()
    found = found.sort(far, "p", descending=[True, False])
    if found["condition"].str.starts_with(CLASS).all():
        yield from of_classes(found)
        return
    if gap_rows(found).height:
        return
    clearest = found.row(0, named=True)
    keys = [key for key in _KEYS if part[key].n_unique() > 1]
    value = wording.interval(*scaled(clearest, kind), digits=kind.digits, plus=shown.signed)
    said = (wording.bias_type(str(clearest[key])) for key in keys or ["model"] if clearest[key])
    name = clearest["scope"]
    drawn = f" if {redrawn.get(name, f'{name} are redrawn')}" if name else ""
    yield f"The clearest{drawn}: {wording.spaced(', '.join(said))} {value}."


def of_classes(found: pl.DataFrame) -> Iterator[str]:
    """State the clearest gap by class of each rate, in a table of gaps with the clearest first."""
    for (score,), part in found.group_by("score", maintain_order=True):
        row = part.row(0, named=True)
        name = class_of(row["condition"])
        metric = wording.metric(str(score), name)
        who = " ".join(filter(None, (wording.spaced(row["group"]), metric.among)))
        if part["model"].n_unique() > 1:
            who = f"{row['model']}: {who}"
        value = wording.interval(row["value"], row["low"], row["high"])
        often = "more" if row["value"] > 0 else "less"
        yield f"The clearest gap of {score} by class: {who}: {metric.words} {often} often, {value}."


def two_groups(part: pl.DataFrame) -> pl.Expr:
    """Select the gaps of two groups, of which one is the other with its sign turned."""
    by = [name for name in (*_KEYS[:-1], "dataset", "scope") if name in part.columns]
    twins = (pl.len() == 2) & (pl.col("value").sum().abs() < _ROUNDING)
    signed = pl.col("statistic").is_in(["gap", "difference"])
    return (signed & twins.over(by)).fill_null(value=False)


def once(part: pl.DataFrame) -> pl.DataFrame:
    """Leave out the second of two groups, whose gap is that of the first with its sign turned."""
    by = [name for name in (*_KEYS[:-1], "dataset", "scope") if name in part.columns]
    second = pl.col("group") != pl.col("group").min().over(by)
    return part.filter(~(two_groups(part) & second))


def scaled(row: Mapping[str, Any], kind: Kind) -> tuple[float | None, ...]:
    """Return value, low and high in the unit of a kind's tables."""
    ends = (row["value"], row["low"], row["high"])
    return tuple(None if end is None else kind.scale * end for end in ends)


def refusals(estimates: pl.DataFrame, what: str = "score") -> list[str]:
    """Name the models or classifiers that cannot do the task, and of which no `what` is judged."""
    rows = own_readings(estimates).filter(refused("reason"), pl.col("model") != ALL)
    keys = wording.shortest_keys(estimates.filter(pl.col("model") != ALL))
    probe = ["probe"] if estimates["probe"].n_unique() > 1 else []
    rows = rows.unique([*keys, *probe], maintain_order=True)
    pairs = [
        (" on ".join((wording.classifier_name(row, keys), *(row[key] for key in probe))),
         row["reason"])
        for row in rows.iter_rows(named=True)
    ]  # fmt: skip
    if len(pairs) > _NAMED:
        first = "; ".join(f"{name}: {reason}" for name, reason in pairs[:_NAMED])
        return [
            f"No verdict for {len(pairs)} classifiers, of which no {what} is judged. {first}; and "
            f"{len(pairs) - _NAMED} more, in the table `estimates`. Tune them, ask them otherwise, "
            "or measure models that can."
        ]
    return [refusal(*pair, what) for pair in pairs]


def own_readings(estimates: pl.DataFrame) -> pl.DataFrame:
    """Leave out likelihood readings that cannot do the task, beside the method that they are of.

    They are made for comparison; the table `estimates` has them.
    """
    others = [key for key in schema.KEYS if key != "method"]
    beside = estimates.select(*others, pl.col("method") + LIKELIHOOD).unique()
    how: dict[str, Any] = {"on": schema.KEYS, "nulls_equal": True, "maintain_order": "left"}
    idle = estimates.filter(refused("reason")).join(beside, how="semi", **how)
    return estimates.join(idle, how="anti", **how)


def able(frame: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Leave out classifiers of which no gap is judged, since they cannot do their task."""
    unable = gaps.filter(refused("reason")).select(schema.TABLE).unique()
    return frame.join(unable, on=schema.TABLE, how="anti", nulls_equal=True, maintain_order="left")
