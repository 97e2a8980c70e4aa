"""The probes that come in pairs, by name, and their items in any style that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.config import StyleOptions
from raybias.errors import DataError
from raybias.probes.column_checks import choose
from raybias.probes.pairs.crows_pairs import BIAS_TYPES, CROWS_FILE, crows_pairs, own_pairs
from raybias.probes.pairs.winobias import WINO_TYPES, Split, coreference_items, own_coreferences
from raybias.probes.styles.from_files import own_styled_pairs, refuse_written
from raybias.probes.styles.rules import (
    COREFERENCE_STYLES,
    REWRITTEN_STYLES,
    STYLES,
    check_style,
    styled_coreferences,
    styled_pairs,
)
from raybias.schema import COREFERENCES, PAIRS
from raybias.storage import Store


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """One kind of probe in pairs."""

    items: Callable[[str], pl.DataFrame]
    """Reads its items, in style "original", from what `data` points at."""
    restyle: Callable[..., pl.DataFrame]
    """Puts them into a style by rule."""
    schema: pa.Schema
    """Their columns: schema.PAIRS or schema.COREFERENCES."""
    styles: tuple[str, ...]
    """The styles that they come in."""
    kind: str
    """The column that says what a pair is about."""
    kinds: tuple[str, ...]
    """Its values, or none where the data says."""
    about: str
    """What it is, in a line."""
    data: str
    """What `data` must point at."""


def pair_items(
    source: str, data: str | None, *, kinds: Iterable[str] | None = None
) -> pl.DataFrame:
    """The pairs of a probe of PAIR_PROBES in style "original", in their published order.

    Parameters
    ----------
    kinds: bias types (crows_pairs, pairs) or types (winobias, coreferences); all without it.

    Raises
    ------
    DataError: no such probe, data that is missing or malformed, or a kind that is not there.
    """
    if source not in PAIR_PROBES:
        raise DataError(f"no pair probe {source!r}", cure=f"choose from {', '.join(PAIR_PROBES)}")
    if not data:
        raise DataError("needs `data`", where=f"probe {source}", cure="say where its files are")
    found = PAIR_PROBES[source]
    items = found.items(data)
    if kinds is None:
        return items
    there = items[found.kind].unique(maintain_order=True)
    return items.filter(pl.col(found.kind).is_in(choose(kinds, there, where=f"probe {source}")))


def in_styles(
    source: str,
    items: pl.DataFrame,
    styles: Sequence[str],
    *,
    files: Sequence[str] = (),
    rewritten: Collection[str] = (),
    options: StyleOptions | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Original items of a probe of PAIR_PROBES in several styles, each once, one after the other.

    Parameters
    ----------
    files: the styled pairs that formal and informal are read from.
    rewritten: styles that a model makes later: their rows hold the originals, marked as kept.

    Raises
    ------
    ConfigError: a style that the probe has not, one that neither a rule nor a file makes, or
        one that a file and a model make.
    DataError: the files miss or repeat pairs, or are malformed.
    """
    found = PAIR_PROBES[source]
    parts = []
    for style in dict.fromkeys(styles):
        check_style(style, found.styles)
        if style in rewritten:
            refuse_written(style, files)
            parts.append(
                items.with_columns(pl.lit(style).alias("style"), pl.lit(True).alias("kept"))
            )
        elif files and style in REWRITTEN_STYLES:
            parts.append(own_styled_pairs(items, style, files))
        else:
            parts.append(found.restyle(items, style, options=options, seed=seed))
    return pl.concat(parts)


def _pairs(
    items: Callable[[str], pl.DataFrame], *, kinds: tuple[str, ...], about: str, data: str
) -> PairSource:
    return PairSource(
        items=items,
        restyle=styled_pairs,
        schema=PAIRS,
        styles=STYLES,
        kind="bias_type",
        kinds=kinds,
        about=about,
        data=data,
    )


def _coreferences(
    items: Callable[[str], pl.DataFrame], *, kinds: tuple[str, ...], about: str, data: str
) -> PairSource:
    return PairSource(
        items=items,
        restyle=styled_coreferences,
        schema=COREFERENCES,
        styles=COREFERENCE_STYLES,
        kind="wino_type",
        kinds=kinds,
        about=about,
        data=data,
    )


def _winobias(split: Split, *, about: str) -> PairSource:
    return _coreferences(
        lambda data: coreference_items(Store(data), split=split),
        kinds=WINO_TYPES,
        about=about,
        data=f"folder with pro_stereotyped_type1.txt.{split} and the other three",
    )


#: Every probe in pairs by its name.
PAIR_PROBES: Final[Mapping[str, PairSource]] = {
    "crows_pairs": _pairs(
        lambda data: crows_pairs(Store(data)),
        kinds=BIAS_TYPES,
        about="CrowS-Pairs: 1,508 pairs of nine bias types (EMNLP 2020; Zhao2025)",
        data=f"folder with {CROWS_FILE}",
    ),
    "winobias": _winobias(
        "test", about="WinoBias: 1,584 sentences, what does the pronoun stand for (Zhao2025)"
    ),
    "winobias_dev": _winobias("dev", about="WinoBias's development half"),
    "pairs": _pairs(
        own_pairs,
        kinds=(),
        about="your own pairs: sent_more, sent_less, bias_type",
        data="one .csv, .tsv or .parquet file",
    ),
    "coreferences": _coreferences(
        own_coreferences,
        kinds=(),
        about="your own sentences with a pronoun: pair_id, condition, text, pronoun, referent",
        data="one .csv, .tsv or .parquet file",
    ),
}
