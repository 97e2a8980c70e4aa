"""`raybias gaps`: compute gaps and accuracies from prediction files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.cli.options import ScopeOption, printed_warnings
from raybias.config import Interval, Profile

if TYPE_CHECKING:
    import polars as pl

#: Gaps that are named of those whose significance differs from the papers'.
_NAMED: Final = 15


def gaps(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Kohankhaki2024's TSV (.tsv, .tsv.gz), Parquet files of predictions, or a "
            "folder of them. A study's output is judged as its report is."
        ),
    ],
    *,
    profile: Annotated[
        Profile | None,
        typer.Option(
            help="paper: normal intervals over runs, no correction; strict: Student's t over all "
            "that varies, and Benjamini-Hochberg over the table.",
            show_default="the study's, else strict",
        ),
    ] = None,
    scope: ScopeOption = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="The largest gap that does not matter: smaller ones are said to be equivalent.",
            min=0,
            max=1,
        ),
    ] = None,
    interval: Annotated[
        Interval | None,
        typer.Option(
            help="Instead of the profile's or study's: normal, t, or bootstrap (runs, templates)."
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups whose mean a gap is taken from, as attribute=group,group; may be "
            "repeated. By default the study's or the papers' lists, else all groups."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="What gaps are taken of: negative_fpr, positive_fpr, accuracy, or a package's "
            "metric; may be repeated. By default the study's, else the first two."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for tables (CSV) and figures (SVG).")
    ] = None,
) -> None:
    """Compute the false positive rate gap of every group, with intervals and significance.

    A gap is a group's rate minus the mean over the attribute's reference groups in the same
    run, averaged over runs; negative_fpr is harm, positive_fpr benefit. In CSV, text that a
    spreadsheet would take for a formula has an apostrophe before it.
    """
    from raybias import report, stats
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = report.gaps_of_files(
            files,
            profile=profile,
            reference_groups=_references(reference or []),
            scope=scope,
            interval=interval,
            margin=margin,
            metrics=tuple(metric or ()),
        )
        papers = found.papers
    if out is not None:
        found.write(Store(out))
    _show(found.tables, papers)
    if out is not None:
        print(f"\n{', '.join(found.tables)} and figures are in {Store(out).uri}")


def _references(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    from raybias.errors import ConfigError

    chosen: dict[str, tuple[str, ...]] = {}
    for text in texts:
        attribute, equals, groups = text.partition("=")
        names = tuple(name.strip() for name in groups.split(",") if name.strip())
        if not (equals and attribute.strip() and names):
            raise ConfigError(
                f"--reference {text!r} is not attribute=group,group",
                cure="such as age=young,adult,old",
            )
        if attribute.strip() in chosen:
            raise ConfigError(f"--reference gives {attribute.strip()!r} twice")
        chosen[attribute.strip()] = names
    return chosen


def _show(tables: Mapping[str, pl.DataFrame], papers: pl.DataFrame | None) -> None:
    from raybias import stats
    from raybias.report import findings, generality, summary_tables

    table = tables["gaps"]
    if papers is not None:
        table = table.join(papers, on=stats.GAP_KEYS, maintain_order="left")
    chance = findings.chance_levels(tables["composition"])
    shown = [
        summary_tables.gaps(table),
        summary_tables.accuracies(tables["accuracy"], chance),
        summary_tables.plain("Mean spans over probes", tables["spans_mean"]),
    ]
    if "answers" in tables:
        shown.append(summary_tables.answers(tables["answers"]))
    print(*shown, sep="\n\n", end="\n\n")
    print("a span is the highest minus the lowest gap of the groups in the mean, over probes\n")
    _show_means(table)
    _show_verdict(table, compared=papers is not None)
    if "scopes" in tables:
        print(f"\n{findings.by_scope(tables['scopes'], tables['components'])}")
        print(f"\n{summary_tables.scopes(tables['scopes'])}")
    if "reliability" in tables:
        print(f"\n{generality.reliability(tables['reliability'])}")
    if "over_models" in tables:
        print(
            f"\n{generality.over_models(tables['over_models'])}\n\n{generality.chance(tables['over_models'])}"
        )
    if "null_check" in tables:
        print(f"\n{findings.null_check(tables['null_check'])}")


def _show_means(table: pl.DataFrame) -> None:
    groups = table.select("probe", "attribute", "group", "in_mean").unique().sort("group")
    for (probe, attribute), rows in groups.sort("probe", "attribute", "group").group_by(
        ["probe", "attribute"], maintain_order=True
    ):
        inside = rows.filter("in_mean")["group"].to_list()
        outside = rows.filter(~rows["in_mean"])["group"].to_list()
        rest = f"; compared with it but not in it: {', '.join(outside)}" if outside else ""
        print(f"{f'{probe} ' if probe else ''}{attribute}: mean over {', '.join(inside)}{rest}")


def _show_verdict(table: pl.DataFrame, *, compared: bool) -> None:
    import polars as pl

    from raybias import report

    print(f"{report.headline(table)} Intervals: {table['interval'][0]}.")
    if not compared:
        return
    for verb, here, there in (("lose", False, True), ("gain", True, False)):
        moved = table.filter(pl.col("significant") == here, pl.col("paper") == there)
        if moved.height:
            print(f"{moved.height} {verb} significance against the papers' rule:")
            for row in moved.head(_NAMED).iter_rows(named=True):
                print(f"  {row['model']}  {row['attribute']} {row['group']} {row['rate']}")
            if moved.height > _NAMED:
                print(f"  and {moved.height - _NAMED} more")
