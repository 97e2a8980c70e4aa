"""`raybias gaps`: prediction files to gaps and accuracies, with no model and no cluster."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    import polars as pl

    from raybias import stats
    from raybias.config import Statistics
    from raybias.storage import Store

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
        str | None, typer.Option(help="Folder or URI for tables (CSV) and figures (SVG).")
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
        counts = stats.read_counts(files)
        table = _gaps(counts, rules, chosen)
        usual = table if rules == papers else _gaps(counts, papers, chosen)
        tables = _tables(counts, table, rules)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"raybias: warning: {message}", file=sys.stderr)
    if out is not None:
        _write(Store(out), tables, rules.level)
    by_paper = usual.select(*_row_names(), paper="significant")
    _show(table.join(by_paper, on=_row_names(), maintain_order="left"), tables, profile)
    if out is not None:
        print(f"\n{', '.join(tables)} and figures are in {Store(out).uri}")


def _tables(counts: stats.Counts, gaps: pl.DataFrame, rules: Statistics) -> dict[str, pl.DataFrame]:
    """All that follows from the counts, by file name; what the files have no data for is out."""
    from raybias import stats

    spans, members = stats.spans(gaps), stats.members(gaps)
    rates = stats.rates(stats.without_extras(counts.cells))
    interval, level, adjust = rules.interval or "t", rules.level, rules.adjust or "none"
    withheld = stats.unreadable(counts.answers)
    tables = {
        "gaps": gaps,
        "accuracy": stats.accuracies(counts.cells),
        "spans": spans,
        "spans_mean": stats.spans_mean(spans),
        "extremes": stats.extremes(gaps),
        "composition": stats.composition(counts.cells),
        "answers": counts.answers,
        "markedness": stats.markedness(
            counts.cells, members, interval=interval, level=level, adjust=adjust, withheld=withheld
        ),
        "by_term": stats.by_term(
            counts.terms,
            rates,
            members,
            interval=interval,
            level=level,
            adjust=adjust,
            withheld=withheld,
        ),
    }
    return {name: frame for name, frame in tables.items() if frame.height}


def _write(store: Store, tables: Mapping[str, pl.DataFrame], level: float) -> None:
    # Imported here: the drawing library would slow every other use.
    from raybias.report.figures import gap_figures, span_figures
    from raybias.report.marked_figures import marked_figures

    drawn = [*gap_figures(tables["gaps"], level=level).values()]
    drawn += span_figures(tables["spans"]).values()
    if "markedness" in tables:
        drawn += marked_figures(tables["markedness"], level=level).values()
    for name, frame in tables.items():
        store.write_text(f"{name}.csv", frame.write_csv())
    for figure in drawn:
        store.write_text(f"figures/{figure.name}.svg", figure.svg)


def _row_names() -> list[str]:
    from raybias import schema

    return [*schema.KEYS, "attribute", "group", "rate"]


def _gaps(
    counts: stats.Counts, rules: Statistics, chosen: Mapping[str, Sequence[str]]
) -> pl.DataFrame:
    from raybias import stats

    return stats.gaps(
        counts.cells,
        reference_groups=chosen,
        interval=rules.interval or "t",
        level=rules.level,
        adjust=rules.adjust or "none",
        draws=rules.bootstrap_draws,
        seed=rules.bootstrap_seed,
        withheld=stats.unreadable(counts.answers),
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


def _show(table: pl.DataFrame, tables: Mapping[str, pl.DataFrame], profile: str) -> None:
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
    shown = tables["accuracy"].select(
        *keys, "attribute", pl.col("mean").alias("accuracy"), "sd", "n_runs"
    )
    print(tabulate(shown.rows(), headers=shown.columns, floatfmt=".4f", missingval="-"))
    print()
    _show_spans(tables["spans_mean"])
    _show_answers(tables)
    _show_means(table)
    _show_verdict(table, profile)


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


def _show_verdict(table: pl.DataFrame, profile: str) -> None:
    import polars as pl

    from raybias.report.findings import no_verdicts

    for sentence in no_verdicts(table):
        print(sentence)
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
