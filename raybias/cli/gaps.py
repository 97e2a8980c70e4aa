"""`raybias gaps`: prediction files to gaps and accuracies, with no model and no cluster."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    import polars as pl

    from raybias.config import Statistics

_MARKS: Final = {True: "yes", False: "no", None: "?"}


def gaps(
    files: Annotated[
        list[str],
        typer.Argument(
            help="The third paper's TSV (.tsv, .tsv.gz), Parquet files of predictions, or a "
            "folder of them, such as a study's output."
        ),
    ],
    profile: Annotated[
        Literal["paper", "strict"],
        typer.Option(
            help="paper: normal intervals, no correction; strict: Student's t and "
            "Benjamini-Hochberg over the table."
        ),
    ] = "strict",
    interval: Annotated[
        Literal["normal", "t", "bootstrap"] | None,
        typer.Option(help="Instead of the profile's: normal, t, or bootstrap over templates."),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups whose mean a gap is taken from, as attribute=group,group; may be "
            "repeated. By default the papers' lists, else all groups."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder or URI for gaps.csv and accuracy.csv.")
    ] = None,
) -> None:
    """False positive rate gaps of every group, with intervals and significance.

    A gap is a group's rate minus the mean over the attribute's reference groups in the same
    run, averaged over runs; negative_fpr is harm, positive_fpr benefit.
    """
    from raybias import stats
    from raybias.config import Statistics
    from raybias.storage import Store

    chosen = _references(reference or [])
    rules = Statistics(interval=interval).resolve(profile)
    papers = Statistics().resolve("paper")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", stats.StatisticsWarning)
        cells = stats.read_cells(files)
        table = _gaps(cells, rules, chosen)
        usual = table if rules == papers else _gaps(cells, papers, chosen)
        accuracy = stats.accuracies(cells)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"raybias: warning: {message}", file=sys.stderr)
    if out is not None:
        store = Store(out)
        store.write_text("gaps.csv", table.write_csv())
        store.write_text("accuracy.csv", accuracy.write_csv())
    by_paper = usual.select(*_row_names(), paper="significant")
    _show(table.join(by_paper, on=_row_names(), maintain_order="left"), accuracy, profile)
    if out is not None:
        print(f"\nwritten to {store.uri_of('gaps.csv')} and {store.uri_of('accuracy.csv')}")


def _row_names() -> list[str]:
    from raybias import schema

    return [*schema.KEYS, "attribute", "group", "rate"]


def _gaps(
    cells: pl.DataFrame, rules: Statistics, chosen: Mapping[str, Sequence[str]]
) -> pl.DataFrame:
    from raybias import stats

    return stats.gaps(
        cells,
        reference_groups=chosen,
        interval=rules.interval or "t",
        level=rules.level,
        adjust=rules.adjust or "none",
        draws=rules.bootstrap_draws,
        seed=rules.bootstrap_seed,
    )


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


def _show(table: pl.DataFrame, accuracy: pl.DataFrame, profile: str) -> None:
    import polars as pl
    from tabulate import tabulate

    from raybias import schema

    keys = ["model", *(name for name in schema.KEYS[1:] if table[name].n_unique() > 1)]
    marks = ["significant"] if profile == "paper" else ["significant", "survives", "paper"]
    shown = table.select(
        *keys, "attribute", "rate", "group", "gap", "low", "high", "n_runs",
        pl.col(*marks).replace_strict(_MARKS, return_dtype=pl.String),
    )  # fmt: skip
    print(tabulate(shown.rows(), headers=shown.columns, floatfmt="+.4f", missingval="-"))
    print()
    shown = accuracy.select(*keys, "attribute", pl.col("mean").alias("accuracy"), "sd", "n_runs")
    print(tabulate(shown.rows(), headers=shown.columns, floatfmt=".4f", missingval="-"))
    print()
    _show_means(table)
    _show_verdict(table, profile)


def _show_means(table: pl.DataFrame) -> None:
    groups = table.select("probe", "attribute", "group", "in_mean").unique().sort("group")
    for (probe, attribute), rows in groups.sort("probe", "attribute", "group").group_by(
        ["probe", "attribute"], maintain_order=True
    ):
        inside = rows.filter("in_mean")["group"].to_list()
        outside = rows.filter(~rows["in_mean"])["group"].to_list()
        rest = f"; compared with it but not in it: {', '.join(outside)}" if outside else ""
        print(f"{f'{probe} ' if probe else ''}{attribute}: mean over {', '.join(inside)}{rest}")


def _show_verdict(table: pl.DataFrame, profile: str) -> None:
    import polars as pl

    judged = table["significant"].drop_nulls()
    print(
        f"{judged.sum()} of {len(judged)} gaps are significant ({table['interval'][0]} intervals)"
    )
    if profile == "paper":
        return
    print(f"{table['survives'].sum()} of them survive Benjamini-Hochberg over the whole table")
    for verb, here, there in (("lose", False, True), ("gain", True, False)):
        moved = table.filter(pl.col("significant") == here, pl.col("paper") == there)
        if moved.height:
            print(f"{moved.height} {verb} significance against the papers' rule:")
            for row in moved.iter_rows(named=True):
                print(f"  {row['model']}  {row['attribute']} {row['group']} {row['rate']}")
