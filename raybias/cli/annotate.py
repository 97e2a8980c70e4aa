"""`raybias annotate`: have people judge styled pairs, and measure their agreement."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import Evidential, Question, Seed, Styled
from raybias.cli.probes import Attribute, Data
from raybias.cli.styles import chosen_pairs

app = typer.Typer(
    help="Let people judge whether styled pairs still mean the same.", no_args_is_help=True
)
Out = Annotated[str, typer.Option(help="Folder or URI that the files are written to.")]


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="crows_pairs, or pairs for your own.")],
    *,
    style: Annotated[list[str], typer.Option(help="A style to be judged; may be repeated.")],
    out: Out,
    data: Data = None,
    attribute: Attribute = None,
    styled: Styled = None,
    evidential: Evidential = "Apparently",
    question: Question = "first",
    seed: Seed = 0,
) -> None:
    """Write sheet.csv, originals and styled pairs side by side, and guidelines.md.

    Every annotator fills in the column `label` of a copy that bears the annotator's name.
    """
    from raybias.errors import ConfigError
    from raybias.probes.registries import pair_probes
    from raybias.probes.styles.annotation import export_annotation
    from raybias.schema import PAIRS
    from raybias.storage import Store

    if name in pair_probes and pair_probes[name].schema != PAIRS:
        raise ConfigError(f"probe {name} has no pairs to judge", cure="give crows_pairs or pairs")
    if "original" in style:
        raise ConfigError(
            "--style original is no style to judge", cure="originals stand beside every style"
        )
    pairs = chosen_pairs(
        name,
        data,
        attribute,
        ["original", *style],
        styled=styled,
        evidential=evidential,
        question=question,
        seed=seed,
    )
    rows = len(export_annotation(pairs, out))
    print(f"{rows} rows in {Store(out).uri_of('sheet.csv')}, with guidelines.md")


@app.command("import")
def import_(
    sheet: Annotated[str, typer.Argument(help="The sheet.csv that the annotators were given.")],
    files: Annotated[
        list[str], typer.Argument(help="A file of labels per annotator: pair_id, style, label.")
    ],
    out: Out,
) -> None:
    """Read annotators' labels: their agreement, what is kept and what must be rewritten.

    Writes shares.csv, agreement.csv, and two files of styled pairs: kept.csv, which all call the
    same, and rewrite.csv, whose sentences are to be mended before both are given as --styled.
    """
    from tabulate import tabulate

    from raybias.probes.styles.annotation import import_annotation
    from raybias.storage import Store

    tables = import_annotation(sheet, files, out)
    shares, agreed = tables["shares"], tables["agreement"]
    shown = [(*row[:-1], f"{row[-1]:.1%}") for row in shares.rows()]
    print(tabulate(shown, headers=shares.columns), end="\n\n")
    print(tabulate(agreed.rows(), headers=agreed.columns, floatfmt=".3f", missingval="-"))
    kept, rest = len(tables["kept"]), len(tables["rewrite"])
    print(f"\n{kept} kept, {rest} to rewrite; files are in {Store(out).uri}")
