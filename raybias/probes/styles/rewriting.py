"""Rewrite pairs with a model: each side by itself, or one side with the edit copied to the other.

The caller passes the function that rewrites sentences, so this module loads no model. A pair
without an adequate rewriting keeps its original and is marked as kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import polars as pl

from raybias.probes.column_checks import polars_schema
from raybias.probes.pairs.pair_table import SIDES
from raybias.probes.registries import styles
from raybias.probes.styles.mirror_edit import mirrored
from raybias.probes.styles.rules import check_style
from raybias.schema import REWRITTEN_PAIRS
from raybias.seeding import generator

Key = tuple[str | int, ...]
#: Sentences and the key of each one's random numbers -> what each could become, adequate ones
#: only and best first, with how adequate it is.
Rewrite = Callable[[Sequence[str], Sequence[Key]], list[list[tuple[str, float]]]]
_CHANGED: Final = (*SIDES, "adequacy_more", "adequacy_less", "kept")
_Row = tuple[str, str, str]
#: sent_more, sent_less, and how adequate each is; None for a side that was mirrored.
_Made = tuple[str, str, float | None, float | None]


def rewritten_pairs(
    pairs: pl.DataFrame,
    style: str,
    rewrite: Rewrite,
    *,
    paired: Literal["separate", "mirror"],
    seed: int,
) -> pl.DataFrame:
    """Put original pairs into the style that `rewrite` makes, in their order.

    Random numbers are keyed by (seed, style, pair_id) and the same for both sides. A pair does
    not depend on the others, so a table may be cut anywhere.

    Parameters
    ----------
    pairs: schema.PAIRS.
    paired: separate rewrites each side on its own, and keeps the originals of both where one
        has no adequate rewriting or they come out the same (Zhao2025); mirror rewrites the side
        that the pair's key draws and carries the edit over to the other, taking the best
        rewriting for which that can be done.

    Returns schema.REWRITTEN_PAIRS.

    Raises
    ------
    ConfigError: the style has a rule, or is not registered.
    """
    check_style(style, [name for name, each in styles.items() if each.rule is None])
    rows: list[_Row] = pairs.select("pair_id", *SIDES).rows()
    keys: list[Key] = [(seed, "rewrite", style, pair_id) for pair_id, _, _ in rows]
    make = _separate if paired == "separate" else _mirror
    made = make(rows, keys, rewrite)
    new = [
        (*(found or (more, less, None, None)), found is None)
        for found, (_, more, less) in zip(made, rows, strict=True)
    ]
    schema = polars_schema(REWRITTEN_PAIRS)
    changed = {name: schema[name] for name in _CHANGED}
    return (
        pairs.drop("kept", *SIDES)
        .with_columns(pl.DataFrame(new, schema=changed, orient="row"), style=pl.lit(style))
        .select(schema.names())
    )


def _separate(rows: Sequence[_Row], keys: Sequence[Key], rewrite: Rewrite) -> list[_Made | None]:
    texts = [text for _, *sides in rows for text in sides]
    found = rewrite(texts, [key for key in keys for _ in SIDES])
    best = [each[0] if each else None for each in found]
    return [
        (more[0], less[0], more[1], less[1])
        if more and less and more[0].strip() != less[0].strip()
        else None
        for more, less in zip(best[::2], best[1::2], strict=True)
    ]


def _mirror(rows: Sequence[_Row], keys: Sequence[Key], rewrite: Rewrite) -> list[_Made | None]:
    # Which side a model wrote must not go with which side is sent_more, nor must swapping the
    # sides change a pair: the draw is among the sides in alphabetical order.
    drawn = [_drawn_side(row, key) for row, key in zip(rows, keys, strict=True)]
    found = rewrite([row[1 + side] for row, side in zip(rows, drawn, strict=True)], keys)
    made: list[_Made | None] = []
    for (_, more, less), side, each in zip(rows, drawn, found, strict=True):
        source, other = (less, more) if side else (more, less)
        tried = ((text, mirrored(source, other, text), score) for text, score in each)
        pair = next(((text, new, score) for text, new, score in tried if new is not None), None)
        if pair is None:
            made.append(None)
        else:
            text, carried, score = pair
            made.append((carried, text, None, score) if side else (text, carried, score, None))
    return made


def _drawn_side(row: _Row, key: Key) -> int:
    """Draw the side to rewrite: 0 for sent_more, 1 for sent_less."""
    wanted = sorted(row[1:])[int(generator(*key, "side").integers(2))]
    return int(wanted != row[1])
