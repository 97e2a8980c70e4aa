"""What the commands that read pairs share: their options, and the pairs in the styles asked for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    import polars as pl

Styled = Annotated[
    list[str] | None,
    typer.Option(
        help="File with the formal and informal pairs: pair_id, style, sent_more, sent_less;"
        " may be repeated."
    ),
]
Evidential = Annotated[
    Literal["Apparently", "Evidently"], typer.Option(help="The word of the style evidential.")
]
Question = Annotated[
    Literal["first", "second", "seeded"],
    typer.Option(help="The opening of question_answer: one for all, or drawn per pair."),
]
Seed = Annotated[int, typer.Option(help="For what is drawn.")]


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
    """The pairs that a command's words name, style after style; warnings become lines.

    Raises
    ------
    DataError, ConfigError: see `raybias.probes.pairs.items`.
    """
    from raybias.config import StyleOptions
    from raybias.probes.pairs.items import in_styles, pair_items
    from raybias.probes.pairs.pair_table import PairWarning

    options = StyleOptions(evidential=evidential, question=question)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PairWarning)
        items = pair_items(name, data, kinds=kinds or None)
        chosen = in_styles(name, items, styles, files=styled or (), options=options, seed=seed)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"raybias: warning: {message}", file=sys.stderr)
    return chosen


def write_pairs(name: str, pairs: pl.DataFrame, out: str) -> None:
    """Write the pairs of a probe to a file, and print how many of each type and style."""
    from tabulate import tabulate

    from raybias.probes.export import write_frame
    from raybias.registry import pair_probes

    write_frame(pairs, out, pair_probes[name].schema)
    counts = pairs.group_by("style", pair_probes[name].kind, maintain_order=True).len().rows()
    print(tabulate([*counts, ("all", "", len(pairs))], headers=("style", "type", "rows")))
    print(f"written to {out}")
