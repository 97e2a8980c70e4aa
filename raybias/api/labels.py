"""Let people label what a judge labelled: draw a sheet, and read it back into a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from raybias.api.studies import write_report
from raybias.results import Results
from raybias.storage import Store
from raybias.study_record import read_record, study_place


def judge_sheet(
    study: str | Path, out: str | Path, *, of_group: int = 50, seed: int = 0
) -> pl.DataFrame:
    """Draw texts that a judge labelled, for people to label too; write and return the sheet.

    Parameters
    ----------
    study: OUT of `run`.
    out: path or URI of a CSV: row, prompt, continuation, and label, which people fill in.
    of_group: texts of each group of each model, drawn at random; at least 20.
    seed: of the draw.

    Raises
    ------
    ConfigError: fewer texts of a group than its gap can be corrected by.
    OutputError: no OUT of a study, no judge in it, or labels that it has already.
    """
    from raybias.report.judges import draw_sheet

    store = Store(study_place(study))
    return draw_sheet(store, read_record(store).study, str(out), of_group=of_group, seed=seed)


def judge_labels(
    study: str | Path, sheet: str | Path, *, labels: Mapping[str, str] | None = None
) -> Results:
    """Read people's labels of judged texts into OUT; write its table `judged` and page again.

    Parameters
    ----------
    study: OUT of `run`.
    sheet: of `judge_sheet`, every label filled in.
    labels: the label that each value of the sheet stands for, besides the study's own names; by
        default its labels and their numbers.

    Raises
    ------
    OutputError: no OUT of a study, or no sheet was drawn of it.
    DataError: a row that was not drawn, is missing or there twice, or has no label.
    """
    from raybias.report.judges import add_labels

    store = Store(study_place(study))
    add_labels(store, str(sheet), read_record(store).study.labels, meant=labels or None)
    return write_report(study)
