"""`raybias report` and `samples`: what a finished study shows, for people and for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import printed_warnings
from raybias.cli.show import show
from raybias.config import Profile


def report(
    out: Annotated[str, typer.Argument(help="The OUT folder or URI of a study.")],
    profile: Annotated[
        Profile | None,
        typer.Option(
            help="State the statistics by this profile; how runs were tuned stays as it was.",
            show_default="the study's",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Counts of `raybias corpus`, to set beside the gaps; copied into OUT.",
        ),
    ] = None,
    *,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Refuse results that changed since they were written, by OUT/seal.json; without"
            " it the page and a warning name them.",
        ),
    ] = False,
) -> None:
    """Write a study's tables, figures and report.html again; needs no model and no cluster.

    Prints the gaps with their intervals. In CSV, text that a spreadsheet would take for a formula
    has an apostrophe before it.
    """
    from raybias.api import studies
    from raybias.seal import ChangedWarning

    with printed_warnings(ChangedWarning):
        results = studies.write_report(out, profile=profile, corpus=corpus, verify=verify)
    show(results)


def samples(
    folder: Annotated[str, typer.Argument(metavar="OUT", help="What `raybias run` wrote.")],
    *,
    out: Annotated[str, typer.Option(help="Folder or URI for MODEL/samples_TASK.jsonl.")],
) -> None:
    """Write answers to questions with options, and scores of pairs, as lm-eval's samples.

    A file holds a task of a model, a JSON object a line, with schema_version; `raybias measure`
    reads them again, as it reads lm-eval's own.
    """
    from raybias.api import answers

    for file in answers.samples(folder, out):
        print(file)
