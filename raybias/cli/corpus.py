"""`raybias corpus`: how often a corpus marks a probe's nouns with each group's terms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.cli.probes import Attribute, Data, chosen_probe
from raybias.cli.run import Address, Debug

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
    if debug:
        os.environ["RAYBIAS_DEBUG"] = "1"
    from raybias.probes.export import output_suffix, write_frame
    from raybias.probes.templates.corpus import vocabularies

    output_suffix(out)
    known = vocabularies(chosen_probe(probe, data, attribute))

    from raybias.runtime.corpus import check_source, corpus_counts
    from raybias.runtime.ray_session import connected
    from raybias.schema import CORPUS

    check_source(source, text_column)
    with connected(address):
        table, documents = corpus_counts(
            source, known, column=text_column, split=split, on_part=_progress()
        )
    write_frame(table, out, CORPUS)
    _show(table)
    print(f"\n{documents} documents of {source}; written to {out}")


def _progress() -> Callable[[int], None]:
    """Says every few seconds how far counting has come; how far it must go is not known."""
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
