"""Take apart what of a gap is the engine's, where several engines or precisions read one model.

They read the same templates, so a gap has a component `engine` of variance, of crossed engines and
templates (`stats.components`). Of several runs it is that of their means, and holds their noise.

Shapes: G groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.stats.checks import warn
from raybias.stats.components import mean_squares, name_of
from raybias.stats.over_models import ModelTables
from raybias.stats.scopes import GapTable, by_group

_PLACE: Final = (*schema.TABLE, "score")


def engine_variances(tables: Sequence[GapTable], engines: Mapping[str, str]) -> pl.DataFrame:
    """Estimate how much each gap varies between the engines of a model: schema.COMPONENTS.

    `engines` are models with the weights of another, each with that model, whose name the rows
    have. A StatisticsWarning names engines that did not read the same sentences; they have none.
    """
    alike: dict[tuple[str, ...], list[GapTable]] = defaultdict(list)
    for table in tables if engines else ():
        model, *rest = table.place
        alike[engines.get(model, model), *rest].append(table)
    rows: list[dict[str, Any]] = []
    for place, found in alike.items():
        if len(found) > 1 and len(found[0].templates) > 1:
            if len({(table.groups, table.templates) for table in found}) > 1:
                warn(f"the engines of {place[0]} did not read the same sentences of {place[-2]}")
                continue
            rows += _rows(dict(zip(_PLACE, place, strict=True)), found)
    return pl.DataFrame(rows, schema=pl.Schema(schema.COMPONENTS))


def _rows(names: Mapping[str, str], tables: Sequence[GapTable]) -> Iterator[dict[str, Any]]:
    squares = mean_squares(ModelTables(tuple(tables)).means_GMT, ("engine", "template"))
    for facets, variance_G in squares.components.items():
        if "engine" in facets:
            levels = " x ".join(str(squares.levels[facet]) for facet in facets)
            named = {**names, "facets": name_of(facets), "levels": levels}
            yield from by_group(named, tables[0].groups, {"variance": variance_G})


def turned(
    gaps: pl.DataFrame, components: pl.DataFrame, engines: Mapping[str, str]
) -> pl.DataFrame:
    """Count the gaps that turn with the engine, and tell how far engines lie apart.

    A gap turns if it survives the correction with one engine, and with another it does not or lies
    on the other side of 0. One near the limit turns by little: whether two engines differ is
    what `raybias compare` judges. Gives schema.ENGINES.
    """
    side = (pl.col("value").sign() * pl.col("survives")).n_unique()
    low, high = (
        pl.col("model").get(place)
        for place in (pl.col("value").arg_min(), pl.col("value").arg_max())
    )
    own = gaps.filter(pl.col("model").is_in([*engines, *engines.values()]))
    each = (
        own.with_columns(of=pl.col("model").replace(engines))
        .group_by("of", *_PLACE[1:], "group", maintain_order=True)
        .agg(
            low_engine=low,
            high_engine=high,
            engines=pl.len().cast(pl.Int64),
            apart=pl.col("value").max() - pl.col("value").min(),
            half_width=((pl.col("high") - pl.col("low")) / 2).mean(),
            judged=pl.col("survives").is_not_null().all(),
            turned=side > 1,
        )
        .filter(pl.col("engines") > 1)
        .rename({"of": "model"})
    )
    furthest = [
        pl.col(name).get(pl.col("apart").arg_max())
        for name in ("group", "low_engine", "high_engine")
    ]
    between = components.filter(facets="engine").group_by(_PLACE).agg(
        sd_engine=pl.col("variance").mean().clip(0).sqrt()
    )  # fmt: skip
    found = each.group_by(_PLACE, maintain_order=True).agg(
        *furthest, pl.col("engines").max(), gaps=pl.col("judged").sum().cast(pl.Int64),
        turned=(pl.col("turned") & pl.col("judged")).sum().cast(pl.Int64),
        furthest=pl.col("apart").max(), half_width=pl.col("half_width").mean(),
    )  # fmt: skip
    whole = found.join(between, on=_PLACE, how="left", nulls_equal=True, maintain_order="left")
    return whole.select(schema.ENGINES.names)
