"""`raybias annotate`: people judge styled pairs, or label texts that a judge labelled."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import Evidential, Question, Seed, Styled
from raybias.cli.probes import Attribute, Data, chosen_pairs, style_options
from raybias.errors import ConfigError

app = typer.Typer(
    name="annotate",
    help="Let people judge styled pairs, or label texts of a study that a judge labelled.",
    no_args_is_help=True,
)


@app.command()
def export(
    what: Annotated[
        str,
        typer.Argument(
            help="crows_pairs, or pairs for your own; or the OUT of a study whose texts a judge"
            " labelled."
        ),
    ],
    *,
    out: Annotated[
        str,
        typer.Option(help="Folder or URI of the sheet of pairs; or the CSV of a study's texts."),
    ],
    style: Annotated[
        list[str] | None, typer.Option(help="A style to be judged; may be repeated.")
    ] = None,
    data: Data = None,
    attribute: Attribute = None,
    styled: Styled = None,
    evidential: Evidential = "Apparently",
    question: Question = "first",
    of_group: Annotated[
        int, typer.Option(min=2, help="Texts of each group of each model, drawn at random.")
    ] = 50,
    seed: Seed = 0,
) -> None:
    """Write a sheet for people to label, and guidelines of pairs.

    Of pairs, originals and styled pairs stand side by side, and every annotator fills in the column
    `label` of a copy that bears the annotator's name. Of a study, texts of each group are drawn at
    random, without the judge's verdicts; a person fills in `label`: negative, neutral or positive.
    """
    from raybias.api import files as api
    from raybias.probes.registries import pair_probes
    from raybias.probes.styles.written import export_annotation
    from raybias.schema import PAIRS
    from raybias.storage import Store

    if Store(what).exists("study.yaml"):
        rows = api.judge_sheet(what, out, of_group=of_group, seed=seed)
        print(f"{rows.height} texts to label are in {Store(out).uri}")
        return
    if not style:
        raise typer.BadParameter("no style is given", param_hint="--style")
    if what in pair_probes and pair_probes[what].schema != PAIRS:
        raise ConfigError(f"probe {what} has no pairs to judge", cure="give crows_pairs or pairs")
    if "original" in style:
        raise ConfigError(
            "--style original is no style to judge", cure="originals stand beside every style"
        )
    pairs = chosen_pairs(
        what, data, attribute, ["original", *style], files=styled or (),
        options=style_options(evidential, question), seed=seed,
    )  # fmt: skip
    n = len(export_annotation(pairs, out))
    print(f"{n} rows in {Store(out).uri_of('sheet.csv')}, with guidelines.md")


@app.command("import")
def import_(
    what: Annotated[
        str,
        typer.Argument(help="The sheet.csv that the annotators were given; or the OUT of a study."),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            help="A file of labels per annotator: pair_id, style, label; or the study's sheet,"
            " with every label filled in."
        ),
    ],
    out: Annotated[
        str | None, typer.Option(help="Of pairs: folder or URI that the files are written to.")
    ] = None,
) -> None:
    """Read people's labels: agreement on pairs, or gaps corrected for a judge's errors.

    Of pairs, writes shares.csv, agreement.csv, and two files of styled pairs: kept.csv, which all
    call the same, and rewrite.csv, whose sentences are to be mended before both are given as
    --styled. Of a study, OUT/tables/judged.csv and the page are written again.
    """
    from tabulate import tabulate

    from raybias.api import files as api
    from raybias.probes.styles.written import import_annotation
    from raybias.report.judges import judged_text
    from raybias.storage import Store

    if Store(what).exists("study.yaml"):
        if len(files) != 1:
            raise typer.BadParameter("a study has one sheet", param_hint="FILES")
        results = api.judge_labels(what, files[0])
        print(judged_text(results.table("judged").collect()))
        print(f"\nreport: {results.report}")
        return
    if out is None:
        raise typer.BadParameter("no folder is given", param_hint="--out")
    tables = import_annotation(what, files, out)
    shares, agreed = tables["shares"], tables["agreement"]
    shown = [(*row[:-1], f"{row[-1]:.1%}") for row in shares.rows()]
    print(tabulate(shown, headers=shares.columns), end="\n\n")
    print(tabulate(agreed.rows(), headers=agreed.columns, floatfmt=".3f", missingval="-"))
    kept, rest = len(tables["kept"]), len(tables["rewrite"])
    print(f"\n{kept} kept, {rest} to rewrite; files are in {Store(out).uri}")
