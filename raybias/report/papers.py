"""Write the figures and tables of the three papers that a study's results can fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from raybias import schema
from raybias.config import Study
from raybias.errors import DataError
from raybias.report.judged import Judged
from raybias.report.paper_files import FOLDER, PaperInputs
from raybias.report.paper_gaps import kohankhaki_files, tian_files
from raybias.report.paper_styles import zhao_files
from raybias.report.rendering import Drawn, write_figures
from raybias.storage import Store
from raybias.study_record import Record
from raybias.table_files import columns_of
from raybias.table_rules import read_checked

#: What fills at least one of them.
_CURE = (
    "run a study with sentences under groups (`probes`) and a method that labels them, or with "
    "`pairs` and the methods pair_score or coreference"
)


def write_papers(
    store: Store,
    study: Study,
    record: Record,
    *,
    found: pl.DataFrame,
    judged: Judged,
    composition: pl.DataFrame | None,
) -> None:
    """Write OUT/figures/paper: figures as SVG, tables as CSV and Markdown.

    Parameters
    ----------
    found: of schema.ESTIMATES.
    judged: its gaps, under the scope that decides.
    composition: of `stats.counts.composition`; None without probes.

    Raises
    ------
    DataError: the results fill none of the figures and tables.
    """
    inputs = PaperInputs(
        estimates=found,
        gaps=judged.gaps,
        composition=composition,
        models=models_by_size([each.name for each in study.backbones], record.parameters),
        # Of a text that a judge labels, the model made no classifier.
        ways={each.name: each.way for each in study.methods if each.way and not each.judged_by},
        sources={each.name: each.source for each in (*study.probes, *study.pairs)},
        intervals=_intervals(judged, study.statistics.level),
        pair_items=_pair_items(store, study),
    )
    made = [*tian_files(inputs), *zhao_files(inputs), *kohankhaki_files(inputs)]
    if not made:
        raise DataError(
            "has no results that a figure or table of the papers shows",
            where=store.uri,
            cure=_CURE,
        )
    for each in made:
        if isinstance(each, Drawn):
            write_figures(store, [each], FOLDER)
        else:
            each.write(store, FOLDER)


def models_by_size(names: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Sort models by their numbers of parameters; as they are if one is not known."""
    if any(name not in sizes for name in names):
        return [*names]
    return sorted(names, key=sizes.__getitem__)


def _pair_items(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Read the pairs of sentences of OUT/items; items of other shapes are left out."""
    files = {each.name: f"items/{each.name}.parquet" for each in study.pairs}
    wanted = {*schema.PAIRS.names}
    return {
        name: read_checked(store, file, schema.PAIRS)
        for name, file in files.items()
        if store.exists(file) and wanted <= {*columns_of(store, file)}
    }


def _intervals(judged: Judged, level: float) -> str:
    """Say what the intervals of gaps cover."""
    scopes = judged.gaps.drop_nulls("low")["scope"].unique(maintain_order=True)
    drawn = " or ".join(judged.redrawn.get(scope, scope) for scope in scopes)
    return f"{100 * level:g}% intervals, as if {drawn}" if drawn else "no intervals"
