"""`raybias corpus`: count how often a corpus marks a probe's nouns with each group's terms."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.cli.options import Address, Debug
from raybias.cli.probes import Attribute, Data, chosen_probe

if TYPE_CHECKING:
    import polars as pl

_LINE_EVERY_S: Final = 5.0


def corpus(
    source: Annotated[
        str,
        typer.Argument(
            help="A text file with one document a line, a Parquet file, a folder or pattern of"
            " either, or hub:NAME for a `datasets` id (hub:NAME:CONFIG with a configuration)."
        ),
    ],
    *,
    probe: Annotated[str, typer.Option(help="A probe of `raybias probes list`, or your file.")],
    out: Annotated[str, typer.Option(help="File or URI ending in .parquet or .csv.")],
    data: Data = None,
    attribute: Attribute = None,
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
    split: Annotated[str, typer.Option(help="Split of a hub data set.")] = "train",
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Count how often each group's terms stand at the probe's nouns in a corpus.

    Writes attribute, group, term, noun, marked and bare: how often the term marks the noun,
    and how often the noun stands without any term of the attribute. Counting runs on Ray.
    """
    from raybias.runtime.corpus import count_corpus
    from raybias.schema import CORPUS
    from raybias.table_files import output_suffix, write_frame

    output_suffix(out)
    table, documents = count_corpus(
        source,
        chosen_probe(probe, data, attribute),
        column=text_column,
        split=split,
        address=address,
        on_part=_progress(),
    )
    write_frame(table, out, CORPUS)
    _show(table)
    print(f"\n{documents} documents of {source}; written to {out}")


def _progress() -> Callable[[int], None]:
    """Print every few seconds how many documents are counted; how many there are is not known."""
    from raybias.runtime.progress import Reporter

    reporter, done, said = Reporter(), 0, time.monotonic()

    def advance(documents: int) -> None:
        nonlocal done, said
        done += documents
        if time.monotonic() - said >= _LINE_EVERY_S:
            said = time.monotonic()
            reporter.say(f"counted {done} documents")

    return advance


def _show(table: pl.DataFrame) -> None:
    from tabulate import tabulate

    from raybias import stats

    rates = stats.marked_rates(table, where="corpus")
    print(tabulate(rates.rows(), headers=rates.columns, floatfmt=".6f", missingval="-"))
