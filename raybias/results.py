"""Open a finished study's OUT: its tables, runs and predictions as Polars frames."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from raybias.config import Study
from raybias.errors import OutputError
from raybias.schema import KEYS, PREDICTIONS, TABLES
from raybias.storage import Store
from raybias.study_record import read_record, read_runs, study_place
from raybias.table_files import read_frame
from raybias.table_rules import read_checked

if TYPE_CHECKING:
    from raybias.report.rendering import Shown


class Gaps(pl.LazyFrame):
    """Gaps (`schema.ESTIMATES`) that draw themselves, also what `filter` leaves of them."""

    def plot(self, *, level: float = 0.95) -> Shown:
        """Draw the clearest gaps, and where that is not all, a figure per attribute.

        Parameters
        ----------
        level: of the intervals, for the axis.
        """
        from raybias.report.forest import gap_forests
        from raybias.report.rendering import Shown

        return Shown(tuple(gap_forests(self.collect(), level=level)))


class Results:
    """The results of a study, read from its OUT when they are asked for.

    Parameters
    ----------
    out: folder or URI of a study that was run; of an audit with looks, its last look is read.

    Raises
    ------
    OutputError: OUT holds no study. Reading what it lacks, such as the gaps of a study without
        `probes`, raises it too, and names the tables that there are.
    """

    def __init__(self, out: str | Path) -> None:

        self.store = Store(study_place(out))
        self._record = read_record(self.store)

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
        """Read a table of OUT/tables."""
        from raybias.report.outs import read_estimates

        if name not in self.tables:
            raise OutputError(
                f"has no table {name!r}",
                where=self.out,
                cure=f"choose among {', '.join(self.tables)}" if self.tables else "run its study",
            )
        file = f"tables/{name}.parquet"
        if name == "estimates":
            return read_estimates(self.store, may_be_empty=True).lazy()
        if name in TABLES:
            return read_checked(self.store, file, TABLES[name], may_be_empty=True).lazy()
        return read_frame(self.store, file).lazy()

    @property
    def gaps(self) -> Gaps:
        """Read the gaps with intervals and verdicts, one row each (`schema.ESTIMATES`)."""
        from raybias.measures.prediction_rows import gap_rows
        from raybias.report.outs import as_reported

        scope = as_reported(self.store, self.study).statistics.scope
        return Gaps(gap_rows(self._of_probes().collect(), scope))

    @property
    def accuracy(self) -> pl.LazyFrame:
        """Read the accuracies on the probes (`schema.ESTIMATES`)."""
        return self._of_probes().filter(score="accuracy", statistic="rate", group="all")

    @property
    def answers(self) -> pl.LazyFrame:
        """Read how many answers of prompted runs named no label (`schema.ANSWERS`)."""
        self._of_probes()
        return self.table("answers")

    @property
    def by_group(self) -> pl.LazyFrame:
        """Read each group's rates, averaged over runs (fairlearn's `MetricFrame.by_group`)."""
        from raybias.stats.draws import SCORES

        # Scores over all draws of a prompt are not averages over runs.
        rates = self._of_probes().filter(
            pl.col("model") != "all",
            pl.col("group") != "all",
            ~pl.col("score").is_in(SCORES),
            statistic="rate",
        )
        keys = (*KEYS, "attribute", "group", "score")
        return rates.unique(keys, keep="first", maintain_order=True).select(*keys, "value")

    @property
    def overall(self) -> pl.LazyFrame:
        """Read each rate's mean over the groups of an attribute (`MetricFrame.overall`).

        Groups that are not in the mean are left out.
        """
        keys = (*KEYS, "attribute", "group", "score")
        inside = self.gaps.filter(condition="").select(keys)
        by = self.by_group.join(inside, on=keys, nulls_equal=True, maintain_order="left").group_by(
            *KEYS, "attribute", "score", maintain_order=True
        )
        return by.agg(pl.col("value").mean())

    @property
    def difference(self) -> pl.LazyFrame:
        """Read the largest difference between groups of each rate (`MetricFrame.difference`).

        `reason` names the groups that are not in the mean, which this leaves out. Noise makes it
        too large on average; the score `NAME_less_noise` is without that.
        """
        spans = self._of_probes().filter(
            ~pl.col("score").str.ends_with("_less_noise"), group="all", statistic="difference"
        )
        return spans.select(*KEYS, "attribute", "score", "value", "reason")

    def _of_probes(self) -> pl.LazyFrame:
        if not self.study.probes:
            raise OutputError(
                "has no gaps, since its study has no `probes`",
                where=self.out,
                cure=f"read one of {', '.join(self.tables) or 'its tables once it ran'}",
            )
        return self.estimates.filter(pl.col("kind") == "predictions")

    @property
    def estimates(self) -> pl.LazyFrame:
        """Read all estimates (`schema.ESTIMATES`)."""
        return self.table("estimates")

    @property
    def runs(self) -> pl.LazyFrame:
        """Read one row per run (`schema.RUNS`): steps, losses, accuracies, whether it was kept."""
        return read_runs(self.store).lazy()

    @property
    def predictions(self) -> pl.LazyFrame:
        """Scan the predictions of every run on every item (`schema.PREDICTIONS`)."""
        import pyarrow.dataset as pads

        names = self.store.files("predictions", suffix=".parquet", recursive=True)
        if not names:
            raise OutputError("holds no predictions", where=self.out, cure="run its study")
        paths = [self.store.path(name) for name in names]
        found = pads.dataset(paths, filesystem=self.store.fs, schema=PREDICTIONS, format="parquet")
        return pl.scan_pyarrow_dataset(found)

    def __repr__(self) -> str:
        return f"Results({self.out!r})"

    def __str__(self) -> str:
        from raybias.measures.prediction_rows import KIND
        from raybias.report.estimates import parts_of
        from raybias.report.headline import by_scope, verdict
        from raybias.report.judged import Judged
        from raybias.report.wording import describing
        from raybias.stats.redrawn import have_seeds

        lines = [self.study.name]
        if "estimates" in self.tables:
            found = self.estimates.collect()
            if self.study.probes:
                seeds = have_seeds(self.runs.collect())
                judged = Judged.of(found, self.study.statistics.scope, has_seeds=seeds)
                with describing(self.study):
                    lines += [verdict(judged), by_scope(judged)]
            for part in parts_of(found.filter(pl.col("kind") != KIND)):
                lines += [*part["unable"], *part["said"]]
        tables = ", ".join(self.tables) or "none yet; run its study"
        return "\n".join([*lines, f"tables: {tables}", f"report: {self.report}"])

    def _repr_html_(self) -> str:
        shown = self.estimates.collect()._repr_html_() if "estimates" in self.tables else ""
        return f"<pre>{escape(str(self))}</pre>\n{shown}"
