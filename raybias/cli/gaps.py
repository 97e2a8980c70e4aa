"""`raybias gaps`: prediction files to gaps and accuracies, with no model and no cluster."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.config import Interval, Profile

if TYPE_CHECKING:
    import polars as pl

    from raybias import stats
    from raybias.storage import Store

#: What is shown and written, unless it has no rows.
_TABLES: Final = (
    *("gaps", "accuracy", "spans", "spans_mean", "extremes", "composition", "answers"),
    *("markedness", "by_term"),
)


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
            help="paper: normal intervals, no correction; strict: Student's t and "
            "Benjamini-Hochberg over the table.",
            show_default="the study's, else strict",
        ),
    ] = None,
    interval: Annotated[
        Interval | None,
        typer.Option(
            help="Instead of the profile's or study's: normal, t, or bootstrap over templates."
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
    """False positive rate gaps of every group, with intervals and significance.

    A gap is a group's rate minus the mean over the attribute's reference groups in the same
    run, averaged over runs; negative_fpr is harm, positive_fpr benefit.
    """
    from raybias import report, stats
    from raybias.storage import Store

    chosen = _references(reference or [])
    rules = report.rules_of_files(
        files,
        profile=profile,
        interval=interval,
        reference_groups=chosen,
        metrics=metric or (),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", stats.StatisticsWarning)
        counts = stats.read_counts(files, metrics=rules.statistics.metrics)
        derived = stats.judged_tables(counts, rules)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"raybias: warning: {message}", file=sys.stderr)
    tables = {name: derived[name] for name in _TABLES if derived[name].height}
    if out is not None:
        _write(Store(out), tables, rules.statistics.level)
    _show(tables, _by_papers(counts, rules))
    if out is not None:
        print(f"\n{', '.join(tables)} and figures are in {Store(out).uri}")


def _by_papers(counts: stats.Counts, rules: stats.GapRules) -> pl.DataFrame | None:
    """What is significant by the papers' rule; None where that is the rule."""
    from raybias import stats
    from raybias.config import Statistics

    papers = Statistics.under("paper", metrics=rules.statistics.metrics)
    if rules.statistics == papers:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.StatisticsWarning)
        usual = stats.judged_gaps(counts, replace(rules, statistics=papers))
    return usual.select(*_row_names(), paper="significant")


def _write(store: Store, tables: Mapping[str, pl.DataFrame], level: float) -> None:
    # Imported here: the drawing library would slow every other use.
    from raybias.report.figure_parts import write_figures
    from raybias.report.gap_figures import gap_figures, span_figures
    from raybias.report.markedness_figures import marked_figures

    drawn = [*gap_figures(tables["gaps"], level=level).values()]
    drawn += span_figures(tables["spans"]).values()
    if "markedness" in tables:
        drawn += marked_figures(tables["markedness"], level=level).values()
    for name, frame in tables.items():
        store.write_text(f"{name}.csv", frame.write_csv())
    write_figures(store, drawn)


def _row_names() -> list[str]:
    from raybias import schema

    return [*schema.KEYS, "attribute", "group", "rate"]


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
    from raybias.report import findings, summary_tables

    table = tables["gaps"]
    if papers is not None:
        table = table.join(papers, on=_row_names(), maintain_order="left")
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
            for row in moved.iter_rows(named=True):
                print(f"  {row['model']}  {row['attribute']} {row['group']} {row['rate']}")
