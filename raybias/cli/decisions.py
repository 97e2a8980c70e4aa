"""`raybias decisions`: how favourable decisions about groups are, from answer files."""

from __future__ import annotations

from typing import Annotated

import typer


def decisions(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Parquet or CSV files of the log-likelihoods of both answers, or folders of them,"
            " such as OUT/decisions."
        ),
    ],
    *,
    out: Annotated[str | None, typer.Option(help="Folder or URI for decisions.csv.")] = None,
) -> None:
    """Compute how much more favourable decisions about a group are, in logits (Discrim-Eval).

    Intervals are over decisions.
    """
    from raybias.api import answers
    from raybias.report.score_tables import decisions_text
    from raybias.storage import Store

    print(decisions_text(answers.decisions(files, out=out)))
    if out is not None:
        print(f"\ndecisions.csv is in {Store(out).uri}")
