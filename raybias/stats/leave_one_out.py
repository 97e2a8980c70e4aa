"""Say which template or word a gap hangs on: the range of the gap with one of them left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.cells import without_extras
from raybias.stats.metric import DEFAULT, counted, shares
from raybias.stats.scopes import GapTable

_PLACE: Final = (*schema.KEYS, "attribute", "rate", "group")
#: A gap that loses this share of its size without one template or word is carried by it.
_HALF: Final = 0.5


def leave_one_out(
    tables: Iterable[GapTable], words: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each gap without each of its templates, and without each of its group's words.

    A template's part in a gap is that of `gap_tables`: exact where every template has as many
    sentences of a group, and else to the first order.

    Parameters
    ----------
    tables: the gaps by run and template.
    words: schema.WORD_CELLS; groups with one word have no such row.

    Returns
    -------
    schema.LEAVE_ONE_OUT, sorted as the gaps are.
    """
    by_word = _word_rates(words, metrics)
    rows: list[dict[str, object]] = []
    for table in tables:
        names = {**dict(zip((*schema.KEYS, "attribute"), table.keys, strict=True)),
                 "rate": table.rate}  # fmt: skip
        means_GT = table.values_GRT.mean(axis=1)
        gap_G = means_GT.mean(axis=1)
        members = int(table.in_mean_G.sum())
        for g, group in enumerate(table.groups):
            place = {**names, "group": group, "gap": float(gap_G[g])}
            if len(table.templates) > 1:
                without_T = (len(table.templates) * gap_G[g] - means_GT[g]) / (
                    len(table.templates) - 1
                )
                rows.append({**place, "unit": "template",
                             **_range(gap_G[g], without_T, table.templates)})  # fmt: skip
            terms, change_W = by_word.get((*table.keys, table.rate, group), ((), np.empty(0)))
            if len(terms) > 1:
                # A group of the mean moves the mean too, by its share of it.
                share = 1 - 1 / members if table.in_mean_G[g] else 1.0
                rows.append({**place, "unit": "word",
                             **_range(gap_G[g], gap_G[g] + share * change_W, terms)})  # fmt: skip
    order = ["model", "attribute", "rate", "group", *schema.KEYS[1:], "unit"]
    return pl.DataFrame(rows, schema=pl.Schema(schema.LEAVE_ONE_OUT)).sort(order)


def _range(
    gap: float, without: npt.NDArray[np.float64], names: Sequence[str]
) -> dict[str, float | str | None]:
    low, high = int(without.argmin()), int(without.argmax())
    # Nearest to the other sign, or beyond it.
    least = low if gap > 0 else high
    carried = gap != 0 and without[least] / gap <= _HALF
    return {
        "lowest": float(without[low]),
        "lowest_without": names[low],
        "highest": float(without[high]),
        "highest_without": names[high],
        "carried_by": names[least] if carried else None,
    }


def _word_rates(
    words: pl.DataFrame, metrics: Sequence[str]
) -> dict[tuple[str, ...], tuple[tuple[str, ...], npt.NDArray[np.float64]]]:
    """Compute how a group's rate over all runs changes without each of its words."""
    found = {}
    texts = without_extras(words)
    for rate, share in shares(metrics).items():
        by = [name for name in _PLACE if name != "rate"]
        sums = texts.group_by(*by, "term").agg(*counted(share)).sort(*by, "term")
        for keys, part in sums.filter(pl.col("n_items") > 0).group_by(by, maintain_order=True):
            items, hits = part["n_items"].to_numpy(), part["hits"].to_numpy()
            if len(items) > 1:
                rates = (hits.sum() - hits) / (items.sum() - items)
                change = rates - hits.sum() / items.sum()
                *place, group = map(str, keys)
                found[(*place, rate, group)] = (tuple(part["term"]), change)
    return found
