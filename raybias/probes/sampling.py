"""Sample a probe's items for a `limit`, balanced and keyed by content; larger ones include it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from raybias.schema import EXTRA_GROUPS
from raybias.seeding import key

_ROW: Final = "row"
_TEMPLATE: Final = ("attribute", "template_id")
_CELL: Final = ("attribute", "group", "label")


def sample_items(items: pl.DataFrame, limit: int, *, source: str) -> pl.DataFrame:
    """Take at most `limit` items of each attribute, balanced over groups, labels and templates.

    Templates are taken whole, first with one term per group, and with further terms once all
    templates are in. Labels take turns, and so do groups where a template has one group. Each group
    keeps every label it has, even beyond `limit`, so that all rates are defined. Items keep their
    order; those of schema.EXTRA_GROUPS are not counted and follow their template.
    """
    numbered = items.with_row_index(_ROW)
    extra = pl.col("group").is_in(EXTRA_GROUPS)
    own = _keyed(numbered.filter(~extra), ("attribute", "group", "label", "term", "text"), source)
    # Which term of its group in its template an item is: 0 for the one that comes first.
    layer = pl.int_range(pl.len()).over(*_TEMPLATE, "group", "label")
    own = own.sort("key", _ROW).with_columns(layer=layer)
    own = own.join(_template_rounds(own, source), on=_TEMPLATE, nulls_equal=True)
    blocks = own.group_by("attribute", "template_id", "layer").agg(
        pl.col("round", "template_key").first(),
        pl.col("group", "label").min(),
        pl.len().alias("size"),
    )
    order = ("layer", "round", "group", "label", "template_key", "template_id")
    needed = (pl.col("layer") == 0) & (pl.col("round") == 0)
    taken = _first(blocks.sort(order), ["attribute"], limit, needed=needed)
    chosen = own.join(taken, on=(*_TEMPLATE, "layer"), how="semi", nulls_equal=True)
    beside = numbered.filter(extra).join(chosen, on=_TEMPLATE, how="semi", nulls_equal=True)
    rows = pl.concat([chosen[_ROW], beside[_ROW]])
    return items[rows.sort().to_list()]


def sample_pairs(pairs: pl.DataFrame, limit: int, *, kind: str, source: str) -> pl.DataFrame:
    """Take at most `limit` rows, but at least one whole pair, of each value of column `kind`."""
    texts = [name for name in ("sent_more", "sent_less", "text") if name in pairs.columns]
    keyed = _keyed(pairs.with_row_index(_ROW), (kind, *texts), source)
    units = keyed.group_by(kind, "pair_id").agg(pl.col("key").sort(), pl.len().alias("size"))
    units = units.with_columns(_keys(units["key"].to_list(), source)).sort("key", "pair_id")
    taken = _first(units, (kind,), limit)
    return pairs.join(taken, on=[kind, "pair_id"], how="semi", maintain_order="left")


def sample_units(
    items: pl.DataFrame, limit: int, *, within: Sequence[str], unit: str, source: str
) -> pl.DataFrame:
    """Take whole units of at most `limit` rows, but at least one, per value of `within`."""
    units = items.group_by(*within, unit).agg(pl.len().alias("size"))
    units = _keyed(units, (*within, unit), source).sort("key", unit)
    taken = _first(units, within, limit)
    return items.join(taken, on=[*within, unit], how="semi", maintain_order="left")


def _template_rounds(own: pl.DataFrame, source: str) -> pl.DataFrame:
    """Rank each template by its key among those of its rarest group and label."""
    templates = own.group_by(_TEMPLATE).agg(pl.col("key").sort())
    keys = _keys(templates["key"].to_list(), source)
    templates = templates.with_columns(keys.alias("template_key"))
    cells = own.select(*_CELL, "template_id").unique()
    ranked = cells.join(templates.drop("key"), on=_TEMPLATE, nulls_equal=True).sort(
        "template_key", "template_id"
    )
    place = pl.int_range(pl.len()).over(_CELL)
    return (
        ranked.with_columns(round=place)
        .group_by(_TEMPLATE)
        .agg(pl.col("round").min(), pl.col("template_key").first())
    )


def _first(
    blocks: pl.DataFrame, within: Sequence[str], limit: int, *, needed: pl.Expr | None = None
) -> pl.DataFrame:
    """Take blocks whose sizes add to at most `limit`, and needed ones, or else the first."""
    parts: Sequence[str | pl.Expr] = within or [pl.lit(0)]
    first = pl.int_range(pl.len()).over(parts) == 0 if needed is None else needed
    return blocks.filter((pl.col("size").cum_sum().over(parts) <= limit) | first)


def _keyed(frame: pl.DataFrame, columns: tuple[str, ...], source: str) -> pl.DataFrame:
    """Add the column `key`, a draw per content of a row."""
    contents = frame.select(pl.col(columns).cast(pl.String).fill_null(""))
    return frame.with_columns(_keys(contents.rows(), source))


def _keys(contents: Iterable[Iterable[str | int]], source: str) -> pl.Series:
    return pl.Series("key", [key("limit", source, *each) for each in contents], pl.UInt64)
