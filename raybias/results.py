"""Open a finished study's OUT: its tables, runs and predictions as Polars frames.

Nothing is computed here; what is read was written by `raybias run` or `raybias report`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from raybias.errors import OutputError
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.config import Study


class Results:
    """What a study found, read from its OUT when it is asked for.

    Parameters
    ----------
    out: folder or URI of a study that was run.

    Raises
    ------
    OutputError: OUT holds no study.
    """

    def __init__(self, out: str | Path) -> None:
        from raybias.report import load_record

        self.store = Store(out)
        self._record = load_record(self.store)

    @property
    def study(self) -> Study:
        """The study, with every option resolved."""
        return self._record.study

    @property
    def out(self) -> str:
        """Path or URI of OUT."""
        return self.store.uri

    @property
    def report(self) -> str:
        """Path or URI of the page for people."""
        return self.store.uri_of("report.html")

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `table` reads."""
        names = self.store.files("tables", suffix=".parquet")
        return [name.removeprefix("tables/").removesuffix(".parquet") for name in names]

    def table(self, name: str) -> pl.LazyFrame:
        """Read a table of OUT/tables.

        Raises
        ------
        OutputError: OUT has no such table.
        """
        if name not in self.tables:
            raise OutputError(
                f"has no table {name!r}",
                where=self.out,
                cure=f"choose among {', '.join(self.tables)}" if self.tables else "run its study",
            )
        return pl.DataFrame(self.store.read_table(f"tables/{name}.parquet")).lazy()

    @property
    def gaps(self) -> pl.LazyFrame:
        """Gaps with intervals and verdicts (`schema.GAPS`); without rows for pairs alone."""
        from raybias import schema

        if "gaps" not in self.tables:
            return pl.DataFrame(schema.GAPS.empty_table()).lazy()
        return self.table("gaps")

    @property
    def accuracy(self) -> pl.LazyFrame:
        """Accuracies on the probes (`schema.ACCURACY`)."""
        return self.table("accuracy")

    @property
    def runs(self) -> pl.LazyFrame:
        """One row per run (`schema.RUNS`): steps, losses, accuracies, whether it was kept."""
        from raybias.report.load_results import load_runs

        return load_runs(self.store).lazy()

    @property
    def pairs(self) -> dict[str, pl.LazyFrame]:
        """The tables of pairs by name; none where the study reads no pairs."""
        from raybias.report import read_pair_tables

        return {name: frame.lazy() for name, frame in read_pair_tables(self.store).items()}

    @property
    def predictions(self) -> pl.LazyFrame:
        """Predictions of every run on every item (`schema.PREDICTIONS`), read when collected.

        Raises
        ------
        OutputError: OUT holds none.
        """
        import pyarrow.dataset as pads

        from raybias import schema

        names = self.store.files("predictions", suffix=".parquet", recursive=True)
        if not names:
            raise OutputError("holds no predictions", where=self.out, cure="run its study")
        paths = [self.store.path(name) for name in names]
        found = pads.dataset(
            paths, filesystem=self.store.fs, schema=schema.PREDICTIONS, format="parquet"
        )
        return pl.scan_pyarrow_dataset(found)

    def __repr__(self) -> str:
        return f"Results({self.out!r})"

    def __str__(self) -> str:
        from raybias.report import headline

        gaps = self.gaps.collect()
        found = [headline(gaps)] if gaps.height else []
        return "\n".join(
            [self.study.name, *found, f"tables: {', '.join(self.tables)}", f"report: {self.report}"]
        )

    def _repr_html_(self) -> str:
        from html import escape

        shown = self.gaps.collect()._repr_html_() if self.study.probes else ""
        return f"<pre>{escape(str(self))}</pre>{shown}"
