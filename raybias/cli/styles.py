"""Read, restyle and write the pairs that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from raybias.cli.options import printed_warnings

if TYPE_CHECKING:
    import polars as pl


def chosen_pairs(
    name: str,
    data: str | None,
    kinds: Sequence[str] | None,
    styles: Sequence[str],
    *,
    styled: Sequence[str] | None = None,
    evidential: Literal["Apparently", "Evidently"] = "Apparently",
    question: Literal["first", "second", "seeded"] = "first",
    seed: int = 0,
) -> pl.DataFrame:
    """Read the pairs that a command names, style after style, and print warnings.

    Raises
    ------
    DataError, ConfigError: see `raybias.probes`.
    """
    from raybias.config import StyleOptions
    from raybias.probes import in_styles, pair_items
    from raybias.probes.pairs.crows_pairs import PairWarning

    options = StyleOptions(evidential=evidential, question=question)
    with printed_warnings(PairWarning):
        items = pair_items(name, data, kinds=kinds or None)
        return in_styles(name, items, styles, files=styled or (), options=options, seed=seed)


def write_pairs(name: str, pairs: pl.DataFrame, out: str) -> None:
    """Write the pairs of a probe to a file, and print how many of each type and style."""
    from tabulate import tabulate

    from raybias.probes.registries import pair_probes
    from raybias.table_files import write_frame

    write_frame(pairs, out, pair_probes[name].schema)
    counts = pairs.group_by("style", pair_probes[name].kind, maintain_order=True).len().rows()
    print(tabulate([*counts, ("all", "", len(pairs))], headers=("style", "type", "rows")))
    print(f"written to {out}")
