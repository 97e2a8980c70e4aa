"""`raybias options`: scores of answers to questions with options, from answer files."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import printed_warnings


def options(
    files: Annotated[
        list[str],
        typer.Argument(
            help="BBQ's published preds_*.jsonl, plain or gzipped, whose fields named ..pred.. "
            "hold the answers of a model each; lm-eval's samples_bbq*.jsonl, in a folder named "
            "after the model; inspect's logs as JSON; HELM's scenario_state.json; Parquet or CSV "
            "files of answers; or folders."
        ),
    ],
    *,
    metadata: Annotated[
        str | None,
        typer.Option(
            help="BBQ's additional_metadata.csv, whose target_loc says which option the stereotype "
            "is about. By default the one whose answer_info names a stereotyped group."
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(help="BBQ's questions, a file or folder, whose texts HELM's files name."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder or URI for options.csv.")] = None,
) -> None:
    """Compute accuracy and bias of answers to questions with an unknown option, such as BBQ's.

    Every definition of the bias score stands beside the others; intervals are over question
    templates.
    """
    from raybias import stats
    from raybias.api import answers
    from raybias.report.score_tables import options_text
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = answers.options(files, metadata=metadata, items=items, out=out)
    print(options_text(found))
    if out is not None:
        print(f"\noptions.csv is in {Store(out).uri}")
