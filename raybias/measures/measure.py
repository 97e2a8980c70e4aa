"""Estimate every score of a kind of answers, with intervals over its units.

Shapes: U units, P prompts, K sums, M smooth functions of one score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.measures.kind import Kind, Rules, Score, Sums, kinds
from raybias.schema import ALL, ESTIMATES
from raybias.stats.components import Doubles
from raybias.stats.intervals import estimates, false_discovery
from raybias.stats.jackknife import crossed_intervals, student, unit_intervals, without_each

PROMPTS: Final = "prompts"
STYLES: Final = "styles"
#: What can have a reason that nothing is concluded of it.
_JUDGED: Final = ("model", "probe", "method")


def measure(kind: Kind, answers: pl.DataFrame, rules: Rules | None = None) -> pl.DataFrame:
    """Estimate every registered score of every model and place.

    An interval covers other units like these, answered by the same model. Where there are several
    prompts, their average `all` has another that covers other prompts too. There is none where the
    model cannot do the task (`kind.refused`).

    Parameters
    ----------
    answers: of the kind's schema, in any order.

    Returns
    -------
    schema.ESTIMATES.
    """
    rules = rules or Rules()
    if kind.estimate is not None:
        found = pl.concat(kind.estimate(answers, rules), how="diagonal_relaxed")
    elif kind.sums is not None:
        found = _of_sums(kind, kind.sums(answers), kind.refused(answers, rules), rules.level)
    return estimates(found, kind.name)


def measure_all(answers: Mapping[str, pl.DataFrame], rules: Rules | None = None) -> pl.DataFrame:
    """Estimate every score of answers of several kinds.

    Tests of paired kinds are corrected together: scores, effects of styles, and means over styles
    are a family each.

    Parameters
    ----------
    answers: by the name of their kind.

    Returns
    -------
    schema.ESTIMATES.
    """
    rules = rules or Rules()
    found = pl.concat(measure(kinds[name], frame, rules) for name, frame in answers.items())
    paired = [name for name in answers if kinds[name].outcomes is not None]
    if len(paired) < 2:
        return found
    tested = pl.col("q").is_not_null() & pl.col("kind").is_in(paired)
    family = (
        pl.col("statistic", "condition"),
        (pl.col("style") == ALL).alias("over styles"),
        pl.col("scope").str.contains(STYLES).alias("styles drawn"),
        (pl.col("model") == ALL).alias("over models"),
    )
    place = found.with_row_index("place").filter(tested).select("place", "p", *family)
    corrected = pl.concat(
        part.select("place", q_together=false_discovery(part["p"]))
        for part in place.partition_by(place.columns[2:])
    )
    joined = found.with_row_index("place").join(corrected, on="place", how="left")
    q = pl.coalesce("q_together", "q")
    passes = pl.lit(value=True) if rules.adjust == "none" else q <= 1 - rules.level
    survives = pl.when(pl.col("q_together").is_not_null() & pl.col("survives").is_not_null())
    return joined.sort("place").with_columns(
        q=q, survives=survives.then(pl.col("significant") & passes).otherwise("survives")
    ).select(ESTIMATES.names)  # fmt: skip


def _of_sums(
    kind: Kind, sums: pl.DataFrame, refused: Mapping[tuple[str, ...], str], level: float
) -> pl.DataFrame:
    """Estimate every score from the sums over units."""
    rows: list[dict[str, Any]] = []
    for keys, part in sums.partition_by(kind.by, as_dict=True).items():
        place = dict(zip(kind.by, map(str, keys), strict=True))
        reason = refused.get(tuple(place.get(name, "") for name in _JUDGED))
        for row in _of_place(kind, part, level):
            if reason is not None:
                row |= {"low": None, "high": None, "p": None, "reason": reason}
            rows.append({**place, **row})
    # NaN would be less than no level, and so no missing verdict.
    found = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
    order = [expression for name in kind.by for expression in (pl.col(name) == ALL, name)]
    judged = found.with_columns(significant=pl.col("p") < 1 - level)
    return judged.sort(order, maintain_order=True)


def _of_place(kind: Kind, sums: pl.DataFrame, level: float) -> Iterator[dict[str, Any]]:
    """Yield the estimates of one place: of each prompt, and of all together."""
    names = [n for n in sums.columns if n not in (*kind.by, "unit", "style")]
    prompts = sums["style"].unique().sort().to_list() if "style" in sums.columns else [""]
    counts_UPK = _laid_out(sums, names, prompts)
    for p, prompt in enumerate(prompts):
        for row in _measured(kind, names, counts_UPK[:, p : p + 1], level, crossed=False):
            yield {"style": prompt, "scope": kind.units, **row}
    if len(prompts) > 1:
        for crossed, scope in ((False, kind.units), (True, f"{kind.units}, {PROMPTS}")):
            for row in _measured(kind, names, counts_UPK, level, crossed=crossed):
                yield {"style": ALL, "scope": scope, **row}


def _laid_out(sums: pl.DataFrame, names: list[str], prompts: list[str]) -> Doubles:
    """Lay the sums of one place out [U, P, K], units in order."""
    units = sums["unit"].unique().sort().to_list()
    placed = np.zeros((len(units), len(prompts), len(names)), order="F")
    at_U = sums["unit"].cast(pl.Enum(units)).to_physical().to_numpy()
    at_P = sums["style"].cast(pl.Enum(prompts)).to_physical().to_numpy() if "style" in sums else 0
    placed[at_U, at_P] = sums.select(names).to_numpy()
    return placed


def _by_condition(kind: Kind, names: list[str], sums_K: Doubles) -> list[Sums]:
    """Name the sums [..., K] of each condition."""
    arrays = dict(zip(names, np.moveaxis(sums_K, -1, 0), strict=True))
    if len(kind.conditions) == 1:
        return [Sums(arrays)]
    return [
        Sums({name.removeprefix(start): array for name, array in arrays.items()
              if name.startswith(start)})
        for start in (f"{condition} " for condition in kind.conditions)
    ]  # fmt: skip


def _measured(
    kind: Kind, names: list[str], counts_UPK: Doubles, level: float, *, crossed: bool
) -> Iterator[dict[str, Any]]:
    """Yield every score in every condition, its interval over units, or over units and prompts."""
    counts_UK = counts_UPK.sum(axis=1)
    facets = [counts_UK]
    if crossed:
        facets += [counts_UPK.sum(axis=0), counts_UPK.reshape(-1, counts_UK.shape[-1])]
    found = _by_condition(kind, names, counts_UK.sum(axis=0))
    whole = [_by_condition(kind, names, each) for each in facets]
    without = [_by_condition(kind, names, without_each(each)) for each in facets]
    for c, condition in enumerate(kind.conditions):
        if found[c].empty:
            continue
        for score in kind.scores.values():
            value_M = score.values(found, c)
            sizes = [getattr(each[c], score.weight) for each in whole]
            left_out = [score.values(each, c) for each in without]
            row: dict[str, Any] = {"condition": condition} if condition else {}
            yield {
                **row,
                "score": score.name,
                "statistic": score.statistic,
                **_judged(score, value_M, left_out, sizes, level),
                "n": int(getattr(found[c], score.counts)),
                "units": int(np.count_nonzero(sizes[0])),
            }


def _judged(
    score: Score, value_M: Doubles, left_out: list[Doubles], sizes: list[Doubles], level: float
) -> dict[str, Any]:
    """Return value, low, high, p and the reason for no interval of one score."""
    p = float("nan")
    if score.bounds is None:
        low_M, high_M, p, reason = student(value_M, left_out[0], sizes[0], level)
    elif len(sizes) > 1:
        facets = list(zip(left_out, sizes, strict=True))
        low_M, high_M, reason = crossed_intervals(value_M, facets, score.bounds, level)
    else:
        low_M, high_M, reason = unit_intervals(value_M, left_out[0], sizes[0], score.bounds, level)
    high = float(np.minimum(high_M.min(), score.most))
    return {"value": float(value_M.min()), "low": float(low_M.min()), "high": high, "p": p,
            "reason": reason}  # fmt: skip
