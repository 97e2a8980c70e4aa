"""`raybias measure`: estimates with intervals of predictions and answers of any kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from raybias.cli.options import ProfileOption, ScopeOption, command_line, printed_warnings
from raybias.config import Interval


def measure(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study's output; Parquet or CSV files of predictions or answers, whose columns"
            " tell their kind; Kohankhaki2024's TSV; BBQ's preds_*.jsonl; StereoSet's predictions;"
            " lm-eval's samples_bbq*.jsonl and samples_crows_pairs*.jsonl, in a folder named after"
            " the model; inspect's JSON logs; HELM's scenario_state.json; folders; or `-` for a CSV"
            " on standard input. Tables of predictions have label, group, and pred or score (of"
            " class 1); and, as far as they are known, scores, model, attribute, run_id,"
            " template_id, term, source_id (the example that versions were made of)."
        ),
    ] = None,
    *,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Measure no other: predictions, pairs, coreference, options, triples, decisions,"
            " sentences."
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
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Of predictions, what groups are compared by; may be repeated, `all` is every one"
            " that the files allow. By default the study's, else negative_fpr and positive_fpr, or"
            " of two classes selection_rate, tpr and fpr."
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the metrics with formulas and sources.")
    ] = False,
    profile: ProfileOption = None,
    scope: ScopeOption = None,
    interval: Annotated[
        Interval | None,
        typer.Option(
            help="Instead of the profile's or study's: normal, t, or bootstrap (runs, templates)."
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="The largest gap that does not matter: smaller ones are said to be equivalent.",
            min=0,
            max=1,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            "--group-column",
            help="Columns of groups, such as sex,race: each is an attribute, and several are also"
            " crossed. By default `group`.",
        ),
    ] = None,
    label_column: Annotated[str, typer.Option(help="The column of true labels.")] = "label",
    pred_column: Annotated[str, typer.Option(help="The column of predicted labels.")] = "pred",
    positive: Annotated[
        str | None,
        typer.Option(
            help="The class that metrics of one class are about, against the rest: a number, or a"
            " word of the labels.",
            show_default="the last: 1 of two, 2 of three",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups whose mean a gap is taken from, as attribute=group,group; may be"
            " repeated. By default the study's or the papers' lists, else all groups."
        ),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="What groups are compared with instead of each metric's own: mean_of_groups,"
            " pooled, pooled_others or reference:GROUP."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the estimates as JSON, a row a line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but warnings.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI for estimates.csv, estimates.parquet, figures and report.html. In"
            " CSV, text that a spreadsheet would take for a formula has an apostrophe before it."
        ),
    ] = None,
) -> None:
    """Measure bias in predictions and answers: every score of their kind, with its interval.

    Intervals resample what answers were made from: seeds, templates, words, pairs or items.
    """
    from raybias import stats
    from raybias.api import answers
    from raybias.report.estimates import text
    from raybias.report.table import markdown
    from raybias.stats.metric_table import listed_metrics
    from raybias.storage import Store
    from raybias.table_files import standard_input

    if listed:
        print(markdown(listed_metrics()), end="")
        return
    if not files:
        raise typer.BadParameter("no files are given", param_hint="FILES")
    given = [standard_input(sys.stdin.buffer) if file == "-" else file for file in files]
    number = int(positive) if positive is not None and positive.isdigit() else positive
    with printed_warnings(stats.StatisticsWarning):
        found = answers.measure(
            given, kind=kind, items=items, metric=metric or (), profile=profile, scope=scope,
            interval=interval, margin=margin, by=_names(by or ""), label_column=label_column,
            pred_column=pred_column, positive=number,
            reference_groups=_references(reference or []), background=background or "", out=out,
            command=command_line(),
        )  # fmt: skip
    if as_json:
        print(found.write_ndjson(), end="")
    elif not quiet:
        print(*text(found, scope=scope or "widest"), sep="\n\n")
        if out is not None:
            print(f"\nestimates.csv, .parquet, figures and report.html are in {Store(out).uri}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _references(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    from raybias.errors import ConfigError

    chosen: dict[str, tuple[str, ...]] = {}
    for text in texts:
        attribute, equals, groups = text.partition("=")
        if not (equals and attribute.strip() and _names(groups)):
            raise ConfigError(
                f"--reference {text!r} is not attribute=group,group",
                cure="such as age=young,adult,old",
            )
        if attribute.strip() in chosen:
            raise ConfigError(f"--reference gives {attribute.strip()!r} twice")
        chosen[attribute.strip()] = _names(groups)
    return chosen
