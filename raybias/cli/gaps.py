"""`raybias gaps`: compute gaps and accuracies from prediction files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.cli.options import printed_warnings
from raybias.config import Interval, Profile

if TYPE_CHECKING:
    import polars as pl

    from raybias.report.from_files import FileGaps

_MARKS: Final = {True: "yes", False: "no"}


def gaps(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Kohankhaki2024's TSV (.tsv, .tsv.gz), Parquet files of predictions, or a "
            "folder of them. A study's output is judged as its report is."
        ),
    ],
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
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for tables (CSV) and figures (SVG).")
    ] = None,
) -> None:
    """Compute the false positive rate gap of every group, with intervals and significance.

    A gap is a group's rate minus the mean over the attribute's reference groups in the same
    run, averaged over runs; negative_fpr is harm, positive_fpr benefit.
    """
    from raybias import report, stats
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = report.gaps_of_files(
            files,
            profile=profile,
            interval=interval,
            reference_groups=_references(reference or []),
        )
        tables = found.tables
    if out is not None:
        found.write(Store(out))
    _show(found)
    if out is not None:
        print(f"\n{', '.join(tables)} and figures are in {Store(out).uri}")


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


def _show(found: FileGaps) -> None:
    import polars as pl
    from tabulate import tabulate

    from raybias import schema
    from raybias.report.from_files import GAP_KEYS

    table, tables, marks = found.gaps, found.tables, ["significant"]
    if found.papers is not None:
        table = table.join(found.papers, on=GAP_KEYS, maintain_order="left")
        marks += ["survives", "paper"]
    keys = ["model", *(name for name in schema.KEYS[1:] if table[name].n_unique() > 1)]
    words = table.with_columns(
        pl.col(marks).replace_strict(_MARKS, default=None, return_dtype=pl.String)
    )
    shown = words.select(
        *keys, "attribute", "rate", "group", "gap", "low", "high", "n_runs",
        pl.coalesce("significant", "no_verdict").alias("significant"), *marks[1:],
    )  # fmt: skip
    print(tabulate(shown.rows(), headers=shown.columns, floatfmt="+.4f", missingval="-"))
    print()
    shown = tables["accuracy"].select(
        *keys, "attribute", pl.col("mean").alias("accuracy"), "sd", "n_runs"
    )
    print(tabulate(shown.rows(), headers=shown.columns, floatfmt=".4f", missingval="-"))
    print()
    _show_spans(tables["spans_mean"])
    _show_answers(tables)
    _show_means(table)
    _show_verdict(table, compared=found.papers is not None)


def _show_spans(means: pl.DataFrame) -> None:
    import polars as pl
    from tabulate import tabulate

    keys = ["model", *(k for k in ("method", "dataset", "style") if means[k].n_unique() > 1)]
    rates = means["rate"].unique(maintain_order=True).to_list()
    wide = means.group_by("attribute", *keys, maintain_order=True).agg(
        pl.col("n_probes").max().alias("probes"),
        *(pl.col("mean_span").filter(pl.col("rate") == rate).first().alias(rate) for rate in rates),
    )
    headers = [name if name not in rates else f"{name} span" for name in wide.columns]
    print(tabulate(wide.rows(), headers=headers, floatfmt=".4f", missingval="-"))
    print("a span is the highest minus the lowest gap of the groups in the mean, over probes\n")


def _show_answers(tables: Mapping[str, pl.DataFrame]) -> None:
    for row in tables["answers"].iter_rows(named=True) if "answers" in tables else ():
        if row["run_id"] == "all":
            print(
                f"{row['model']} {row['method']} {row['probe']}: no label in {row['unparsed']} of "
                f"{row['predictions']} answers ({row['share']:.2%})"
            )


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
