"""`raybias sentences`: how differently likely sentences about people are, from score files."""

from __future__ import annotations

from typing import Annotated

import typer


def sentences(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Parquet or CSV files of the log-probabilities of sentences, or folders of them,"
            " such as OUT/sentences."
        ),
    ],
    *,
    out: Annotated[str | None, typer.Option(help="Folder or URI for sentences.csv.")] = None,
) -> None:
    """Compute the share of pairs of descriptors that differ in likelihood (HolisticBias).

    Intervals are over templates; without any difference the share is .05.
    """
    from raybias.api import answers
    from raybias.report.score_tables import sentences_text
    from raybias.storage import Store

    print(sentences_text(answers.sentences(files, out=out)))
    if out is not None:
        print(f"\nsentences.csv is in {Store(out).uri}")
