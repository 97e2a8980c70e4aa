"""`raybias measure`: estimates with intervals of answers of any kind, from files."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import ProfileOption, command_line, printed_warnings


def measure(
    files: Annotated[
        list[str],
        typer.Argument(
            help="A study's output; Parquet or CSV files of answers, whose columns tell their kind;"
            " BBQ's preds_*.jsonl; StereoSet's predictions; lm-eval's samples_bbq*.jsonl and"
            " samples_crows_pairs*.jsonl, in a folder named after the model; inspect's JSON logs;"
            " HELM's scenario_state.json; or folders."
        ),
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Measure no other: pairs, coreference, options, triples, decisions, sentences."
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            help="What published answers are to: StereoSet's dev.json; BBQ's"
            " additional_metadata.csv, whose target_loc says which option the stereotype is about;"
            " or BBQ's questions, which HELM's files need."
        ),
    ] = None,
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the estimates as JSON, a row a line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but warnings.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI for estimates.csv, estimates.parquet, figures and report.html."
        ),
    ] = None,
) -> None:
    """Measure bias in answers: every score of their kind, with its interval.

    Intervals resample what answers were made from: pairs, templates, target terms or decisions.
    """
    from raybias import stats
    from raybias.api import answers
    from raybias.report.estimates import text
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = answers.measure(
            files, kind=kind, items=items, profile=profile, out=out, command=command_line()
        )
    if as_json:
        print(found.write_ndjson(), end="")
    elif not quiet:
        print(*text(found), sep="\n\n")
        if out is not None:
            print(f"\nestimates.csv, .parquet, figures and report.html are in {Store(out).uri}")
