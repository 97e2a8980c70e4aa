"""`raybias metrics`: compute fairness metrics of anyone's predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.cli.options import printed_warnings

if TYPE_CHECKING:
    import polars as pl

#: More rows than these are left to the file, but for those of all groups.
_SHOWN: Final = 60


def metrics(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Predictions as `raybias gaps` takes them, a study's output, or a table (.csv,"
            " .csv.gz, .parquet) with label, group, and pred or score (of class 1); and, as far as"
            " they are known, scores, model, attribute, run_id, template_id, term, source_id (the"
            " example that versions were made of; else template_id)."
        ),
    ] = None,
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="May be repeated. By default all that the files allow; see --list."),
    ] = None,
    positive: Annotated[
        int | None,
        typer.Option(
            help="The class that metrics of one class are about, against the rest.",
            min=0,
            max=2,
            show_default="the last: 1 of two, 2 of three",
        ),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            help="What groups are compared with instead of each metric's own: mean_of_groups,"
            " pooled, pooled_others or reference:GROUP."
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the metrics with formulas and sources.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for metrics.csv and agreement.csv.")
    ] = None,
) -> None:
    """Compute fairness metrics of groups with intervals, and how far the metrics agree.

    Differences of rates have the crossed intervals of gaps, everything else a bootstrap over runs
    and templates; where no templates are known, over items.
    """
    from raybias import stats
    from raybias.api import statistics
    from raybias.report.tables import markdown
    from raybias.stats.metric_lists import listed_metrics

    if listed:
        print(markdown(listed_metrics()), end="")
        return
    if not files:
        raise typer.BadParameter("no files are given", param_hint="FILES")
    with printed_warnings(stats.StatisticsWarning):
        found = statistics.metrics(
            files, metrics=metric or (), positive=positive, background=background, out=out
        )
    _show(found, written=out is not None)
    if out is not None:
        print("\nmetrics.csv and agreement.csv are in", out)


def _show(found: dict[str, pl.DataFrame], *, written: bool) -> None:
    import polars as pl

    from raybias.report.tables import markdown
    from raybias.stats.metric_lists import covered

    table = found["metrics"]
    shown = table if table.height <= _SHOWN else table.filter(group="all")
    columns = ["model", "attribute", "metric", "group", "value", "low", "high", "scope",
               "background", "note"]  # fmt: skip
    print(markdown(shown.select(columns)))
    if shown.height < table.height:
        place = "are in metrics.csv" if written else "are left out: --out DIR writes them"
        print(f"{table.height - shown.height} values of groups {place}\n")
    print("\n".join(covered(table)))
    together = found["agreement"].filter(pl.col("metric") == "all")
    if together.height:
        print("\nKendall's W of how metrics rank (1 alike, 0 as if by opposite orders):\n")
        columns = ["ranking", "model", "attribute", "w", "low", "high", "n_metrics", "n_ranked"]
        print(markdown(together.select(columns)), end="")
