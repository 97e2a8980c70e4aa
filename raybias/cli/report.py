"""`raybias report`: write an OUT's tables, figures and page again from its files alone."""

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
    show(results, profile=profile)
