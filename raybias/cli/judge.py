"""`raybias judge`: have people label some of the texts that a judge labelled."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Measure how a judge of written texts errs, and correct gaps for it.", no_args_is_help=True
)
Study = Annotated[str, typer.Argument(metavar="OUT", help="What `raybias run` wrote.")]


@app.command()
def export(
    study: Study,
    *,
    out: Annotated[str, typer.Option(help="CSV that the texts are written to, one a row.")],
    of_group: Annotated[
        int, typer.Option(min=2, help="Texts of each group of each model, drawn at random.")
    ] = 50,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Draw texts of each group for people to label, without the judge's verdicts.

    A person fills in the column `label`: negative, neutral or positive. OUT keeps which texts they
    are.
    """
    from raybias.api import answers
    from raybias.storage import Store

    rows = answers.judge_sheet(study, out, of_group=of_group, seed=seed)
    print(f"{rows.height} texts to label are in {Store(out).uri}")


@app.command("import")
def import_(
    study: Study,
    sheet: Annotated[str, typer.Argument(help="The sheet, with every label filled in.")],
) -> None:
    """Read people's labels into OUT, and print the gaps corrected for the judge's errors.

    They are in OUT/tables/judged.csv and on the page, which are written again.
    """
    from raybias.api import answers
    from raybias.report.judges import judged_text

    results = answers.judge_labels(study, sheet)
    print(judged_text(results.table("judged").collect()))
    print(f"\nreport: {results.report}")
