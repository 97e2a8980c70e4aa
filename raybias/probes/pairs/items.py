"""Read pair probes by name, and put their items into any style that needs no model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import polars as pl

from raybias.config import StyleOptions
from raybias.probes.column_checks import as_table, choose
from raybias.probes.pairs.coreference import with_others
from raybias.probes.registries import pair_probes, styles
from raybias.probes.sources import place_of
from raybias.probes.styles.from_files import own_styled_pairs, refuse_written
from raybias.probes.styles.rules import check_style, styled_coreferences, styled_pairs
from raybias.schema import COREFERENCES, PAIRS


def pair_items(
    source: str, data: str | None, *, kinds: Iterable[str] | None = None
) -> pl.DataFrame:
    """Read the pairs of a registered pair probe in style "original", in their published order.

    Parameters
    ----------
    kinds: bias types (crows_pairs, pairs) or types (winobias, coreferences); all without it.

    Raises
    ------
    ConfigError: no such probe.
    DataError: data that is missing or malformed, or a kind that is not there.
    """
    pair_probes.check(source)
    found, where = pair_probes[source], f"probe {source}"
    items = found.items(place_of(source, data, where=where) if found.data else "")
    if found.schema == COREFERENCES:
        items = with_others(items)
    items = as_table(items, found.schema, where=where)
    if kinds is None:
        return items
    there = items[found.kind].unique(maintain_order=True)
    return items.filter(pl.col(found.kind).is_in(choose(kinds, there, where=where)))


def in_styles(
    source: str,
    items: pl.DataFrame,
    names: Sequence[str],
    *,
    files: Sequence[str] = (),
    rewritten: Collection[str] = (),
    options: StyleOptions | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Put original items of a pair probe into several styles, each once, one after the other.

    Parameters
    ----------
    names: of the styles.
    files: the styled pairs that a style without a rule is read from.
    rewritten: styles that a model makes later: their rows hold the originals, marked as kept.

    Raises
    ------
    ConfigError: a style that the probe has not, one that neither a rule nor a file makes, or
        one that a file and a model make.
    DataError: the files miss or repeat pairs, or are malformed.
    """
    found = pair_probes[source]
    restyle = styled_pairs if found.schema == PAIRS else styled_coreferences
    parts = []
    for style in dict.fromkeys(names):
        check_style(style, found.styles)
        if style in rewritten:
            refuse_written(style, files)
            parts.append(
                items.with_columns(pl.lit(style).alias("style"), pl.lit(True).alias("kept"))
            )
        elif files and styles[style].rule is None:
            parts.append(own_styled_pairs(items, style, files))
        else:
            parts.append(restyle(items, style, options=options, seed=seed))
    return pl.concat(parts)
