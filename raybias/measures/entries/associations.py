"""Associations of embeddings of words or sentences: WEAT and SEAT, from files of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from raybias.columns import ASSOCIATION_SETS
from raybias.errors import DataError
from raybias.measures.kind import Kind, Sums, Table, kind
from raybias.schema import EMBEDDINGS, ESTIMATES
from raybias.stats.associations import associations, estimate
from raybias.stats.components import Doubles
from raybias.stats.contrasts import ratio
from raybias.stats.intervals import Rules, verdicts

_BY: Final = ("model", "method", "probe", "test")
_SCORE: Final = "effect_size"
_CURE: Final = "give each test the embeddings of one model in the sets X, Y, A and B"


def _check(answers: pl.DataFrame, where: str) -> None:
    """Refuse tests that lack a set, and embeddings that are 0 or of another length."""
    for keys, part in answers.group_by(_BY, maintain_order=True):
        test = " ".join(filter(None, map(str, keys)))
        if missing := [name for name in ASSOCIATION_SETS if name not in {*part["set"]}]:
            raise DataError(f"{test} has no set {', '.join(missing)}", where=where, cure=_CURE)
        lengths = part["embedding"].list.len()
        if lengths.n_unique() > 1:
            found = ", ".join(map(str, sorted({*lengths})))
            raise DataError(
                f"{test} has embeddings of different lengths ({found})", where=where, cure=_CURE
            )
        is_zero = part["embedding"].list.eval(pl.element() == 0).list.all()
        if is_zero.any():
            item = part.filter(is_zero)["item_id"][0]
            raise DataError(
                f"{test} {item!r}: the embedding is 0",
                where=where,
                cure="embed it again or leave it out",
            )


def _estimate(answers: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    """Estimate the effect size of each test."""
    rows = []
    for keys, part in answers.sort(*_BY, "set", "item_id").group_by(_BY, maintain_order=True):
        model, method, probe, test = map(str, keys)
        sets = {name: _matrix(part.filter(set=name)) for name in ASSOCIATION_SETS}
        rows.append(
            {
                "model": model,
                "method": method,
                "probe": probe,
                "attribute": test,
                "score": _SCORE,
                "statistic": "score",
                "scope": "targets",
                **estimate(sets, rules.level, *map(str, keys)),
            }
        )
    table = pl.DataFrame(rows, pl.Schema(ESTIMATES))
    seen = pl.when(pl.col("p").is_not_null()).then(pl.col("p") <= 1 - rules.level)
    yield verdicts(table, rules, seen, family=("model", "method", "probe"))


def _matrix(part: pl.DataFrame) -> Doubles:
    return np.array(part["embedding"].to_list(), dtype=np.float64)


def _sums(answers: pl.DataFrame) -> pl.DataFrame:
    """Make a row of each target, by its set X or Y, with its association s and the square of it."""
    found = []
    for keys, part in answers.sort(*_BY, "set", "item_id").group_by(_BY, maintain_order=True):
        targets = part.filter(pl.col("set").is_in(["X", "Y"]))
        a_MH, b_MH = (_matrix(part.filter(set=name)) for name in ("A", "B"))
        s = pl.lit(pl.Series(associations(_matrix(targets), a_MH, b_MH)))
        place = dict(zip(("model", "method", "probe", "attribute"), keys, strict=True))
        in_x, in_y = (pl.col("set") == name for name in ("X", "Y"))
        found.append(
            targets.select(
                **{name: pl.lit(str(value)) for name, value in place.items()},
                unit=pl.format("{} {}", "set", "item_id"),
                targets=pl.lit(1.0),
                x=in_x.cast(pl.Float64),
                y=in_y.cast(pl.Float64),
                s_of_x=pl.when(in_x).then(s).otherwise(0.0),
                s_of_y=pl.when(in_y).then(s).otherwise(0.0),
                squares=s**2,
            )
        )
    return pl.concat(found)


ASSOCIATIONS: Final = kind(
    Kind(
        name="associations",
        answers=EMBEDDINGS,
        item=("method", "test", "set", "item_id"),
        answered=("embedding",),
        by=("model", "method", "probe", "attribute"),
        sums=_sums,
        estimate=_estimate,
        check=_check,
        units="targets",
        title="Associations of embeddings: which targets lie closer to which attributes",
        called={"attribute": "test", "n": "targets"},
        tables=(Table("", pl.lit(value=True), signed=True, neutral=0),),
        digits=2,
        about="Above 0: X lies closer to A, and Y to B. p is of a two-sided permutation test over "
        "targets. No association that is found does not show that a model is without bias.",
    )
)


@ASSOCIATIONS.score(
    formula="(mean over X of s - mean over Y of s) / standard deviation of s over X and Y, "
    "s(w) = mean over A of cos(w, a) - mean over B of cos(w, b)",
    source="Caliskan et al. 2017 (WEAT), May et al. 2019 (SEAT)",
    bounds=None,
    weight="targets",
    unbiased=0,
)
def effect_size(sums: Sums) -> Doubles:
    """Compute d of the sums over targets: how much closer X lies to A than Y does."""
    total = sums.s_of_x + sums.s_of_y
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(ratio(sums.squares - ratio(total**2, sums.targets), sums.targets - 1))
    return ratio(ratio(sums.s_of_x, sums.x) - ratio(sums.s_of_y, sums.y), spread)
