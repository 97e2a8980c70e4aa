"""`raybias triples`: scores of stereotypes, their opposites and unrelated sentences, from files."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import printed_warnings


def triples(
    files: Annotated[
        list[str],
        typer.Argument(
            help="StereoSet's published predictions (JSON, plain or gzipped), a file for a model; "
            "Parquet or CSV files of scores; or folders of them."
        ),
    ],
    *,
    items: Annotated[
        str | None,
        typer.Option(
            help="StereoSet's dev.json, or a part of it: whose sentences published scores are."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder or URI for triples.csv.")] = None,
) -> None:
    """Compute StereoSet's scores: stereotype (ss), language modelling (lms), and both (icat).

    Intervals are over target terms.
    """
    from raybias import stats
    from raybias.api import answers
    from raybias.report.score_tables import triples_text
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = answers.triples(files, items=items, out=out)
    print(triples_text(found))
    if out is not None:
        print(f"\ntriples.csv is in {Store(out).uri}")
