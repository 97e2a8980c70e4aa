"""Open a finished study's OUT: its tables, runs and predictions as Polars frames.

Nothing is computed here; what is read was written by `raybias run` or `raybias report`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from raybias.errors import OutputError
from raybias.schema import KEYS as _KEYS
from raybias.storage import Store
from raybias.table_files import read_frame

if TYPE_CHECKING:
    from raybias.config import Study
    from raybias.report.figure_parts import Shown


class Gaps(pl.LazyFrame):
    """Gaps (`schema.GAPS`) that draw themselves, also what `filter` leaves of them."""

    def plot(self, *, level: float = 0.95) -> Shown:
        """Draw a dot and interval per group and classifier, a figure per attribute and rate.

        Parameters
        ----------
        level: of the intervals, for the axis label.
        """
        from raybias.report.figure_parts import Shown
        from raybias.report.gap_forests import gap_figures

        return Shown(tuple(gap_figures(self.collect(), level=level).values()))


class Results:
    """The results of a study, read from its OUT when they are asked for.

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
        """Return the study, with every option resolved."""
        return self._record.study

    @property
    def out(self) -> str:
        """Return the path or URI of OUT."""
        return self.store.uri

    @property
    def report(self) -> str:
        """Return the path or URI of the page for people."""
        return self.store.uri_of("report.html")

    @property
    def tables(self) -> list[str]:
        """List the names that `table` reads."""
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
        return read_frame(self.store, f"tables/{name}.parquet").lazy()

    @property
    def gaps(self) -> Gaps:
        """Read the gaps with intervals and verdicts (`schema.GAPS`).

        Raises
        ------
        OutputError: the study has no `probes`; the other tables are named.
        """
        return Gaps(self._of_probes("gaps").collect())

    @property
    def accuracy(self) -> pl.LazyFrame:
        """Read the accuracies on the probes (`schema.ACCURACY`).

        Raises
        ------
        OutputError: as for `gaps`.
        """
        return self._of_probes("accuracy")

    @property
    def answers(self) -> pl.LazyFrame:
        """Read how many answers of prompted runs named no label (`schema.ANSWERS`).

        Raises
        ------
        OutputError: as for `gaps`.
        """
        return self._of_probes("answers")

    @property
    def by_group(self) -> pl.LazyFrame:
        """Read each group's rates, averaged over runs (fairlearn's `MetricFrame.by_group`).

        Raises
        ------
        OutputError: as for `gaps`.
        """
        return self.gaps.select(*_KEYS, "attribute", "group", "rate", value="mean_rate")

    @property
    def overall(self) -> pl.LazyFrame:
        """Read each rate's mean over the groups of an attribute (`MetricFrame.overall`).

        Raises
        ------
        OutputError: as for `gaps`.
        """
        inside = self.gaps.filter("in_mean")
        by = inside.group_by(*_KEYS, "attribute", "rate", maintain_order=True)
        return by.agg(value=pl.col("mean_rate").mean())

    @property
    def difference(self) -> pl.LazyFrame:
        """Read the largest difference between groups of each rate (`MetricFrame.difference`).

        Noise makes it too large on average; the table `spans` also has it `corrected`.

        Raises
        ------
        OutputError: as for `gaps`.
        """
        return self._of_probes("spans").select(*_KEYS, "attribute", "rate", value="span")

    def _of_probes(self, table: str) -> pl.LazyFrame:
        if not self.study.probes:
            raise OutputError(
                f"has no {table}, since its study has no `probes`",
                where=self.out,
                cure=f"read one of {', '.join(self.tables) or 'its tables once it ran'}",
            )
        return self.table(table)

    @property
    def estimates(self) -> pl.LazyFrame:
        """Read the estimates of pairs and questions (`schema.ESTIMATES`).

        Raises
        ------
        OutputError: the study asks neither, or has not run.
        """
        return self.table("estimates")

    @property
    def runs(self) -> pl.LazyFrame:
        """Read one row per run (`schema.RUNS`): steps, losses, accuracies, whether it was kept."""
        from raybias.study_record import read_runs

        return read_runs(self.store).lazy()

    @property
    def predictions(self) -> pl.LazyFrame:
        """Scan the predictions of every run on every item (`schema.PREDICTIONS`).

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
        from raybias.report import estimates, headline, verdict

        lines = [self.study.name]
        if "gaps" in self.tables:
            gaps = self.gaps.collect()
            lines += [verdict(gaps), headline(gaps)]
        if "estimates" in self.tables:
            parts = estimates.parts(self.estimates.collect())
            lines += [said for part in parts for said in (*part["unable"], *part["said"])]
        tables = ", ".join(self.tables) or "none yet; run its study"
        return "\n".join([*lines, f"tables: {tables}", f"report: {self.report}"])

    def _repr_html_(self) -> str:
        shown = [name for name in ("gaps", "estimates") if name in self.tables]
        frames = [self.table(name).collect()._repr_html_() for name in shown]
        return "\n".join([f"<pre>{escape(str(self))}</pre>", *frames])
